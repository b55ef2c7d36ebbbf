//! Whether a thread of a process that continues can be stopped without harm.
//!
//! A thread that waits for signals, by sigwaitinfo(2) or with a signalfd(2), would receive the stop
//! signal, which most daemons don't expect; it can be traced. A thread with a seccomp filter of its
//! own may be killed for the handler's system calls, and after a stop by ptrace for
//! `restart_syscall`. Both are seen in the thread's `status` and `syscall` (`proc_pid_status(5)`,
//! `proc_pid_syscall(5)`).
//!
//! Many threads block all signals for a moment: in `pthread_create`, or in Coroner's own handlers.
//! These get the signal, and answer when they unblock it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::NotCaptured;
use crate::files::Descriptor;
use crate::linux::proc_files::{self, decimal};
use crate::linux::syscall::syscall;
use crate::linux::threads::{Tid, monotonic_now, this_thread};
use crate::path::Path;

/// Facts from a thread's `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    is_sleeping: bool,
    blocked: u64,
    /// `Seccomp`: 0 without, 1 for the strict mode, 2 with filters.
    seccomp: u64,
    /// `Seccomp_filters`, from Linux 5.10.
    filters: u64,
}

/// Returns why the thread must not be sent the signal ([`NotCaptured::SignalUnsafe`]), or not be
/// stopped at all ([`NotCaptured::OwnFilter`]); `None` if it can be sent it, or if that can't be
/// determined. Async-signal-safe.
pub(super) fn refusal(tid: Tid, signal: i32) -> Option<NotCaptured> {
    check(tid, signal).err()
}

/// Like [`refusal`], but asks the kernel only once in [`KNOWN_TIME`], and waits for a thread that
/// runs and blocks the signal: it may be in a short critical section, or about to await signals.
/// `began` is the monotonic time, and `timeout` limits the wait, both in nanoseconds.
pub(super) fn settled_refusal(tid: Tid, signal: i32, (began, timeout): (u64, u64)) -> Option<NotCaptured> {
    /// The first and the longest time between two checks, in nanoseconds; each is twice as long as
    /// the one before.
    const STEPS: core::ops::RangeInclusive<libc::c_long> = 50_000..=2_000_000;
    if Recent::find(tid, began) == Some(Recent::Safe) {
        return None;
    }
    let mut step = *STEPS.start();
    loop {
        match check(tid, signal) {
            Ok(Sent::Blocked) if monotonic_now().saturating_sub(began) < timeout => {
                let time = libc::timespec { tv_sec: 0, tv_nsec: step };
                // SAFETY: reads one timespec. Async-signal-safe: one system call.
                let _ = unsafe { syscall!(libc::SYS_nanosleep, &raw const time, 0) };
                step = (step.saturating_mul(2)).min(*STEPS.end());
            }
            Ok(Sent::Blocked) => return Some(NotCaptured::SignalUnsafe),
            Ok(Sent::Answered) => return None,
            Err(reason) => return Some(reason),
        }
    }
}

/// The fate of a signal that is sent to a thread.
enum Sent {
    /// The thread runs its handler, or will as soon as it ends a short wait.
    Answered,
    /// The thread runs and blocks it.
    Blocked,
}

/// Checks whether a thread can be sent the signal.
fn check(tid: Tid, signal: i32) -> Result<Sent, NotCaptured> {
    let Some(facts) = Facts::read(tid) else { return Ok(Sent::Answered) };
    if facts.has_own_filter() {
        return Err(NotCaptured::OwnFilter);
    }
    let blocks = facts.blocked & 1 << (signal.saturating_sub(1) & 63) != 0;
    let awaits = if facts.is_sleeping { may_await_signal(tid, blocks) } else { None };
    match awaits {
        Some(true) => {
            Recent::Awaits.note(tid);
            Err(NotCaptured::SignalUnsafe)
        }
        None if blocks => Ok(Sent::Blocked),
        // A thread that has just been woken in sigwaitinfo still unblocks what it awaits.
        None if Recent::find(tid, monotonic_now()) == Some(Recent::Awaits) => Err(NotCaptured::SignalUnsafe),
        _ => {
            if !blocks {
                Recent::Safe.note(tid);
            }
            Ok(Sent::Answered)
        }
    }
}

/// Time in nanoseconds for which the result of a check holds.
///
/// Reading a thread's `status` and `syscall` takes longer than a walk of its stack, on a busy
/// machine several times as long as the stop, so a profiler should not do so for each sample.
const KNOWN_TIME: u64 = 100_000_000;

/// The result of the last check of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recent {
    /// It ran its handlers.
    Safe,
    /// It awaited signals.
    Awaits,
}

/// The last findings: a thread's id in the high half; in the low half a time in units of 2^20
/// nanoseconds, and in the lowest bit whether the thread awaited signals.
///
/// Threads share the places: the consequence is another check.
static FOUND: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

impl Recent {
    fn place(tid: Tid) -> &'static AtomicU64 {
        // Always inside.
        &FOUND[tid as usize % FOUND.len()]
    }

    fn time(now: u64) -> u32 {
        (now >> 20) as u32
    }

    fn note(self, tid: Tid) {
        let low = Self::time(monotonic_now()) << 1 | u32::from(self == Recent::Awaits);
        Self::place(tid).store(u64::from(tid.unsigned_abs()) << 32 | u64::from(low), Relaxed);
    }

    fn find(tid: Tid, now: u64) -> Option<Recent> {
        let found = Self::place(tid).load(Relaxed);
        let recent = if found & 1 == 0 { Recent::Safe } else { Recent::Awaits };
        let age = (Self::time(now) << 1).wrapping_sub(found as u32 & !1) >> 1;
        (found >> 32 == u64::from(tid.unsigned_abs()) && u64::from(age) < KNOWN_TIME >> 20).then_some(recent)
    }
}

/// Whether the thread has a seccomp filter that the calling thread has not. Async-signal-safe.
pub(super) fn has_own_filter(tid: Tid) -> bool {
    Facts::read(tid).is_some_and(|facts| facts.has_own_filter())
}

impl Facts {
    /// Reads a thread's facts; `None` if there are none.
    fn read(tid: Tid) -> Option<Facts> {
        let mut buffer = [0; 4096];
        let filled = read(tid, b"status", &mut buffer)?;
        Some(Facts::parse(buffer.get(..filled)?))
    }

    fn has_own_filter(&self) -> bool {
        // Docker's filter, for example, is that of all threads.
        self.seccomp != 0 && {
            let own = Facts::read(this_thread()).unwrap_or_default();
            (self.seccomp, self.filters) > (own.seccomp, own.filters)
        }
    }

    fn parse(text: &[u8]) -> Facts {
        let mut facts = Facts::default();
        for line in text.split(|byte| *byte == b'\n') {
            let mut parts = line.split(|byte| *byte == b'\t');
            let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
            match name {
                b"State:" => facts.is_sleeping = value.first() == Some(&b'S'),
                b"SigBlk:" => facts.blocked = hexadecimal(value),
                b"Seccomp:" => facts.seccomp = decimal(value).unwrap_or(0),
                b"Seccomp_filters:" => facts.filters = decimal(value).unwrap_or(0),
                _ => {}
            }
        }
        facts
    }
}

/// Whether a sleeping thread waits in sigwaitinfo(2), sigtimedwait(2) or sigwait(3), which unblock
/// the signals that it waits for; or, if it blocks the signal, in a call by which it may read a
/// signalfd(2): any that isn't a plain wait. `None` if it runs by now.
fn may_await_signal(tid: Tid, blocks: bool) -> Option<bool> {
    const PLAIN: [i64; 3] = [libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
    let mut buffer = [0; 256];
    let Some(filled) = read(tid, b"syscall", &mut buffer) else { return Some(blocks) };
    // "running", or the number.
    let number = buffer.get(..filled).and_then(|text| text.split(|byte| *byte == b' ').next()).and_then(decimal);
    number.map(|number| {
        number == libc::SYS_rt_sigtimedwait as u64 || (blocks && PLAIN.iter().all(|plain| number != *plain as u64))
    })
}

fn read(tid: Tid, name: &[u8], into: &mut [u8]) -> Option<usize> {
    let path = Path::new().push(b"/proc/self/task/").push_decimal(tid.unsigned_abs()).push(b"/").push(name);
    proc_files::read_file(Descriptor::WORKING_DIRECTORY, path.as_c_str(), into).ok()
}

/// Parses the kernel's sets of signals: sixteen hexadecimal digits.
fn hexadecimal(text: &[u8]) -> u64 {
    text.iter().fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit & 0xf,
            _ => (digit & 0xf).wrapping_add(9),
        };
        number << 4 | u64::from(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::Facts;

    #[test]
    fn facts_are_those_of_the_kernels_text() {
        let text = b"Name:\tx\nState:\tS (sleeping)\nGroups:\t0 \nSigBlk:\tbfffffff7ffbfeff\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        let facts = Facts { is_sleeping: true, blocked: 0xbfff_ffff_7ffb_feff, seccomp: 2, filters: 3 };
        assert_eq!(Facts::parse(text), facts);
        assert_eq!(Facts::parse(b"State:\tR (running)\n"), Facts::default());
    }
}
