//! `coroner collect`: reports all crashes on a machine, as the kernel's handler of core dumps.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use coroner_inspect::core_pattern::{self, DeadProcess, Death, UserStores};
use coroner_report::model::Timestamp;

use crate::failure::Failure;
use crate::store_location::REPORTS;
use crate::{report_files, terminal};

/// The arguments of `coroner collect`, given by the kernel according to the pattern.
#[derive(clap::Args)]
pub(crate) struct CollectArguments {
    /// %P: process ID
    #[arg(required_unless_present = "listen")]
    pid: Option<u32>,
    /// %u: the process's user ID
    #[arg(requires = "pid")]
    user: Option<u32>,
    /// %g: the process's group ID
    #[arg(requires = "pid")]
    group: Option<u32>,
    /// %t: time of the crash in seconds since 1970
    #[arg(requires = "pid")]
    time: Option<u64>,
    /// %d: 1 if the user may read the process's memory
    #[arg(requires = "pid")]
    dumpable: Option<u32>,
    /// Directory that contains a directory per user
    #[arg(long, value_name = "DIR", default_value = "/var/lib/coroner")]
    store: PathBuf,
    /// Maximum number of reports per user; the oldest are removed
    #[arg(long, default_value_t = 1000)]
    keep: usize,
    /// Maximum number of new reports per user and minute
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    per_minute: usize,
    /// Listen on this socket, named after `@@` in kernel.core_pattern
    #[arg(long, value_name = "SOCKET", conflicts_with = "pid")]
    listen: Option<PathBuf>,
    /// Standard input is a connection from the kernel
    #[arg(long, hide = true, requires = "pid")]
    connection: bool,
}

/// Reports one crashed process, or listens for crashes.
pub(crate) fn run(arguments: &CollectArguments) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.listen {
        return Err(listen(path, arguments));
    }
    let dead = DeadProcess {
        pid: arguments.pid.ok_or_else(|| Failure::new("missing process ID"))?,
        user: arguments.user,
        group: arguments.group,
        time: arguments.time,
        is_dumpable: arguments.dumpable.unwrap_or(1) == 1,
        is_connection: arguments.connection,
    };
    let stores = UserStores {
        folder: &arguments.store,
        reports: REPORTS,
        keep: arguments.keep,
        per_minute: arguments.per_minute,
    };
    let mut collected = core_pattern::collect(&dead, &stores)?;
    collected.report.scrub(&coroner::hide_secrets);
    report_files::keep(&collected.report, &collected.folder)?;
    terminal::print_line(collected.report.header.event_id)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts this command for each connection. Returns the reason it can't continue.
fn listen(path: &Path, arguments: &CollectArguments) -> Failure {
    let start = |death: Death| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("coroner").arg("collect").arg("--connection");
        command.arg("--store").arg(&arguments.store);
        command.args(["--keep", &arguments.keep.to_string(), "--per-minute", &arguments.per_minute.to_string()]);
        let Death { pid, user, group, is_dumpable, connection, .. } = death;
        let numbers = [pid.into(), user.into(), group.into(), now(), u64::from(is_dumpable)];
        command.args(numbers.map(|number: u64| number.to_string()));
        command.stdin(std::os::fd::OwnedFd::from(connection));
        command.spawn()
    };
    match core_pattern::serve(path, start, |pid, lost| anstream::eprintln!("process {pid}: {lost}")) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

fn now() -> u64 {
    Timestamp::from(std::time::SystemTime::now()).0 / 1_000_000_000
}
