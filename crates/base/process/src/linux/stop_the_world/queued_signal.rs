//! The real-time signal that stops threads: choosing one, installing its handler, sending it to one thread with a value.
//!
//! Layouts are the kernel's own: `struct sigaction` of `asm-generic/signal.h` (x86_64 and arm64 both have
//! `sa_restorer`), `siginfo` of `asm-generic/siginfo.h`, calls of rt_sigaction(2) and rt_tgsigqueueinfo(2).

use crate::linux::signals::{SignalAction, bit};
use crate::linux::syscall::{Errno, Result, syscall};
use crate::linux::threads::Tid;

/// Signals that an instruction raises: they stay unblocked always, since the kernel kills a process that faults while
/// it blocks them.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// Everything but [`FAULTS`] (and SIGKILL and SIGSTOP, which nothing blocks), as the kernel's 64-bit set (bit 0 is signal 1).
pub(crate) const ALL_BUT_FAULTS: u64 = !(FAULTS | bit(libc::SIGKILL) | bit(libc::SIGSTOP));

/// `SA_RESTORER`, which the C libraries hide.
#[cfg(target_arch = "x86_64")]
const RESTORER: u64 = 0x0400_0000;

// The code that a handler returns to. Byte for byte what every C library has here, because debuggers and unwinders know
// a signal frame by these bytes.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_stop_signal_return,\"ax\",@progbits",
    ".globl coroner_stop_signal_return",
    ".hidden coroner_stop_signal_return",
    ".type coroner_stop_signal_return,@function",
    // An unwinder looks up a return address less one, which must not fall into what stands before.
    "nop",
    "coroner_stop_signal_return:",
    "mov rax, 15",
    "syscall",
    ".size coroner_stop_signal_return, . - coroner_stop_signal_return",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static coroner_stop_signal_return: u8;
}

/// An action that runs `handler` on the alternate stack (if the thread has one), lets system calls go on, and holds
/// back all other signals but faults meanwhile.
pub fn action(handler: usize) -> SignalAction {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let (flags, restorer) = (flags | RESTORER, &raw const coroner_stop_signal_return as usize);
    // arm64 returns through the vdso.
    #[cfg(any(target_arch = "aarch64", miri))]
    let restorer = 0;
    SignalAction { handler, flags, restorer, mask: ALL_BUT_FAULTS }
}

/// The siginfo of a queued signal: `_rt` of the kernel's union.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct QueuedSignal {
    signo: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<QueuedSignal>() == 128);

impl QueuedSignal {
    /// The value that the sender gave, if this came by sigqueue and its like.
    pub(super) fn value(&self) -> Option<u64> {
        (self.code == libc::SI_QUEUE).then_some(self.value)
    }

    /// Queues `signal` with `value` for one thread of this process.
    ///
    /// Errors: `EAGAIN` when no more signals may be queued, `ESRCH` for a thread that has ended.
    pub(super) fn send(pid: i32, tid: Tid, signal: i32, value: u64) -> Result<()> {
        let info = QueuedSignal {
            signo: signal,
            errno: 0,
            code: libc::SI_QUEUE,
            padding: 0,
            pid,
            uid: 0,
            value,
            rest: [0; 12],
        };
        // SAFETY: the kernel reads one siginfo. Async-signal-safe: one system call.
        unsafe { syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) }.map(|_| ())
    }
}

/// Whether a thread of this process still lives. One that can't be asked about does.
pub fn is_alive(pid: i32, tid: Tid) -> bool {
    // SAFETY: signal 0 only asks. Async-signal-safe: one system call.
    let answer = unsafe { syscall!(libc::SYS_tgkill, pid, tid, 0) };
    answer != Err(Errno(libc::ESRCH))
}

/// Gives `handler` a real-time signal that nothing in this process uses, and returns which (not async-signal-safe).
///
/// Signals 32 to 43 are left alone: glibc and musl keep 32 to 34 for themselves, bionic 32 to 40, and apps that number
/// their own start at the first that is theirs. The last, 63 and 64, are as popular.
///
/// # Safety
/// As of [`SignalAction::set`].
///
/// # Errors
/// The kernel's; `None` where each has a handler, or is ignored.
pub(super) unsafe fn take_free(handler: &SignalAction) -> Result<Option<i32>> {
    for signal in (44..=LAST).rev() {
        // The first is nearly always free: it is taken at once, and given back if it was not. The others are looked at first.
        if signal == LAST {
            // SAFETY: by the contract.
            let before = unsafe { handler.replace(signal) }?;
            if before.handler == 0 {
                return Ok(Some(signal));
            }
            // SAFETY: it was in place before.
            unsafe { before.set(signal) }?;
        } else if SignalAction::of(signal).is_ok_and(|action| action.handler == 0) {
            // SAFETY: by the contract.
            unsafe { handler.set(signal) }?;
            return Ok(Some(signal));
        }
    }
    Ok(None)
}

/// The highest of the signals to choose from.
const LAST: i32 = 62;
