//! `coroner collect`: reports of all that dies on a machine, of what the kernel says of it.
//!
//! The kernel starts it for each death and writes the core dump to its standard input (core(5), "Piping core dumps to a program"), or connects to the
//! socket that `--listen` has (Linux 6.17, [`socket`]). Headers and notes are read from there; the stacks from `/proc/PID/mem`, since
//! the process is there until the dump has been read, or else out of the dump. Then it lets go: no core dump is kept.
//!
//! What died is not trusted. As root it opens the memory and makes the user's folder; before it reads a byte of the dump it has given that up for good
//! ([`privileges`]).

mod privileges;
mod socket;
mod user_store;

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use coroner_formats::dump::Noted;
use coroner_report::model::Timestamp;
use coroner_symbols::{Options, Symbolizer};

use crate::failure::{Context, Failure};
use crate::{report_files, terminal};

/// Reports that are made at once; more deaths than that are not recorded.
const AT_ONCE: usize = 4;

/// What the kernel gives, by the pattern of the command's help, or a person.
#[derive(clap::Args)]
pub(crate) struct CollectArguments {
    /// %P: the process
    #[arg(required_unless_present = "listen")]
    pid: Option<u32>,
    /// %u: its user
    #[arg(requires = "pid")]
    user: Option<u32>,
    /// %g: its group
    #[arg(requires = "pid")]
    group: Option<u32>,
    /// %t: when, seconds since 1970
    #[arg(requires = "pid")]
    time: Option<u64>,
    /// %d: 1 if its user may see its memory
    #[arg(requires = "pid")]
    dumpable: Option<u32>,
    /// The folder in which each user has one
    #[arg(long, value_name = "DIR", default_value = "/var/lib/coroner")]
    store: PathBuf,
    /// Most reports of a user; the oldest are removed
    #[arg(long, default_value_t = 1000)]
    keep: usize,
    /// Most reports of a user in a minute; more are not made
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    per_minute: usize,
    /// Wait for the kernel at this socket, which `kernel.core_pattern` names behind `@@`
    #[arg(long, value_name = "SOCKET", conflicts_with = "pid")]
    listen: Option<PathBuf>,
    /// Standard input is a connection of the kernel's
    #[arg(long, hide = true, requires = "pid")]
    connection: bool,
}

/// Whose report it is, and as whom it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The user whose folder it goes to.
    of: u32,
    user: u32,
    group: u32,
}

impl Owner {
    /// What a user may not read, because it ran as another or holds what was another's, is root's; and nothing is read as root.
    fn new(user: u32, group: u32, is_dumpable: bool) -> Owner {
        const NOBODY: u32 = 65_534;
        match user {
            0 => Owner { of: 0, user: NOBODY, group: NOBODY },
            _ if !is_dumpable => Owner { of: 0, user: NOBODY, group: NOBODY },
            user => Owner { of: user, user, group },
        }
    }
}

/// Makes a report of the process, or waits for some.
pub(crate) fn run(arguments: &CollectArguments) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.listen {
        return Err(listen(path, arguments));
    }
    let pid = arguments.pid.ok_or_else(|| Failure::new("no process is named"))?;
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let (user, group) = (arguments.user.unwrap_or(own.0), arguments.group.unwrap_or(own.1));
    let owner = Owner::new(user, group, arguments.dumpable.unwrap_or(1) == 1);
    let _slot = user_store::slot(&arguments.store, AT_ONCE)?;
    let folder = user_store::make(&arguments.store, owner)?;
    let executable = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    // Only root may; others read what the dump has.
    let memory = File::open(format!("/proc/{pid}/mem")).ok();
    privileges::give_up(owner)?;

    user_store::make_room(&folder, arguments.keep, arguments.per_minute)?;
    if arguments.connection {
        socket::ask_for_the_dump()?;
    }
    let time = arguments.time.and_then(|seconds| seconds.checked_mul(1_000_000_000)).map(Timestamp);
    let mut symbolizer = Symbolizer::new(Options::default());
    let dump = io::stdin().lock();
    let read = coroner_formats::dump::read_core_stream(dump, memory.as_ref(), time, &mut symbolizer);
    let mut report = read.context(format!("the core dump of process {pid}"))?;
    // It may hold what users typed.
    report.stack_memory.clear();
    let mut noted = Noted::default();
    noted.executable = executable.and_then(|path| path.into_os_string().into_string().ok());
    noted.apply(&mut report);
    report.scrub(&coroner::hide_secrets);
    report_files::keep(&report, &folder)?;
    terminal::say(report.header.event_id)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts this command for each connection. Returns why it can't go on.
fn listen(path: &std::path::Path, arguments: &CollectArguments) -> Failure {
    let start = |death: socket::Death| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("coroner").arg("collect").arg("--connection");
        command.arg("--store").arg(&arguments.store);
        command.args(["--keep", &arguments.keep.to_string(), "--per-minute", &arguments.per_minute.to_string()]);
        let socket::Death { pid, user, group, is_dumpable, connection } = death;
        let numbers = [pid.into(), user.into(), group.into(), now(), u64::from(is_dumpable)];
        command.args(numbers.map(|number: u64| number.to_string()));
        command.stdin(std::os::fd::OwnedFd::from(connection));
        command.spawn()
    };
    match socket::serve(path, AT_ONCE, start) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn now() -> u64 {
    Timestamp::from(std::time::SystemTime::now()).0 / 1_000_000_000
}
