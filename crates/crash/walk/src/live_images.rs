//! The loaded images while the app runs: immutable lists that all threads share, created when the
//! dynamic linker's list changes.
//!
//! A list is in a slot with a count of its holders. Slots are mapped when none is free, and never
//! unmapped, so that a thread may read the count of a slot that was just released. One thread at a
//! time creates a list; the others wait for it briefly, and then continue with the last one.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize};

use coroner_process::images::{Image, Images};
use coroner_process::memory::{LoadGuarded, Windowed};
use coroner_process::threads::process_id;

use crate::LiveReader;
use crate::image_list::CAPACITY;
use crate::os::list_stamp::ListStamp;
use crate::os::unwind_image::unwind_image;

struct Slot {
    /// Number of holders, [`CURRENT`] included; plus [`BEING_WRITTEN`] while the list is written.
    holders: AtomicUsize,
    /// The slot that was mapped before this one.
    next: *const Slot,
    table: Images,
    stamp: ListStamp,
    /// Changes with each list; cached rules of other generations are dropped.
    generation: u64,
}

const BEING_WRITTEN: usize = 1 << 63;

/// The list that was created last.
static CURRENT: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// The slot that was mapped last.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// ID of the process whose thread is creating a list; 0 for none. By process, so that a child made
/// by fork, where that thread doesn't exist, doesn't wait for it.
static WRITER_PID: AtomicI32 = AtomicI32::new(0);
/// When the current list was last compared with the dynamic linker's, by [`ticks`].
static LAST_COMPARISON: AtomicU64 = AtomicU64::new(0);

/// Time in ticks for which a list is assumed to be unchanged: some tens of microseconds.
const FRESHNESS_TICKS: u64 = if cfg!(target_arch = "x86_64") { 1 << 17 } else { 1 << 10 };

/// Maximum number of times that a thread checks whether another one has created its list.
const ATTEMPTS: u32 = 4096;

/// A list of the loaded images that doesn't change while it is held.
pub struct LiveImages(&'static Slot);

// SAFETY: a slot that is held is only read.
unsafe impl Send for LiveImages {}
// SAFETY: as above.
unsafe impl Sync for LiveImages {}

impl LiveImages {
    /// Returns the current images. Makes no system call if the dynamic linker's list hasn't changed
    /// since the last call and can be read by loads.
    ///
    /// Returns `None` if there is no memory for a list. If a thread that is creating a list doesn't
    /// finish (this may be a signal handler on that thread), returns the last list, or `None`
    /// before the first one.
    #[inline]
    pub fn current(memory: LiveReader) -> Option<LiveImages> {
        match Self::last() {
            Some(last) if last.is_current(memory) => Some(last),
            last => make(memory).or(last),
        }
    }

    /// Returns the images as they were at most some tens of microseconds ago; otherwise the same as
    /// [`Self::current`].
    #[inline]
    pub fn recent(memory: LiveReader) -> Option<LiveImages> {
        if ticks().wrapping_sub(LAST_COMPARISON.load(Relaxed)) <= FRESHNESS_TICKS
            && let Some(last) = Self::last()
        {
            return Some(last);
        }
        let current = Self::current(memory);
        LAST_COMPARISON.store(ticks(), Relaxed);
        current
    }

    /// Returns the list that was created last, if the images haven't changed; creates none, and
    /// needs little stack.
    pub fn last_if_current(memory: LoadGuarded) -> Option<LiveImages> {
        Self::last().filter(|last| last.0.stamp.is_current(&mut LiveReader::Loads(memory)))
    }

    /// Returns the list that was created last.
    #[inline]
    fn last() -> Option<LiveImages> {
        loop {
            let at = CURRENT.load(Acquire);
            if at.is_null() {
                return None;
            }
            // SAFETY: a slot, which is never unmapped. Only its count may be read before it is
            // known to be held: a thread may be writing the rest.
            let holders = unsafe { &(*at).holders };
            holders.fetch_add(1, SeqCst);
            if CURRENT.load(SeqCst) == at {
                // SAFETY: it was current while it was held: nobody writes it until all holders have
                // released it.
                return Some(LiveImages(unsafe { &*at }));
            }
            holders.fetch_sub(1, Release);
        }
    }

    /// Returns `true` if the images haven't changed.
    #[inline]
    pub fn is_current(&self, memory: LiveReader) -> bool {
        match memory {
            // Each variant is compiled separately: the list is read word by word.
            LiveReader::Loads(mut memory) => self.0.stamp.is_current(&mut memory),
            LiveReader::Copies(copy) => self.0.stamp.is_current(&mut Windowed::<_, 4>::new(copy)),
        }
    }

    /// Returns a number that identifies this state of the images: two lists of the same images have
    /// the same number.
    #[inline]
    pub fn identity(&self) -> u64 {
        self.0.stamp.identity()
    }

    /// Returns the image table.
    pub fn table(&self) -> &Images {
        &self.0.table
    }

    /// Returns the image that contains an address.
    #[inline]
    pub fn find(&self, address: u64) -> Option<&Image> {
        self.0.table.find(address)
    }
}

impl Clone for LiveImages {
    fn clone(&self) -> LiveImages {
        self.0.holders.fetch_add(1, Relaxed);
        LiveImages(self.0)
    }
}

impl Drop for LiveImages {
    #[inline]
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Release);
    }
}

impl core::fmt::Debug for LiveImages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LiveImages").field("identity", &self.identity()).finish_non_exhaustive()
    }
}

impl coroner_unwind::Images for &LiveImages {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        unwind_image(self.0.table.find(address)?, address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        // Addresses outside may be a JIT's code: not known.
        self.0.table.find(address).map(|image| image.is_executable(address))
    }

    fn generation(&self) -> u64 {
        self.0.generation
    }
}

/// Creates a list and makes it the current one; or takes the list that another thread created in
/// the meantime.
#[cold]
fn make(memory: LiveReader) -> Option<LiveImages> {
    for _ in 0..ATTEMPTS {
        if take_turn() {
            // Another thread may have been faster.
            let made = LiveImages::last().filter(|last| last.is_current(memory)).or_else(|| create_exclusively(memory));
            WRITER_PID.store(0, Release);
            return made;
        }
        // SAFETY: no arguments; other threads run.
        unsafe { libc::sched_yield() };
    }
    None
}

fn take_turn() -> bool {
    let (me, now) = (process_id(), WRITER_PID.load(Relaxed));
    now != me && WRITER_PID.compare_exchange(now, me, AcqRel, Relaxed).is_ok()
}

/// Creates a list. The calling thread must hold [`WRITER_PID`].
fn create_exclusively(mut memory: LiveReader) -> Option<LiveImages> {
    static GENERATION: AtomicU64 = AtomicU64::new(0);
    let slot = free_slot()?;
    // SAFETY: `free_slot` made it this thread's alone: other threads access only the count, which
    // is not borrowed here.
    unsafe {
        (*slot).stamp.refresh(&mut (*slot).table, &mut memory);
        (*slot).generation = GENERATION.fetch_add(1, Relaxed) + 1;
    }
    // SAFETY: never unmapped, and not written again before nobody holds it.
    let made = LiveImages(unsafe { &*slot });
    // Written; held by `made` and by `CURRENT`.
    made.0.holders.fetch_add(2_usize.wrapping_sub(BEING_WRITTEN), Release);
    // SAFETY: null or a slot.
    if let Some(before) = unsafe { CURRENT.swap(slot, SeqCst).as_ref() } {
        // The reference that `CURRENT` held.
        drop(LiveImages(before));
    }
    Some(made)
}

/// Returns a slot that nobody holds, marked as [`BEING_WRITTEN`]. The calling thread must hold
/// [`WRITER_PID`].
fn free_slot() -> Option<*mut Slot> {
    let mut at = SLOTS.load(Acquire);
    // SAFETY: a slot, which is never unmapped; only its count and its link, which stays, are read.
    while let Some((holders, next)) = unsafe { at.as_ref().map(|_| (&(*at).holders, (*at).next)) } {
        if holders.compare_exchange(0, BEING_WRITTEN, SeqCst, Relaxed).is_ok() {
            return Some(at);
        }
        at = next.cast_mut();
    }
    let table = Images::map(CAPACITY).ok()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let mapped = unsafe {
        libc::mmap(core::ptr::null_mut(), size_of::<Slot>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if mapped == libc::MAP_FAILED {
        table.unmap();
        return None;
    }
    let slot = mapped.cast::<Slot>();
    // SAFETY: fresh zeroed memory of that size, page-aligned; zeroes are a valid stamp and a valid
    // generation.
    unsafe {
        (&raw mut (*slot).holders).write(AtomicUsize::new(BEING_WRITTEN));
        (&raw mut (*slot).next).write(SLOTS.load(Relaxed));
        (&raw mut (*slot).table).write(table);
    }
    SLOTS.store(slot, Release);
    Some(slot)
}

/// Returns the processor's clock: its rate is unknown, and it is the same on all cores.
#[inline]
pub fn ticks() -> u64 {
    if cfg!(miri) {
        return coroner_process::threads::monotonic_now();
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter, which every x86_64 has.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads the virtual counter, which Linux and Darwin let every program read.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
        count
    }
}

#[cfg(test)]
mod tests;
