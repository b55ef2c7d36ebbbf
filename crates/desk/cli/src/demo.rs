//! `coroner demo`: the complete process with a real crash.
//!
//! An app starts, crashes and starts again; then its report is read.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use coroner_faults::{Ending, FAULTS, Fault};
use coroner_report::text::ThreadFilter;

use crate::failure::{Context, Failure};
use crate::{progress, report_reader, show, store_location, terminal};

/// The hidden command that runs the app.
pub(crate) const APP: &str = "__demo-app";
/// Time limit for the second start to deliver the report.
///
/// Reading a large program's debug information takes seconds.
const TIMEOUT: Duration = Duration::from_mins(1);

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

pub(crate) fn list() -> Result<(), Failure> {
    let mut out = terminal::standard_output();
    let width = FAULTS.iter().map(|fault| fault.name.len()).max().unwrap_or(0);
    for Fault { name, about, .. } in FAULTS {
        writeln!(out, "{BOLD}{name}{BOLD:#}{:1$}  {about}", "", width - name.len())?;
    }
    Ok(())
}

/// Returns the fault with this name.
pub(crate) fn fault(name: &str) -> Result<&'static Fault, String> {
    coroner_faults::find(name).ok_or_else(|| "unknown fault; list all with `coroner demo --list`".to_owned())
}

/// Runs an app that crashes by `fault`, starts it again, and shows the report.
pub(crate) fn run(fault: &Fault, threads: ThreadFilter, store: &Path) -> Result<(), Failure> {
    let mut out = terminal::standard_output();
    let before = stored(store)?;

    writeln!(out, "{BOLD}1. An app starts and {}{BOLD:#}", fault.about)?;
    let status = app_command(store)?.args(["--fault", fault.name]).status().context("can't start the app")?;
    writeln!(out, "   {}\n", describe(status))?;
    if let Some(why) = unexpected(fault, status) {
        return Err(Failure::new(why).advice("check what works on this system with `coroner doctor`"));
    }

    writeln!(out, "{BOLD}2. It is started again and delivers the report{BOLD:#}")?;
    let progress = progress::spinner("reading the report, looking up function names");
    let started = std::time::Instant::now();
    let second = app_command(store)?.output().context("can't start the app again")?;
    progress.finish_and_clear();
    for line in String::from_utf8_lossy(&second.stdout).lines() {
        writeln!(out, "   {line}")?;
    }
    if !second.status.success() {
        let stderr = String::from_utf8_lossy(&second.stderr).trim().to_owned();
        return Err(Failure::new(format!("the second start failed: {stderr}")));
    }
    writeln!(out, "   {DIM}This took {} ms.{DIM:#}\n", started.elapsed().as_millis())?;

    let after = stored(store)?;
    let Some(newest) = after.difference(&before).last() else {
        return Err(Failure::new(format!("no report was stored in `{}`", store.display()))
            .advice("check what works on this system with `coroner doctor`"));
    };
    writeln!(out, "{BOLD}3. The report{BOLD:#}")?;
    let mut symbolizer = coroner_symbols::Symbolizer::new(coroner_symbols::Options::default());
    let report = report_reader::open_file(newest, report_reader::Texts::Scrubbed, Some(&mut symbolizer))?;
    let explanation =
        coroner_explain::explain(&report, &coroner_explain::ImageFiles::for_report(&report, &mut symbolizer));
    show::print(&report, Some(&explanation), threads, show::Layout::for_terminal(), &mut out)?;
    let green = Style::new().fg_color(Some(AnsiColor::Green.into())).bold();
    writeln!(out, "\n{green}Stored{green:#} {}", newest.with_extension("json").display())?;
    writeln!(out, "       {}", newest.display())?;
    let id = report.header.event_id.to_string();
    // Cargo sets this variable for programs it runs; then `coroner` may not be installed.
    let command = if std::env::var_os("CARGO").is_some() { "cargo run -p coroner-cli --" } else { "coroner" };
    let option = store_location::store_option(store);
    writeln!(out, "\nTo show all threads:  {command} show {} --thread all{option}", &id[..8])?;
    Ok(())
}

/// Returns the store's report files (`.coroner`), sorted by name and so by time.
fn stored(store: &Path) -> Result<BTreeSet<PathBuf>, Failure> {
    let folder = store.join(store_location::REPORTS);
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.context(format!("can't list `{}`", folder.display()))?,
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == "coroner")).collect())
}

fn app_command(store: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe().context("can't find this program")?;
    let mut command = Command::new(program);
    command.arg(APP).arg("--store").arg(store);
    Ok(command)
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = coroner_report::model::signal_name(coroner_report::wire::Os::NATIVE, signal);
            format!("It was killed by signal {signal} ({}).", name.unwrap_or("unknown"))
        }
        (None, code) => format!("It exited with status {}.", code.unwrap_or(-1)),
    }
}

/// Returns a description if the app did not end as the fault specifies.
fn unexpected(fault: &Fault, status: ExitStatus) -> Option<String> {
    let expected = match fault.ending {
        Ending::Signal(signal) => status.signal() == Some(signal),
        Ending::Either(one, other) => [Some(one), Some(other)].contains(&status.signal()),
        Ending::Child(_) => status.success(),
    };
    (!expected).then(|| format!("unexpected exit: expected {:?}, got {status}", fault.ending))
}

/// The app: installs Coroner and crashes by `fault`, or delivers its last run's report.
pub(crate) fn app(fault: Option<&str>, store: &Path) -> Result<ExitCode, Failure> {
    // The report suffices: don't leave a core file in the user's directory.
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);

    let config = coroner::Config::new(store_location::APP_ID)
        .version(env!("CARGO_PKG_VERSION"))
        .environment("demo")
        .store_dir(store);
    let coroner = coroner::install(config)?;
    let Some(fault) = fault.and_then(coroner_faults::find) else {
        let last = coroner.last_run();
        terminal::print_line(format_args!("The app's last run {}.", last.outcome))?;
        if !coroner.flush(TIMEOUT) {
            return Err(Failure::new("can't deliver the report: timed out"));
        }
        return Ok(ExitCode::SUCCESS);
    };
    coroner::set_tag("fault", fault.name)?;
    coroner::set_user(Some(&coroner::User::new("demo")))?;
    coroner::add_breadcrumb(&coroner::Breadcrumb::new("the demo app started").category("app"));
    // Idle threads, as in every app.
    let started = std::sync::Arc::new(std::sync::Barrier::new(3));
    for name in ["network", "storage"] {
        let waits = {
            let started = std::sync::Arc::clone(&started);
            move || {
                started.wait();
                loop {
                    std::thread::park();
                }
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(waits).context("can't start a thread")?;
    }
    started.wait();
    coroner::add_breadcrumb(&coroner::Breadcrumb::new(fault.about).level(coroner::Level::Warning));
    (fault.run)();
    Ok(ExitCode::SUCCESS)
}
