//! `coroner run`: runs a program under a tracer, and reports its crashes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::Receiver;

use anstyle::{AnsiColor, Style};
use coroner::{Report, hide_secrets};
use coroner_formats::dump::Noted;
use coroner_inspect::tracer::{Front, RunError, TraceOptions, TracedCrash, TracerMessage, end_by_signal, fork_tracer};
use coroner_symbols::Symbolizer;

use crate::failure::{Context, Failure};
use crate::send::{ConnectionArguments, Server};
use crate::store_location::REPORTS;
use crate::summary::{State, Summary};
use crate::symbol_search::SymbolArguments;
use crate::{report_files, show, store_location};

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
    /// Report only this program, a name or a path, and not others in the same process tree
    #[arg(long, value_name = "PROGRAM")]
    only: Option<OsString>,
    /// Don't trace child processes
    #[arg(long)]
    no_follow: bool,
    /// Send reports to this Sentry DSN when a process crashes
    #[arg(long, value_name = "DSN", conflicts_with = "otlp")]
    dsn: Option<String>,
    /// Send reports over OTLP when a process crashes, to a Collector such as http://localhost:4318
    #[arg(long, value_name = "URL", conflicts_with = "release")]
    otlp: Option<String>,
    #[command(flatten)]
    connection: ConnectionArguments,
    #[command(flatten)]
    symbols: SymbolArguments,
}

impl RunArguments {
    /// Returns the server that reports are sent to, if any.
    fn server(&self) -> Result<Option<Server>, Failure> {
        if self.dsn.is_none() && self.otlp.is_none() {
            return Ok(None);
        }
        Server::new(self.dsn.as_deref(), self.otlp.as_deref(), &self.connection).map(Some)
    }
}

/// Runs the program to its end, shows and keeps its crash reports, and exits like the program.
pub(crate) fn run(arguments: &RunArguments, store: Option<&Path>) -> ExitCode {
    let Some((program, rest)) = arguments.command.split_first() else { return NOT_FOUND.into() };
    // Before the program starts; the tracer's process has its own connection.
    if let Err(failure) = arguments.server() {
        failure.print();
        return FAILED.into();
    }
    let options = TraceOptions { only: arguments.only.clone(), no_follow: arguments.no_follow };
    let tracer = fork_tracer(&options, |messages| Reporter::new(arguments, store).handle(messages));
    let mut front = tracer.unwrap_or_else(|error| {
        warn(&format!("can't start the tracer, so crashes are not reported: {error}"));
        Front::untraced()
    });
    match front.run(program, rest) {
        Ok(status) => {
            front.finish();
            exit_like(status)
        }
        Err(error) => {
            let code = exit_code(&error);
            Failure::from(error).print();
            code.into()
        }
    }
}

fn exit_code(error: &RunError) -> u8 {
    match error {
        RunError::NotFound(_) | RunError::NoInterpreter(_) => NOT_FOUND,
        RunError::Wait(_) => FAILED,
        _ => NOT_RUN,
    }
}

fn warn(text: &str) {
    let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
    let _ = writeln!(anstream::stderr(), "{yellow}warning{yellow:#}: {text}");
}

/// Handles crashes in the tracer's process.
struct Reporter<'a> {
    arguments: &'a RunArguments,
    store: Option<&'a Path>,
    server: Option<Server>,
    symbolizer: Option<Symbolizer>,
    shown: usize,
}

impl<'a> Reporter<'a> {
    fn new(arguments: &'a RunArguments, store: Option<&'a Path>) -> Self {
        let server = arguments.server().unwrap_or_default();
        Reporter { arguments, store, server, symbolizer: None, shown: 0 }
    }

    /// Handles messages until the program has exited and nothing is traced any more.
    fn handle(mut self, messages: Receiver<TracerMessage>) {
        for message in messages {
            match message {
                TracerMessage::Warning(text) => warn(&text),
                TracerMessage::Crash(crash) => {
                    // If standard error is closed, the report is kept all the same.
                    if let Err(failure) = self.report(*crash)
                        && !failure.is_closed_pipe()
                    {
                        failure.print();
                    }
                }
                TracerMessage::ProgramEnded(end) => end.let_front_exit(),
            }
        }
    }

    /// Makes, keeps, sends and shows the report of a crash.
    fn report(&mut self, crash: TracedCrash) -> Result<(), Failure> {
        let symbolizer = match &mut self.symbolizer {
            Some(symbolizer) => symbolizer,
            none => none.insert(self.arguments.symbols.symbolizer()?),
        };
        let mut report = crash.snapshot.report(symbolizer);
        let mut noted = Noted::default();
        noted.executable = crash.executable;
        noted.kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned());
        noted.apply(&mut report);
        report.scrub(&hide_secrets);
        let folder = self.store.map(|store| store.join(REPORTS));
        let kept = keep(&report, folder.as_deref());
        let code = coroner_explain::ImageFiles::for_report(&report, symbolizer);
        report.explanation = Some(coroner_explain::explain(&report, &code));
        let sent = self.server.as_ref().map(|server| server.send(&report));
        let bold = Style::new().bold();
        let green = Style::new().fg_color(Some(AnsiColor::Green.into())).bold();
        let mut out = anstream::stderr();
        let (pid, name) = (report.header.pid, &report.header.process_name);
        if self.shown < MAX_SHOWN {
            self.shown += 1;
            if !crash.is_program {
                writeln!(out, "{bold}Child process {pid} ({name}) crashed:{bold:#}")?;
            }
            let threads = coroner_report::text::ThreadFilter::Crashed;
            show::print(&report, report.explanation.as_ref(), threads, show::Layout::for_terminal(), &mut out)?;
        } else {
            let title = Summary::new(&report, Path::new(""), State::Stored).title();
            writeln!(out, "{bold}Process {pid} ({name}) crashed:{bold:#} {title}")?;
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
        match sent {
            Some(Ok(())) => writeln!(out, "{green}Sent{green:#} {id}")?,
            Some(Err(failure)) => failure.print(),
            None => {}
        }
        Ok(())
    }
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

/// Creates a folder for reports.
///
/// A container's root is often read-only, including `/tmp`, but `/dev/shm` is not.
fn temporary_folder() -> Result<tempfile::TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("coroner-run-");
    let made = builder.tempdir().or_else(|error| builder.tempdir_in("/dev/shm").map_err(|_| error));
    let doing = || format!("can't create a folder for reports in {}", quoted(&std::env::temp_dir()));
    made.context(doing()).map_err(|failure| failure.advice("name a writable folder with TMPDIR=FOLDER"))
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
