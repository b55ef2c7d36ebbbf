//! The tracer's loop: handles the stops of all traced threads.
//!
//! The kernel knows which threads are traced; this has only what reports need of each process.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use coroner_formats::snapshot::target::Snapshot;
use coroner_report::model::Timestamp;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::fatal_signal::{FatalSignal, has_core};
use super::program_file::ProgramKinds;
use super::{TraceOptions, TracedCrash, TracerMessage};
use crate::live_process::threads::{Traced, add_registers, describe_thread, stop_threads};
use crate::live_process::{LinuxProcess, ProcessError, ProcessFiles, executable};
use crate::ptrace_requests::{cont, detach, listen};
use crate::wait_status::{Stop, WaitStatus};

/// A traced process.
#[derive(Debug, Default)]
struct Process {
    /// Opened before the process can drop its privileges.
    files: Option<ProcessFiles>,
    /// Whether there is a report of its death.
    is_reported: bool,
    /// Whether it runs the program that was asked for.
    is_selected: bool,
    /// Signals that its children died of.
    children_died_of: Vec<i32>,
}

/// The tracer.
pub(super) struct Tracer {
    options: TraceOptions,
    program: Pid,
    processes: HashMap<Pid, Process>,
    kinds: ProgramKinds,
    messages: Sender<TracerMessage>,
}

impl Tracer {
    /// Traces a process from now on.
    pub(super) fn seize(program: Pid, options: TraceOptions, messages: Sender<TracerMessage>) -> nix::Result<Tracer> {
        use ptrace::Options;
        let mut events = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEEXEC;
        if !options.no_follow {
            events |= Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
        }
        ptrace::seize(program, events)?;
        Ok(Tracer { options, program, processes: HashMap::new(), kinds: ProgramKinds::default(), messages })
    }

    /// Handles stops until no thread is traced any more.
    pub(super) fn run(mut self) {
        while let Ok((tid, status)) = WaitStatus::wait() {
            self.handle(tid, status);
        }
    }

    fn handle(&mut self, tid: Pid, status: WaitStatus) {
        if !status.is_stop() {
            self.processes.remove(&tid);
            return;
        }
        // Each request fails if the thread was killed meanwhile.
        let _ = match status.stop() {
            Stop::Group => listen(tid),
            Stop::Trap => cont(tid, 0),
            Stop::Event(libc::PTRACE_EVENT_EXEC) => self.after_exec(tid),
            Stop::Event(event) => {
                if event == libc::PTRACE_EVENT_FORK || event == libc::PTRACE_EVENT_VFORK {
                    self.after_fork(tid, event);
                }
                cont(tid, 0)
            }
            Stop::Signal(signal) => self.at_signal(tid, signal),
        };
    }

    fn after_fork(&mut self, parent: Pid, event: i32) {
        let Ok(child) = ptrace::getevent(parent) else { return };
        let child = Pid::from_raw(child as i32);
        // Of a child that shares its parent's memory until its exec, that is soon another memory.
        let files = (event == libc::PTRACE_EVENT_FORK).then(|| ProcessFiles::open(child).ok()).flatten();
        let is_selected =
            self.options.only.is_some() && self.processes.get(&tgid(parent)).is_some_and(|it| it.is_selected);
        // It may have run its first program before its parent's stop was seen.
        self.processes.entry(child).or_insert(Process { files, is_selected, ..Process::default() });
    }

    fn after_exec(&mut self, pid: Pid) -> nix::Result<()> {
        let (path, kind, is_new) = self.kinds.look_up(pid);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let was_selected = self.processes.get(&pid).is_some_and(|process| process.is_selected);
        let is_selected = self.options.only.as_deref().is_some_and(|only| is_program(&path, only));
        let is_other = self.options.only.is_some() && was_selected && !is_selected;
        if kind.has_leak_sanitizer || kind.is_tracer || is_other {
            if kind.has_leak_sanitizer && pid == self.program {
                self.warn(format!("`{name}` is not traced, because its sanitizer reports its crashes itself"));
            }
            self.processes.remove(&pid);
            return detach(pid, 0);
        }
        if kind.loses_privileges && is_new {
            self.warn(format!(
                "`{name}` runs without the privileges of its file, because it is traced; use `--no-follow` or run this as root"
            ));
        }
        let files = ProcessFiles::open(pid).ok();
        self.processes.insert(pid, Process { files, is_selected, ..Process::default() });
        cont(pid, 0)
    }

    fn at_signal(&mut self, tid: Pid, signal: i32) -> nix::Result<()> {
        let fatal = has_core(signal).then(|| FatalSignal::at_stop(tid, signal)).flatten();
        let Some(fatal) = fatal else { return cont(tid, signal) };
        let process = self.processes.entry(fatal.pid).or_default();
        let is_selected = self.options.only.is_none() || process.is_selected;
        // `timeout` and shells die of the signal that their child died of.
        let is_passed_on = fatal.is_raised() && process.children_died_of.contains(&signal);
        let mut others = Vec::new();
        if !std::mem::replace(&mut process.is_reported, true) && is_selected && !is_passed_on {
            others = self.report(tid, &fatal);
            let parent = self.processes.entry(fatal.parent).or_default();
            parent.children_died_of.push(signal);
        }
        // A fault of a traced init process would be raised again for ever.
        let result = if fatal.is_init { detach(tid, signal) } else { cont(tid, signal) };
        for (tid, status) in others {
            self.handle(tid, status);
        }
        result
    }

    /// Sends the report of a process to be made; returns the stops of its other threads.
    fn report(&mut self, tid: Pid, fatal: &FatalSignal) -> Vec<(Pid, WaitStatus)> {
        let pid = fatal.pid;
        let (mut others, problems) = stop_threads(pid, Traced::Except(tid)).unwrap_or_default();
        let stops = others.iter().filter_map(|stopped| Some((stopped.tid(), stopped.stop?))).collect();
        let mut first = describe_thread(pid, tid);
        first.state = None;
        add_registers(&mut first);
        let threads = std::iter::once(first).chain(others.drain(..).map(|stopped| stopped.thread)).collect();
        let crash = fatal.crash(tid, Timestamp::from(SystemTime::now()));
        let opened = self.processes.get_mut(&pid).and_then(|process| process.files.take());
        let files = opened.map_or_else(|| ProcessFiles::open(pid), Ok);
        let process = files.and_then(|files| LinuxProcess::new(pid, files, threads, problems, crash));
        let message = match process {
            Ok(process) => TracerMessage::Crash(Box::new(TracedCrash {
                is_program: pid == self.program,
                snapshot: Snapshot::take(&process),
                executable: executable(pid),
            })),
            Err(error) => TracerMessage::Warning(describe_failure(pid, &error)),
        };
        // Nobody reads messages after a failure of that thread.
        let _ = self.messages.send(message);
        stops
    }

    fn warn(&self, text: String) {
        let _ = self.messages.send(TracerMessage::Warning(text));
    }
}

fn describe_failure(pid: Pid, error: &ProcessError) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({}) crashed without a report: {error}", name.trim_end())
}

/// Returns the process of a thread.
fn tgid(tid: Pid) -> Pid {
    let number = crate::live_process::status_number(tid.as_raw() as u32, "Tgid:");
    number.map_or(tid, |number| Pid::from_raw(number as i32))
}

/// Whether a program is meant by a name or a path.
fn is_program(path: &Path, meant: &OsStr) -> bool {
    if path.file_name() == Some(meant) {
        return true;
    }
    std::fs::canonicalize(meant).is_ok_and(|meant| meant == path)
}

/// Returns the reason why a process can't be traced.
pub(super) fn refusal(pid: Pid, error: Errno) -> String {
    if !Path::new("/proc/self/status").exists() {
        return "/proc is not mounted".to_owned();
    }
    let error = crate::live_process::threads::explain_refusal(pid, error).to_string();
    error.split_once(": ").map_or_else(|| error.clone(), |(_, why)| why.to_owned())
}
