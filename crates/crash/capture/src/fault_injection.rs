//! Makes the crash path itself fail, for tests.

use core::sync::atomic::{AtomicU32, Ordering};

use coroner_process::syscall::{Errno, Result};
use coroner_report::wire::SectionKind;

/// Kind of a section's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// Writes to address 0x18.
    Fault = 1,
    /// Never ends.
    Hang = 2,
    /// Faults with an invalid stack pointer.
    LostStack = 3,
}

static WHERE: AtomicU32 = AtomicU32::new(0);
static HOW: AtomicU32 = AtomicU32::new(0);

/// Makes every section of that kind fail from now on, in the given way.
pub fn set(section: SectionKind, failure: Failure) {
    HOW.store(failure as u32, Ordering::SeqCst);
    WHERE.store(section.0.into(), Ordering::SeqCst);
}

static INSTALL: AtomicU32 = AtomicU32::new(0);

/// Makes an install fail at that place, out of memory, from now on: 1 for the table of images, 2
/// for the memory of everything else, 0 for none.
pub fn fail_install(place: u32) {
    INSTALL.store(place, Ordering::SeqCst);
}

/// Maps the memory at one place of an install.
pub(crate) fn map<T>(place: u32, map: impl FnOnce() -> Result<T>) -> Result<T> {
    if INSTALL.load(Ordering::SeqCst) == place { Err(Errno(libc::ENOMEM)) } else { map() }
}

/// Fails if this section was selected to fail.
pub(crate) fn here(section: SectionKind) {
    if WHERE.load(Ordering::SeqCst) != u32::from(section.0) {
        return;
    }
    if HOW.load(Ordering::SeqCst) == Failure::Fault as u32 {
        #[cfg(miri)]
        // SAFETY: the fake kernel of `src/miri` calls the handler of SIGSEGV, and unwinds to the
        // end of the section.
        unsafe {
            unsafe extern "C-unwind" {
                fn coroner_test_fault(address: u64);
            }
            coroner_test_fault(0x18);
        }
        #[cfg(not(miri))]
        // SAFETY: none; the fault is intended, and `guarded` is for it.
        unsafe {
            (0x18 as *mut u32).write_volatile(1)
        };
    } else if HOW.load(Ordering::SeqCst) == Failure::LostStack as u32 {
        // SAFETY: none; as above.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("mov rsp, 0x1230", "push rax", options(noreturn));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("mov x9, #0x1230", "mov sp, x9", "str x0, [sp, #-16]!", options(noreturn));
        }
    } else {
        loop {
            core::hint::spin_loop();
        }
    }
}
