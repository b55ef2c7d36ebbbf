//! A mapped file to which the changes of words in memory are copied.
//!
//! The words are the truth, and the file is what survives the process. A store into a mapped file
//! can fault at any time: somebody cuts the file, or its disk fails or is full. The process must
//! not die of that, so a copy never depends on what the calling thread or the app has done to
//! SIGBUS:
//! * If the kernel sends SIGBUS to the handler that replaces lost pages, the copy is a few plain
//!   stores, with SIGBUS unblocked. That takes two system calls that every sandbox allows.
//! * Otherwise the kernel copies (process_vm_readv(2)), which reports a lost page as an error.
//!
//! On Darwin an exception port recovers the stores, whatever the thread blocks.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The mapping of a file that mirrors words in memory.
#[derive(Debug, Default)]
pub struct FileMirror {
    /// Address of the mapping; 0 if there is none.
    address: AtomicUsize,
    /// Address of the handler of SIGBUS that replaces lost pages of the mapping; 0 if there is
    /// none.
    handler: AtomicUsize,
    /// Whether a part of the file is lost.
    is_cut: AtomicBool,
}

/// Number of times that one word is copied if other threads change it in the meantime.
const ATTEMPTS: usize = 64;

impl FileMirror {
    /// Creates a mirror without a file.
    pub const fn new() -> FileMirror {
        FileMirror { address: AtomicUsize::new(0), handler: AtomicUsize::new(0), is_cut: AtomicBool::new(false) }
    }

    /// Copies changes to the mapping at `address` from now on.
    ///
    /// # Safety
    /// `address` must be page-aligned. At least as many bytes as the words have must stay mapped
    /// there for the process's life, and be used only through this mirror, or be inaccessible after
    /// [`close`](Self::close).
    pub unsafe fn open(&self, address: usize) {
        self.is_cut.store(false, Ordering::Relaxed);
        self.address.store(address, Ordering::Release);
    }

    /// Copies nothing any more, except for a copy that another thread has begun.
    pub fn close(&self) {
        self.address.store(0, Ordering::Release);
    }

    /// Sets the handler of SIGBUS that replaces lost pages of the mapping; 0 for none.
    ///
    /// # Safety
    /// While it is set and the kernel calls it for SIGBUS, a store to a lost page of the mapping
    /// must be repeated after the page was replaced.
    pub unsafe fn set_handler(&self, handler: usize) {
        self.handler.store(handler, Ordering::Release);
    }

    /// Notes that a part of the file is lost.
    pub fn set_cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Whether a part of the file is lost, so that the file doesn't have all changes.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Copies ranges of `words` to the file, each from its second word on and then its first.
    ///
    /// No two threads may copy the same range at the same time, unless it is one word.
    /// Async-signal-safe: at most four system calls, or one per range and two.
    #[inline(always)]
    pub fn copy(&self, words: &[AtomicU64], ranges: &[Range<usize>]) {
        let address = self.address.load(Ordering::Acquire);
        if address == 0 {
            return;
        }
        let file = address as *const AtomicU64;
        let way = Way::begin(self.handler.load(Ordering::Acquire));
        for range in ranges {
            let Some(from) = words.get(range.clone()) else { continue };
            // SAFETY: the mapping has room for all words, by the contract of `open`.
            let to = unsafe { file.add(range.start) };
            if let [word] = from {
                self.copy_word(&way, word, to);
            } else if !way.copy(from, to) {
                self.set_cut();
            }
        }
        way.end();
    }

    /// Copies a word that other threads may change at the same time: the last of them copies the
    /// last value.
    #[inline(always)]
    fn copy_word(&self, way: &Way, word: &AtomicU64, to: *const AtomicU64) {
        for _ in 0..ATTEMPTS {
            let value = word.load(Ordering::Acquire);
            if !way.copy(core::slice::from_ref(word), to) {
                return self.set_cut();
            }
            fence(Ordering::SeqCst);
            if word.load(Ordering::Acquire) == value {
                return;
            }
        }
    }
}

/// Stores words, the first one last; before that, it is 0.
///
/// # Safety
/// As many words at `to` must be mapped and writable, or a handler must make them so.
#[inline(always)]
unsafe fn store(from: &[AtomicU64], to: *const AtomicU64) {
    // SAFETY: by the contract; aligned, because the mapping is.
    let to = unsafe { core::slice::from_raw_parts(to, from.len()) };
    let ([first, rest @ ..], [first_to, rest_to @ ..]) = (from, to) else { return };
    if !rest.is_empty() {
        first_to.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (from, to) in rest.iter().zip(rest_to) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    first_to.store(first.load(Ordering::Relaxed), Ordering::Release);
}

/// The way in which words are copied.
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
enum Way {
    /// By plain stores: SIGBUS is unblocked, and goes to the handler that replaces lost pages. With
    /// the mask to restore.
    Stores(u64),
    /// By the kernel.
    Kernel,
}

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
impl Way {
    #[inline(always)]
    fn begin(handler: usize) -> Way {
        use crate::os::signals::{SignalAction, bit, unblock};
        let is_handled = handler != 0 && SignalAction::of(libc::SIGBUS).is_ok_and(|now| now.handler == handler);
        if is_handled { Way::Stores(unblock(bit(libc::SIGBUS))) } else { Way::Kernel }
    }

    /// Returns `false` if the file is cut.
    #[inline(always)]
    fn copy(&self, from: &[AtomicU64], to: *const AtomicU64) -> bool {
        use crate::os::kernel_copy::copy_own;
        use crate::os::syscall::Errno;
        let is_refused = match self {
            Way::Stores(_) => true,
            // SAFETY: the file's mapping, used only through the mirror.
            Way::Kernel => match unsafe { copy_own(from.as_ptr() as usize, to as usize, size_of_val(from)) } {
                Ok(()) => false,
                Err(Errno(libc::EFAULT)) => return false,
                // The kernel lacks the call, or a sandbox refuses it.
                Err(_) => true,
            },
        };
        if is_refused {
            // SAFETY: mapped; a fault is recovered, unless nobody can.
            unsafe { store(from, to) };
        }
        true
    }

    #[inline(always)]
    fn end(self) {
        use crate::os::signals::{bit, block_exactly};
        if let Way::Stores(mask) = self
            && mask & bit(libc::SIGBUS) != 0
        {
            block_exactly(mask);
        }
    }
}

/// The way in which words are copied.
#[cfg(not(all(supported, any(target_os = "linux", target_os = "android"))))]
struct Way;

#[cfg(not(all(supported, any(target_os = "linux", target_os = "android"))))]
impl Way {
    #[inline(always)]
    fn begin(_handler: usize) -> Way {
        Way
    }

    #[inline(always)]
    fn copy(&self, from: &[AtomicU64], to: *const AtomicU64) -> bool {
        // SAFETY: mapped; an exception port recovers a fault.
        unsafe { store(from, to) };
        true
    }

    #[inline(always)]
    fn end(self) {}
}
