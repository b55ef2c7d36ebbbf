//! `coroner import`: converts crash data of other systems to Coroner reports.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use coroner_formats::log::{LogError, MAX_LOG_BYTES};
use coroner_report::model::{Id, Timestamp};
use coroner_symbols::{ImageKey, Symbolizer};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::failure::{Context, Failure};
use crate::report_reader::Texts;
use crate::store_location::{NO_STORE, REPORTS};
use crate::symbol_search::{SymbolArguments, image_keys};
use crate::{bounded_read, foreign_reports, report_files, report_reader, terminal};

/// The arguments of `coroner import`.
#[derive(clap::Args)]
pub(crate) struct ImportArguments {
    /// Files to import, or folders of dumps
    ///
    /// Files can be core dumps, minidumps, Apport reports, Apple .ips and .crash files, MetricKit
    /// payloads, Android tombstones and ANR traces, Swift crash logs (SWIFT_BACKTRACE=format=json)
    /// and Coroner reports. From a folder, all core dumps, minidumps and Apport reports are
    /// imported.
    #[arg(required_unless_present = "log", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Import each crash in a log; repeatable
    ///
    /// Crashes are reports of sanitizers and Valgrind, panics of Go and Rust, fatal errors of Java
    /// virtual machines, Node and Python, and lines of systemd-coredump and the Linux kernel.
    ///
    /// `-` is standard input. A named pipe must already have a writer.
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Write the reports to this folder instead of the store
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    symbols: SymbolArguments,
}

/// Converts each file to a report, as JSON in a store's folder.
pub(crate) fn run(arguments: ImportArguments, store: Option<PathBuf>) -> Result<(), Failure> {
    let folder = arguments.output.or_else(|| store.map(|store| store.join(REPORTS)));
    let folder = folder.ok_or_else(|| {
        Failure::new(NO_STORE).advice("name a store with `--store DIR`, or a folder with `--output DIR`")
    })?;
    let mut symbolizer = arguments.symbols.symbolizer()?;
    let (mut failed, mut images, mut count) = (0, Vec::new(), 0);
    // All files are imported, even if standard output is closed.
    let mut printed = Ok(());
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
                    count += 1;
                    printed = printed.and(terminal::print_line(format_args!("{id}  {}", path.display())));
                }
            }
            Err(failure) => {
                failed += 1;
                failure.print();
            }
        }
    }
    if !images.is_empty() {
        arguments.symbols.match_images(&images);
    }
    match (failed, all.len()) {
        // Logs without a crash are reported already.
        (0, _) if count == 0 => Err(Failure::new("nothing was imported")),
        (0, _) => Ok(printed?),
        (_, 1) => Err(Failure::new("can't import the file")),
        (failed, all) => Err(Failure::new(format!("can't import {failed} of {all} files"))),
    }
}

/// Returns the dumps in a folder, sorted by name.
fn dumps_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).context(format!("can't read `{}`", folder.display()))?;
    let mut dumps: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| foreign_reports::dump_form(path).is_some())
        .collect();
    dumps.sort();
    match dumps.is_empty() {
        true => Err(Failure::new(format!("no core dumps, minidumps or Apport reports in `{}`", folder.display()))),
        false => Ok(dumps),
    }
}

fn import(path: &Path, folder: &Path, symbolizer: &mut Symbolizer, images: &mut Vec<ImageKey>) -> Result<Id, Failure> {
    let mut report = match foreign_reports::dump_form(path) {
        Some(_) => foreign_reports::read_dump_without_memory(path, symbolizer)?,
        None => report_reader::open_file(path, Texts::AsTheyWere, Some(symbolizer))?,
    };
    report.scrub(&coroner::hide_secrets);
    report_files::keep(&report, folder)?;
    images.extend(image_keys(&report));
    Ok(report.header.event_id)
}

/// Reads a log; returns its bytes and when it was last modified. `-` is standard input.
///
/// A pipe is read to its end, up to the maximum size of a log; a pipe without a writer has no end.
fn read_log(path: &Path) -> std::io::Result<(Vec<u8>, Option<Timestamp>)> {
    let mut bytes = Vec::new();
    let limit = MAX_LOG_BYTES as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
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
                let why = "the pipe has no writer (for standard input, use `-`)";
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
            }
            Ok(read) => bytes.extend(&first[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags.difference(OFlag::O_NONBLOCK)))?;
    file.take(limit).read_to_end(&mut bytes)?;
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
