//! Who writes the report: the first thread that crashes.
//!
//! | the thread that crashes | while | what happens |
//! |---|---|---|
//! | any | nobody crashed | it owns the lock, and so the session and its workspace |
//! | the owner itself | its session is open | [`crate::recrash`] |
//! | another | a fatal report is being written | it parks, is part of that report, and waits for its end |
//! | another | a non-fatal report is being written | it waits for its end, and owns the next |
//! | another | the owner has ended, was in the parent of a fork, or asks a handler of the app for too long | it takes the lock from it |
//! | one of another process in the same memory (a child made by `vfork`, or its parent) | the owner lives | it waits for its end, and owns the next |
//!
//! The lock's word is the owner: its process and thread. Every wait ends when the lock is released, when the owner has ended,
//! or when the time is over; none is longer than [`LIVENESS_MS`] without a look at the owner.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_process::process;
use coroner_process::threads::{Tid, process_id};

use crate::concurrent_crashes::CONCURRENT;

/// How long a wait lasts without a look whether the owner lives.
const LIVENESS_MS: u64 = 20;

/// The one lock of a process.
pub(crate) static REPORT_LOCK: ReportLock = ReportLock::new();

/// The proof that the calling thread owns the lock. Whoever has it may use the workspace. Dropping it does not release the lock:
/// a process that dies of its crash keeps it to the end.
#[derive(Debug)]
pub(crate) struct ReportOwner {
    /// It stays on its thread.
    _thread: PhantomData<*mut ()>,
}

/// What [`ReportLock::claim`] returns.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The calling thread owns the lock now.
    Mine(ReportOwner),
    /// It did so before.
    Nested,
    /// Another thread of this process writes a fatal report.
    Taken,
    /// Another thread of this process writes a report after which the process goes on.
    TakenByNonFatal,
    /// A thread of another process that shares this memory writes a report, of its own process.
    #[cfg(not(target_vendor = "apple"))]
    TakenByOtherProcess,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Released,
    /// The owner's thread has ended without releasing the lock, or asks a handler of the app for too long: it may be claimed.
    OwnerGone,
    TimeOver,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReportLock {
    /// [`thread_word`] of the owner, with [`NON_FATAL`]; 0 for none.
    owner: AtomicU64,
    /// Counts releases; what the others wait on.
    releases: AtomicU32,
    /// Threads that wait for a release: who releases need wake nobody where there are none.
    waiting: AtomicU32,
    /// While the owner's word says [`FORWARDING`]: when the lock may be taken from it, by the monotonic clock.
    forwards_until: AtomicU64,
}

/// Set in the owner's word where the process goes on after what it reports.
const NON_FATAL: u64 = 1 << 63;
/// Set in the owner's word while a handler of the app is asked about a crash that is reported.
const FORWARDING: u64 = 1 << 62;

/// A process and a thread as one word, which no other thread has: no system has process ids beyond 22 bits, or hands out 2^40 thread
/// ids. The two highest bits are 0.
pub fn thread_word(pid: i32, tid: Tid) -> u64 {
    u64::from(pid as u32 & 0x3f_ffff) << 40 | (tid as u64 & 0xff_ffff_ffff)
}

/// The owner without its marks.
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

    /// Tries to become the owner, for a report that is fatal or not. Async-signal-safe; waits for nobody.
    ///
    /// Not inlined, so that `xtask signal-safety` knows its loop by name.
    #[inline(never)]
    pub(crate) fn claim(&self, pid: i32, tid: Tid, non_fatal: bool) -> Claim {
        let me = thread_word(pid, tid);
        let mark = if non_fatal { NON_FATAL } else { 0 };
        let mut seen = 0;
        // Each round sees another owner: as many as there are threads that claim at once, at most.
        loop {
            let now = match self.owner.compare_exchange(seen, me | mark, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if seen != 0 {
                        // Who had it did not release it, nor open the table again.
                        CONCURRENT.reopen(self.releases());
                    }
                    return Claim::Mine(ReportOwner { _thread: PhantomData });
                }
                Err(now) => now,
            };
            if now == me || now == me | NON_FATAL {
                return Claim::Nested;
            }
            // An owner in the process that this one was forked from is not here to release it, nor is one that has ended. One
            // that asked a handler of the app which was left by a jump may crash again itself.
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

    /// Whether that owner still has it, as the process `pid` sees it: its thread lives, uses this memory, and does not ask a handler of
    /// the app for too long.
    ///
    /// Not inlined: [`claim`](Self::claim) saves registers and calls by no table where nobody has the lock.
    #[inline(never)]
    fn holds(&self, owner: u64, pid: i32) -> bool {
        // The lock of a child made by fork is a copy, and so is all that it guards.
        if pid_of(owner) != pid && !process::shares_memory(pid_of(owner)) {
            return false;
        }
        let too_long = || coroner_process::threads::monotonic_now() >= self.forwards_until.load(Ordering::Acquire);
        process::is_alive(pid_of(owner), tid_of(owner)) && !(owner & FORWARDING != 0 && too_long())
    }

    /// Whether a report of this process is being written, or a handler of the app asked about it.
    pub(crate) fn is_busy(&self, pid: i32) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        owner != 0 && pid_of(owner) == pid && self.holds(owner, pid)
    }

    /// In a child made by fork: who had it in the parent is not here.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
    pub(crate) fn forget_parent(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// Whether this thread is the owner, with a session of its own.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn is_mine(&self, pid: i32, tid: Tid) -> bool {
        self.owner.load(Ordering::Acquire) & !NON_FATAL == thread_word(pid, tid)
    }

    /// Releases the lock and wakes who waits for it.
    pub(crate) fn release(&self, _: ReportOwner) {
        self.free();
    }

    fn free(&self) {
        self.owner.store(0, Ordering::Release);
        // Who waits counts itself before it looks at the count of releases, for which both need one order.
        self.releases.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            process::wake_all(&self.releases);
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    /// A handler of the app is asked about the crash that the owner has reported: it has the lock until that has returned, but not
    /// for longer than `nanoseconds`, since it may never return.
    pub(crate) fn begin_forwarding(&self, _: ReportOwner, nanoseconds: u64) {
        let until = coroner_process::threads::monotonic_now().saturating_add(nanoseconds);
        self.forwards_until.store(until, Ordering::Release);
        self.owner.fetch_or(FORWARDING, Ordering::AcqRel);
    }

    #[cfg(not(target_vendor = "apple"))]
    /// The handler has returned. The proof again, if nobody took the lock meanwhile.
    pub(crate) fn end_forwarding(&self, pid: i32, tid: Tid) -> Option<ReportOwner> {
        let me = thread_word(pid, tid);
        let ended = self.owner.compare_exchange(me | FORWARDING, me, Ordering::AcqRel, Ordering::Relaxed);
        ended.is_ok().then_some(ReportOwner { _thread: PhantomData })
    }

    /// The count of releases, to be taken before the claim that fails.
    pub(crate) fn releases(&self) -> u32 {
        self.releases.load(Ordering::Acquire)
    }

    /// Waits until an owner releases the lock, or has ended, or the monotonic clock says `until`. `releases` is the count from before
    /// the claim.
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
