//! A fault of the crash path itself, its deadline, and what a signal handler or the second exception thread shares with the
//! session that it interrupts.
//!
//! Each section of a report runs inside [`coroner_process::guarded_run::run`] (see [`crate::session::guarded`]). A fault in it comes
//! to a handler on the same thread (Linux), or to the secondary thread (Darwin), which notes it here and lets the section's
//! thread go on behind the section. So does the deadline. All of it is atomics: the session holds its workspace by `&mut`
//! meanwhile, and nothing of that is touched from here.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use coroner_process::context::Context;
use coroner_process::guarded_run::Point;
use coroner_report::wire::{Fault, SectionKind};

/// What a section's run returns when it was left by a fault or the deadline.
pub(crate) const FAULTED: u64 = 1;

/// See the module. There is one report at a time in a process, so there is one of these.
pub(crate) static RECRASH: Recrash = Recrash {
    point: Point::new(),
    expired: AtomicBool::new(false),
    noted: AtomicBool::new(false),
    signal: AtomicI32::new(0),
    code: AtomicI32::new(0),
    address: AtomicU64::new(0),
    has_address: AtomicBool::new(false),
    pc: AtomicU64::new(0),
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Recrash {
    /// Where the section that is being written can be left.
    pub point: Point,
    /// The deadline has passed.
    expired: AtomicBool,
    /// A fault that is in no section yet; the fields behind describe it.
    noted: AtomicBool,
    signal: AtomicI32,
    code: AtomicI32,
    address: AtomicU64,
    has_address: AtomicBool,
    pc: AtomicU64,
}

impl Recrash {
    /// A session begins.
    pub(crate) fn reset(&self) {
        self.point.clear();
        self.expired.store(false, Ordering::Relaxed);
        self.noted.store(false, Ordering::Relaxed);
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// The deadline has passed: the thread of this context leaves its section. False if it is in none.
    ///
    /// # Safety
    /// The thread of `context` is the one that writes the report, and stands still.
    pub(crate) unsafe fn expire(&self, context: &mut Context) -> bool {
        self.expired.store(true, Ordering::Release);
        // SAFETY: by the contract.
        unsafe { self.point.recover(context, FAULTED) }
    }

    /// The deadline has passed, where the thread can't leave its section now.
    #[cfg(target_vendor = "apple")]
    pub(crate) fn note_expired(&self) {
        self.expired.store(true, Ordering::Release);
    }

    /// A fault of the thread of this context: it is noted, and the thread leaves its section. False if it is in none.
    ///
    /// # Safety
    /// As for [`Recrash::expire`].
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

    /// The fault that was noted, once, as the report has it: of a section, and of the thread that was being written.
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
