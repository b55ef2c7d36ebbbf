//! What a walk works with, one for each throw that is under way: claimed, used, given back warm.
//!
//! Each has its own cache of rules and its own list of images, so that nothing is shared and nothing is locked. The list is
//! compared with the dynamic linker's when some time has passed since the last time, or when an address is in no image.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use coroner_machine::images;
use coroner_unwind::RuleCache;

use super::memory::OwnStack;
use super::replay::Notes;
use super::stamp;
use crate::os::files;
use crate::os::images::for_unwinder;

/// Throws that may be under way at once.
const PLACES: usize = 16;

/// How often all are tried when none is free.
const PATIENCE: u32 = 1 << 12;

/// How long the list of images is taken to be as it was, in the processor's clock: some tens of microseconds.
const FRESH: u64 = if cfg!(target_arch = "x86_64") { 1 << 17 } else { 1 << 10 };

/// Images that are listed.
const CAPACITY: usize = 2048;

struct Place {
    taken: AtomicBool,
    /// The workspace, once there is one.
    at: AtomicUsize,
}

static PLACES_OF_ALL: [Place; PLACES] =
    [const { Place { taken: AtomicBool::new(false), at: AtomicUsize::new(0) } }; PLACES];

/// An empty cache, to be copied: a new one is too large for the stack of a small thread.
static EMPTY: RuleCache = RuleCache::new();
/// The same, of the notes of a walk.
static NO_NOTES: Notes = Notes::NONE;

/// What one walk needs.
struct Space {
    rules: RuleCache,
    images: Listed,
    notes: Notes,
    /// What the dynamic linker's list was when it was read last.
    fingerprint: u64,
    /// When it was compared last.
    compared: u64,
}

/// The images of the last refresh.
#[derive(Debug)]
pub(super) struct Listed {
    table: images::Images,
    generation: u64,
    missed: Cell<bool>,
}

/// A workspace that nobody else has.
pub(super) struct Workspace {
    number: usize,
    space: &'static mut Space,
}

/// Makes the first one (normal life). False without memory.
pub(super) fn prepare() -> bool {
    claim(0).is_some()
}

/// Claims a workspace, `wanted` if it is free: it knows the thread's stack. None if sixteen throws are under way for long, or
/// without memory.
pub(super) fn claim(wanted: usize) -> Option<Workspace> {
    let mut number = wanted % PLACES;
    for attempt in 0..PATIENCE {
        let place = PLACES_OF_ALL.get(number)?;
        if !place.taken.load(Ordering::Relaxed) && !place.taken.swap(true, Ordering::Acquire) {
            let Some(at) = made(place) else {
                place.taken.store(false, Ordering::Release);
                return None;
            };
            // SAFETY: made for good, and `taken` makes it this caller's alone.
            return Some(Workspace { number, space: unsafe { &mut *(at as *mut Space) } });
        }
        // From the first one on, so that few threads use few of them.
        number = if attempt == 0 { 0 } else { (number + 1) % PLACES };
        core::hint::spin_loop();
    }
    None
}

/// The workspace of a place that is claimed, made if it is not there.
fn made(place: &Place) -> Option<usize> {
    let at = place.at.load(Ordering::Acquire);
    if at != 0 {
        return Some(at);
    }
    let at = files::map(size_of::<Space>()).ok()?;
    let table = images::Images::map(CAPACITY).ok()?;
    let space = at as *mut Space;
    // SAFETY: a fresh mapping of that size, page-aligned; the cache and the notes are plain data without a destructor.
    unsafe {
        core::ptr::copy_nonoverlapping(&raw const EMPTY, &raw mut (*space).rules, 1);
        core::ptr::copy_nonoverlapping(&raw const NO_NOTES, &raw mut (*space).notes, 1);
        (&raw mut (*space).images).write(Listed { table, generation: 0, missed: Cell::new(false) });
        (&raw mut (*space).fingerprint).write(0);
        (&raw mut (*space).compared).write(0);
    }
    place.at.store(at, Ordering::Release);
    Some(at)
}

impl Workspace {
    /// Which it is, for the next [`claim`].
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The cache of rules, the images, and where a walk's notes go.
    pub(super) fn parts(&mut self) -> (&mut RuleCache, &Listed, &mut Notes) {
        (&mut self.space.rules, &self.space.images, &mut self.space.notes)
    }

    /// What the last walk came by.
    pub(super) fn notes(&self) -> &Notes {
        &self.space.notes
    }

    /// What the dynamic linker's list was when it was compared last; 0 where it could not be read.
    #[inline]
    pub(super) fn fingerprint(&self) -> u64 {
        self.space.fingerprint
    }

    /// Whether an address was asked for that is in no image.
    pub(super) fn has_missed(&self) -> bool {
        self.space.images.missed.get()
    }

    /// Compares the list of images with the dynamic linker's, if that was not done a moment ago.
    #[inline]
    pub(super) fn refresh_if_due(&mut self, memory: &mut OwnStack) {
        self.space.images.missed.set(false);
        if stamp().wrapping_sub(self.space.compared) > FRESH {
            self.refresh_now(memory);
        }
    }

    /// Compares the list of images with the dynamic linker's, and reads it anew where it is another. True if it was.
    #[cold]
    pub(super) fn refresh_now(&mut self, memory: &mut OwnStack) -> bool {
        let space = &mut *self.space;
        space.compared = stamp();
        let fingerprint = images::fingerprint(memory, space.images.table.debug_address());
        if fingerprint == space.fingerprint && space.images.generation != 0 {
            return false;
        }
        let found = space.images.table.refresh(memory);
        space.images.generation = space.images.generation.wrapping_add(1);
        // Where the list changed meanwhile, the next throw reads it again.
        space.fingerprint = fingerprint;
        if fingerprint == 0 || space.images.generation == 1 {
            space.fingerprint = images::fingerprint(memory, space.images.table.debug_address());
        }
        // An image that is just going: another one may come to its place in the list, with the same numbers.
        if found.refused > 0 {
            space.fingerprint = 0;
        }
        true
    }
}

impl Drop for Workspace {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = PLACES_OF_ALL.get(self.number) {
            place.taken.store(false, Ordering::Release);
        }
    }
}

impl coroner_unwind::Images for Listed {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        let found = self.table.find(address).and_then(|image| for_unwinder(image, address));
        if found.is_none() {
            self.missed.set(true);
        }
        found
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        // Elsewhere may be the code of a JIT: not known.
        self.table.find(address).map(|image| image.is_executable(address))
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}
