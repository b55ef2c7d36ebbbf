//! The deadline of the crash path: a timer that interrupts the thread that writes the report.
//!
//! The timer's signal is SIGSYS with `si_code` `SI_TIMER` and a value that nobody else sends; it
//! needs no signal of its own, and a seccomp trap is distinguished from it by its code. The timer
//! is created when a crash begins: timers are not inherited by a child, and an app that never
//! crashes has none.
//!
//! A report's timer ticks ([`TICK_MS`]), and the report counts the ticks that it receives. While
//! the process is stopped, frozen or throttled, the kernel merges the ticks into one, so that this
//! time does not count.
//!
//! Under a seccomp filter no timer is created, since the filter may kill the process for it: then a
//! stopped thread, which waits anyway, sends the same ticks ([`watch_asker`]); a process with one
//! thread has no deadline there.
//!
//! [`watch_asker`]: super::stop_the_world::ThreadStopper::watch_asker

use super::context::SignalInfo;
use super::syscall::{Result, syscall};

/// The signal that the timer raises.
pub const SIGNAL: i32 = libc::SIGSYS;

/// The value of the timer's signal.
pub(super) const MARK: u64 = 0x434f_524f_4e45_5221;

/// `SI_TIMER`, asm-generic/siginfo.h.
const SI_TIMER: i32 = -2;

/// `SIGEV_THREAD_ID`, asm-generic/siginfo.h: the signal goes to one thread.
const SIGEV_THREAD_ID: i32 = 4;

/// The kernel's `struct sigevent`, 64 bytes.
#[repr(C)]
struct SignalEvent {
    value: u64,
    signal: i32,
    notify: i32,
    tid: i32,
    padding: [u32; 11],
}

/// Time between two ticks of a report's timer, in milliseconds.
pub const TICK_MS: u32 = 50;

/// Time after the deadline at which a dying process is killed, in milliseconds: longer than a
/// process is usually stopped or frozen, since that time counts here.
const LAST_RESORT_MS: u32 = 30_000;

/// A running timer.
#[derive(Debug)]
pub struct Deadline {
    timer: i32,
}

impl Deadline {
    /// Starts a timer that interrupts thread `tid` after that time, and then again every second.
    pub fn start(tid: i32, milliseconds: u32) -> Result<Deadline> {
        Self::send(SIGNAL, SIGEV_THREAD_ID, tid, milliseconds, 1000)
    }

    /// Starts a timer that interrupts thread `tid` every [`TICK_MS`].
    pub fn start_ticking(tid: i32) -> Result<Deadline> {
        Self::send(SIGNAL, SIGEV_THREAD_ID, tid, TICK_MS, TICK_MS)
    }

    /// Starts a timer that kills the process some time after a deadline of that length.
    ///
    /// A thread that waits for a page or a file whose server is gone (NFS, FUSE) handles no signal,
    /// and only SIGKILL ends its wait.
    pub fn last_resort(milliseconds: u32) -> Result<Deadline> {
        Self::send(libc::SIGKILL, libc::SIGEV_SIGNAL, 0, milliseconds.saturating_add(LAST_RESORT_MS), 1000)
    }

    fn send(signal: i32, notify: i32, tid: i32, first_ms: u32, interval_ms: u32) -> Result<Deadline> {
        let event = SignalEvent { value: MARK, signal, notify, tid, padding: [0; 11] };
        let mut timer = 0_i32;
        // SAFETY: the kernel reads one sigevent and writes one int. Async-signal-safe: one system
        // call.
        unsafe { syscall!(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw const event, &raw mut timer) }?;
        let deadline = Deadline { timer };
        let parts = |ms: u32| [u64::from(ms / 1000), u64::from(ms % 1000) * 1_000_000];
        // struct itimerspec: the interval, then the first time, of which 0 would disarm the timer.
        let times = [parts(interval_ms), parts(first_ms.max(1))];
        // SAFETY: the kernel reads one itimerspec. Async-signal-safe: one system call.
        match unsafe { syscall!(libc::SYS_timer_settime, timer, 0, times.as_ptr(), 0) } {
            Ok(_) => Ok(deadline),
            Err(errno) => {
                deadline.stop();
                Err(errno)
            }
        }
    }

    /// Stops the timer.
    pub fn stop(self) {
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_timer_delete, self.timer) };
    }
}

/// Whether a signal is the deadline's: from the timer, or from a stopped thread.
pub fn is_deadline(info: &SignalInfo) -> bool {
    info.signo == SIGNAL && matches!(info.code, SI_TIMER | libc::SI_QUEUE) && info.timer_value() == MARK
}
