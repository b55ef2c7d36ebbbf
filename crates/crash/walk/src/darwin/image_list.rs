//! Darwin: an image table that dyld's notifications keep up to date.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use coroner_process::images::{self, ImageKind, Images, ListState, Mappings};
use coroner_process::memory::Memory;
use coroner_process::syscall::{Errno, Result};

use crate::image_list::CAPACITY;
use crate::image_list::ImageList;
use crate::jit_code::JitCode;

/// Keeps the watched table, which can't be released because dyld's callbacks continue: a later
/// install reuses it.
struct Kept {
    taken: AtomicBool,
    table: UnsafeCell<Option<Images>>,
}

// SAFETY: `taken` lets one in.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept { taken: AtomicBool::new(false), table: UnsafeCell::new(None) };

impl ImageList {
    /// Returns `None`: no compiler on Darwin registers its code in a form that is read.
    pub fn jit_code(&self, _address: u64) -> Option<JitCode> {
        None
    }

    /// Creates the table, or takes that of an earlier install (not async-signal-safe). From now on
    /// dyld keeps it up to date.
    ///
    /// # Errors
    /// `EBUSY` if such a list exists; otherwise the kernel's error.
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

    /// Lists the images at install (not async-signal-safe): nothing recovers from bad loads yet, so
    /// every read is a copy made by the kernel.
    pub fn refresh_at_install(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.dropped = self.table.refresh_by_copies().dropped;
    }

    /// Lists the images again, reusing what is known of each. At crash time the list then stays
    /// unchanged until [`ImageList::release`].
    pub fn refresh(&mut self, memory: &mut impl Memory) {
        self.generation = self.generation.wrapping_add(1);
        let refresh = self.table.refresh_and_hold(memory);
        self.dropped = refresh.dropped;
        self.is_held |= refresh.list != ListState::Busy;
    }

    /// Allows the list to change again.
    pub fn release(&mut self) {
        if core::mem::take(&mut self.is_held) {
            self.table.release();
        }
    }

    /// Touches the memory that a crash may need (not async-signal-safe).
    pub fn touch(&mut self) {
        self.release();
        self.table.touch();
    }

    /// Releases everything (not async-signal-safe).
    pub fn unmap(self) {
        self.mappings.close();
        // SAFETY: `taken` is ours.
        unsafe { *KEPT.table.get() = Some(self.table) };
        KEPT.taken.store(false, Ordering::Release);
    }

    /// Returns `true` if an image stays where it is, whatever other threads unload: the program,
    /// dyld, the whole shared cache, the image that contains this code, and the C library that it
    /// is linked with.
    pub fn is_permanent(image: &images::Image) -> bool {
        let here = Self::is_permanent as *const () as u64;
        let c_library = libc::pthread_create as *const () as u64;
        image.in_shared_cache
            || image.kind != ImageKind::Library
            || [here, c_library].iter().any(|address| image.range.contains(*address))
    }
}
