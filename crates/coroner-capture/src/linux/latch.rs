//! Who writes the report: the first thread that crashes, once.
//!
//! | the thread that crashes | while | what happens |
//! |---|---|---|
//! | any | nobody crashed | it owns the report |
//! | the owner itself | it writes the report | its section ends, the next begins (recrash) |
//! | the owner itself, again, with no section to leave | | the process dies of the signal, with the report so far |
//! | another | the report is being written | it hands in its context, is part of the report, and waits for its end |
//! | another | a report is being written that the process survives | it waits for its end, and owns the next |
//! | any, in a child made by fork or vfork | anything in the parent | the child's own latch value: it owns its own report |

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_machine::syscall::syscall;

/// The process and thread in one word.
fn word(pid: i32, tid: i32) -> u64 {
    (pid as u32 as u64) << 32 | tid as u32 as u64
}

/// Set in the owner's word where the process survives what it reports. No process id is that great.
const SURVIVED: u64 = 1 << 63;

/// What [`Latch::claim`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The report is this thread's to write.
    Mine,
    /// This thread is writing it already: a fault of the crash path.
    Nested,
    /// Another thread of this process is writing it.
    Taken,
    /// Another thread of this process is writing a report of something that the process survives: not this crash's.
    TakenForNow,
}

/// See the module's table.
#[derive(Debug)]
pub(crate) struct Latch {
    owner: AtomicU64,
    /// Goes up whenever an owner lets go; what the others wait on.
    releases: AtomicU32,
}

impl Latch {
    pub(crate) const fn new() -> Self {
        Latch { owner: AtomicU64::new(0), releases: AtomicU32::new(0) }
    }

    /// Tries to become the owner; `survived` says of what it is going to report that the process survives it.
    pub(crate) fn claim(&self, pid: i32, tid: i32, survived: bool) -> Claim {
        let me = word(pid, tid);
        let mark = if survived { SURVIVED } else { 0 };
        let mut seen = 0;
        loop {
            match self.owner.compare_exchange(seen, me | mark, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Claim::Mine,
                Err(now) if now & !SURVIVED == me => return Claim::Nested,
                // The owner is in the process that this one was forked from: it is not here to let go.
                Err(now) if ((now & !SURVIVED) >> 32) as i32 != pid && now != 0 => seen = now,
                Err(0) => seen = 0,
                Err(now) if now & SURVIVED != 0 => return Claim::TakenForNow,
                Err(_) => return Claim::Taken,
            }
        }
    }

    /// Whether this thread is the owner.
    pub(crate) fn is_mine(&self, pid: i32, tid: i32) -> bool {
        self.owner.load(Ordering::Acquire) & !SURVIVED == word(pid, tid)
    }

    /// Lets go and wakes the others.
    pub(crate) fn release(&self) {
        self.owner.store(0, Ordering::Release);
        self.releases.fetch_add(1, Ordering::AcqRel);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as the process. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_futex, self.releases.as_ptr(), wake, i32::MAX) };
    }

    /// The count of releases, to be taken before what [`Latch::wait`] waits for may happen.
    pub(crate) fn releases(&self) -> u32 {
        self.releases.load(Ordering::Acquire)
    }

    /// Waits until an owner lets go, at most `milliseconds`. False when the time is up.
    pub(crate) fn wait(&self, releases: u32, milliseconds: u32) -> bool {
        let until = coroner_machine::threads::monotonic_now().saturating_add(u64::from(milliseconds) * 1_000_000);
        loop {
            if self.releases() != releases {
                return true;
            }
            let now = coroner_machine::threads::monotonic_now();
            if now >= until {
                return false;
            }
            let left = until - now;
            let timeout = [left / 1_000_000_000, left % 1_000_000_000];
            let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word lives as long as the process; the kernel reads one 64-bit `timespec`. Async-signal-safe: one
            // system call.
            let _ = unsafe { syscall!(libc::SYS_futex, self.releases.as_ptr(), wait, releases, timeout.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_who_may_come_again_and_a_child_that_owns_its_own() {
        let latch = Latch::new();
        assert_eq!(latch.claim(10, 11, false), Claim::Mine);
        assert_eq!(latch.claim(10, 11, false), Claim::Nested);
        assert_eq!(latch.claim(10, 12, false), Claim::Taken);
        assert_eq!(
            latch.claim(20, 20, false),
            Claim::Mine,
            "a child after fork sees its parent's owner and is not blocked"
        );
        let before = latch.releases();
        assert!(!latch.wait(before, 1), "nobody lets go");
        latch.release();
        assert!(latch.wait(before, 1));
        assert_eq!(latch.claim(10, 12, false), Claim::Mine);
    }
    #[test]
    fn whoever_crashes_while_a_report_is_written_that_the_process_survives_comes_next() {
        let latch = Latch::new();
        assert_eq!(latch.claim(10, 11, true), Claim::Mine);
        assert!(latch.is_mine(10, 11) && !latch.is_mine(10, 12));
        assert_eq!(latch.claim(10, 11, false), Claim::Nested);
        assert_eq!(latch.claim(10, 12, false), Claim::TakenForNow);
        assert_eq!(latch.claim(20, 20, false), Claim::Mine, "of a child after fork");
        latch.release();
        assert_eq!(latch.claim(10, 12, false), Claim::Mine);
        assert_eq!(latch.claim(10, 11, true), Claim::Taken);
    }
}
