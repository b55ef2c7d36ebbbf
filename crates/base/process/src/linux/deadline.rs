//! The deadline of the crash path: a timer that interrupts the thread that writes the report.
//!
//! The timer's signal is SIGSYS with `si_code` `SI_TIMER` and a value that nobody else sends; it
//! needs no signal of its own, and a seccomp trap is distinguished from it by its code. The timer
//! is created when a crash begins: timers are not inherited by a child, and an app that never
//! crashes has none.
//!
//! Under a seccomp filter no timer is created, since the filter may kill the process for it: then a
//! stopped thread, which waits anyway, sends the same signal ([`watch_asker`]); a process with one
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

/// Time after the deadline at which a dying process is killed, in milliseconds.
const LAST_RESORT_MS: u32 = 2000;

/// A running timer.
#[derive(Debug)]
pub struct Deadline {
    timer: i32,
}

impl Deadline {
    /// Starts a timer that interrupts thread `tid` after that time, and then again every second.
    pub fn start(tid: i32, milliseconds: u32) -> Result<Deadline> {
        Self::send(SIGNAL, SIGEV_THREAD_ID, tid, milliseconds)
    }

    /// Starts a timer that kills the process some time after a deadline of that length.
    ///
    /// A thread that waits for a page or a file whose server is gone (NFS, FUSE) handles no signal,
    /// and only SIGKILL ends its wait.
    pub fn last_resort(milliseconds: u32) -> Result<Deadline> {
        Self::send(libc::SIGKILL, libc::SIGEV_SIGNAL, 0, milliseconds.saturating_add(LAST_RESORT_MS))
    }

    fn send(signal: i32, notify: i32, tid: i32, milliseconds: u32) -> Result<Deadline> {
        let event = SignalEvent { value: MARK, signal, notify, tid, padding: [0; 11] };
        let mut timer = 0_i32;
        // SAFETY: the kernel reads one sigevent and writes one int. Async-signal-safe: one system
        // call.
        unsafe { syscall!(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw const event, &raw mut timer) }?;
        let deadline = Deadline { timer };
        let seconds = u64::from(milliseconds / 1000);
        let rest = u64::from(milliseconds % 1000) * 1_000_000;
        // struct itimerspec: the interval, then the first time.
        let times = [1, 0, seconds, rest.max(1)];
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
