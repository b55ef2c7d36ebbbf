//! The preallocated table of images: refreshed from the dynamic linker's list, searched by address.
//!
//! Two generations of the table exist side by side, so that a refresh that is ended by a fault
//! keeps the previous one.

use core::ffi::CStr;
use core::mem::{align_of, size_of};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::auxiliary_vector::AuxiliaryVector;
use super::link_map::{self, LinkMap, ListState};
use super::mappings::{DELETED_MARK, Mappings};
use super::{AddressRange, Image, ImageKind, program_headers};
use crate::elf::{self, FileHeader, HeaderTable};
use crate::files::{self, map_guarded, unmap_guarded};
use crate::image_index::{Place, place_of, remove_doubles, sort};
use crate::linux::identity::{path_of_execution, program_path};
use crate::linux::syscall::Result;
use crate::memory::Memory;

/// Number of path bytes that are kept with the image.
const SHORT_PATH: usize = 240;

/// Number of longer paths that can be kept, and the size of each: the kernel's maximum.
const LONG_PATHS: usize = 32;
const LONG_PATH: usize = 4096;

/// Maximum size of the program's path in bytes.
const MAIN_PATH: usize = LONG_PATH;

/// Number of list entries beyond which the list is assumed to be a cycle.
const MAX_ENTRIES: usize = 1 << 16;

/// Maximum number of images per refresh whose headers are searched for.
///
/// Each search reads the list of mappings.
const MAX_SEARCHES: u32 = 64;

/// The result of a refresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Number of images in the table.
    pub images: usize,
    /// Number of images that were newly read.
    pub read: usize,
    /// Number of images for which the table had no space.
    pub dropped: usize,
    /// Number of list entries without a readable image, which is just being unloaded.
    pub refused: usize,
    /// State in which the list was found.
    pub list: ListState,
    /// [`fingerprint`](super::fingerprint) of the entries used by this refresh.
    ///
    /// If the list has it afterwards, and no entry was refused, the table matches that list.
    pub fingerprint: u64,
}

/// An image with its identification in the list.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Slot {
    image: Image,
    /// Length of the path, which is in [`Slot::short`] or the long path with index `long_path` - 1.
    path_length: u32,
    long_path: u32,
    short: [u8; SHORT_PATH],
    /// Whether the path is the list's own name, so that another name means another image.
    named_by_list: bool,
}

#[derive(Debug)]
#[repr(C)]
struct LongPath {
    slot: u32,
    bytes: [u8; LONG_PATH],
}

/// A generation of the list: the slots in the order of the list, and sorted by address.
#[derive(Debug)]
struct Generation {
    places: Piece<Place>,
    listed: Piece<u32>,
    count: usize,
}

/// The loaded images as of the last refresh.
///
/// A refresh that doesn't complete (it faulted, and recovery ended it) keeps the previous state.
#[derive(Debug)]
pub struct Images {
    slots: Piece<Slot>,
    /// Address of the `link_map` for each slot.
    link_maps: Piece<u64>,
    /// The number of the refresh that last found each slot's image.
    seen: Piece<u32>,
    long_paths: Piece<LongPath>,
    generations: [Generation; 2],
    /// Index of the valid generation.
    current: usize,
    /// The number of the last completed refresh.
    refresh: u32,
    /// Slots from this index on were never used.
    used: usize,
    auxiliary: AuxiliaryVector,
    /// The program's dynamic section.
    main_dynamic: AddressRange,
    main_path: Piece<u8>,
    main_path_length: usize,
    /// Address of the `r_debug`, 0 while unknown.
    debug: u64,
    /// An address in the C library that this code is linked with.
    c_library: u64,
    mapping: usize,
    size: usize,
}

/// A slice of the table's mapping, owned exclusively.
///
/// Not a reference, so that the table can be unmapped by a function that receives it (a reference
/// in an argument must stay valid until the function returns).
#[derive(Debug)]
struct Piece<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY: a piece owns its plain values, as an array of them would.
unsafe impl<T: Send> Send for Piece<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Piece<T> {}

impl<T> Deref for Piece<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: by the contract of `Pieces::take`, which created it.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Piece<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Allocates pieces of a zeroed mapping.
struct Pieces {
    at: usize,
}

impl Pieces {
    /// Returns the address of the next `count` values. Without a mapping (`at` is 0 at first) this
    /// only counts.
    fn skip<T>(&mut self, count: usize) -> usize {
        let start = self.at.next_multiple_of(align_of::<T>());
        self.at = start + count * size_of::<T>();
        start
    }

    /// Takes the next `count` values.
    ///
    /// # Safety
    /// `at` must be inside a zeroed mapping with room for them, which nobody else uses and which
    /// stays; zeroes must be valid `T`s.
    unsafe fn take<T>(&mut self, count: usize) -> Piece<T> {
        let start = self.skip::<T>(count);
        // SAFETY: inside a mapping, and so not null.
        Piece { start: unsafe { NonNull::new_unchecked(start as *mut T) }, count }
    }
}

impl Images {
    /// Returns the numbers of images and of slots.
    ///
    /// There are more slots because the old and the new state exist side by side during a refresh.
    fn capacities(capacity: usize) -> (usize, usize) {
        let capacity = capacity.clamp(4, 1 << 16);
        (capacity, capacity + capacity / 4 + 4)
    }

    /// Returns the size of a table for `capacity` images in bytes.
    pub fn bytes(capacity: usize) -> usize {
        let (capacity, slots) = Self::capacities(capacity);
        let mut pieces = Pieces { at: 0 };
        pieces.skip::<Slot>(slots);
        pieces.skip::<u64>(slots);
        pieces.skip::<u32>(slots);
        for _ in 0..2 {
            pieces.skip::<Place>(capacity);
            pieces.skip::<u32>(capacity);
        }
        pieces.skip::<u8>(MAIN_PATH);
        pieces.skip::<LongPath>(LONG_PATHS);
        pieces.at
    }

    /// Maps a table for `capacity` images and finds the program's path (not async-signal-safe).
    ///
    /// Call [`Images::refresh`] next.
    pub fn map(capacity: usize) -> Result<Images> {
        let (capacity, slots) = Self::capacities(capacity);
        let auxiliary = AuxiliaryVector::of_this_process();
        let size = Self::bytes(capacity);
        let mapping = map_guarded(size)?;
        let mut pieces = Pieces { at: mapping };
        // SAFETY: the mapping is zeroed, ours, stays until `unmap` consumes the table, and has room
        // for exactly this, as counted above (a mapping's start is aligned for all). Zeroes are
        // valid for each of these plain types.
        let images = unsafe {
            let slots = pieces.take(slots);
            let link_maps = pieces.take(slots.len());
            let seen = pieces.take(slots.len());
            let generations =
                [(); 2].map(|()| Generation { places: pieces.take(capacity), listed: pieces.take(capacity), count: 0 });
            let main_path = pieces.take(MAIN_PATH);
            let long_paths = pieces.take(LONG_PATHS);
            Images {
                slots,
                link_maps,
                seen,
                long_paths,
                generations,
                current: 0,
                refresh: 0,
                used: 0,
                auxiliary,
                main_dynamic: AddressRange::default(),
                main_path,
                main_path_length: 0,
                debug: 0,
                c_library: libc::getauxval as *const () as u64,
                mapping,
                size,
            }
        };
        Ok(images.with_main_path())
    }

    fn with_main_path(mut self) -> Self {
        // The last byte stays a NUL.
        if let Some((_, into)) = self.main_path.split_last_mut() {
            self.main_path_length = program_path(into).len();
            if self.main_path_length == 0 {
                let length = path_of_execution(into).len();
                // The path of a script that the program interprets, or of the interpreter in `ld.so
                // ./program`, is not the program's.
                if CStr::from_bytes_until_nul(&self.main_path).is_ok_and(|path| self.auxiliary.is_of(path)) {
                    self.main_path_length = length;
                }
            }
        }
        // A program with an interpreter that was loaded without one was loaded by the interpreter:
        // `ld.so ./program`. The kernel then reports the interpreter as the executable, but the
        // mappings have the right path.
        if self.auxiliary.linker == 0
            && let Ok(mappings) = Mappings::open()
        {
            if let Ok(path) = mappings.path_at(self.auxiliary.entry, &mut self.main_path)
                && !path.is_empty()
            {
                self.main_path_length = path.len();
            }
            mappings.close();
        }
        self.main_path_length = unmarked_length(&self.main_path, self.main_path_length);
        self
    }

    /// Returns the path of the program's file, in the bytes of its file system.
    ///
    /// Without `/proc`, the path by which it was started. Empty if neither is known.
    pub fn program_path(&self) -> &[u8] {
        self.main_path.get(..self.main_path_length).unwrap_or_default()
    }

    /// Touches the memory that a crash may need, so that no page must be found then.
    ///
    /// This is the slots in use and as many again (at least 16). Not async-signal-safe, after a
    /// refresh.
    pub fn touch(&mut self) {
        let count = (self.used * 2).max(self.used + 16).min(self.slots.len());
        for slot in self.slots.iter_mut().take(count).skip(self.used) {
            // SAFETY: a reference is valid to write; volatile, so that writing the existing value
            // is not optimized out.
            unsafe { (&raw mut slot.path_length).write_volatile(0) };
        }
    }

    /// Unmaps the table (not async-signal-safe).
    pub fn unmap(self) {
        // SAFETY: the mapping is ours and, since `self` is consumed, nobody refers to it any more.
        unsafe { unmap_guarded(self.mapping, self.size) };
    }

    /// Refreshes the table through `memory`.
    ///
    /// Keeps unchanged images, reads new ones and drops removed ones.
    ///
    /// Takes no lock and calls nothing but `memory`: for crash time, and wherever the dynamic
    /// linker's lock may be held. Images whose program headers are not in memory (a linker script
    /// may omit them) are known only if [`Images::refresh_by_linker`] found them. The table must
    /// not be in use elsewhere meanwhile.
    pub fn refresh<M: Memory>(&mut self, memory: &mut M) -> Refresh {
        self.refresh_by(memory, |_, _| None)
    }

    /// Like [`Images::refresh`], but also finds program headers by dl_iterate_phdr(3).
    ///
    /// It is called for headers that are not where the list says. Not async-signal-safe. If nothing
    /// recovers from bad loads yet, `memory` must be one that can't fault:
    /// [`CheckedMemory`](crate::memory::CheckedMemory).
    pub fn refresh_by_linker<M: Memory>(&mut self, memory: &mut M) -> Refresh {
        self.refresh_by(memory, link_map::headers_by_linker)
    }

    #[inline]
    fn refresh_by<M: Memory>(
        &mut self,
        memory: &mut M,
        ask: impl Fn(&mut M, &LinkMap) -> Option<HeaderTable>,
    ) -> Refresh {
        let next = self.current ^ 1;
        if let Some(generation) = self.generations.get_mut(next) {
            generation.count = 0;
        }
        let mut refreshing = Refreshing {
            number: self.refresh.wrapping_add(1).max(1),
            next,
            searches: MAX_SEARCHES,
            found: Refresh::default(),
        };
        self.add_main(memory, &mut refreshing);
        if self.debug == 0 && !self.main_dynamic.is_empty() {
            self.debug = elf::debug_entry(memory, self.main_dynamic.start, self.main_dynamic.len()).unwrap_or(0);
        }
        let mut hash = link_map::Fingerprint::new(self.debug);
        let list = link_map::walk(memory, self.debug, MAX_ENTRIES, |memory, entry| {
            hash.add(entry);
            self.add_listed(memory, entry, &mut refreshing, &ask);
        });
        (refreshing.found.list, refreshing.found.fingerprint) = (list, hash.finish(list));
        // A list without the C library, which nobody unloads, is incomplete.
        let is_cut = self.find(self.c_library).is_some() && !self.is_placed(self.c_library, &refreshing);
        if list == ListState::Broken || is_cut || refreshing.found.refused > 0 {
            self.keep_known(memory, &mut refreshing);
        }
        self.add_unlisted(memory, self.auxiliary.linker, ImageKind::DynamicLinker, &mut refreshing);
        self.add_unlisted(memory, self.auxiliary.vdso, ImageKind::Vdso, &mut refreshing);
        self.publish(&refreshing)
    }

    /// Adds the program itself, which has an empty name in the list.
    fn add_main<M: Memory>(&mut self, memory: &mut M, refreshing: &mut Refreshing) {
        const MAIN: u64 = 1;
        if let Some(slot) = self.find_slot(MAIN, refreshing) {
            // The program can't be unloaded.
            self.place(slot, refreshing);
            return;
        }
        let table = HeaderTable { address: self.auxiliary.headers, count: self.auxiliary.header_count };
        let slide = program_headers::slide_of_headers(memory, table, self.auxiliary.entry);
        let Some(mut image) = self.read_image(memory, table, slide) else { return };
        image.kind = ImageKind::Main;
        if let Some(dynamic) = table.find(memory, elf::PT_DYNAMIC) {
            let start = dynamic.address.wrapping_add(slide);
            self.main_dynamic = AddressRange { start, end: start.saturating_add(dynamic.memory_size) };
        }
        if let Some(slot) = self.new_slot(MAIN, refreshing) {
            self.set_image(slot, &image);
            let mut path = [0; 64];
            let mut at = 0_usize;
            self.clear_path(slot);
            // In pieces: the path and the slot are parts of one structure.
            while at < self.main_path_length {
                let rest = self.main_path.get(at..self.main_path_length).unwrap_or(&[]);
                let count = rest.len().min(path.len());
                for (to, from) in path.iter_mut().zip(rest) {
                    *to = *from;
                }
                self.append_path(slot, path.get(..count).unwrap_or(&[]), refreshing);
                at = at.saturating_add(count.max(1));
            }
            refreshing.found.read = refreshing.found.read.saturating_add(1);
            self.place(slot, refreshing);
        }
    }

    fn add_listed<M: Memory>(
        &mut self,
        memory: &mut M,
        entry: &LinkMap,
        refreshing: &mut Refreshing,
        ask: impl Fn(&mut M, &LinkMap) -> Option<HeaderTable>,
    ) {
        if entry.dynamic == self.main_dynamic.start || entry.dynamic == 0 {
            return;
        }
        if let Some(slot) = self.find_slot(entry.at, refreshing) {
            if self.seen.get(slot) == Some(&refreshing.number) {
                // This walk has already found it.
                return;
            }
            let known = self.slots.get(slot).is_some_and(|known| {
                known.image.slide == entry.slide
                    && known.image.dynamic == entry.dynamic
                    && (!known.named_by_list || link_map::is_named(memory, entry.name, self.path_of(slot)))
                    && known.image.has_same_build_id(memory)
            });
            if known {
                self.place(slot, refreshing);
                return;
            }
        }
        let table = link_map::find_headers(memory, entry, &mut refreshing.searches, ask);
        let image = table.and_then(|table| Some((table, self.read_image(memory, table, entry.slide)?)));
        let Some((table, mut image)) = image.filter(|(_, image)| image.dynamic == entry.dynamic) else {
            refreshing.found.refused = refreshing.found.refused.saturating_add(1);
            return;
        };
        if image.range.contains(self.auxiliary.vdso) {
            return;
        }
        if image.range.contains(self.auxiliary.linker) {
            image.kind = ImageKind::DynamicLinker;
        }
        let Some(slot) = self.new_slot(entry.at, refreshing) else { return };
        self.set_image(slot, &image);
        self.read_path(memory, slot, entry.name, refreshing);
        // Entry, name and image were read one after the other: they belong together only if the
        // entry is unchanged.
        memory.forget();
        let unchanged = entry.is_unchanged(memory)
            && link_map::is_named(memory, entry.name, self.path_of(slot))
            && self
                .read_image(memory, table, entry.slide)
                .is_some_and(|again| Image { kind: image.kind, ..again } == image);
        if !unchanged {
            self.forget(slot);
            refreshing.found.refused = refreshing.found.refused.saturating_add(1);
            return;
        }
        let is_absolute = self.path_of(slot).first() == Some(&b'/');
        if !is_absolute {
            self.resolve_path(slot, &image, refreshing);
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.named_by_list = is_absolute;
        }
        refreshing.found.read = refreshing.found.read.saturating_add(1);
        self.place(slot, refreshing);
    }

    /// Keeps images of the last refresh that this one did not find in a damaged list.
    ///
    /// Those whose memory is unchanged, and whose place is not taken by another image.
    fn keep_known<M: Memory>(&mut self, memory: &mut M, refreshing: &mut Refreshing) {
        for slot in 0..self.used {
            let is_of_last = self.refresh != 0 && self.seen.get(slot) == Some(&self.refresh);
            let image = self.slots.get(slot).map(|slot| slot.image).filter(|_| is_of_last);
            if image
                .is_some_and(|image| image.has_same_build_id(memory) && !self.is_placed(image.range.start, refreshing))
            {
                self.place(slot, refreshing);
            }
        }
    }

    fn read_image<M: Memory>(&self, memory: &mut M, table: HeaderTable, slide: u64) -> Option<Image> {
        Image::read(memory, table, slide, self.auxiliary.page)
    }

    /// Adds an image that the kernel mapped, if the list did not have it.
    fn add_unlisted<M: Memory>(&mut self, memory: &mut M, header: u64, kind: ImageKind, refreshing: &mut Refreshing) {
        if header == 0 || self.is_placed(header, refreshing) {
            return;
        }
        // No `link_map` starts at an ELF header, so that address can be this slot's key.
        if let Some(slot) = self.find_slot(header, refreshing) {
            self.place(slot, refreshing);
            return;
        }
        let image = FileHeader::read(memory, header).and_then(|file| {
            let table = file.headers(header);
            let first = table.find(memory, elf::PT_LOAD)?;
            self.read_image(memory, table, header.wrapping_sub(first.address))
        });
        // A slot is taken only with an image for it: otherwise the next refresh would find a slot
        // without an image.
        let Some(mut image) = image else { return };
        let Some(slot) = self.new_slot(header, refreshing) else { return };
        image.kind = kind;
        self.set_image(slot, &image);
        self.clear_path(slot);
        if kind == ImageKind::Vdso {
            self.append_path(slot, b"[vdso]", refreshing);
        } else {
            self.resolve_path(slot, &image, refreshing);
        }
        refreshing.found.read = refreshing.found.read.saturating_add(1);
        self.place(slot, refreshing);
    }

    /// Makes the new generation the valid one.
    fn publish(&mut self, refreshing: &Refreshing) -> Refresh {
        let mut found = refreshing.found;
        if let Some(generation) = self.generations.get_mut(refreshing.next) {
            let count = generation.count;
            if let Some(places) = generation.places.get_mut(..count) {
                sort(places);
                // A restarted walk may have found an entry twice; other namespaces list the dynamic
                // linker again.
                generation.count = remove_doubles(places);
            }
            found.images = generation.count;
        }
        self.current = refreshing.next;
        self.refresh = refreshing.number;
        found
    }

    /// Returns the slot of an entry, from the valid generation or the one being made.
    fn find_slot(&self, key: u64, refreshing: &mut Refreshing) -> Option<usize> {
        // Entries usually come in the order of the last refresh.
        let listed = &self.generations.get(self.current)?.listed;
        let count = self.generations.get(refreshing.next)?.count;
        let expected = listed.get(count).map(|slot| *slot as usize);
        let is_it = |slot: usize| {
            let seen = self.seen.get(slot).copied().unwrap_or(0);
            self.link_maps.get(slot) == Some(&key) && seen != 0 && (seen == self.refresh || seen == refreshing.number)
        };
        if let Some(slot) = expected.filter(|slot| is_it(*slot)) {
            return Some(slot);
        }
        (0..self.used).find(|slot| is_it(*slot))
    }

    /// Returns a slot that neither generation uses.
    fn new_slot(&mut self, key: u64, refreshing: &mut Refreshing) -> Option<usize> {
        let (valid, making) = (self.refresh, refreshing.number);
        let free = self.seen.iter().position(|seen| *seen == 0 || (*seen != valid && *seen != making));
        let Some(slot) = free else {
            refreshing.found.dropped = refreshing.found.dropped.saturating_add(1);
            return None;
        };
        *self.link_maps.get_mut(slot)? = key;
        *self.seen.get_mut(slot)? = making;
        self.used = self.used.max(slot.saturating_add(1));
        Some(slot)
    }

    fn forget(&mut self, slot: usize) {
        if let Some(seen) = self.seen.get_mut(slot) {
            *seen = 0;
        }
    }

    fn set_image(&mut self, slot: usize, image: &Image) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.image = *image;
            slot.named_by_list = false;
        }
    }

    /// Adds a slot to the generation being made.
    fn place(&mut self, slot: usize, refreshing: &mut Refreshing) {
        let range = self.slots.get(slot).map_or(AddressRange::default(), |slot| slot.image.range);
        let Some(generation) = self.generations.get_mut(refreshing.next) else { return };
        let (Some(place), Some(listed)) =
            (generation.places.get_mut(generation.count), generation.listed.get_mut(generation.count))
        else {
            refreshing.found.dropped = refreshing.found.dropped.saturating_add(1);
            self.forget(slot);
            return;
        };
        *place = Place { range, slot: slot as u32 };
        *listed = slot as u32;
        generation.count = generation.count.saturating_add(1);
        if let Some(seen) = self.seen.get_mut(slot) {
            *seen = refreshing.number;
        }
    }

    fn is_placed(&self, address: u64, refreshing: &Refreshing) -> bool {
        let generation = self.generations.get(refreshing.next);
        let places = generation.and_then(|generation| generation.places.get(..generation.count)).unwrap_or(&[]);
        places.iter().any(|place| place.range.contains(address))
    }

    /// Returns the valid places.
    fn places(&self) -> &[Place] {
        let generation = self.generations.get(self.current);
        generation.and_then(|generation| generation.places.get(..generation.count)).unwrap_or(&[])
    }

    /// Returns the image whose mapped range contains an address.
    pub fn find(&self, address: u64) -> Option<&Image> {
        let place = self.place_of(address)?;
        self.slots.get(place.slot as usize).map(|slot| &slot.image)
    }

    fn place_of(&self, address: u64) -> Option<&Place> {
        place_of(self.places(), address)
    }

    /// Whether an address is in executable memory of an image; `None` if it is in no image.
    ///
    /// Then use [`Mappings::at`].
    pub fn is_executable(&self, address: u64) -> Option<bool> {
        self.find(address).map(|image| image.is_executable(address))
    }

    /// Iterates over the images, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.places().iter().filter_map(|place| Some(&self.slots.get(place.slot as usize)?.image))
    }

    /// Iterates over the images that can be unloaded, each with the address of its list entry.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&Image, u64)> {
        let slots = self.places().iter().map(|place| place.slot as usize);
        let all = slots.filter_map(|slot| Some((&self.slots.get(slot)?.image, *self.link_maps.get(slot)?)));
        all.filter(|(image, _)| image.kind == ImageKind::Library)
    }

    /// Returns the address of the `r_debug`, for [`fingerprint`](super::fingerprint); 0 if none.
    pub fn debug_address(&self) -> u64 {
        self.debug
    }

    /// Returns the table with another address of the `r_debug`, for the fuzz target.
    #[doc(hidden)]
    #[must_use]
    pub fn with_debug_address(self, debug: u64) -> Self {
        Self { debug, ..self }
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// Whether the table has no images: no refresh has completed yet.
    pub fn is_empty(&self) -> bool {
        self.places().is_empty()
    }

    /// Returns the path of an image of this table, in the bytes of its file system.
    ///
    /// The path is that by which the dynamic linker opened it, made absolute if the kernel still
    /// knows the file. `[vdso]` for the vDSO.
    pub fn path(&self, image: &Image) -> &[u8] {
        let place = self.place_of(image.range.start).filter(|place| place.range == image.range);
        place.map_or(&[], |place| self.path_of(place.slot as usize))
    }

    fn path_of(&self, slot: usize) -> &[u8] {
        let Some(slot) = self.slots.get(slot) else { return &[] };
        let length = slot.path_length as usize;
        let bytes = match (slot.long_path as usize).checked_sub(1).and_then(|long| self.long_paths.get(long)) {
            Some(long) => &long.bytes[..],
            None => &slot.short[..],
        };
        bytes.get(..length).unwrap_or(&[])
    }

    /// Clears the path of a slot that neither generation uses any more.
    fn clear_path(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.path_length = 0;
        let long = (core::mem::replace(&mut slot.long_path, 0) as usize).checked_sub(1);
        // Another slot may have taken it since.
        if let Some(long) = long.and_then(|long| self.long_paths.get_mut(long))
            && long.slot == (index as u32).wrapping_add(1)
        {
            long.slot = 0;
        }
    }

    /// Appends to a slot's path.
    ///
    /// The path is truncated if all long paths are in use, or it is longer than any path.
    fn append_path(&mut self, index: usize, piece: &[u8], refreshing: &Refreshing) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let length = slot.path_length as usize;
        if slot.long_path == 0 && length.saturating_add(piece.len()) > SHORT_PATH {
            let (valid, making) = (self.refresh, refreshing.number);
            let seen = &self.seen;
            let free = self.long_paths.iter_mut().enumerate().find(|(_, long)| {
                let user = (long.slot as usize).checked_sub(1).and_then(|user| seen.get(user)).copied().unwrap_or(0);
                user == 0 || (user != valid && user != making)
            });
            if let Some((number, long)) = free {
                long.slot = (index as u32).wrapping_add(1);
                for (to, from) in long.bytes.iter_mut().zip(slot.short.iter().take(length)) {
                    *to = *from;
                }
                slot.long_path = (number as u32).wrapping_add(1);
            }
        }
        let bytes = match (slot.long_path as usize).checked_sub(1).and_then(|long| self.long_paths.get_mut(long)) {
            Some(long) => &mut long.bytes[..],
            None => &mut slot.short[..],
        };
        let room = bytes.get_mut(length..).unwrap_or(&mut []);
        let mut written = 0_u32;
        for (to, from) in room.iter_mut().zip(piece) {
            *to = *from;
            written = written.wrapping_add(1);
        }
        slot.path_length = slot.path_length.saturating_add(written);
    }

    /// Reads an image's path from the list.
    fn read_path<M: Memory>(&mut self, memory: &mut M, slot: usize, name: u64, refreshing: &Refreshing) {
        self.clear_path(slot);
        let mut at = name;
        for _ in 0..LONG_PATH / link_map::NAME_PIECE * 2 {
            let mut piece = [0; link_map::NAME_PIECE];
            let Some((bytes, ended)) = link_map::read_name_piece(memory, at, &mut piece) else { return };
            self.append_path(slot, bytes, refreshing);
            if ended {
                return;
            }
            at = at.saturating_add(bytes.len() as u64);
        }
    }

    /// Asks the kernel for the path of an image whose name in the list is relative or missing.
    fn resolve_path(&mut self, slot: usize, image: &Image, refreshing: &Refreshing) {
        let Ok(mappings) = Mappings::open() else { return };
        // The last byte stays a NUL.
        let mut buffer = [0; 1025];
        let (_, into) = buffer.split_last_mut().unwrap_or((&mut 0, &mut []));
        let length = mappings.path_at(image.range.start, into).map_or(0, <[u8]>::len);
        let path = buffer.get(..unmarked_length(&buffer, length)).unwrap_or(&[]);
        if path.first() == Some(&b'/') {
            self.clear_path(slot);
            self.append_path(slot, path, refreshing);
        }
        mappings.close();
    }
}

/// Returns the length of a path without the kernel's mark for a deleted or replaced file.
///
/// This happens in an update while the program runs. The name without the mark is the file's former
/// name, unless there is a file with the marked name. The path is followed by a NUL.
fn unmarked_length(buffer: &[u8], length: usize) -> usize {
    let Some(name) = buffer.get(..length).and_then(|path| path.strip_suffix(DELETED_MARK)) else { return length };
    let path = buffer.get(..=length).and_then(|path| CStr::from_bytes_until_nul(path).ok());
    // Uses a call that the crash path makes anyway: a seccomp filter may kill the process for
    // another one. Nothing is opened for reading.
    let file = path.and_then(|path| files::open(files::Descriptor::WORKING_DIRECTORY, path, libc::O_PATH, 0).ok());
    file.map_or(name.len(), |_| length)
}

struct Refreshing {
    number: u32,
    next: usize,
    /// Number of images whose headers may still be searched for.
    searches: u32,
    found: Refresh,
}
