//! The loaded images while the app runs: immutable lists that all threads share, made when the dynamic linker's list changes.
//!
//! A list is in a slot with a count of who holds it. Slots are mapped when none is free, and never unmapped, so that a thread may look
//! at the count of one that was just given up. One thread at a time makes a list; others wait for it a little, and go on with the
//! last one then.

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
    /// How many hold it, [`CURRENT`] included; [`MAKING`] besides while it is written.
    holders: AtomicUsize,
    /// The slot that was mapped before it.
    next: *const Slot,
    table: Images,
    stamp: ListStamp,
    /// Another number for each list, by which cached rules are dropped.
    generation: u64,
}

const MAKING: usize = 1 << 63;

/// The last list that was made.
static CURRENT: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// The slot that was mapped last.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// The process whose thread makes a list; 0 for none. By process, so that a child of fork, where that thread is not, doesn't wait for
/// it.
static BUSY: AtomicI32 = AtomicI32::new(0);
/// When the current list was compared with the dynamic linker's last, by [`ticks`].
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// How long a list is taken to be as it was, in ticks: some tens of microseconds.
const FRESH: u64 = if cfg!(target_arch = "x86_64") { 1 << 17 } else { 1 << 10 };

/// How often a thread looks whether another one has made its list.
const ATTEMPTS: u32 = 4096;

/// A list of the loaded images that doesn't change as long as it is held.
pub struct LiveImages(&'static Slot);

// SAFETY: a slot that is held is only read.
unsafe impl Send for LiveImages {}
// SAFETY: as above.
unsafe impl Sync for LiveImages {}

impl LiveImages {
    /// The images now. No system call while the dynamic linker's list is what it was the last time, if it can be loaded.
    ///
    /// `None` without memory for a list. If a thread that makes a list doesn't come to its end (this may be a signal handler on that
    /// thread), the last list, or `None` before the first one.
    #[inline]
    pub fn current(memory: LiveReader) -> Option<LiveImages> {
        match Self::last() {
            Some(last) if last.is_current(memory) => Some(last),
            last => make(memory).or(last),
        }
    }

    /// As [`Self::current`], of some tens of microseconds ago at most.
    #[inline]
    pub fn recent(memory: LiveReader) -> Option<LiveImages> {
        if ticks().wrapping_sub(COMPARED.load(Relaxed)) <= FRESH
            && let Some(last) = Self::last()
        {
            return Some(last);
        }
        let current = Self::current(memory);
        COMPARED.store(ticks(), Relaxed);
        current
    }

    /// The list that was made last, if the images are still these; makes none, and needs little stack.
    pub fn made_last(memory: LoadGuarded) -> Option<LiveImages> {
        Self::last().filter(|last| last.0.stamp.is_current(&mut LiveReader::Loads(memory)))
    }

    /// The list that was made last.
    #[inline]
    fn last() -> Option<LiveImages> {
        loop {
            let at = CURRENT.load(Acquire);
            if at.is_null() {
                return None;
            }
            // SAFETY: a slot, which is never unmapped. Only its count may be looked at before it is known to be held: a thread may
            // be writing the rest.
            let holders = unsafe { &(*at).holders };
            holders.fetch_add(1, SeqCst);
            if CURRENT.load(SeqCst) == at {
                // SAFETY: it was current while it was held: nobody writes it until all have let it go.
                return Some(LiveImages(unsafe { &*at }));
            }
            holders.fetch_sub(1, Release);
        }
    }

    /// Whether the images are still these.
    #[inline]
    pub fn is_current(&self, memory: LiveReader) -> bool {
        match memory {
            // Each way compiled by itself: the list is read word by word.
            LiveReader::Loads(mut memory) => self.0.stamp.is_current(&mut memory),
            LiveReader::Copies(copy) => self.0.stamp.is_current(&mut Windowed::<_, 4>::new(copy)),
        }
    }

    /// A number of this state of the images: two lists of the same images have the same.
    #[inline]
    pub fn identity(&self) -> u64 {
        self.0.stamp.identity()
    }

    /// The images.
    pub fn table(&self) -> &Images {
        &self.0.table
    }

    /// The image that holds an address.
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
        // Elsewhere may be the code of a JIT: not known.
        self.0.table.find(address).map(|image| image.is_executable(address))
    }

    fn generation(&self) -> u64 {
        self.0.generation
    }
}

/// Makes a list and makes it the current one; or takes that which another thread made meanwhile.
#[cold]
fn make(memory: LiveReader) -> Option<LiveImages> {
    for _ in 0..ATTEMPTS {
        if take_turn() {
            // Another thread may have been faster.
            let made = LiveImages::last().filter(|last| last.is_current(memory)).or_else(|| make_alone(memory));
            BUSY.store(0, Release);
            return made;
        }
        // SAFETY: no arguments; other threads run.
        unsafe { libc::sched_yield() };
    }
    None
}

fn take_turn() -> bool {
    let (me, now) = (process_id(), BUSY.load(Relaxed));
    now != me && BUSY.compare_exchange(now, me, AcqRel, Relaxed).is_ok()
}

/// Under [`BUSY`].
fn make_alone(mut memory: LiveReader) -> Option<LiveImages> {
    static GENERATION: AtomicU64 = AtomicU64::new(0);
    let slot = free_slot()?;
    // SAFETY: `free_slot` made it this thread's alone: of others only the count is touched, which is not borrowed here.
    unsafe {
        (*slot).stamp.refresh(&mut (*slot).table, &mut memory);
        (*slot).generation = GENERATION.fetch_add(1, Relaxed) + 1;
    }
    // SAFETY: never unmapped, and not written again before nobody holds it.
    let made = LiveImages(unsafe { &*slot });
    // Written; held by `made` and by `CURRENT`.
    made.0.holders.fetch_add(2_usize.wrapping_sub(MAKING), Release);
    // SAFETY: null or a slot.
    if let Some(before) = unsafe { CURRENT.swap(slot, SeqCst).as_ref() } {
        // What `CURRENT` held.
        drop(LiveImages(before));
    }
    Some(made)
}

/// A slot that nobody holds, marked as [`MAKING`]. Under [`BUSY`].
fn free_slot() -> Option<*mut Slot> {
    let mut at = SLOTS.load(Acquire);
    // SAFETY: a slot, which is never unmapped; only its count and its link, which stays, are looked at.
    while let Some((holders, next)) = unsafe { at.as_ref().map(|_| (&(*at).holders, (*at).next)) } {
        if holders.compare_exchange(0, MAKING, SeqCst, Relaxed).is_ok() {
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
    // SAFETY: fresh zeroed memory of that size, page-aligned; zeroes are a valid stamp and a valid generation.
    unsafe {
        (&raw mut (*slot).holders).write(AtomicUsize::new(MAKING));
        (&raw mut (*slot).next).write(SLOTS.load(Relaxed));
        (&raw mut (*slot).table).write(table);
    }
    SLOTS.store(slot, Release);
    Some(slot)
}

/// A clock of the processor: not of any known rate, the same on all its cores.
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
