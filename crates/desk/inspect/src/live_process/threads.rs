//! The threads of a process, stopped by ptrace, with their registers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use coroner_formats::MAX_THREADS;
use coroner_formats::snapshot::registers;
use coroner_process::registers::Arch;
use coroner_report::model::{Problem, Thread, system_call_name};
use coroner_report::wire::{CaptureMethod, NotCaptured, Os, ThreadState};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::{ProcessError, status_number};
use crate::wait_status::WaitStatus;

/// Maximum time for the threads to stop; a thread in an uninterruptible wait doesn't.
const DEADLINE: Duration = Duration::from_secs(2);
/// Maximum time to wait for a thread that is in an uninterruptible wait.
const UNINTERRUPTIBLE_DEADLINE: Duration = Duration::from_millis(100);

/// A thread that was asked to stop.
#[derive(Debug)]
pub(crate) struct StoppedThread {
    pub(crate) thread: Thread,
    /// Its stop; `None` if it did not stop.
    pub(crate) stop: Option<WaitStatus>,
}

impl StoppedThread {
    pub(crate) fn tid(&self) -> Pid {
        Pid::from_raw(self.thread.tid as i32)
    }
}

/// Whether the threads are traced already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traced {
    /// They are not; each is seized.
    No,
    /// They are, and this one has stopped.
    Except(Pid),
}

/// Stops the threads of `pid`, including those that start meanwhile. The first thread comes first.
pub(crate) fn stop_threads(pid: Pid, traced: Traced) -> Result<(Vec<StoppedThread>, Vec<Problem>), ProcessError> {
    let deadline = Instant::now() + DEADLINE;
    let mut threads: Vec<StoppedThread> = Vec::new();
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    if let Traced::Except(tid) = traced {
        seen.insert(tid);
    }
    loop {
        let new: Vec<Pid> = thread_ids(pid)?.into_iter().filter(|tid| seen.insert(*tid)).collect();
        if new.is_empty() {
            break;
        }
        let first_new = threads.len();
        for tid in new {
            if threads.len() >= MAX_THREADS {
                problems.push(not_stopped(tid, "the process has too many threads"));
                break;
            }
            let mut thread = describe_thread(pid, tid);
            match interrupt(tid, traced) {
                Ok(()) => {}
                // The thread ended after it was listed.
                Err(Errno::ESRCH) if tid != pid || traced != Traced::No => continue,
                Err(error) if tid == pid || threads.is_empty() => return Err(explain_refusal(pid, error)),
                Err(error) => {
                    problems.push(not_stopped(tid, error.desc()));
                    thread.not_captured = Some(NotCaptured::DENIED);
                }
            }
            threads.push(StoppedThread { thread, stop: None });
        }
        for stopped in threads[first_new..].iter_mut().filter(|stopped| stopped.thread.not_captured.is_none()) {
            match wait_until_stopped(pid, stopped.tid(), deadline) {
                Ok(stop) => {
                    stopped.stop = Some(stop);
                    add_registers(&mut stopped.thread);
                }
                Err(why) => {
                    stopped.thread.not_captured = Some(why);
                    let text = why.to_string().replace('_', " ");
                    problems.push(not_stopped(stopped.tid(), &text));
                }
            }
        }
    }
    threads.retain(|stopped| stopped.thread.not_captured != Some(NotCaptured::ENDED));
    threads.sort_by_key(|stopped| (stopped.tid() != pid, stopped.tid()));
    Ok((threads, problems))
}

/// Lets seized threads continue untraced, with their pending signals.
pub(crate) fn detach(threads: &[StoppedThread]) {
    for stopped in threads {
        // Fails for a thread that has not stopped; the kernel releases that one when this process
        // ends.
        let signal = stopped.stop.map_or(0, WaitStatus::pending_signal);
        let _ = crate::ptrace_requests::detach(stopped.tid(), signal);
    }
}

fn thread_ids(pid: Pid) -> Result<Vec<Pid>, ProcessError> {
    let gone = || ProcessError::NoProcess { pid: pid.as_raw() as u32 };
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| gone())?;
    let mut tids: Vec<Pid> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect();
    // `read_dir` also opens a folder for the id of a thread that is not the process's first.
    if !tids.contains(&pid) {
        return Err(gone());
    }
    tids.sort_by_key(|tid| (*tid != pid, *tid));
    Ok(tids)
}

/// Returns a thread with its name and state, without registers.
pub(crate) fn describe_thread(pid: Pid, tid: Pid) -> Thread {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().to_owned();
    // The state follows the name in parentheses, which may contain parentheses.
    let stat = std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    Thread {
        tid: tid.as_raw() as u64,
        name: Some(name).filter(|name| !name.is_empty()),
        main: tid == pid,
        state: stat.rsplit_once(") ").and_then(|(_, rest)| state(rest.chars().next()?)),
        ..Thread::default()
    }
}

/// Converts the state letter of `/proc/PID/task/TID/stat`.
fn state(letter: char) -> Option<ThreadState> {
    match letter {
        'R' => Some(ThreadState::RUNNING),
        'S' => Some(ThreadState::BLOCKED),
        'D' => Some(ThreadState::UNINTERRUPTIBLE),
        'T' | 't' => Some(ThreadState::STOPPED),
        'I' => Some(ThreadState::IDLE),
        'Z' | 'X' => Some(ThreadState::ENDED),
        _ => None,
    }
}

fn interrupt(tid: Pid, traced: Traced) -> nix::Result<()> {
    if traced == Traced::No {
        ptrace::seize(tid, ptrace::Options::empty())?;
    }
    ptrace::interrupt(tid)
}

/// Returns why a process can't be traced, as far as the system reports it.
pub(crate) fn explain_refusal(pid: Pid, error: Errno) -> ProcessError {
    let number = pid.as_raw() as u32;
    if error == Errno::ESRCH {
        return ProcessError::NoProcess { pid: number };
    }
    let tracer = status_number(number, "TracerPid:").filter(|tracer| *tracer != 0);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = match (tracer, scope.trim()) {
        (Some(tracer), _) => format!(": already traced by process {tracer}"),
        (None, "1" | "2") => {
            ": Yama allows it only for parent processes and root (/proc/sys/kernel/yama/ptrace_scope)".to_owned()
        }
        (None, "3") => ": forbidden by Yama (/proc/sys/kernel/yama/ptrace_scope is 3)".to_owned(),
        _ => format!(": {}; it belongs to another user or has more privileges", std::io::Error::from(error)),
    };
    ProcessError::Denied { pid: number, why }
}

/// Waits until a thread has stopped.
fn wait_until_stopped(pid: Pid, tid: Pid, deadline: Instant) -> Result<WaitStatus, NotCaptured> {
    let impatient = Instant::now() + UNINTERRUPTIBLE_DEADLINE;
    loop {
        match WaitStatus::poll(tid) {
            Ok(Some((_, status))) if status.is_stop() => return Ok(status),
            Ok(Some(_)) | Err(_) => return Err(NotCaptured::ENDED),
            Ok(None) => {}
        }
        let now = Instant::now();
        let state = (now > impatient).then(|| describe_thread(pid, tid).state).flatten();
        // The first thread may end before the others, and is waited for only after them.
        if state == Some(ThreadState::ENDED) {
            return Err(NotCaptured::ENDED);
        }
        if now > deadline || state == Some(ThreadState::UNINTERRUPTIBLE) {
            return Err(NotCaptured::UNINTERRUPTIBLE);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Adds a stopped thread's general registers, and the system call that it is in.
pub(crate) fn add_registers(thread: &mut Thread) {
    let Ok(user) = ptrace::getregs(Pid::from_raw(thread.tid as i32)) else {
        thread.not_captured = Some(NotCaptured::FAULT);
        return;
    };
    thread.captured_by = Some(CaptureMethod::PTRACE);
    thread.registers = Some(registers(Arch::NATIVE, general(&user)));
    thread.syscall = system_call(&user);
    thread.syscall_name = thread.syscall.and_then(|call| system_call_name(Os::LINUX, Arch::NATIVE, call));
}

/// The registers in the order used in reports: as DWARF numbers them.
#[cfg(target_arch = "x86_64")]
fn general(user: &libc::user_regs_struct) -> Vec<u64> {
    let [r8_to_r11, r12_to_r15] = [[user.r8, user.r9, user.r10, user.r11], [user.r12, user.r13, user.r14, user.r15]];
    let first = [user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp];
    [&first[..], &r8_to_r11, &r12_to_r15, &[user.rip, user.eflags]].concat()
}

/// The registers in the order used in reports: x0 … x30, sp, pc, pstate.
#[cfg(target_arch = "aarch64")]
fn general(user: &libc::user_regs_struct) -> Vec<u64> {
    [&user.regs[..], &[user.sp, user.pc, user.pstate]].concat()
}

/// The current system call; `orig_rax` is negative outside system calls.
#[cfg(target_arch = "x86_64")]
fn system_call(user: &libc::user_regs_struct) -> Option<i64> {
    Some(user.orig_rax as i64).filter(|call| *call >= 0)
}

#[cfg(target_arch = "aarch64")]
fn system_call(_: &libc::user_regs_struct) -> Option<i64> {
    None
}

/// Returns the problem for a thread that was not stopped.
fn not_stopped(tid: Pid, why: &str) -> Problem {
    Problem { section: None, offset: 0, what: format!("thread {tid} was not stopped: {why}") }
}
