//! Reports that other systems wrote, as Coroner's: `coroner import`, and what the other commands read of them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use coroner::Report;
use coroner_formats::apple_report::AppleReport;
use coroner_formats::dump::{Form, Noted};
use coroner_formats::log::{LogError, MAX_LOG_BYTES};
use coroner_formats::tombstone::TombstoneError;
use coroner_report::model::{Id, Timestamp};
use coroner_symbols::{ImageKey, Symbolizer};

use crate::failure::{Context, Failure};
use crate::report_files::JSON;
use crate::reports::{self, REPORTS, Texts};
use crate::symbol_search::{SymbolArguments, keys};
use crate::{terminal, whole_file};

/// Reads what Android, an Apple system or Swift's runtime wrote of a death: which form it is, its content says. `None` if it is none that is known.
pub(crate) fn read(bytes: &[u8]) -> Option<Result<Report, String>> {
    match coroner_formats::tombstone::read(bytes) {
        Err(TombstoneError::NotATombstone) if AppleReport::is_likely(bytes) => {
            Some(coroner_formats::apple_report::read_report(bytes).map_err(|error| error.to_string()))
        }
        Err(TombstoneError::NotATombstone) => {
            Some(coroner_formats::swift_crash_log::read_swift_crash_log(bytes)?.map_err(|error| error.to_string()))
        }
        read => Some(read.map_err(|error| error.to_string())),
    }
}

/// Which kind of dump the file at `path` is: a core dump, compressed or not, a minidump, a report of apport.
pub(crate) fn form_of(path: &Path) -> Option<Form> {
    // To open a pipe would wait for its other end.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut start = Vec::new();
    reports::open_regular(path).ok()?.take(32).read_to_end(&mut start).ok()?;
    Form::of(&start)
}

/// Reads a dump, which may be larger than memory. What was on the stacks is not in the report.
pub(crate) fn read_dump(path: &Path, symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    match symbols {
        Some(symbols) => without_memory(path, symbols),
        None => without_memory(path, &mut Symbolizer::new(coroner_symbols::Options::default())),
    }
}

fn without_memory(path: &Path, symbolizer: &mut Symbolizer) -> Result<Report, Failure> {
    let mut report = read_dump_with(path, symbolizer)?;
    if form_of(path) != Some(Form::Minidump) {
        report.stack_memory.clear();
    }
    Ok(report)
}

/// The same with the symbols of `symbolizer`, and with what was on the stacks.
pub(crate) fn read_dump_with(path: &Path, symbolizer: &mut Symbolizer) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let file = File::open(path).context(doing())?;
    let modified = file.metadata().and_then(|metadata| metadata.modified()).ok().map(Timestamp::from);
    let noted = noted_of(path);
    // SAFETY: the mapping is only read. A file that is cut off while it is read ends this command by SIGBUS, as it does every debugger.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.context(doing())?;
    let progress = reports::spinner("walking the stacks");
    let time = noted.as_ref().and_then(|noted| noted.time).or(modified);
    let read = coroner_formats::dump::read(&bytes, time, symbolizer);
    progress.finish_and_clear();
    let mut report = read.context(doing())?;
    if let Some(noted) = noted {
        noted.apply(&mut report);
    }
    Ok(report)
}

/// What the machine's crash service noted beside a core dump.
#[cfg(target_os = "linux")]
fn noted_of(path: &Path) -> Option<Noted> {
    coroner_formats::dump::noted_by_systemd(path)
}

#[cfg(not(target_os = "linux"))]
fn noted_of(_: &Path) -> Option<Noted> {
    None
}

/// What a person gives.
#[derive(clap::Args)]
pub(crate) struct ImportArguments {
    /// Core dumps, minidumps, apport's .crash, Apple's .ips and .crash, Android tombstones and ANR traces, Swift's crash logs (SWIFT_BACKTRACE=format=json), reports of Coroner; or folders, of which
    /// all core dumps, minidumps and reports of apport are taken in
    #[arg(required_unless_present = "log", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A log, of whose lines each report of AddressSanitizer and each panic of Go and Rust is taken in; `-` is standard input. A pipe must have
    /// somebody who writes to it. May be given more than once
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// The folder to write to, instead of the store's
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    symbols: SymbolArguments,
}

/// Makes a report of each file, as JSON in the folder of a store.
pub(crate) fn run(arguments: ImportArguments, store: Option<PathBuf>) -> Result<(), Failure> {
    let folder = arguments.output.or_else(|| store.map(|store| store.join(REPORTS)));
    let folder =
        folder.ok_or_else(|| Failure::new("there is no store to import to").advice("name one with `--store DIR`"))?;
    let mut symbolizer = arguments.symbols.symbolizer()?;
    let (mut failed, mut images) = (0, Vec::new());
    // All files are taken in, also where nobody reads that they were.
    let mut said = Ok(());
    let mut all: Vec<(PathBuf, bool)> = Vec::new();
    for path in arguments.files {
        match path.is_dir() {
            true => all.extend(dumps_in(&path)?.into_iter().map(|path| (path, false))),
            false => all.push((path, false)),
        }
    }
    all.extend(arguments.log.into_iter().map(|path| (path, true)));
    for (path, is_log) in &all {
        let imported = match is_log {
            true => import_log(path, &folder, &mut symbolizer),
            false => import(path, &folder, &mut symbolizer, &mut images).map(|id| vec![id]),
        };
        match imported {
            Ok(ids) => {
                for id in ids {
                    said = said.and(terminal::say(format_args!("{id}  {}", path.display())));
                }
            }
            Err(failure) => {
                failed += 1;
                failure.print();
            }
        }
    }
    if !images.is_empty() {
        arguments.symbols.are_of(&images);
    }
    match (failed, all.len()) {
        (0, _) => Ok(said?),
        (_, 1) => Err(Failure::new("the file was not imported")),
        (failed, all) => Err(Failure::new(format!("{failed} of {all} files were not imported"))),
    }
}

/// The dumps of a folder, by their names.
fn dumps_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).context(format!("can't read `{}`", folder.display()))?;
    let mut dumps: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| form_of(path).is_some()).collect();
    dumps.sort();
    match dumps.is_empty() {
        true => Err(Failure::new(format!("there is no dump in `{}`", folder.display()))),
        false => Ok(dumps),
    }
}

fn import(path: &Path, folder: &Path, symbolizer: &mut Symbolizer, images: &mut Vec<ImageKey>) -> Result<Id, Failure> {
    let mut report = match form_of(path) {
        Some(_) => without_memory(path, symbolizer)?,
        None => reports::open_file(path, Texts::AsTheyWere, Some(symbolizer))?,
    };
    report.scrub(&coroner::hide_secrets);
    keep(&report, folder)?;
    images.extend(keys(&report));
    Ok(report.header.event_id)
}

/// The bytes of a log, and when it was last written to; of `-`, those of standard input. A pipe is read to its end, up to what a log may have; one
/// that nobody writes to has no end.
fn read_log(path: &Path) -> std::io::Result<(Vec<u8>, Option<Timestamp>)> {
    let mut bytes = Vec::new();
    let most = MAX_LOG_BYTES as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)?;
        return Ok((bytes, Some(Timestamp::from(SystemTime::now()))));
    }
    // To open a pipe otherwise waits for who writes to it, and so does the first read that finds one.
    let mut file = reports::open_regular(path)?;
    let metadata = file.metadata()?;
    if metadata.file_type().is_fifo() {
        let mut first = [0; 1];
        match file.read(&mut first) {
            Ok(0) => {
                let why = "it is a pipe that nobody writes to (`-` is standard input)";
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
            }
            Ok(read) => bytes.extend(&first[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags.difference(rustix::fs::OFlags::NONBLOCK))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, metadata.modified().ok().map(Timestamp::from)))
}

/// Takes in each death that a log has.
fn import_log(path: &Path, folder: &Path, symbolizer: &mut Symbolizer) -> Result<Vec<Id>, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let (bytes, modified) = read_log(path).context(doing())?;
    let mut reports = match coroner_formats::log::read_log(&bytes, modified) {
        // Of most logs that is as it should be.
        Err(error @ LogError::Nothing { .. }) => {
            anstream::eprintln!("`{}`: {error}", path.display());
            Vec::new()
        }
        read => read.context(doing())?,
    };
    for report in &mut reports {
        for problem in &report.problems {
            anstream::eprintln!("`{}`: {}", path.display(), problem.what);
        }
        symbolizer.symbolicate_report(report);
        report.scrub(&coroner::hide_secrets);
        keep(report, folder)?;
    }
    Ok(reports.iter().map(|report| report.header.event_id).collect())
}

/// Writes a report as JSON to a folder, which is made if it is not there, under the name that a folder sink would give it.
pub(crate) fn keep(report: &Report, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).context(format!("can't make `{}`", folder.display()))?;
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    let digits: String = time.to_string().chars().take(19).filter(|character| !"-:".contains(*character)).collect();
    let name = format!("{digits}Z-{}.{JSON}", report.header.event_id);
    whole_file::write(&folder.join(name), report.to_json().as_bytes())
}
