//! The threads of a process, stopped by ptrace, with their registers.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use coroner_process::registers::Arch;
use coroner_report::model::{FutexWait, Problem, Registers};
use coroner_report::wire::NotCaptured;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::{ProcessError, not_stopped, status_number};
use coroner_formats::MAX_THREADS;
use coroner_formats::snapshot::registers;
use coroner_formats::snapshot::user_regs::{general_registers, system_call};

/// Maximum time for the threads to stop; a thread in an uninterruptible wait doesn't.
const DEADLINE: Duration = Duration::from_secs(2);
/// `NT_PRSTATUS` of <linux/elf.h>: the general registers.
const NT_PRSTATUS: usize = 1;
/// `PTRACE_EVENT_STOP` of <linux/ptrace.h>.
const EVENT_STOP: i32 = 128;

/// A thread.
#[derive(Debug)]
pub(super) struct StoppedThread {
    pub(super) tid: u32,
    pub(super) name: String,
    /// The thread's state letter before it was stopped.
    pub(super) state: char,
    /// x86_64: the system call that the thread was in.
    pub(super) system_call: Option<i64>,
    /// The futex that the thread waits for.
    pub(super) futex: Option<FutexWait>,
    /// The registers; `None` if the thread was not stopped.
    pub(super) registers: Option<Registers>,
    pub(super) not_captured: Option<NotCaptured>,
    /// A pending signal, delivered to the thread when it continues; 0 for none.
    signal: i32,
}

/// All threads of a process.
///
/// They continue when this is dropped, at the latest when this process ends.
#[derive(Debug)]
pub(super) struct Stopped {
    /// The first thread comes first.
    pub(super) threads: Vec<StoppedThread>,
    problems: Vec<Problem>,
}

impl Stopped {
    /// Stops the threads of `pid`, including those that start meanwhile.
    pub(super) fn stop(pid: u32) -> Result<Stopped, ProcessError> {
        let deadline = Instant::now() + DEADLINE;
        let mut stopped = Stopped { threads: Vec::new(), problems: Vec::new() };
        let mut seen = BTreeSet::new();
        loop {
            let new: Vec<u32> = thread_ids(pid)?.into_iter().filter(|tid| seen.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                if stopped.threads.len() >= MAX_THREADS {
                    stopped.problems.push(not_stopped(tid, "the process has too many threads"));
                    break;
                }
                let thread = StoppedThread {
                    tid,
                    name: thread_name(pid, tid),
                    state: state_letter(pid, tid),
                    system_call: None,
                    futex: None,
                    registers: None,
                    not_captured: None,
                    signal: 0,
                };
                match seize(tid) {
                    Ok(()) => stopped.threads.push(thread),
                    // The thread ended after it was listed.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {}
                    Err(error) if tid == pid || stopped.threads.is_empty() => return Err(explain_refusal(pid, &error)),
                    Err(error) => {
                        stopped.problems.push(not_stopped(tid, &error.to_string()));
                        stopped.threads.push(StoppedThread { not_captured: Some(NotCaptured::DENIED), ..thread });
                    }
                }
            }
            let waiting =
                stopped.threads.iter_mut().filter(|thread| thread.registers.is_none() && thread.not_captured.is_none());
            for thread in waiting {
                match wait_until_stopped(thread.tid, deadline) {
                    Ok(signal) => {
                        thread.signal = signal;
                        (thread.registers, thread.system_call) = read_registers(thread.tid);
                        if thread.registers.is_none() {
                            thread.not_captured = Some(NotCaptured::FAULT);
                        }
                    }
                    Err(why) => {
                        thread.not_captured = Some(why);
                        let text = why.to_string().replace('_', " ");
                        stopped.problems.push(not_stopped(thread.tid, &text));
                    }
                }
            }
        }
        stopped.threads.retain(|thread| thread.not_captured != Some(NotCaptured::ENDED));
        stopped.threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
        match stopped.threads.is_empty() {
            true => Err(ProcessError::NoProcess { pid }),
            false => Ok(stopped),
        }
    }

    /// Lets the threads continue.
    pub(super) fn release(mut self) -> (Vec<StoppedThread>, Vec<Problem>) {
        let taken = (std::mem::take(&mut self.threads), std::mem::take(&mut self.problems));
        detach(&taken.0);
        taken
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        detach(&self.threads);
    }
}

fn detach(threads: &[StoppedThread]) {
    for thread in threads {
        // SAFETY: it takes numbers. It fails for a thread that is not stopped; the kernel releases
        // that one when this process ends. (nix's `Signal` has no real-time signals.)
        unsafe {
            libc::ptrace(libc::PTRACE_DETACH, thread.tid as libc::pid_t, null_mut::<c_void>(), thread.signal as usize);
        }
    }
}

fn thread_ids(pid: u32) -> Result<Vec<u32>, ProcessError> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| ProcessError::NoProcess { pid })?;
    let mut tids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // `read_dir` also opens a folder for the id of a thread that is not the process's first.
    if !tids.contains(&pid) {
        return Err(ProcessError::NoProcess { pid });
    }
    tids.sort_by_key(|tid| (*tid != pid, *tid));
    Ok(tids)
}

fn thread_name(pid: u32, tid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Returns the state, which follows the name in parentheses; the name may contain parentheses.
fn state_letter(pid: u32, tid: u32) -> char {
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

/// A traced thread continues if this process ends.
fn seize(tid: u32) -> io::Result<()> {
    let tid = Pid::from_raw(tid as libc::pid_t);
    ptrace::seize(tid, ptrace::Options::empty())?;
    Ok(ptrace::interrupt(tid)?)
}

/// Returns why a process can't be traced, as far as the system reports it.
fn explain_refusal(pid: u32, error: &io::Error) -> ProcessError {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return ProcessError::NoProcess { pid };
    }
    let tracer = status_number(pid, "TracerPid:").filter(|tracer| *tracer != 0);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = match (tracer, scope.trim()) {
        (Some(tracer), _) => format!(": already traced by process {tracer}"),
        (None, "1" | "2") => {
            ": Yama allows it only for parent processes and root (/proc/sys/kernel/yama/ptrace_scope)".to_owned()
        }
        (None, "3") => ": forbidden by Yama (/proc/sys/kernel/yama/ptrace_scope is 3)".to_owned(),
        _ => format!(": {error}; it belongs to another user or has more privileges"),
    };
    ProcessError::Denied { pid, why }
}

/// Waits until a thread has stopped; returns the signal that was pending for it, or 0.
fn wait_until_stopped(tid: u32, deadline: Instant) -> Result<i32, NotCaptured> {
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a local variable. (nix fails at real-time signals.)
        let found = unsafe { libc::waitpid(tid as libc::pid_t, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if found == tid as libc::pid_t {
            if !libc::WIFSTOPPED(status) {
                return Err(NotCaptured::ENDED);
            }
            return Ok(if status >> 16 == EVENT_STOP { 0 } else { libc::WSTOPSIG(status) });
        }
        if found < 0 {
            return Err(NotCaptured::ENDED);
        }
        if Instant::now() > deadline {
            return Err(NotCaptured::UNINTERRUPTIBLE);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns a stopped thread's general registers, and the system call that it is in.
fn read_registers(tid: u32) -> (Option<Registers>, Option<i64>) {
    let mut bytes = [0_u8; 512];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most the vector's length, and stores the number of bytes written
    // in the vector. (nix has only the registers of 64-bit processes.)
    let read = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid as libc::pid_t, NT_PRSTATUS, &raw mut part) };
    if read != 0 {
        return (None, None);
    }
    let bytes = &bytes[..part.iov_len.min(bytes.len())];
    let general = general_registers(bytes, Arch::NATIVE);
    (general.map(|general| registers(Arch::NATIVE, general)), system_call(bytes, Arch::NATIVE))
}
