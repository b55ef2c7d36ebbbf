//! Symbol search options, progress messages and results.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use coroner::{Report, SymbolSearch};
use coroner_report::model::{Frame, InApp, InAppRules};
use coroner_symbols::{Arch, DebugId, Debuginfod, ImageKey, ImageSymbols, Match, Options, SymbolFile, Symbolizer};
use indicatif::ProgressBar;

use crate::failure::{Context, Failure};
use crate::terminal::sanitize;
use crate::{foreign_reports, progress};

/// The folder in a dSYM bundle that contains its files.
const IN_BUNDLE: &str = "Contents/Resources/DWARF";

/// Options for symbols.
#[derive(clap::Args)]
pub(crate) struct SymbolArguments {
    /// File or folder with debug information; repeatable
    ///
    /// Unstripped programs, ELF debug files, dSYM bundles and Breakpad `.sym` files are matched by
    /// build ID.
    #[arg(long = "symbols", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Cache for the folders' index [default: $CORONER_CACHE, or coroner in the user's cache
    /// directory]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Don't cache the folders' index
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Don't download debug files from the servers in $DEBUGINFOD_URLS
    #[arg(long)]
    no_debuginfod: bool,
}

/// The symbols of commands that list reports.
#[derive(clap::Args)]
pub(crate) struct ListSymbols {
    /// File or folder with debug information, as for `coroner show`; repeatable
    #[arg(long = "symbols", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl ListSymbols {
    /// Creates a symbolizer; also returns whether symbols were named, with which all reports are
    /// read. Otherwise it uses the images' own files without their lines, which take long.
    pub(crate) fn symbolizer(self) -> Result<(Symbolizer, bool), Failure> {
        if self.paths.is_empty() {
            return Ok((Symbolizer::new(Options { debug_info: false, ..Options::default() }), false));
        }
        let named = SymbolArguments { paths: self.paths, cache: None, no_cache: false, no_debuginfod: true };
        Ok((named.symbolizer()?, true))
    }
}

impl SymbolArguments {
    /// Returns the options after checking that all named paths exist.
    pub(crate) fn search(&self) -> Result<SymbolSearch, Failure> {
        let mut paths = Vec::new();
        for path in &self.paths {
            if !path.exists() {
                return Err(Failure::new(format!(
                    "can't search `{}` for symbols: no such file or folder",
                    path.display()
                )));
            }
            // The cache is used from other directories, too.
            paths.push(std::path::absolute(path).context(format!("can't find `{}`", path.display()))?);
        }
        let index_cache = self.cache_file(&paths);
        Ok(SymbolSearch { paths, index_cache })
    }

    /// Reports each named file that matches no image of a report, with its id.
    ///
    /// Returns false if files were named and none matches. Folders may contain files of any image.
    pub(crate) fn match_images(&self, images: &[ImageKey]) -> bool {
        let (mut matched, mut others) = (0, 0);
        for path in &self.paths {
            let files = symbol_files(path).unwrap_or_default();
            if files.is_empty() {
                matched += 1;
            }
            for path in files {
                // A damaged file is reported when it is read.
                let parts = SymbolFile::open(&path).unwrap_or_default();
                // Debug information that other files refer to (dwp, dwz) belongs to no image.
                if parts.iter().any(|part| images.iter().any(|image| part.matches(image))) {
                    matched += 1;
                } else if parts.iter().any(SymbolFile::can_name) {
                    others += 1;
                    let ids: Vec<DebugId> = parts.iter().filter_map(|part| part.debug_id().cloned()).collect();
                    warn(&describe_mismatch(&path, &ids, images));
                }
            }
        }
        matched > 0 || others == 0
    }

    /// Creates a symbolizer for the report that `what` names. It uses servers for a dump, which is
    /// symbolized each time.
    pub(crate) fn symbolizer_for(&self, what: Option<&str>) -> Result<Symbolizer, Failure> {
        match what.and_then(|what| foreign_reports::dump_form(Path::new(what))) {
            Some(_) => self.symbolizer(),
            None => self.local(),
        }
    }

    /// Creates a symbolizer that doesn't use servers.
    pub(crate) fn local(&self) -> Result<Symbolizer, Failure> {
        let SymbolSearch { paths: search, index_cache } = self.search()?;
        Ok(Symbolizer::new(Options { search, index_cache, ..Options::default() }))
    }

    /// Creates a symbolizer that has searched the folders.
    pub(crate) fn symbolizer(&self) -> Result<Symbolizer, Failure> {
        let SymbolSearch { paths: search, index_cache } = self.search()?;
        let mut debuginfod = Debuginfod::from_environment().filter(|_| !self.no_debuginfod);
        if let Some(servers) = &mut debuginfod {
            servers.before_first_request = Some(|url| anstream::eprintln!("asking the debuginfod server {url}"));
        }
        let mut symbolizer = Symbolizer::new(Options { search, index_cache, debuginfod, ..Options::default() });
        let progress = progress::spinner("reading symbol files");
        let mut read = 0_usize;
        symbolizer.search(&mut |path| {
            read += 1;
            progress.set_message(format!("reading symbol files: {read}, {}", file_name(path)));
        });
        progress.finish_and_clear();
        for problem in symbolizer.search_problems() {
            warn(problem);
        }
        Ok(symbolizer)
    }

    /// The cache file for these folders: one per set, so that sets don't displace each other.
    fn cache_file(&self, search: &[PathBuf]) -> Option<PathBuf> {
        if self.no_cache || search.is_empty() {
            return None;
        }
        let named = || std::env::var_os("CORONER_CACHE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let folder = self.cache.clone().or_else(named).or_else(default_cache)?;
        let mut hash = DefaultHasher::new();
        search.hash(&mut hash);
        Some(folder.join(format!("symbols-{:016x}.index", hash.finish())))
    }
}

/// Returns the file itself, or a dSYM bundle's files.
pub(crate) fn symbol_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let bundle = path.join(IN_BUNDLE);
    if !bundle.is_dir() {
        return Err(Failure::new(format!("`{}` is a folder but not a dSYM bundle", path.display()))
            .advice("give files; only `--symbols` of other commands accepts folders"));
    }
    let unlisted = || format!("can't list `{}`", bundle.display());
    let entries = std::fs::read_dir(&bundle).context(unlisted())?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = paths.collect::<Result<_, _>>().context(unlisted())?;
    files.sort();
    Ok(files)
}

/// Returns a report's images.
pub(crate) fn image_keys(report: &Report) -> Vec<ImageKey> {
    report.images.iter().map(|image| ImageKey::from_image(image, Arch::Other)).collect()
}

/// Returns `coroner` in the system's cache folder.
pub(crate) fn default_cache() -> Option<PathBuf> {
    let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = if cfg!(target_vendor = "apple") {
        absolute("HOME").map(|home| home.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
    };
    Some(caches?.join("coroner"))
}

/// Shows which image is being opened: large ones take seconds.
pub(crate) struct Naming(ProgressBar);

impl Naming {
    pub(crate) fn begin() -> Self {
        Self(progress::spinner("looking up function names"))
    }

    /// Shows that `image` is about to be opened.
    pub(crate) fn set_image(&self, image: &ImageKey, frames: usize) {
        self.0.set_message(format!("{frames} frames looked up; reading {}", file_name(&image.path)));
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Reports on standard error how many frames were named, and why others were not.
///
/// Returns false if there are frames but none is named, or none in the `program` itself, which
/// matters most.
pub(crate) fn print_result(symbolizer: &mut Symbolizer, images: &[ImageSymbols], program: Option<&Path>) -> bool {
    let sum = |count: fn(&ImageSymbols) -> usize| images.iter().map(count).sum::<usize>();
    let (frames, named, lines) = (sum(|image| image.frames), sum(|image| image.named), sum(|image| image.lines));
    let dim = Style::new().dimmed();
    anstream::eprintln!("{dim}{named} of {frames} frames have a name, {lines} have a source line{dim:#}");
    for image in images {
        let status = symbolizer.status(&image.key);
        if image.named < image.frames || image.lines == 0 || status.matched == Match::Unverified {
            let name = file_name(&image.key.path);
            let why = explain_match(&status.matched, image);
            anstream::eprintln!("{dim}  {name}: {} of {} frames named; {why}{dim:#}", image.named, image.frames);
        }
        for problem in &status.problems {
            warn(problem);
        }
    }
    let is_unnamed =
        |image: &&ImageSymbols| Some(image.key.path.as_path()) == program && image.frames > 0 && image.named == 0;
    if let Some(program) = images.iter().find(is_unnamed) {
        let id = program.key.debug_id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
        let name = file_name(&program.key.path);
        let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
        anstream::eprintln!(
            "{yellow}warning{yellow:#}: no frame of the program `{name}` has a name; give its debug file{id} with `--symbols`"
        );
        return false;
    }
    frames == 0 || named > 0
}

/// Explains in one line why the app's own frames of the reported stack have no names.
///
/// `None` if they have names, or none is known to be the app's.
pub(crate) fn explain_missing_names(report: &mut Report, symbolizer: &mut Symbolizer) -> Option<String> {
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    let thrown = report.exceptions.first().map(|exception| &exception.frames[..]).filter(|frames| !frames.is_empty());
    let frames = thrown.unwrap_or_else(|| report.crashed_frames());
    let is_unnamed =
        |frame: &&Frame| in_app.functions(frame).all(|function| function.in_app && function.name.is_none());
    let module = PathBuf::from(frames.iter().find(is_unnamed)?.module.as_deref()?);
    // Only files that were opened to name them are queried again.
    let images = symbolizer.symbolicate_report(report);
    let image = images.into_iter().find(|image| image.key.path == module)?;
    let matched = &symbolizer.status(&image.key).matched;
    if image.named > 0 && *matched == Match::Matched {
        return None;
    }
    let (name, why) = (file_name(&module), explain_match(matched, &image));
    let advice = if why.contains("--symbols") { "" } else { "; give its debug file with `--symbols`" };
    Some(format!("functions of `{name}` have no names: {why}{advice}"))
}

/// Explains an image's match.
fn explain_match(matched: &Match, image: &ImageSymbols) -> String {
    let key = &image.key;
    let id = key.debug_id.as_ref().map_or_else(|| "no ID".to_owned(), |id| format!("ID {id}"));
    match matched {
        Match::Matched | Match::NoSymbols if image.named == 0 => {
            format!("stripped; give its debug file ({id}) with `--symbols`")
        }
        Match::Matched if image.lines > 0 => format!("the file with {id} has no other names"),
        Match::Matched => format!("the file with {id} has no source lines"),
        Match::Unverified => "unverified: the image has no ID, and its file may be another build".to_owned(),
        Match::Mismatched { path, .. } if key.debug_id.is_none() => {
            format!("`{}` is another build: its code or its time differs from the report's", path.display())
        }
        Match::Mismatched { path, found } => {
            format!("`{}` is another build: it has {}, the report has {id}", path.display(), format_ids(found))
        }
        Match::NoSymbols => format!("the file with {id} has no symbols"),
        _ if key.debug_id.is_none() => "the report doesn't contain its ID, so no file can be matched".to_owned(),
        _ => format!("no symbols with {id} found"),
    }
}

/// Formats one id, or the ids of several architectures.
fn format_ids(ids: &[DebugId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    if ids.is_empty() { "no ID".to_owned() } else { format!("ID {}", ids.join(", ")) }
}

/// Returns a library's common name for `libpaint.so.debug`, `libpaint.so` and `libpaint.sym`.
pub(crate) fn stem(path: &Path) -> String {
    let name = file_name(path);
    name.trim_end_matches(".debug").trim_end_matches(".sym").trim_end_matches(".so").to_owned()
}

/// Formats the ids of a symbol file without a matching image, and of images it could belong to.
///
/// These are the images with its name, or else the program.
fn describe_mismatch(path: &Path, ids_of_file: &[DebugId], images: &[ImageKey]) -> String {
    let id = |image: &ImageKey| format_ids(image.debug_id.as_slice());
    let meant: Vec<&ImageKey> = images.iter().filter(|image| stem(&image.path) == stem(path)).collect();
    let mut text = format!("`{}` ({}) matches none of the report's images", path.display(), format_ids(ids_of_file));
    for image in if meant.is_empty() { images.get(..1).unwrap_or_default().iter().collect() } else { meant } {
        text.push_str(&format!("; `{}` has {}", file_name(&image.path), id(image)));
    }
    text
}

fn warn(problem: &impl Display) {
    let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
    anstream::eprintln!("{yellow}warning{yellow:#}: {}", sanitize(&problem.to_string()));
}

/// Returns a file's name for messages.
pub(crate) fn file_name(path: &Path) -> String {
    sanitize(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}
