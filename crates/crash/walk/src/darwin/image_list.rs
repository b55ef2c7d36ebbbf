//! Darwin: a table that dyld's notifications keep fresh.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use coroner_process::images::{self, ImageKind, Images, ListState, Mappings};
use coroner_process::memory::Memory;
use coroner_process::syscall::{Errno, Result};

use crate::image_list::CAPACITY;
use crate::image_list::ImageList;
use crate::jit_code::JitCode;

/// The watched table can't be given back, dyld's callbacks go on: a later install uses it again.
struct Kept {
    taken: AtomicBool,
    table: UnsafeCell<Option<Images>>,
}

// SAFETY: `taken` lets one in.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept { taken: AtomicBool::new(false), table: UnsafeCell::new(None) };

impl ImageList {
    /// `None`: no compiler here registers its code in a form that is read.
    pub fn jit_code(&self, _address: u64) -> Option<JitCode> {
        None
    }

    /// Makes the table, or takes that of an earlier install (not async-signal-safe). dyld keeps it fresh from now on.
    ///
    /// # Errors
    /// `EBUSY` if there is such a list; else the kernel's reason.
    pub fn map(_pid: i32) -> Result<ImageList> {
        if KEPT.taken.swap(true, Ordering::AcqRel) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: `taken` is ours.
        let kept = unsafe { (*KEPT.table.get()).take() };
        let table = if let Some(table) = kept {
            table
        } else {
            let table = Images::map(CAPACITY).inspect_err(|_| KEPT.taken.store(false, Ordering::Release))?;
            table.watch();
            table
        };
        match Mappings::open() {
            Ok(mappings) => Ok(ImageList { table, mappings, generation: 0, dropped: 0, is_held: false }),
            Err(errno) => {
                // SAFETY: `taken` is ours.
                unsafe { *KEPT.table.get() = Some(table) };
                KEPT.taken.store(false, Ordering::Release);
                Err(errno)
            }
        }
    }

    /// Lists the images at install (not async-signal-safe): nothing recovers from bad loads yet, so every read is a copy that the
    /// kernel makes.
    pub fn refresh_at_install(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.dropped = self.table.refresh_by_copies().dropped;
    }

    /// Lists the images anew. What is known of an image from before is used again. At crash time the list then stays as it is
    /// until [`ImageList::release`].
    pub fn refresh(&mut self, memory: &mut impl Memory) {
        self.generation = self.generation.wrapping_add(1);
        let refresh = self.table.refresh_and_hold(memory);
        self.dropped = refresh.dropped;
        self.is_held |= refresh.list != ListState::Busy;
    }

    /// The list may change again.
    pub fn release(&mut self) {
        if core::mem::take(&mut self.is_held) {
            self.table.release();
        }
    }

    /// Touches what a crash may need (not async-signal-safe).
    pub fn touch(&mut self) {
        self.release();
        self.table.touch();
    }

    /// Gives everything back (not async-signal-safe).
    pub fn unmap(self) {
        self.mappings.close();
        // SAFETY: `taken` is ours.
        unsafe { *KEPT.table.get() = Some(self.table) };
        KEPT.taken.store(false, Ordering::Release);
    }

    /// Whether an image stays where it is, whatever other threads unload: the program, dyld, all of the shared cache, the one
    /// that this code is in, and the C library that it is linked with.
    pub fn is_permanent(image: &images::Image) -> bool {
        let here = Self::is_permanent as *const () as u64;
        let c_library = libc::pthread_create as *const () as u64;
        image.in_shared_cache
            || image.kind != ImageKind::Library
            || [here, c_library].iter().any(|address| image.range.contains(*address))
    }
}
