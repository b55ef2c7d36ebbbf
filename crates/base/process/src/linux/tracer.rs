//! Reads threads that don't answer, through a helper process that stops them with ptrace.
//!
//! The helper shares this process's memory. ptrace refuses a tracer in the tracee's own thread
//! group, so the helper is created by a bare clone(2) with this process's memory and files but a
//! thread group of its own. It has no exit signal (the app's SIGCHLD handling sees nothing, and
//! `wait` without `__WALL` doesn't find it), runs on a stack mapped outside a signal handler, makes
//! only raw system calls, dies with the thread that started it, and releases its tracees by
//! exiting.
//!
//! Requirements: a free process (`RLIMIT_NPROC`), clone and ptrace allowed by the sandbox, a
//! dumpable process (`PR_GET_DUMPABLE` is 1) or `CAP_SYS_PTRACE`, and under Yama the permission
//! that the starter gives (`PR_SET_PTRACER`). Each missing one is a [`NotCaptured`] reason.
//! Sources: clone(2), ptrace(2) "Attaching and detaching", "PTRACE_SEIZE", wait(2).

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::signals::{SignalAction, bit, block_exactly};
use super::stop_the_world::NotCaptured;
use super::stop_the_world::futex::{self, Reach};
use super::stop_the_world::queued_signal::ALL_BUT_FAULTS;
use super::syscall::{Errno, Result, syscall};
use super::threads::{Tid, monotonic_now, process_id};
use crate::files::{map_untouched, unmap};
use crate::registers::Registers;
use crate::stack::Stack;

/// Size of the helper's stack: it calls a few small functions.
const STACK: usize = 16 * 1024;

/// Maximum time that the helper holds its tracees after the last list, in nanoseconds.
///
/// Needed if the starter hangs.
const HOLD: u64 = 60_000_000_000;

/// Same as [`HOLD`], for [`Tracing::run_briefly`].
const BRIEF_HOLD: u64 = 1_000_000_000;

/// Time that the starter waits beyond the deadline for a helper, in nanoseconds.
const MARGIN: u64 = 20_000_000;

// coroner_tracer_clone(flags, top, function, argument, child_tid) -> pid or -errno
//
// The child calls function(argument) on its own stack and exits with the result. It never returns
// to Rust code of the parent, whose stack it doesn't have.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_tracer,\"ax\",@progbits",
    ".globl coroner_tracer_clone",
    ".hidden coroner_tracer_clone",
    ".type coroner_tracer_clone,@function",
    "coroner_tracer_clone:",
    ".cfi_startproc",
    "sub rsi, 16",
    "mov [rsi], rdx",
    "mov [rsi + 8], rcx",
    "mov r10, r8",
    "xor edx, edx",
    "xor r8d, r8d",
    "mov eax, 56", // clone(flags, stack, parent_tid, child_tid, tls)
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    ".cfi_undefined rip",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "mov edi, eax",
    "mov eax, 231", // exit_group(status)
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".size coroner_tracer_clone, . - coroner_tracer_clone",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_tracer,\"ax\",@progbits",
    ".globl coroner_tracer_clone",
    ".hidden coroner_tracer_clone",
    ".type coroner_tracer_clone,@function",
    "coroner_tracer_clone:",
    ".cfi_startproc",
    "stp x2, x3, [x1, #-16]!",
    "mov x2, #0",
    "mov x3, #0",
    "mov x8, #220", // clone(flags, stack, parent_tid, tls, child_tid): the fifth argument is where clone wants it
    "svc #0",
    "cbz x0, 2f",
    "ret",
    "2:",
    ".cfi_undefined x30",
    "mov x29, #0",
    "mov x30, #0",
    "ldp x1, x0, [sp], #16",
    "blr x1",
    "mov x8, #94", // exit_group(status)
    "svc #0",
    "brk #1",
    ".cfi_endproc",
    ".size coroner_tracer_clone, . - coroner_tracer_clone",
    ".popsection",
);

unsafe extern "C" {
    pub(super) fn coroner_tracer_clone(
        flags: u64,
        top: usize,
        function: unsafe extern "C" fn(*const c_void) -> i32,
        argument: *const c_void,
        child_tid: *mut u32,
    ) -> isize;
}

/// From `linux/ptrace.h` and `linux/elf.h`; libc lacks them for Android.
const PTRACE_SEIZE: i32 = 0x4206;
const PTRACE_INTERRUPT: i32 = 0x4207;
const NT_PRSTATUS: i32 = 1;

/// The state of one thread's job. `Stopped` and reasons are final.
const WAITING: u32 = 0;
const SEIZED: u32 = 1;
const STOPPED: u32 = 2;
/// Added to a [`NotCaptured`] number.
const FAILED: u32 = 0x100;

/// The helper's life, in [`Shared::phase`]; the kernel writes [`ENDED`] when it is gone.
const ENDED: u32 = 0;
const STARTED: u32 = 1;
const DONE: u32 = 2;

/// In [`Shared::lists`]: the helper may exit.
const END: u32 = u32::MAX;

/// Number of helpers of all tracers in this process that were begun, and that have exited.
static BEGUN_HELPERS: AtomicU32 = AtomicU32::new(0);
static ENDED_HELPERS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of helpers that have exited. Async-signal-safe.
///
/// No helper was active between two moments if [`begun_helpers`] returns at the later one what this
/// returned at the earlier.
pub(super) fn ended_helpers() -> u32 {
    ENDED_HELPERS.load(SeqCst)
}

/// Returns the number of helpers that were begun. Async-signal-safe.
pub(super) fn begun_helpers() -> u32 {
    BEGUN_HELPERS.load(SeqCst)
}

/// A thread to be stopped.
#[derive(Debug)]
#[repr(C)]
struct Job {
    tid: AtomicU32,
    /// [`WAITING`], [`SEIZED`], [`STOPPED`], or [`FAILED`] with a reason.
    ///
    /// Written by the helper while it runs.
    outcome: AtomicU32,
    registers: UnsafeCell<Registers>,
}

/// The memory that starter and helper share.
#[derive(Debug)]
#[repr(C)]
struct Shared {
    phase: AtomicU32,
    /// A futex word: the number of lists that the helper may work on, or [`END`].
    ///
    /// The first list is available once the helper has been named to Yama.
    lists: AtomicU32,
    /// Number of jobs in earlier lists.
    finished: AtomicU32,
    /// 1 while a tracing is in progress.
    busy: AtomicU32,
    jobs: AtomicU32,
    starter: AtomicU32,
    deadline: AtomicU64,
    /// Nanoseconds after the deadline for which the tracees are held.
    hold: AtomicU64,
    capacity: usize,
    /// The jobs, after this structure.
    first_job: *const Job,
}

impl Shared {
    /// Returns the jobs in use.
    fn jobs(&self) -> &[Job] {
        let count = (self.jobs.load(Acquire) as usize).min(self.capacity);
        // SAFETY: `prepare` mapped `capacity` jobs there, zeroed (which is a valid job).
        unsafe { core::slice::from_raw_parts(self.first_job, count) }
    }
}

/// A prepared tracing helper: its stack and table exist, but no process does yet.
#[derive(Debug)]
pub struct Tracer {
    shared: *const Shared,
    size: usize,
    stack: Stack,
}

// SAFETY: `Shared` is used through atomics; the registers are read only after their job's `STOPPED`
// is (Acquire), and written only before (Release); `busy` keeps a second starter out.
unsafe impl Send for Tracer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Tracer {}

impl Tracer {
    /// Maps the helper's stack and a table for `threads` (not async-signal-safe).
    ///
    /// The table's pages are allocated on use: it is needed only if threads don't answer.
    pub fn prepare(threads: usize, page: usize) -> Result<Tracer> {
        let threads = threads.clamp(1, 1 << 20);
        let size = size_of::<Shared>() + threads * size_of::<Job>();
        let stack = Stack::map(STACK, page, STACK)?;
        let mapping = match map_untouched(size) {
            Ok(mapping) => mapping,
            Err(error) => {
                stack.unmap();
                return Err(error);
            }
        };
        let shared = mapping as *mut Shared;
        // SAFETY: ours alone, zeroed, aligned to a page and big enough; zeroes are a valid
        // `Shared`. Writing touches it.
        unsafe {
            (*shared).capacity = threads;
            (*shared).first_job = shared.add(1).cast();
        }
        Ok(Tracer { shared, size, stack })
    }

    /// Unmaps stack and table (not async-signal-safe).
    pub fn unmap(self) {
        self.stack.unmap();
        // SAFETY: ours alone, since `self` is consumed and no `Tracing` borrows it.
        unsafe { unmap(self.shared as usize, self.size) };
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped by `prepare`, unmapped only by `unmap`. Async-signal-safe: no call.
        unsafe { &*self.shared }
    }

    /// Begins a list of threads to stop. `None` if another one is in progress.
    pub fn begin(&self) -> Option<Tracing<'_>> {
        let shared = self.shared();
        shared.busy.compare_exchange(0, 1, SeqCst, SeqCst).ok()?;
        shared.jobs.store(0, SeqCst);
        shared.finished.store(0, SeqCst);
        Some(Tracing { tracer: self, helper: 0 })
    }
}

/// Threads that the helper was asked to stop, and that stay stopped until this is dropped.
#[derive(Debug)]
pub struct Tracing<'a> {
    tracer: &'a Tracer,
    /// The helper's process id, 0 while there is none.
    helper: i32,
}

impl Tracing<'_> {
    /// Adds a thread to the list of the next [`Self::run`].
    ///
    /// Returns its number, or `None` if the table is full.
    pub fn add(&mut self, tid: Tid) -> Option<usize> {
        let shared = self.tracer.shared();
        let index = shared.jobs.load(Relaxed) as usize;
        if index >= shared.capacity {
            return None;
        }
        shared.jobs.store((index as u32).wrapping_add(1), Release);
        let job = shared.jobs().get(index)?;
        job.tid.store(tid as u32, Relaxed);
        job.outcome.store(WAITING, Relaxed);
        Some(index)
    }

    /// Stops and reads every thread that was added since the last run.
    ///
    /// Starts the helper if there is none yet, and waits until it has finished, died, or it is
    /// `deadline` (`CLOCK_MONOTONIC` nanoseconds). Nothing is started for an empty list.
    pub fn run(&mut self, deadline: u64) {
        self.run_and_hold(deadline, HOLD);
    }

    /// Like [`Self::run`], but the threads continue a second after the deadline at the latest.
    ///
    /// For a starter that may itself be stopped meanwhile, by a thread that it has stopped: it must
    /// ask [`Self::is_held`] whether what it read is valid.
    pub fn run_briefly(&mut self, deadline: u64) {
        self.run_and_hold(deadline, BRIEF_HOLD);
    }

    /// Whether the threads have been stopped until now.
    pub fn is_held(&self) -> bool {
        self.tracer.shared().phase.load(Acquire) == DONE
    }

    fn run_and_hold(&mut self, deadline: u64, hold: u64) {
        let shared = self.tracer.shared();
        if shared.jobs.load(Relaxed) == shared.finished.load(Relaxed) {
            return;
        }
        shared.deadline.store(deadline, SeqCst);
        shared.hold.store(hold, SeqCst);
        shared.phase.store(STARTED, SeqCst);
        if self.helper == 0 {
            shared.lists.store(0, SeqCst);
            shared.starter.store(process_id() as u32, SeqCst);
            BEGUN_HELPERS.fetch_add(1, SeqCst);
            match self.start() {
                Ok(pid) => self.helper = pid,
                Err(error) => {
                    ENDED_HELPERS.fetch_add(1, SeqCst);
                    fail_unfinished(shared, why_no_helper(error));
                    return;
                }
            }
            // Only Yama implements this call; elsewhere it fails and is not needed.
            // SAFETY: changes who may trace this process, to our helper. Async-signal-safe: one
            // system call.
            let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, self.helper) };
        }
        shared.lists.fetch_add(1, SeqCst);
        futex::wake(&shared.lists, Reach::Private, 1);
        let limit = deadline.saturating_add(MARGIN);
        while shared.phase.load(Acquire) == STARTED && monotonic_now() < limit {
            futex::wait(&shared.phase, Reach::Shared, STARTED, limit);
        }
        if shared.phase.load(Acquire) == DONE {
            fail_unfinished(shared, NotCaptured::TraceDeadline);
        } else {
            // A sandbox may have killed it for calling ptrace; or it is stuck, and must not write
            // any more.
            self.end();
            fail_unfinished(shared, NotCaptured::HelperDied);
        }
    }

    /// Returns a thread's registers, or why they are missing.
    ///
    /// `None` while the list is in progress.
    pub fn outcome(&self, job: usize) -> Option<core::result::Result<&Registers, NotCaptured>> {
        let job = self.tracer.shared().jobs().get(job)?;
        match job.outcome.load(Acquire) {
            // SAFETY: the helper wrote the registers before this outcome and does not write them
            // again. Async-signal-safe: no call.
            STOPPED => Some(Ok(unsafe { &*job.registers.get() })),
            outcome => Some(Err(NotCaptured::from_number(outcome.checked_sub(FAILED)? as u8)?)),
        }
    }

    fn start(&self) -> Result<i32> {
        let shared = self.tracer.shared();
        // No CLONE_SIGHAND: the helper resets its own signal actions to the default without
        // touching ours.
        let flags =
            libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_UNTRACED | libc::CLONE_CHILD_CLEARTID;
        let word = shared.phase.as_ptr();
        // SAFETY: the stack is ours (`busy`), mapped, and used by nobody else until the helper has
        // exited; the table lives as long as the tracer. Async-signal-safe: one system call.
        let answer = unsafe {
            coroner_tracer_clone(
                flags as u64,
                self.tracer.stack.top(),
                helper,
                core::ptr::from_ref(shared).cast(),
                word,
            )
        };
        if answer < 0 { Err(Errno(answer.unsigned_abs() as i32)) } else { Ok(answer as i32) }
    }

    /// Ends the helper, which releases its tracees, and reaps it.
    fn end(&mut self) {
        let helper = core::mem::replace(&mut self.helper, 0);
        if helper == 0 {
            return;
        }
        let shared = self.tracer.shared();
        shared.lists.store(END, SeqCst);
        futex::wake(&shared.lists, Reach::Private, 1);
        let limit = monotonic_now().saturating_add(MARGIN);
        while shared.phase.load(Acquire) != ENDED && monotonic_now() < limit {
            let seen = shared.phase.load(Acquire);
            if seen != ENDED {
                futex::wait(&shared.phase, Reach::Shared, seen, limit);
            }
        }
        if shared.phase.load(Acquire) != ENDED {
            // SAFETY: our own child, not yet reaped, so it still has the id. Async-signal-safe: one
            // system call.
            let _ = unsafe { syscall!(libc::SYS_kill, helper, libc::SIGKILL) };
        }
        // The helper has exited or is being killed: this wait is short. `EINTR` is tried again;
        // `ECHILD` means that somebody else reaped it.
        // SAFETY: a status is not asked for. Async-signal-safe: one system call.
        while unsafe { syscall!(libc::SYS_wait4, helper, 0, libc::__WALL, 0) } == Err(Errno::INTR) {}
        ENDED_HELPERS.fetch_add(1, SeqCst);
    }
}

impl Drop for Tracing<'_> {
    fn drop(&mut self) {
        self.end();
        self.tracer.shared().busy.store(0, SeqCst);
    }
}

/// Gives every unfinished job a reason.
fn fail_unfinished(shared: &Shared, reason: NotCaptured) {
    for job in shared.jobs() {
        for unfinished in [WAITING, SEIZED] {
            let _ = job.outcome.compare_exchange(unfinished, FAILED | reason as u32, SeqCst, SeqCst);
        }
    }
    shared.finished.store(shared.jobs.load(Relaxed), SeqCst);
}

/// Returns the reason for clone's error.
fn why_no_helper(error: Errno) -> NotCaptured {
    match error.0 {
        libc::EAGAIN | libc::ENOMEM | libc::ENOSPC => NotCaptured::NoProcessLeft,
        // qemu-user emulates threads and forks, and nothing in between.
        libc::EINVAL | libc::ENOSYS => NotCaptured::TraceUnsupported,
        _ => NotCaptured::HelperDenied,
    }
}

// ───────────────────────────── in the helper ─────────────────────────────

/// The helper's main function.
///
/// Runs in a separate process that shares this one's memory; the thread-local storage of its thread
/// register is the starter's, so nothing may access that.
unsafe extern "C" fn helper(shared: *const c_void) -> i32 {
    // SAFETY: the starter keeps the table until the helper has exited.
    let shared = unsafe { &*shared.cast::<Shared>() };
    // A fault in here must kill the helper and not run the app's crash handler in it.
    for signal in [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGSYS,
        // If it were ignored, a tracee's stop would not be reported.
        libc::SIGCHLD,
    ] {
        // SAFETY: the helper's own actions (no CLONE_SIGHAND); the default runs no code.
        let _ = unsafe { SignalAction::DEFAULT.set(signal) };
    }
    block_exactly(ALL_BUT_FAULTS);
    // If the starter dies, so does the helper, and its tracees are released.
    // SAFETY: changes an attribute of this process only.
    let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: getppid has no arguments and no effects.
    if unsafe { syscall!(libc::SYS_getppid) } != Ok(shared.starter.load(SeqCst) as usize) {
        return 1;
    }
    let mut done = 0;
    loop {
        let lists = shared.lists.load(Acquire);
        if lists == END {
            return 0;
        }
        let deadline = shared.deadline.load(SeqCst);
        if lists != done {
            done = lists;
            stop_all(shared, deadline);
            // The starter may have given up meanwhile; then this is too late, and the word already
            // has that state or may be overwritten.
            shared.phase.store(DONE, Release);
            futex::wake(&shared.phase, Reach::Shared, 1);
        }
        let until = deadline.saturating_add(if done == 0 { 0 } else { shared.hold.load(SeqCst) });
        if monotonic_now() >= until {
            return 1;
        }
        futex::wait(&shared.lists, Reach::Private, done, until);
    }
}

/// Stops every thread in the list: all are asked first, then awaited.
fn stop_all(shared: &Shared, deadline: u64) {
    let mut pending = 0_usize;
    for job in shared.jobs().iter().skip(shared.finished.load(Acquire) as usize) {
        let tid = job.tid.load(Relaxed) as i32;
        match seize(tid) {
            Ok(()) => {
                job.outcome.store(SEIZED, Release);
                pending = pending.saturating_add(1);
            }
            Err(error) => job.outcome.store(FAILED | why_not_seized(error) as u32, Release),
        }
    }
    while pending > 0 {
        let mut status = 0_i32;
        let options = libc::WNOHANG | libc::__WALL;
        // SAFETY: the kernel writes one status.
        match unsafe { syscall!(libc::SYS_wait4, -1_isize, &raw mut status, options, 0) } {
            Ok(0) => {
                let now = monotonic_now();
                if now >= deadline {
                    return;
                }
                await_child(deadline.saturating_sub(now));
            }
            Ok(tid) => {
                let job = shared.jobs().iter().find(|job| job.tid.load(Relaxed) as usize == tid);
                if let Some(job) = job.filter(|job| job.outcome.load(Relaxed) == SEIZED) {
                    finish(job, status);
                    pending = pending.saturating_sub(1);
                }
            }
            Err(Errno::INTR) => {}
            // No tracee is left.
            Err(_) => return,
        }
    }
}

/// Reads a thread's registers, or records the reason for their absence.
fn finish(job: &Job, status: i32) {
    // WIFSTOPPED in wait(2).
    if status & 0xff != 0x7f {
        job.outcome.store(FAILED | NotCaptured::ThreadGone as u32, Release);
        return;
    }
    // The kernel's register set (`user_regs_struct`, `user_pt_regs`) in words; it has at most 34.
    let mut words = [0_u64; 34];
    let mut into = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    let tid = job.tid.load(Relaxed);
    // SAFETY: the kernel writes at most `iov_len` bytes.
    let got = unsafe { syscall!(libc::SYS_ptrace, libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, &raw mut into) };
    let outcome = if got.is_ok() {
        resume_interrupted(tid, &mut words, into.iov_len);
        // SAFETY: nobody reads the registers before the outcome below, and this is their only
        // writer.
        unsafe { *job.registers.get() = registers(&words) };
        STOPPED
    } else {
        FAILED | NotCaptured::RegistersUnreadable as u32
    };
    job.outcome.store(outcome, Release);
}

/// Restarts a system call that returns `EINTR` because of the stop when the thread continues.
///
/// The kernel does that for most calls, but some check for any interruption and return `EINTR`
/// (fs/eventpoll.c, ipc/sem.c, `sock_intr_errno`). The error that replaces it, ERESTARTNOHAND, is
/// the kernel's own for "again, but `EINTR` if a handler runs": the effect of a signal that comes
/// meanwhile on the call is unchanged. A time limit of the call begins anew.
///
/// Applies only to calls that have done nothing when they return `EINTR`.
#[cfg(target_arch = "x86_64")]
fn resume_interrupted(tid: u32, words: &mut [u64; 34], size: usize) {
    const CALLS: [i64; 21] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        libc::SYS_io_uring_enter,
    ];
    const ERESTARTNOHAND: i64 = 514;
    let [_, _, _, _, _, _, _, _, _, _, rax, _, _, _, _, number, ..] = words;
    if *rax as i64 != i64::from(-libc::EINTR) || !CALLS.contains(&(*number as i64)) {
        return;
    }
    *rax = -ERESTARTNOHAND as u64;
    let mut from = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size };
    // SAFETY: the kernel reads `iov_len` bytes, as many as it wrote. Async-signal-safe: one system
    // call.
    let _ = unsafe { syscall!(libc::SYS_ptrace, libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, &raw mut from) };
}

/// Does nothing: `EINTR` remains.
///
/// On arm64 the kernel has already replaced the call's first argument by its result.
#[cfg(target_arch = "aarch64")]
fn resume_interrupted(_tid: u32, _words: &mut [u64; 34], _size: usize) {}

/// Converts `user_regs_struct` (`asm/user_64.h`).
///
/// r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base
/// gs_base ds es fs gs.
#[cfg(target_arch = "x86_64")]
fn registers(words: &[u64; 34]) -> Registers {
    let [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, number, rip, _, flags, rsp, ..] =
        *words;
    let mut registers = Registers {
        gpr: [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15],
        pc: rip,
        flags,
    };
    // An interrupted call that will be restarted is shown as the kernel leaves it for that
    // (`arch_do_signal_or_restart`), with the number in place and pc on the instruction. The errors
    // are ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and ERESTART_RESTARTBLOCK, which a tracer
    // sees and a program never does.
    if matches!(rax as i64, -514..=-512 | -516) && number < 0x1000 {
        registers.gpr[0] = number;
        registers.pc = rip.wrapping_sub(2);
    }
    registers
}

/// Converts `user_pt_regs` (`asm/ptrace.h`): x0 … x30 sp pc pstate.
#[cfg(target_arch = "aarch64")]
fn registers(words: &[u64; 34]) -> Registers {
    let [.., sp, pc, pstate] = *words;
    let mut registers = Registers { x: [0; 31], sp, pc, pstate };
    for (to, from) in registers.x.iter_mut().zip(words) {
        *to = *from;
    }
    registers
}

/// Attaches to a thread and asks it to stop, without sending it a signal.
fn seize(tid: Tid) -> Result<()> {
    // SAFETY: acts on a thread of the process that started us, which asked for it.
    unsafe { syscall!(libc::SYS_ptrace, PTRACE_SEIZE, tid, 0, 0) }?;
    // SAFETY: as above.
    unsafe { syscall!(libc::SYS_ptrace, PTRACE_INTERRUPT, tid, 0, 0) }.map(|_| ())
}

fn why_not_seized(error: Errno) -> NotCaptured {
    match error.0 {
        libc::ESRCH => NotCaptured::ThreadGone,
        libc::ENOSYS | libc::EIO => NotCaptured::TraceUnsupported,
        _ => NotCaptured::TraceDenied,
    }
}

/// Waits until a tracee's change of state is reported, or `timeout` nanoseconds have passed.
fn await_child(timeout: u64) {
    let set = bit(libc::SIGCHLD);
    let time = [(timeout / 1_000_000_000) as i64, (timeout % 1_000_000_000) as i64];
    // SAFETY: the kernel reads the set and the timespec.
    let _ = unsafe { syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0, time.as_ptr(), 8) };
}
