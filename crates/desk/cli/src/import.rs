//! `coroner import`: converts crash data of other systems to Coroner reports.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use coroner_formats::log::{LogError, MAX_LOG_BYTES};
use coroner_report::model::{Id, Timestamp};
use coroner_symbols::{ImageKey, Symbolizer};

use crate::failure::{Context, Failure};
use crate::report_reader::Texts;
use crate::store_location::REPORTS;
use crate::symbol_search::{SymbolArguments, keys};
use crate::{bounded_read, foreign_reports, report_files, report_reader, terminal};

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

/// Converts each file to a report, as JSON in a store's folder.
pub(crate) fn run(arguments: ImportArguments, store: Option<PathBuf>) -> Result<(), Failure> {
    let folder = arguments.output.or_else(|| store.map(|store| store.join(REPORTS)));
    let folder =
        folder.ok_or_else(|| Failure::new("there is no store to import to").advice("name one with `--store DIR`"))?;
    let mut symbolizer = arguments.symbols.symbolizer()?;
    let (mut failed, mut images) = (0, Vec::new());
    // All files are imported, even if standard output is closed.
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

/// Returns the dumps in a folder, sorted by name.
fn dumps_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).context(format!("can't read `{}`", folder.display()))?;
    let mut dumps: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| foreign_reports::form_of(path).is_some())
        .collect();
    dumps.sort();
    match dumps.is_empty() {
        true => Err(Failure::new(format!("there is no dump in `{}`", folder.display()))),
        false => Ok(dumps),
    }
}

fn import(path: &Path, folder: &Path, symbolizer: &mut Symbolizer, images: &mut Vec<ImageKey>) -> Result<Id, Failure> {
    let mut report = match foreign_reports::form_of(path) {
        Some(_) => foreign_reports::without_memory(path, symbolizer)?,
        None => report_reader::open_file(path, Texts::AsTheyWere, Some(symbolizer))?,
    };
    report.scrub(&coroner::hide_secrets);
    report_files::keep(&report, folder)?;
    images.extend(keys(&report));
    Ok(report.header.event_id)
}

/// Reads a log; returns its bytes and when it was last modified. `-` is standard input.
///
/// A pipe is read to its end, up to the maximum size of a log; a pipe without a writer has no end.
fn read_log(path: &Path) -> std::io::Result<(Vec<u8>, Option<Timestamp>)> {
    let mut bytes = Vec::new();
    let most = MAX_LOG_BYTES as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)?;
        return Ok((bytes, Some(Timestamp::from(SystemTime::now()))));
    }
    // Otherwise opening a pipe, or the first read from an empty one, would block until there is a
    // writer.
    let mut file = bounded_read::open_regular(path)?;
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

/// Imports each crash in a log.
fn import_log(path: &Path, folder: &Path, symbolizer: &mut Symbolizer) -> Result<Vec<Id>, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let (bytes, modified) = read_log(path).context(doing())?;
    let mut reports = match coroner_formats::log::read_log(&bytes, modified) {
        // Most logs contain no crash.
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
        report_files::keep(report, folder)?;
    }
    Ok(reports.iter().map(|report| report.header.event_id).collect())
}
