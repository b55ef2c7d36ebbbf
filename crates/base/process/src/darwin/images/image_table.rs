//! The preallocated table of images: refreshed from dyld's list, searched by address.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::all_image_infos::{self, List};
use super::{AddressRange, Image, load_commands};
use crate::darwin::syscall::Result;
use crate::files::{map_untouched, unmap};
use crate::image_index::{Place, place_of, sort};
use crate::memory::{KernelCopy, Memory, Windowed, read_text};

/// Maximum average number of executable segments per image; nearly all have one.
const PLACES_PER_IMAGE: usize = 2;

/// Maximum number of entries: more than in any process.
const MAX_ENTRIES: u32 = 1 << 14;

/// Number of memory windows for a refresh outside crash time.
///
/// They hold dyld's list, its array, and an image's headers.
const WINDOWS: usize = 4;

/// Maximum size of a path in bytes (`PATH_MAX`).
pub const MAX_PATH: usize = 1024;

/// State in which dyld's list was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListState {
    /// There is no list, or it can't be read.
    #[default]
    Absent,
    /// The list was read from end to end.
    Consistent,
    /// dyld was changing the list: the result of the last refresh is kept.
    Changing,
    /// Another thread was refreshing the table, and is stopped or still running.
    ///
    /// The result of the last refresh is kept.
    Busy,
}

/// The result of a refresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Number of images in the table.
    pub images: usize,
    /// Number of images that were newly read.
    pub read: usize,
    /// Number of images for which the table had no space.
    pub dropped: usize,
    /// Number of list entries without a readable image.
    pub refused: usize,
    /// State in which the list was found.
    pub list: ListState,
}

/// A generation of the list: the places of its images' code, sorted.
#[derive(Debug)]
struct Generation {
    places: UnsafeCell<*mut Place>,
    count: AtomicUsize,
}

/// The header of the mapping.
///
/// Whoever sets `busy` may write the generation that is not valid, and slots that the valid one
/// doesn't use. All others only read what the valid one contains.
#[derive(Debug)]
struct Table {
    busy: AtomicBool,
    /// Index of the valid generation.
    current: AtomicUsize,
    /// The number of the last completed refresh.
    refresh: AtomicU32,
    generations: [Generation; 2],
    slots: *mut Image,
    /// For each of `capacity` slots, the number of the refresh that last found its image.
    seen: *mut AtomicU32,
    capacity: usize,
    /// Address of dyld's list, 0 while unknown.
    debug: AtomicU64,
    dropped: AtomicUsize,
}

// SAFETY: see the type.
unsafe impl Sync for Table {}

/// The table that dyld's callbacks keep up to date.
static WATCHED: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
/// Whether the callback is being registered: dyld then calls it for every loaded image.
static REGISTERING: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// dyld's callback for added or removed images.
///
/// Not async-signal-safe; dyld may hold its lock.
extern "C" fn changed(_header: *const libc::c_void, _slide: isize) {
    if REGISTERING.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: a table is never unmapped once it was watched.
    if let Some(table) = unsafe { WATCHED.load(Ordering::Acquire).as_ref() } {
        table.refresh_by_copies();
    }
}

unsafe extern "C" {
    /// <mach-o/dyld.h>.
    fn _dyld_register_func_for_add_image(function: extern "C" fn(*const libc::c_void, isize));
    fn _dyld_register_func_for_remove_image(function: extern "C" fn(*const libc::c_void, isize));
}

/// The loaded images as of the last refresh.
///
/// A refresh that doesn't complete (it faulted, and recovery ended it) keeps the previous state.
#[derive(Debug)]
pub struct Images {
    /// Address of the [`Table`] and the data after it.
    ///
    /// A number and not a reference, since [`Images::unmap`] takes the value.
    mapping: usize,
    size: usize,
}

impl Images {
    /// Creates an empty table for `capacity` images (not async-signal-safe).
    pub fn map(capacity: usize) -> Result<Images> {
        let capacity = capacity.clamp(1, 1 << 16);
        let places = capacity * PLACES_PER_IMAGE;
        let align = |offset: usize| offset.next_multiple_of(16);
        let slots_at = align(size_of::<Table>());
        let places_at = align(slots_at + capacity * size_of::<Image>());
        let more_places_at = align(places_at + places * size_of::<Place>());
        let seen_at = align(more_places_at + places * size_of::<Place>());
        let size = seen_at + capacity * size_of::<AtomicU32>();
        let at = map_untouched(size)?;
        let generation = |places_at: usize| Generation {
            places: UnsafeCell::new((at + places_at) as *mut Place),
            count: AtomicUsize::new(0),
        };
        let table = Table {
            busy: AtomicBool::new(false),
            current: AtomicUsize::new(0),
            refresh: AtomicU32::new(0),
            generations: [generation(places_at), generation(more_places_at)],
            slots: (at + slots_at) as *mut Image,
            seen: (at + seen_at) as *mut AtomicU32,
            capacity,
            debug: AtomicU64::new(all_image_infos::address()),
            dropped: AtomicUsize::new(0),
        };
        // SAFETY: the mapping is new, large enough and aligned; zeros are valid slots, places and
        // counts.
        unsafe { (at as *mut Table).write(table) };
        Ok(Images { mapping: at, size })
    }

    #[inline]
    fn table(&self) -> &'static Table {
        // SAFETY: `map` created it, and it stays until `unmap` consumes this.
        unsafe { &*(self.mapping as *const Table) }
    }

    /// Keeps this table up to date from now on, through dyld's callbacks (not async-signal-safe).
    ///
    /// A process watches at most one table, which stays mapped permanently.
    pub fn watch(&self) {
        WATCHED.store(core::ptr::from_ref(self.table()).cast_mut(), Ordering::Release);
        if !REGISTERED.swap(true, Ordering::AcqRel) {
            REGISTERING.store(true, Ordering::Release);
            // SAFETY: the callback does only what callbacks may do.
            unsafe {
                _dyld_register_func_for_add_image(changed);
                _dyld_register_func_for_remove_image(changed);
            }
            REGISTERING.store(false, Ordering::Release);
        }
    }

    /// Touches the empty places that a refresh writes (not async-signal-safe).
    ///
    /// Slots are touched as they are filled.
    pub fn touch(&mut self) {
        for generation in &self.table().generations {
            // SAFETY: within the mapping; the places after the count of either generation are
            // unused.
            unsafe {
                let places = *generation.places.get();
                for index in generation.count.load(Ordering::Acquire)..self.table().capacity * PLACES_PER_IMAGE {
                    places.add(index).write_volatile(Place::default());
                }
            }
        }
    }

    /// Unmaps the table (not async-signal-safe), unless it was watched.
    pub fn unmap(self) {
        if !core::ptr::eq(WATCHED.load(Ordering::Acquire), self.table()) {
            // SAFETY: the mapping is ours, and nothing refers to it once `self` is gone.
            unsafe { unmap(self.mapping, self.size) };
        }
    }

    /// Refreshes the table through copies by the kernel (not async-signal-safe).
    ///
    /// No fault recovery is needed. The table is unchanged if the kernel refuses the copies.
    pub fn refresh_by_copies(&mut self) -> Refresh {
        self.table().refresh_by_copies()
    }

    /// Refreshes the table through `memory`. Known data about an image is reused.
    pub fn refresh<M: Memory>(&mut self, memory: &mut M) -> Refresh {
        self.table().refresh(memory, false)
    }

    /// Like [`Images::refresh`], but the table then stays unchanged until [`Images::release`].
    pub fn refresh_and_hold<M: Memory>(&mut self, memory: &mut M) -> Refresh {
        self.table().refresh(memory, true)
    }

    /// Releases the table after [`Images::refresh_and_hold`].
    pub fn release(&mut self) {
        self.table().busy.store(false, Ordering::Release);
    }

    /// Returns the image whose code contains an address.
    pub fn find(&self, address: u64) -> Option<&Image> {
        self.table().find(address)
    }

    /// Whether an address is in code of an image; `None` if it is in no image.
    ///
    /// Then use [`Mappings::at`](super::Mappings::at).
    pub fn is_executable(&self, address: u64) -> Option<bool> {
        self.find(address).map(|image| image.is_executable(address))
    }

    /// Iterates over the images, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        let table = self.table();
        // An image with code in two places is listed at the first.
        table.places().iter().filter_map(|place| {
            let image = table.slot(place.slot)?;
            let first = image.text().map(|range| range.start).min();
            (first == Some(place.range.start)).then_some(image)
        })
    }

    /// Returns the address of dyld's list, for [`fingerprint`](super::fingerprint); 0 if none.
    pub fn debug_address(&self) -> u64 {
        self.table().debug.load(Ordering::Relaxed)
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether the table has no images: no refresh has completed yet.
    pub fn is_empty(&self) -> bool {
        self.table().places().is_empty()
    }

    /// Reads an image's path from dyld's memory; empty if it can't be read.
    pub fn path<'b, M: Memory>(&self, image: &Image, memory: &mut M, into: &'b mut [u8; MAX_PATH]) -> &'b [u8] {
        read_text(memory, image.path, into)
    }
}

/// Returns a number that identifies a state of dyld's list.
///
/// `debug` is [`Images::debug_address`]. Reads a line of memory and takes no lock.
pub fn fingerprint<M: Memory>(memory: &mut M, debug: u64) -> u64 {
    let Ok(list) = List::read(memory, debug) else { return 0 };
    let changed = memory.read_u64(debug.saturating_add(all_image_infos::CHANGED_AT)).unwrap_or(0);
    let mut hash = debug;
    for word in [list.array, list.count.into(), changed] {
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash
}

impl Table {
    fn places_of(&self, generation: usize) -> &[Place] {
        let Some(generation) = self.generations.get(generation) else { return &[] };
        let count = generation.count.load(Ordering::Acquire);
        // SAFETY: within the mapping, and `count` of them were written before it was stored.
        unsafe { core::slice::from_raw_parts(*generation.places.get(), count) }
    }

    /// Returns the valid places.
    fn places(&self) -> &[Place] {
        self.places_of(self.current.load(Ordering::Acquire))
    }

    fn slot(&self, index: u32) -> Option<&Image> {
        // SAFETY: within the mapping; slots that a valid place names are not written.
        ((index as usize) < self.capacity).then(|| unsafe { &*self.slots.add(index as usize) })
    }

    fn place_of(&self, address: u64) -> Option<&Place> {
        place_of(self.places(), address)
    }

    fn find(&self, address: u64) -> Option<&Image> {
        self.slot(self.place_of(address)?.slot)
    }

    /// Refreshes by copies.
    ///
    /// Another thread may unload an image meanwhile, and nothing may recover from a bad load yet.
    fn refresh_by_copies(&self) -> Refresh {
        match KernelCopy::new() {
            Some(copy) => self.refresh(&mut Windowed::<_, WINDOWS>::new(copy), false),
            None => self.as_it_was(ListState::Absent),
        }
    }

    fn refresh<M: Memory>(&self, memory: &mut M, hold: bool) -> Refresh {
        if self.busy.swap(true, Ordering::AcqRel) {
            return self.as_it_was(ListState::Busy);
        }
        let found = self.list_anew(memory);
        if !hold {
            self.busy.store(false, Ordering::Release);
        }
        found
    }

    fn as_it_was(&self, list: ListState) -> Refresh {
        let dropped = self.dropped.load(Ordering::Relaxed);
        Refresh { images: self.places().len(), dropped, list, ..Refresh::default() }
    }

    /// Lists the images anew. Called while holding `busy`.
    fn list_anew<M: Memory>(&self, memory: &mut M) -> Refresh {
        let Ok(listed) = List::read(memory, self.debug.load(Ordering::Relaxed)) else {
            return self.as_it_was(ListState::Absent);
        };
        if listed.array == 0 || listed.count == 0 || listed.count > MAX_ENTRIES {
            return self.as_it_was(ListState::Changing);
        }
        let next = usize::from(self.current.load(Ordering::Acquire) == 0);
        let Some(generation) = self.generations.get(next) else { return Refresh::default() };
        let valid = self.refresh.load(Ordering::Relaxed);
        let mut making = Making {
            table: self,
            number: valid.wrapping_add(1).max(1),
            valid,
            from: 0,
            places: 0,
            next,
            found: Refresh::default(),
        };
        generation.count.store(0, Ordering::Release);
        let (dyld, dyld_path) = listed.dyld;
        if dyld != 0 {
            making.add(memory, dyld, dyld_path);
        }
        for index in 0..listed.count {
            match listed.entry(memory, index) {
                Ok((header, path)) if header != dyld => making.add(memory, header, path),
                Ok(_) => {}
                Err(_) => return self.as_it_was(ListState::Changing),
            }
        }
        let Making { number, places, mut found, .. } = making;
        // SAFETY: within the mapping; this generation is the writer's, and `places` of it were
        // written.
        sort(unsafe { core::slice::from_raw_parts_mut(*generation.places.get(), places) });
        generation.count.store(places, Ordering::Release);
        self.refresh.store(number, Ordering::Relaxed);
        self.dropped.store(found.dropped, Ordering::Relaxed);
        self.current.store(next, Ordering::Release);
        found.list = ListState::Consistent;
        found
    }
}

/// A refresh in progress.
struct Making<'t> {
    table: &'t Table,
    number: u32,
    /// The number of the refresh that made the valid generation, whose slots are not touched.
    valid: u32,
    /// Slots below this index have been checked for a free one.
    from: usize,
    places: usize,
    next: usize,
    found: Refresh,
}

impl Making<'_> {
    fn add<M: Memory>(&mut self, memory: &mut M, header: u64, path: u64) {
        let known = self.table.place_of(header).map(|place| place.slot);
        let known = known.filter(|slot| {
            self.table.slot(*slot).is_some_and(|image| image.range.start == header && image.path == path)
        });
        let slot = if let Some(slot) = known {
            slot
        } else {
            let Ok(image) = load_commands::parse(memory, header, path) else {
                self.found.refused += 1;
                return;
            };
            let Some(slot) = self.free_slot() else {
                self.found.dropped += 1;
                return;
            };
            // SAFETY: within the mapping, and no valid place names it.
            unsafe { self.table.slots.add(slot as usize).write(image) };
            self.found.read += 1;
            slot
        };
        // SAFETY: within the mapping.
        unsafe { (*self.table.seen.add(slot as usize)).store(self.number, Ordering::Relaxed) };
        self.found.images += 1;
        let Some(image) = self.table.slot(slot) else { return };
        for range in image.text() {
            self.place(range, slot);
        }
    }

    /// Returns a slot that neither generation uses.
    fn free_slot(&mut self) -> Option<u32> {
        while self.from < self.table.capacity {
            let index = self.from;
            self.from += 1;
            // SAFETY: within the mapping.
            let seen = unsafe { (*self.table.seen.add(index)).load(Ordering::Relaxed) };
            if seen == 0 || (seen != self.valid && seen != self.number) {
                return Some(index as u32);
            }
        }
        None
    }

    fn place(&mut self, range: AddressRange, slot: u32) {
        let Some(generation) = self.table.generations.get(self.next) else { return };
        if self.places < self.table.capacity * PLACES_PER_IMAGE && !range.is_empty() {
            // SAFETY: within the mapping; this generation is the writer's.
            unsafe { (*generation.places.get()).add(self.places).write(Place { range, slot }) };
            self.places += 1;
        }
    }
}
