//! Report lock: the first thread that crashes owns it and writes the report.
//!
//! | crashing thread | state | result |
//! |---|---|---|
//! | any | nobody has crashed | it acquires the lock, and so the session and its workspace |
//! | the owner itself | its session is open | [`crate::recrash`] |
//! | another | a fatal report is being written | it parks, becomes part of that report, and waits for its end |
//! | another | a non-fatal report is being written | it waits for its end, and owns the next |
//! | another | the owner has ended, was in the parent of a fork, or has been calling the app's handler for too long | it takes the lock over |
//! | a thread of another process in the same memory (a child made by `vfork`, or its parent) | the owner lives | it waits for its end, and owns the next |
//!
//! The lock's word identifies the owner by process and thread. Every wait ends when the lock is
//! released, when the owner has ended, or on timeout; no wait lasts longer than [`LIVENESS_MS`]
//! without checking the owner.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_process::process;
use coroner_process::threads::{Tid, process_id};

use crate::concurrent_crashes::CONCURRENT;

/// Maximum time, in milliseconds, that a wait lasts without checking whether the owner lives.
const LIVENESS_MS: u64 = 20;

/// The process's only report lock.
pub(crate) static REPORT_LOCK: ReportLock = ReportLock::new();

/// Token proving that the calling thread owns the lock. Its holder may use the workspace. Dropping
/// it does not release the lock: a process that dies of its crash keeps the lock to the end.
#[derive(Debug)]
pub(crate) struct ReportOwner {
    /// Keeps the token on its thread.
    _thread: PhantomData<*mut ()>,
}

/// Result of [`ReportLock::claim`].
#[derive(Debug)]
pub(crate) enum Claim {
    /// The calling thread now owns the lock.
    Mine(ReportOwner),
    /// The calling thread already owned the lock.
    Nested,
    /// Another thread of this process is writing a fatal report.
    Taken,
    /// Another thread of this process is writing a report after which the process continues.
    TakenByNonFatal,
    /// A thread of another process that shares this memory is writing a report of its own process.
    #[cfg(not(target_vendor = "apple"))]
    TakenByOtherProcess,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Released,
    /// The owner's thread has ended without releasing the lock, or has been calling the app's
    /// handler for too long: the lock may be claimed.
    OwnerGone,
    TimeOver,
}

/// The report lock. See the module.
#[derive(Debug)]
pub(crate) struct ReportLock {
    /// [`thread_word`] of the owner, with [`NON_FATAL`]; 0 for none.
    owner: AtomicU64,
    /// Number of releases; waiters wait on this word.
    releases: AtomicU32,
    /// Number of threads that wait for a release, so that a release without waiters makes no wake
    /// call.
    waiting: AtomicU32,
    /// While [`FORWARDING`] is set in the owner's word: when the lock may be taken over, in
    /// nanoseconds of the monotonic clock.
    forwards_until: AtomicU64,
}

/// Set in the owner's word if the process continues after the report.
const NON_FATAL: u64 = 1 << 63;
/// Set in the owner's word while the app's handler is called about a crash that is already
/// reported.
const FORWARDING: u64 = 1 << 62;

/// Returns a process and a thread as one word, which is unique to the thread: no system has process
/// IDs beyond 22 bits, or hands out 2^40 thread IDs. The two highest bits are 0.
pub fn thread_word(pid: i32, tid: Tid) -> u64 {
    u64::from(pid as u32 & 0x3f_ffff) << 40 | (tid as u64 & 0xff_ffff_ffff)
}

/// Returns the owner without its flag bits.
fn owner_of(word: u64) -> u64 {
    word & !(NON_FATAL | FORWARDING)
}

fn pid_of(word: u64) -> i32 {
    (owner_of(word) >> 40) as i32
}

fn tid_of(word: u64) -> Tid {
    (word & 0xff_ffff_ffff) as Tid
}

impl ReportLock {
    const fn new() -> Self {
        ReportLock {
            owner: AtomicU64::new(0),
            releases: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            forwards_until: AtomicU64::new(0),
        }
    }

    /// Tries to acquire the lock for a fatal or non-fatal report. Async-signal-safe; never waits.
    ///
    /// Not inlined, so that `xtask signal-safety` can identify its loop by name.
    #[inline(never)]
    pub(crate) fn claim(&self, pid: i32, tid: Tid, non_fatal: bool) -> Claim {
        let me = thread_word(pid, tid);
        let mark = if non_fatal { NON_FATAL } else { 0 };
        let mut seen = 0;
        // Each round sees another owner: at most as many rounds as there are threads that claim at
        // once.
        loop {
            let now = match self.owner.compare_exchange(seen, me | mark, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if seen != 0 {
                        // The previous owner neither released the lock nor reopened the table.
                        CONCURRENT.reopen(self.releases());
                    }
                    return Claim::Mine(ReportOwner { _thread: PhantomData });
                }
                Err(now) => now,
            };
            if now == me || now == me | NON_FATAL {
                return Claim::Nested;
            }
            // An owner in the process that this one was forked from can't release it here, nor can
            // one that has ended. An owner whose call of the app's handler was left by a jump may
            // itself crash again.
            if now != 0 && owner_of(now) != me && self.holds(now, pid) {
                #[cfg(not(target_vendor = "apple"))]
                if pid_of(now) != pid {
                    return Claim::TakenByOtherProcess;
                }
                return if now & NON_FATAL != 0 { Claim::TakenByNonFatal } else { Claim::Taken };
            }
            seen = now;
        }
    }

    /// Whether `owner` still holds the lock from the point of view of process `pid`: its thread
    /// lives, uses this memory, and hasn't been calling the app's handler for too long.
    ///
    /// Not inlined: this way [`claim`](Self::claim) saves no registers and makes no call through a
    /// table when nobody has the lock.
    #[inline(never)]
    fn holds(&self, owner: u64, pid: i32) -> bool {
        // The lock in a child made by fork is a copy, and so is everything that it guards.
        if pid_of(owner) != pid && !process::shares_memory(pid_of(owner)) {
            return false;
        }
        let too_long = || coroner_process::threads::monotonic_now() >= self.forwards_until.load(Ordering::Acquire);
        process::is_alive(pid_of(owner), tid_of(owner)) && !(owner & FORWARDING != 0 && too_long())
    }

    /// Whether a report of this process is being written, or the app's handler is being called
    /// about it.
    pub(crate) fn is_busy(&self, pid: i32) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        owner != 0 && pid_of(owner) == pid && self.holds(owner, pid)
    }

    /// Releases the lock in a child made by fork, where the owner in the parent doesn't exist.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
    pub(crate) fn forget_parent(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// Whether this thread is the owner, with its own session.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn is_mine(&self, pid: i32, tid: Tid) -> bool {
        self.owner.load(Ordering::Acquire) & !NON_FATAL == thread_word(pid, tid)
    }

    /// Releases the lock and wakes the waiting threads.
    pub(crate) fn release(&self, _: ReportOwner) {
        self.free();
    }

    fn free(&self) {
        self.owner.store(0, Ordering::Release);
        // A waiter counts itself before it reads the release count; this requires one order for
        // both.
        self.releases.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            process::wake_all(&self.releases);
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    /// Marks the lock as held during a call of the app's handler about the crash that the owner has
    /// reported: the owner keeps it until the handler returns, but at most for `nanoseconds`, since
    /// the handler may never return.
    pub(crate) fn begin_forwarding(&self, _: ReportOwner, nanoseconds: u64) {
        let until = coroner_process::threads::monotonic_now().saturating_add(nanoseconds);
        self.forwards_until.store(until, Ordering::Release);
        self.owner.fetch_or(FORWARDING, Ordering::AcqRel);
    }

    #[cfg(not(target_vendor = "apple"))]
    /// Returns the token again to a thread that continues after its report: the earlier handler has
    /// returned, or the fault did not kill the process. `None` if another thread took the lock over
    /// in the meantime.
    pub(crate) fn own_again(&self, pid: i32, tid: Tid) -> Option<ReportOwner> {
        let me = thread_word(pid, tid);
        let owns = |word| self.owner.compare_exchange(word, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        (owns(me | FORWARDING) || owns(me)).then_some(ReportOwner { _thread: PhantomData })
    }

    /// Returns the release count, to be read before a claim that may fail.
    pub(crate) fn releases(&self) -> u32 {
        self.releases.load(Ordering::Acquire)
    }

    /// Waits until an owner releases the lock or has ended, or the monotonic clock reaches `until`.
    /// `releases` is the count from before the claim.
    pub(crate) fn wait(&self, releases: u32, until: u64) -> WaitEnd {
        loop {
            if self.releases() != releases {
                return WaitEnd::Released;
            }
            let now = coroner_process::threads::monotonic_now();
            if now >= until {
                return WaitEnd::TimeOver;
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            process::wait_for_word(&self.releases, releases, (until - now).min(LIVENESS_MS * 1_000_000));
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let owner = self.owner.load(Ordering::Acquire);
            if self.releases() == releases && owner != 0 && !self.holds(owner, process_id()) {
                return WaitEnd::OwnerGone;
            }
        }
    }
}

#[cfg(test)]
mod tests;
