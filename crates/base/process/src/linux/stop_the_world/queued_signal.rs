//! The real-time signal that stops threads: selection, handler, sending with a value.
//!
//! Layouts are the kernel's own: `struct sigaction` in `asm-generic/signal.h` (x86_64 and arm64
//! both have `sa_restorer`), `siginfo` in `asm-generic/siginfo.h`; calls of rt_sigaction(2) and
//! rt_tgsigqueueinfo(2).

use crate::linux::signals::{SignalAction, bit};
use crate::linux::syscall::{Errno, Result, syscall};
use crate::linux::threads::Tid;

/// Signals that an instruction raises, which always stay unblocked.
///
/// The kernel kills a process that faults while it blocks them.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);

/// All signals but [`FAULTS`], as the kernel's 64-bit set (bit 0 is signal 1).
///
/// Also without SIGKILL and SIGSTOP, which nothing blocks.
pub(crate) const ALL_BUT_FAULTS: u64 = !(FAULTS | bit(libc::SIGKILL) | bit(libc::SIGSTOP));

/// `SA_RESTORER`, which the C libraries don't expose.
#[cfg(target_arch = "x86_64")]
const RESTORER: u64 = 0x0400_0000;

// The code that a handler returns to. It has the same bytes as in every C library, because
// debuggers and unwinders recognize a signal frame by them.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_stop_signal_return,\"ax\",@progbits",
    ".globl coroner_stop_signal_return",
    ".hidden coroner_stop_signal_return",
    ".type coroner_stop_signal_return,@function",
    // An unwinder looks up a return address minus one, which must not be in the preceding code.
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

/// Creates an action that runs `handler` on the alternate stack, if the thread has one.
///
/// System calls are restarted, and all other signals but faults are blocked meanwhile.
pub fn action(handler: usize) -> SignalAction {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let (flags, restorer) = (flags | RESTORER, &raw const coroner_stop_signal_return as usize);
    // arm64 returns through the vDSO.
    #[cfg(any(target_arch = "aarch64", miri))]
    let restorer = 0;
    SignalAction { handler, flags, restorer, mask: ALL_BUT_FAULTS }
}

/// The siginfo of a queued signal: `_rt` in the kernel's union.
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
    /// Returns the sender's value, if the signal was sent by sigqueue or a similar function.
    pub(super) fn value(&self) -> Option<u64> {
        (self.code == libc::SI_QUEUE).then_some(self.value)
    }

    /// Queues `signal` with `value` for one thread of this process.
    ///
    /// # Errors
    /// `EAGAIN` when no more signals may be queued, `ESRCH` for a thread that has exited.
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

/// Whether a thread of this process is still alive. If that can't be determined, returns `true`.
pub fn is_alive(pid: i32, tid: Tid) -> bool {
    // SAFETY: signal 0 only asks. Async-signal-safe: one system call.
    let answer = unsafe { syscall!(libc::SYS_tgkill, pid, tid, 0) };
    answer != Err(Errno(libc::ESRCH))
}

/// Installs `handler` for a real-time signal that nothing in this process uses; returns the signal.
///
/// Not async-signal-safe. Signals 32 to 43 are not used: glibc and musl reserve 32 to 34, bionic 32
/// to 40, and apps that number their own signals start at the first available one. The last, 63 and
/// 64, are equally popular.
///
/// # Safety
/// As for [`SignalAction::set`].
///
/// # Errors
/// The kernel's error; `None` if each signal has a handler, or is ignored.
pub(super) unsafe fn take_free(handler: &SignalAction) -> Result<Option<i32>> {
    for signal in (44..=LAST).rev() {
        // The first signal is nearly always free: take it at once, and restore it if it was not.
        // Check the others before taking them.
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

/// The highest signal to choose from.
const LAST: i32 = 62;
