//! Process mark: distinguishes a process from the ancestors whose memory it copied.
//!
//! A process ID is not enough: a child in a new pid namespace may have its parent's. The mark
//! therefore includes a number in a page that the kernel zeros in a child made by fork or clone(2)
//! (`MADV_WIPEONFORK` in madvise(2), Linux 4.14). A child that shares its parent's memory (vfork,
//! `CLONE_VM`) has the same number and another process ID. Without such a page, only the process ID
//! counts.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page's first word: 0 in a process that hasn't used its mark yet.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Highest number that this process or an ancestor has had.
static LAST: AtomicU32 = AtomicU32::new(0);

/// A process, distinguished from its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMark {
    pid: i32,
    number: u32,
    /// Address of the page; 0 for none.
    page: usize,
}

impl ProcessMark {
    /// Returns the mark of the calling process, whose ID is `pid`. Async-signal-safe.
    pub fn for_caller(pid: i32) -> ProcessMark {
        let page = PAGE.load(Ordering::Acquire);
        ProcessMark { pid, number: number(page), page: page as usize }
    }

    /// Whether this is the mark of the calling process, whose ID is `pid`. Async-signal-safe.
    ///
    /// A crash asks this before its first record, when the program's tables of other crates' calls
    /// and statics may be overwritten: inlined, and without a static.
    #[inline(always)]
    pub fn is_caller(&self, pid: i32) -> bool {
        // SAFETY: null, or a page that is never unmapped. Async-signal-safe: no call.
        let page = unsafe { (self.page as *const AtomicU32).as_ref() };
        self.pid == pid && page.is_none_or(|word| word.load(Ordering::Acquire) == self.number)
    }
}

/// Creates the page, once per process and for its descendants.
///
/// Not async-signal-safe. By one thread at a time.
pub fn prepare() {
    #[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
    if PAGE.load(Ordering::Acquire).is_null()
        && let Ok(page) = crate::files::map_wiped_on_fork()
    {
        PAGE.store(page as *mut AtomicU32, Ordering::Release);
    }
}

/// Returns the calling process's number: unique among its ancestors, 0 without a page.
fn number(page: *const AtomicU32) -> u32 {
    // SAFETY: null, or a page that is never unmapped. Async-signal-safe: no call.
    let Some(word) = (unsafe { page.as_ref() }) else { return 0 };
    let seen = word.load(Ordering::Acquire);
    if seen != 0 {
        return seen;
    }
    let next = LAST.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    word.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| next)
}
