//! The two processes of a run: the front process, which is the program's parent, and the tracer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork, setsid};

use super::event_loop::{Tracer, refusal};
use super::start::{RunError, start_error};
use super::{ProgramEnd, TraceOptions, TracerMessage, signal_forwarding};

/// The front process's side.
#[derive(Debug)]
pub struct Front {
    tracer: Option<Pid>,
    /// The program sends its process id here and waits until it is traced.
    start: Option<UnixStream>,
    /// A byte when the program has exited; the tracer closes it when all reports are made.
    end: Option<UnixStream>,
}

/// Starts the tracer's process, in which `handle` is called with the messages, and which ends with
/// it. Returns only in the front process.
///
/// # Errors
/// An error of the system. The program then runs untraced with [`Front::untraced`].
///
/// # Panics
/// Must be called while this process has only one thread.
pub fn fork_tracer(options: &TraceOptions, handle: impl FnOnce(Receiver<TracerMessage>)) -> io::Result<Front> {
    let (start, start_of_tracer) = UnixStream::pair()?;
    let (end, end_of_tracer) = UnixStream::pair()?;
    // SAFETY: this process has one thread, by the contract, so the child may do anything.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Front { tracer: Some(child), start: Some(start), end: Some(end) }),
        ForkResult::Child => {
            drop((start, end));
            run_tracer(options, start_of_tracer, end_of_tracer, handle);
            std::process::exit(0)
        }
    }
}

fn run_tracer(
    options: &TraceOptions,
    start: UnixStream,
    end: UnixStream,
    handle: impl FnOnce(Receiver<TracerMessage>),
) {
    // Keys at the terminal are for the program only.
    let _ = setsid();
    release_inherited_files(&[start.as_raw_fd(), end.as_raw_fd()]);
    raise_file_limit();
    let (sender, messages) = channel();
    let (options, of_tracer) = (options.clone(), sender.clone());
    std::thread::spawn(move || trace(start, options, of_tracer));
    std::thread::spawn(move || wait_for_end(end, &sender));
    handle(messages);
}

/// Lets go of standard input and output and of all other inherited files: their readers wait for an
/// end of file. Messages still go to standard error.
fn release_inherited_files(kept: &[RawFd]) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open: Vec<RawFd> = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2 && !kept.contains(descriptor)) {
        // Nobody in this process uses it: it was inherited, or belonged to the list above.
        let _ = nix::unistd::close(descriptor);
    }
}

/// Allows as many open files as the system does: there are two for each process.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Traces the program whose process id comes from `start`.
fn trace(mut start: UnixStream, options: TraceOptions, messages: Sender<TracerMessage>) {
    let mut pid = [0; 4];
    // The program was not started.
    if start.read_exact(&mut pid).is_err() {
        return;
    }
    let pid = Pid::from_raw(i32::from_le_bytes(pid));
    let no_proc = !std::path::Path::new("/proc/self/status").exists();
    let seized = if no_proc { Err(Errno::ENOENT) } else { Tracer::seize(pid, options, messages.clone()) };
    if let Err(error) = &seized {
        let why = refusal(pid, *error);
        let _ = messages
            .send(TracerMessage::Warning(format!("can't trace the program, so crashes are not reported: {why}")));
    }
    let _ = start.write_all(&[0]);
    drop(start);
    if let Ok(tracer) = seized {
        tracer.run();
    }
}

/// Waits until the front process reports the program's exit, or ends.
fn wait_for_end(mut end: UnixStream, messages: &Sender<TracerMessage>) {
    let _ = end.read(&mut [0]);
    let _ = messages.send(TracerMessage::ProgramEnded(ProgramEnd(end)));
}

impl Front {
    /// Returns a front process without a tracer.
    pub fn untraced() -> Front {
        Front { tracer: None, start: None, end: None }
    }

    /// Runs a program to its end. Returns its exit status.
    ///
    /// Signals that this process receives meanwhile are forwarded to the program. Other children,
    /// which this process has as the first one of a container, are reaped.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(&mut self, program: &OsStr, arguments: &[OsString]) -> Result<ExitStatus, RunError> {
        let mut command = Command::new(program);
        command.args(arguments);
        if let (Some(start), Some(tracer)) = (&self.start, self.tracer) {
            let start = start.try_clone().map_err(|source| RunError::Start { program: program.into(), source })?;
            let allow_and_wait = move || {
                allow_tracer(tracer);
                let mut start = &start;
                // Without the tracer, the program runs all the same.
                let _ = start.write_all(&std::process::id().to_le_bytes());
                let _ = start.read(&mut [0]);
                Ok(())
            };
            // SAFETY: it only calls functions that are async-signal-safe, on this process's copies.
            unsafe { command.pre_exec(allow_and_wait) };
        }
        signal_forwarding::begin();
        let spawned = command.spawn();
        drop(command);
        self.start = None;
        let child = spawned.map_err(|source| start_error(program, source))?;
        signal_forwarding::forward_to(child.id());
        let status = wait_for(child.id());
        signal_forwarding::end();
        status.map_err(RunError::Wait)
    }

    /// Waits until the tracer has handled all crashes so far.
    pub fn finish(&mut self) {
        let Some(mut end) = self.end.take() else { return };
        if end.write_all(&[0]).is_ok() {
            let _ = end.read(&mut [0]);
        }
    }
}

/// Lets the tracer trace this process, where Yama allows that only to parents.
fn allow_tracer(tracer: Pid) {
    /// `PR_SET_PTRACER` of <linux/prctl.h>.
    const PR_SET_PTRACER: libc::c_int = 0x5961_6d61;
    // SAFETY: it takes numbers. Without Yama it fails, and isn't needed.
    unsafe { libc::prctl(PR_SET_PTRACER, tracer.as_raw() as libc::c_ulong, 0, 0, 0) };
}

/// Waits for a child, and reaps the others that end meanwhile.
fn wait_for(pid: u32) -> io::Result<ExitStatus> {
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a local variable.
        match Errno::result(unsafe { libc::waitpid(-1, &raw mut status, 0) }) {
            Ok(ended) if ended as u32 == pid => return Ok(ExitStatus::from_raw(status)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
