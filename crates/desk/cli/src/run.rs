//! `coroner run`: runs a program with the shared library preloaded, and reports its crashes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anstyle::{AnsiColor, Style};
use coroner::{Report, Store};
use coroner_inspect::preload::{LIBRARY_VARIABLE, NotPreloadable, PreloadError, end_by_signal, run_preloaded};
use coroner_report::model::CrashFlag;
use coroner_symbols::Symbolizer;

use crate::failure::{Context, Failure};
use crate::report_reader::Texts;
use crate::store_location::REPORTS;
use crate::summary::{State, Summary};
use crate::symbol_search::SymbolArguments;
use crate::{progress, report_files, report_reader, show, store_location};

/// Exit status as in `env` and `timeout`: own failure, program can't be run, program not found.
const FAILED: u8 = 125;
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Maximum number of reports that are shown; the others get one line each.
const MAX_SHOWN: usize = 3;

/// The arguments of `coroner run`.
#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
    #[command(flatten)]
    symbols: SymbolArguments,
}

/// Runs the program to its end, shows and keeps its crash reports, and exits like the program.
pub(crate) fn run(arguments: &RunArguments, store: Option<&Path>) -> ExitCode {
    let stores = match temporary_folder() {
        Ok(stores) => stores,
        Err(failure) => {
            failure.print();
            return FAILED.into();
        }
    };
    let Some((program, rest)) = arguments.command.split_first() else { return NOT_FOUND.into() };
    match run_preloaded(program, rest, stores.path()) {
        Ok((pid, status)) => {
            if let Err(failure) = report_crashes(arguments, stores.path(), store, pid, status) {
                failure.print();
            }
            // Remove the folder now: a process that ends by a signal runs no destructors.
            drop(stores);
            exit_like(status)
        }
        Err(error) => {
            let code = exit_code(&error);
            with_advice(error).print();
            code.into()
        }
    }
}

fn exit_code(error: &PreloadError) -> u8 {
    match error {
        PreloadError::NotFound(_) => NOT_FOUND,
        PreloadError::Folder(_)
        | PreloadError::NotExecutable(_)
        | PreloadError::NotPreloadable { .. }
        | PreloadError::Interpreter(_)
        | PreloadError::Start { .. } => NOT_RUN,
        _ => FAILED,
    }
}

fn with_advice(error: PreloadError) -> Failure {
    let advice = match &error {
        PreloadError::NotPreloadable { why: NotPreloadable::Static, .. } => {
            "link Coroner into the program (`coroner::install` or libcoroner_ffi.a), or import its core dumps with `coroner import`".to_owned()
        }
        PreloadError::NoLibrary(_) => format!(
            "take the library from Coroner's archives or build it (`cargo build -p coroner-ffi`), and set {LIBRARY_VARIABLE}=PATH"
        ),
        _ => return error.into(),
    };
    Failure::from(error).advice(advice)
}

/// Creates the folder for the program's reports while it runs.
///
/// A container's root is often read-only, including `/tmp`, but `/dev/shm` is not.
fn temporary_folder() -> Result<tempfile::TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("coroner-run-");
    let made = builder.tempdir().or_else(|error| builder.tempdir_in("/dev/shm").map_err(|_| error));
    let doing = || format!("can't create a folder for reports in {}", quoted(&std::env::temp_dir()));
    made.context(doing()).map_err(|failure| failure.advice("name a writable folder with TMPDIR=FOLDER"))
}

/// Shows the reports of the program and its children, and keeps them in the store.
fn report_crashes(
    arguments: &RunArguments,
    stores: &Path,
    store: Option<&Path>,
    pid: u32,
    status: ExitStatus,
) -> Result<(), Failure> {
    let mut reports = read_reports(stores)?;
    let is_crash = status.signal().is_some_and(|signal| coroner::SignalSet::CRASHES.contains(signal));
    if is_crash && !reports.iter().any(|report| report.header.pid == pid) {
        let own = stores.join(pid.to_string());
        let has_run = || Store::open_existing(&own).is_ok_and(|store| store.list().is_ok_and(|runs| !runs.is_empty()));
        let why = match own.is_dir() {
            true if has_run() => "the program replaced Coroner's signal handlers",
            true => "Coroner could not be installed in the program",
            false => "the library was not loaded into the program",
        };
        let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
        let _ = writeln!(
            anstream::stderr(),
            "{yellow}warning{yellow:#}: the program crashed without a report: {why}\n  \
             run it with `ulimit -c unlimited` and open the core dump with `coroner show`"
        );
    }
    // The program's own crash comes first.
    reports.sort_by_key(|report| (report.header.pid != pid, report.crash.as_ref().map(|crash| crash.time)));
    let folder = store.map(|store| store.join(REPORTS));
    // All reports are kept before the first is symbolized, which may take long, and before output
    // may fail.
    let kept: Vec<Kept> = reports.iter().map(|report| keep(report, folder.as_deref())).collect();
    let shown = show_all(&mut reports, &kept, arguments, pid);
    // If the output was closed, stop without an error.
    shown.or_else(|failure| if failure.is_closed_pipe() { Ok(()) } else { Err(failure) })
}

fn show_all(reports: &mut [Report], kept: &[Kept], arguments: &RunArguments, pid: u32) -> Result<(), Failure> {
    let mut symbolizer = if reports.is_empty() { return Ok(()) } else { arguments.symbols.symbolizer()? };
    let bold = Style::new().bold();
    let green = Style::new().fg_color(Some(AnsiColor::Green.into())).bold();
    let mut out = anstream::stderr();
    for (index, (report, kept)) in reports.iter_mut().zip(kept).enumerate() {
        symbolicate(report, &mut symbolizer);
        if let Some(folder) = &kept.folder {
            // Replace it with one that has names. If that fails, the first one remains.
            let _ = report_files::keep(report, folder);
        }
        if report.header.pid != pid {
            let name = &report.header.process_name;
            writeln!(out, "{bold}Child process {} ({name}) crashed:{bold:#}", report.header.pid)?;
        }
        if index < MAX_SHOWN {
            let code = coroner_explain::ImageFiles::for_report(report, &mut symbolizer);
            let explanation = coroner_explain::explain(report, &code);
            let threads = coroner_report::text::ThreadFilter::Crashed;
            show::print(report, Some(&explanation), threads, show::Layout::for_terminal(), &mut out)?;
        } else {
            writeln!(out, "  {}", Summary::new(report, Path::new(""), State::Stored).title())?;
        }
        kept.failures.iter().for_each(Failure::print);
        let id = report.header.event_id.to_string();
        match &kept.folder {
            Some(folder) if kept.failures.is_empty() => {
                let option = folder.parent().map(store_location::store_option).unwrap_or_default();
                writeln!(out, "{green}Stored{green:#} in {}: coroner show {}{option}", folder.display(), &id[..8])?;
            }
            Some(folder) => writeln!(out, "{green}Stored{green:#} in {} instead", quoted(folder))?,
            None => {}
        }
    }
    Ok(())
}

/// The result of keeping a report.
struct Kept {
    folder: Option<PathBuf>,
    /// The reasons why it isn't in the store, or nowhere.
    failures: Vec<Failure>,
}

/// Keeps a report in the store; without a writable store, in a new temporary folder.
fn keep(report: &Report, folder: Option<&Path>) -> Kept {
    let mut failures = Vec::new();
    match folder {
        Some(folder) => match report_files::keep(report, folder) {
            Ok(()) => return Kept { folder: Some(folder.to_owned()), failures },
            Err(failure) => failures.push(failure),
        },
        None => failures.push(Failure::new(store_location::NO_STORE).advice("name a store with `--store DIR`")),
    }
    let other = temporary_folder().and_then(|other| report_files::keep(report, other.path()).map(|()| other.keep()));
    match other {
        Ok(other) => Kept { folder: Some(other), failures },
        Err(failure) => {
            failures.push(failure);
            Kept { folder: None, failures }
        }
    }
}

/// Returns all fatal reports in the processes' stores.
fn read_reports(stores: &Path) -> Result<Vec<Report>, Failure> {
    let mut reports = Vec::new();
    for entry in std::fs::read_dir(stores).context(format!("can't list `{}`", stores.display()))? {
        let path = entry?.path();
        let Ok(store) = Store::open_existing(&path) else { continue };
        for run in store.list()? {
            // A process that is still running has a run without a report.
            reports.extend(report_reader::open_run(&run.path, Texts::Scrubbed, None).unwrap_or_default());
        }
    }
    let is_death = |report: &Report| report.crash.as_ref().is_none_or(|crash| !crash.has(CrashFlag::NotFatal));
    reports.retain(is_death);
    Ok(reports)
}

fn symbolicate(report: &mut Report, symbolizer: &mut Symbolizer) {
    let progress = progress::spinner("looking up function names");
    symbolizer.symbolicate_report(report);
    progress.finish_and_clear();
}

/// Exits with the program's exit status, or by the signal that killed it.
fn exit_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        end_by_signal(signal);
        // Only reached if the signal doesn't end a process; use the exit code that shells use for a
        // signal.
        return ExitCode::from(128_u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(0) as u8)
}

/// Formats a path for messages.
fn quoted(path: &Path) -> String {
    format!("`{}`", path.display())
}
