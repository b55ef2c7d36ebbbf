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
use crate::progress;

/// The folder in a dSYM bundle that contains its files.
const IN_BUNDLE: &str = "Contents/Resources/DWARF";

/// What a person says about symbols.
#[derive(clap::Args)]
pub(crate) struct SymbolArguments {
    /// A folder or file with debug information: dSYM bundles, ELF debug files, breakpad `.sym`, unstripped programs; may be
    /// given more than once. What has an image's build id is used
    #[arg(long = "symbols", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Where to remember between calls what the folders hold; without it, $CORONER_CACHE or `coroner` in the user's folder for caches
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Remember nothing, and read every file of the folders again
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Ask no debuginfod server: without this, those that DEBUGINFOD_URLS names are asked for debug files of system libraries
    #[arg(long)]
    no_debuginfod: bool,
}

impl SymbolArguments {
    /// Returns the options after checking that all named paths exist.
    pub(crate) fn search(&self) -> Result<SymbolSearch, Failure> {
        let mut paths = Vec::new();
        for path in &self.paths {
            if !path.exists() {
                return Err(Failure::new(format!("there is nothing at `{}` to take symbols from", path.display())));
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
    pub(crate) fn are_of(&self, images: &[ImageKey]) -> bool {
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
                if parts.iter().any(|part| images.iter().any(|image| part.is_of(image))) {
                    matched += 1;
                } else if parts.iter().any(SymbolFile::can_name) {
                    others += 1;
                    let ids: Vec<DebugId> = parts.iter().filter_map(|part| part.debug_id().cloned()).collect();
                    warn(&of_no_image(&path, &ids, images));
                }
            }
        }
        matched > 0 || others == 0
    }

    /// Creates a symbolizer that doesn't use servers.
    pub(crate) fn local(&self) -> Result<Symbolizer, Failure> {
        let SymbolSearch { paths: search, index_cache } = self.search()?;
        Ok(Symbolizer::new(Options { search, index_cache, ..Options::default() }))
    }

    /// Creates a symbolizer that has searched the folders.
    pub(crate) fn symbolizer(&self) -> Result<Symbolizer, Failure> {
        let SymbolSearch { paths: search, index_cache } = self.search()?;
        let mut symbolizer = Symbolizer::new(Options {
            search,
            index_cache,
            debuginfod: Debuginfod::from_environment().filter(|_| !self.no_debuginfod),
            ..Options::default()
        });
        let progress = progress::spinner("reading symbol files");
        let mut read = 0_usize;
        symbolizer.search(&mut |path| {
            read += 1;
            progress.set_message(format!("reading symbol files: {read}, {}", name_of(path)));
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
        let said = || std::env::var_os("CORONER_CACHE").filter(|said| !said.is_empty()).map(PathBuf::from);
        let folder = self.cache.clone().or_else(said).or_else(default_cache)?;
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
        return Err(Failure::new(format!("`{}` is a folder, and no dSYM bundle", path.display()))
            .advice("name files; `coroner symbolicate --symbols` takes folders"));
    }
    let unlisted = || format!("can't list `{}`", bundle.display());
    let entries = std::fs::read_dir(&bundle).context(unlisted())?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = paths.collect::<Result<_, _>>().context(unlisted())?;
    files.sort();
    Ok(files)
}

/// Returns a report's images.
pub(crate) fn keys(report: &Report) -> Vec<ImageKey> {
    report.images.iter().map(|image| ImageKey::of_image(image, Arch::Other)).collect()
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
    pub(crate) fn about_to(&self, image: &ImageKey, frames: usize) {
        self.0.set_message(format!("{frames} frames looked up; reading {}", name_of(&image.path)));
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
pub(crate) fn tell(symbolizer: &mut Symbolizer, images: &[ImageSymbols], program: Option<&Path>) -> bool {
    let sum = |count: fn(&ImageSymbols) -> usize| images.iter().map(count).sum::<usize>();
    let (frames, named, lines) = (sum(|image| image.frames), sum(|image| image.named), sum(|image| image.lines));
    let dim = Style::new().dimmed();
    anstream::eprintln!("{dim}{named} of {frames} frames have a name, {lines} a source line{dim:#}");
    for image in images {
        let status = symbolizer.status(&image.key);
        if image.named < image.frames || image.lines == 0 {
            let name = name_of(&image.key.path);
            let why = why(&status.matched, image);
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
        let name = name_of(&program.key.path);
        let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
        anstream::eprintln!(
            "{yellow}warning{yellow:#}: no frame of the program `{name}` has a name: give its debug file{id} with `--symbols`"
        );
        return false;
    }
    frames == 0 || named > 0
}

/// Explains in one line why the app's own frames of the reported stack have no names.
///
/// `None` if they have names, or none is known to be the app's.
pub(crate) fn why_unnamed(report: &mut Report, symbolizer: &mut Symbolizer) -> Option<String> {
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
    let (name, why) = (name_of(&module), why(matched, &image));
    let advice = if why.contains("--symbols") { "" } else { ": give its debug file with `--symbols`" };
    Some(format!("functions of `{name}` have no names: {why}{advice}"))
}

/// Explains an image's match.
fn why(matched: &Match, image: &ImageSymbols) -> String {
    let key = &image.key;
    let id = key.debug_id.as_ref().map_or_else(|| "no id".to_owned(), |id| format!("id {id}"));
    match matched {
        Match::Matched | Match::NoSymbols if image.named == 0 => {
            format!("stripped: give its debug file ({id}) with `--symbols`")
        }
        Match::Matched if image.lines > 0 => format!("what has its {id} names no more"),
        Match::Matched => format!("symbols without source lines ({id})"),
        Match::Unverified => "the image has no id: what is at its path may be another build".to_owned(),
        Match::Mismatched { path, found } => {
            format!("`{}` is of another build: it has {}, the report's {id}", path.display(), ids(found))
        }
        Match::NoSymbols => format!("what has its {id} has no symbols"),
        _ if key.debug_id.is_none() => "the report does not say its id: no file is known to be of it".to_owned(),
        _ => format!("no symbols with its {id} were found"),
    }
}

/// Formats one id, or the ids of several architectures.
fn ids(ids: &[DebugId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    if ids.is_empty() { "no id".to_owned() } else { format!("id {}", ids.join(", ")) }
}

/// Returns a library's common name for `libpaint.so.debug`, `libpaint.so` and `libpaint.sym`.
pub(crate) fn stem(path: &Path) -> String {
    let name = name_of(path);
    name.trim_end_matches(".debug").trim_end_matches(".sym").trim_end_matches(".so").to_owned()
}

/// Formats the ids of a symbol file without a matching image, and of images it could belong to.
///
/// These are the images with its name, or else the program.
fn of_no_image(path: &Path, ids_of_file: &[DebugId], images: &[ImageKey]) -> String {
    let id = |image: &ImageKey| ids(image.debug_id.as_slice());
    let meant: Vec<&ImageKey> = images.iter().filter(|image| stem(&image.path) == stem(path)).collect();
    let mut said = format!("`{}` has {} and is of none of the report's images", path.display(), ids(ids_of_file));
    for image in if meant.is_empty() { images.get(..1).unwrap_or_default().iter().collect() } else { meant } {
        said.push_str(&format!("; `{}` has {}", name_of(&image.path), id(image)));
    }
    said
}

fn warn(problem: &impl Display) {
    let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
    anstream::eprintln!("{yellow}warning{yellow:#}: {problem}");
}

pub(crate) fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()
}
