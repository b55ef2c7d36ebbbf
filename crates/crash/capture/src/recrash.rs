//! Recrash: a fault of the crash path itself, its deadline, and the state that a signal handler or
//! the second exception thread shares with the session that it interrupts.
//!
//! Each section of a report runs inside [`coroner_process::guarded_run::run`] (see
//! [`crate::session::guarded`]). A fault in it is delivered to a handler on the same thread
//! (Linux), or to the secondary thread (Darwin), which notes it here and lets the section's thread
//! continue after the section. So is the deadline. All of it is atomics: the session holds its
//! workspace by `&mut` in the meantime, and nothing of that is accessed from here.

#[cfg(not(target_vendor = "apple"))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use coroner_process::context::Context;
#[cfg(not(target_vendor = "apple"))]
use coroner_process::deadline::TICK_MS;
use coroner_process::guarded_run::Point;
use coroner_report::wire::{Fault, SectionKind};

/// Return value of a section's run that was left because of a fault or the deadline.
pub(crate) const FAULTED: u64 = 1;

/// The only instance, since a process writes one report at a time. See the module.
pub(crate) static RECRASH: Recrash = Recrash {
    point: Point::new(),
    expired: AtomicBool::new(false),
    #[cfg(not(target_vendor = "apple"))]
    ticks_left: AtomicU32::new(u32::MAX),
    noted: AtomicBool::new(false),
    signal: AtomicI32::new(0),
    code: AtomicI32::new(0),
    address: AtomicU64::new(0),
    has_address: AtomicBool::new(false),
    pc: AtomicU64::new(0),
};

/// State of the recrash handling. See the module.
#[derive(Debug)]
pub(crate) struct Recrash {
    /// Point at which the section that is being written can be left.
    pub point: Point,
    /// Whether the deadline has passed.
    expired: AtomicBool,
    /// Number of ticks until the deadline, or until the thread leaves the next section.
    #[cfg(not(target_vendor = "apple"))]
    ticks_left: AtomicU32,
    /// Whether there is a fault that isn't in a section yet; the following fields describe it.
    noted: AtomicBool,
    signal: AtomicI32,
    code: AtomicI32,
    address: AtomicU64,
    has_address: AtomicBool,
    pc: AtomicU64,
}

impl Recrash {
    /// Resets the state at the start of a session.
    pub(crate) fn reset(&self) {
        self.point.clear();
        self.expired.store(false, Ordering::Relaxed);
        self.noted.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if the deadline has passed.
    pub(crate) fn is_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// Notes that the deadline has passed, and makes the thread of `context` leave its section.
    /// Returns `false` if it is in none.
    ///
    /// # Safety
    /// The thread of `context` must be the one that writes the report, and must stand still.
    pub(crate) unsafe fn expire(&self, context: &mut Context) -> bool {
        self.expired.store(true, Ordering::Release);
        // SAFETY: by the contract.
        unsafe { self.point.recover(context, FAULTED) }
    }

    /// Starts the deadline, which passes after as many ticks as fit in `milliseconds`.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn begin_deadline(&self, milliseconds: u32) {
        self.ticks_left.store((milliseconds / TICK_MS).max(1), Ordering::Release);
    }

    /// Counts a tick of the deadline. At the last one, and every second afterwards, makes the
    /// thread of `context` leave its section ([`expire`](Self::expire)).
    ///
    /// # Safety
    /// See [`Recrash::expire`].
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) unsafe fn tick(&self, context: &mut Context) {
        let left = self.ticks_left.load(Ordering::Acquire).saturating_sub(1);
        self.ticks_left.store(if left == 0 { 1000 / TICK_MS } else { left }, Ordering::Release);
        if left == 0 {
            // SAFETY: by the contract.
            unsafe { self.expire(context) };
        }
    }

    /// Notes that the deadline has passed when the thread can't leave its section now.
    #[cfg(target_vendor = "apple")]
    pub(crate) fn note_expired(&self) {
        self.expired.store(true, Ordering::Release);
    }

    /// Notes a fault of the thread of `context`, and makes the thread leave its section. Returns
    /// `false` if it is in none.
    ///
    /// # Safety
    /// See [`Recrash::expire`].
    pub(crate) unsafe fn leave_section(
        &self,
        signal: i32,
        code: i32,
        address: Option<u64>,
        context: &mut Context,
    ) -> bool {
        self.signal.store(signal, Ordering::Relaxed);
        self.code.store(code, Ordering::Relaxed);
        self.address.store(address.unwrap_or(0), Ordering::Relaxed);
        self.has_address.store(address.is_some(), Ordering::Relaxed);
        self.pc.store(context.pc(), Ordering::Relaxed);
        self.noted.store(true, Ordering::Release);
        // SAFETY: by the contract.
        unsafe { self.point.recover(context, FAULTED) }
    }

    /// Returns the noted fault, once, in the report's form: with its section, and the thread that
    /// was being written.
    pub(crate) fn take_fault(&self, section: SectionKind, tid: Option<u64>) -> Option<Fault> {
        if !self.noted.swap(false, Ordering::AcqRel) {
            return None;
        }
        let address = self.has_address.load(Ordering::Relaxed).then(|| self.address.load(Ordering::Relaxed));
        Some(Fault {
            section,
            signal: self.signal.load(Ordering::Relaxed),
            code: self.code.load(Ordering::Relaxed),
            address,
            pc: Some(self.pc.load(Ordering::Relaxed)),
            tid,
        })
    }
}
