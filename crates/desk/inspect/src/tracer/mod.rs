//! Runs a program under a tracer, which reports its crashes and those of all that it starts.
//!
//! The tracer is a process of its own, outside of the program's process group: it keeps tracing
//! daemons when the program itself has exited. If it dies, the programs continue untraced.
//!
//! Sources: ptrace(2), in particular "Signal-delivery-stop", "Group-stop" and `PTRACE_SEIZE`.

mod event_loop;
mod fatal_signal;
mod process_pair;
mod program_file;
mod signal_forwarding;
mod start;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::UnixStream;

use coroner_formats::snapshot::target::Snapshot;

pub use process_pair::{Front, fork_tracer};
pub use signal_forwarding::end_by_signal;
pub use start::RunError;

/// Selects what is traced.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// Report only programs with this name or path; other programs that they start are not traced.
    pub only: Option<OsString>,
    /// Don't trace child processes.
    pub no_follow: bool,
}

/// A message from the tracer to the code that handles reports.
#[derive(Debug)]
pub enum TracerMessage {
    /// A process crashed.
    Crash(Box<TracedCrash>),
    /// A crash is not reported, or a program is not traced; the text is for the user.
    Warning(String),
    /// The program has exited, or the front process has.
    ProgramEnded(ProgramEnd),
}

/// A crashed process.
#[derive(Debug)]
pub struct TracedCrash {
    /// Whether the process is the program itself, not one that it started.
    pub is_program: bool,
    /// All that a report needs.
    pub snapshot: Snapshot,
    /// Path of the program that the process ran.
    pub executable: Option<String>,
}

/// The program's end; the front process waits until this is dropped.
#[derive(Debug)]
pub struct ProgramEnd(UnixStream);

impl ProgramEnd {
    /// Lets the front process exit, and lets go of standard error, whose reader may wait for an end
    /// of file.
    pub fn let_front_exit(self) {
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            let _ = nix::unistd::dup2_stderr(&null);
        }
        drop(self.0);
    }
}
