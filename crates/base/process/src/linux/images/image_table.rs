//! The preallocated table of images: refreshed from the dynamic linker's list, searched by address.
//!
//! Two states of the table exist side by side, so that a refresh that is ended by a fault leaves the one before it.

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

/// Bytes of a path that are kept with its image.
const SHORT_PATH: usize = 240;

/// Paths longer than that which can be kept, and the bytes of each: the longest path that the kernel takes.
const LONG_PATHS: usize = 32;
const LONG_PATH: usize = 4096;

/// Most bytes of the program's path.
const MAIN_PATH: usize = LONG_PATH;

/// Entries of the list beyond which it is believed to be a cycle.
const MAX_ENTRIES: usize = 1 << 16;

/// Images whose headers are searched for in one refresh: each search reads the list of mappings.
const MAX_SEARCHES: u32 = 64;

/// What a refresh found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Images in the table now.
    pub images: usize,
    /// Of those, images that were read anew.
    pub read: usize,
    /// Images that found no room in the table.
    pub dropped: usize,
    /// Entries of the list behind which no readable image was: it is just being unloaded.
    pub refused: usize,
    /// How the list was found.
    pub list: ListState,
    /// [`fingerprint`](super::fingerprint) of the entries that this refresh went by. Where the list has it afterwards, and no entry
    /// was refused, the table is of that list.
    pub fingerprint: u64,
}

/// An image with what identifies it in the list.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Slot {
    image: Image,
    /// The path's bytes, in [`Slot::short`] or the long path of that number less one.
    path_length: u32,
    long_path: u32,
    short: [u8; SHORT_PATH],
    /// The path is the list's own name, so that another name means another image.
    named_by_list: bool,
}

#[derive(Debug)]
#[repr(C)]
struct LongPath {
    slot: u32,
    bytes: [u8; LONG_PATH],
}

/// A state of the list: the slots in the order of the list, and sorted by address.
#[derive(Debug)]
struct Generation {
    places: Piece<Place>,
    listed: Piece<u32>,
    count: usize,
}

/// The loaded images as of the last refresh.
///
/// A refresh that does not come to its end (it faulted, and recovery ended it) leaves the state before it.
#[derive(Debug)]
pub struct Images {
    slots: Piece<Slot>,
    /// Which `link_map` each slot is for.
    link_maps: Piece<u64>,
    /// The number of the refresh that last found each slot's image.
    seen: Piece<u32>,
    long_paths: Piece<LongPath>,
    generations: [Generation; 2],
    /// Which of the generations is the valid one.
    current: usize,
    /// The number of the last refresh that came to its end.
    refresh: u32,
    /// Slots below this were used at some time.
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

/// A slice of the table's mapping: its owner's alone, and no reference, so that the table can be unmapped by a function that is given
/// it (a reference in an argument must stay valid until the function returns).
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
        // SAFETY: by the contract of `Pieces::take`, which made it.
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

/// Hands out pieces of a zeroed mapping.
struct Pieces {
    at: usize,
}

impl Pieces {
    /// The next `count` values. Without a mapping (`at` is 0 at first) this only counts.
    fn skip<T>(&mut self, count: usize) -> usize {
        let start = self.at.next_multiple_of(align_of::<T>());
        self.at = start + count * size_of::<T>();
        start
    }

    /// # Safety
    /// `at` must be inside a zeroed mapping with room for them, which nobody else uses and which stays; zeroes must be
    /// valid `T`s.
    unsafe fn take<T>(&mut self, count: usize) -> Piece<T> {
        let start = self.skip::<T>(count);
        // SAFETY: inside a mapping, and so not null.
        Piece { start: unsafe { NonNull::new_unchecked(start as *mut T) }, count }
    }
}

impl Images {
    /// How many images there is room for, and how many slots: those of the old and of the new state exist side by side while a refresh runs.
    fn capacities(capacity: usize) -> (usize, usize) {
        let capacity = capacity.clamp(4, 1 << 16);
        (capacity, capacity + capacity / 4 + 4)
    }

    /// The bytes that a table for `capacity` images maps.
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

    /// Maps a table for `capacity` images and finds the program in it (not async-signal-safe). Call [`Images::refresh`] next.
    pub fn map(capacity: usize) -> Result<Images> {
        let (capacity, slots) = Self::capacities(capacity);
        let auxiliary = AuxiliaryVector::of_this_process();
        let size = Self::bytes(capacity);
        let mapping = map_guarded(size)?;
        let mut pieces = Pieces { at: mapping };
        // SAFETY: the mapping is zeroed, ours, stays until `unmap` consumes the table, and has room for exactly this, as
        // counted above (a mapping's start is aligned for all). Zeroes are valid for each of these plain types.
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
                // The path of a script that the program interprets, or of the interpreter in `ld.so ./program`, is not the program's.
                if CStr::from_bytes_until_nul(&self.main_path).is_ok_and(|path| self.auxiliary.is_of(path)) {
                    self.main_path_length = length;
                }
            }
        }
        // A program with an interpreter, yet loaded without one, was loaded by the interpreter: `ld.so ./program`. Then
        // the kernel knows the interpreter as the executable, and the mappings know better.
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

    /// The path of the program's file, in the bytes of its file system; without `/proc` that of its start. Empty if neither is known.
    pub fn program_path(&self) -> &[u8] {
        self.main_path.get(..self.main_path_length).unwrap_or_default()
    }

    /// Touches what a crash may need: the slots in use and as many again (at least 16), so that no page must be found
    /// then (not async-signal-safe, after a refresh).
    pub fn touch(&mut self) {
        let count = (self.used * 2).max(self.used + 16).min(self.slots.len());
        for slot in self.slots.iter_mut().take(count).skip(self.used) {
            // SAFETY: a reference is valid to write; volatile, so that writing what is there already is not left out.
            unsafe { (&raw mut slot.path_length).write_volatile(0) };
        }
    }

    /// Unmaps the table (not async-signal-safe).
    pub fn unmap(self) {
        // SAFETY: the mapping is ours and, since `self` is consumed, nobody refers to it any more.
        unsafe { unmap_guarded(self.mapping, self.size) };
    }

    /// Reads the list anew through `memory`: what is unchanged is kept, what is new is read, what is gone is dropped.
    ///
    /// Takes no lock and calls nothing but `memory`: for crash time, and wherever the dynamic linker's lock may be held. Images
    /// whose program headers are not in memory (a linker script may leave them out) are known only if
    /// [`Images::refresh_by_linker`] met them. The table must not be in use otherwise meanwhile.
    pub fn refresh<M: Memory>(&mut self, memory: &mut M) -> Refresh {
        self.refresh_by(memory, |_, _| None)
    }

    /// As [`Images::refresh`], and asks dl_iterate_phdr(3) for program headers that are not where the list says (not
    /// async-signal-safe). Where nothing recovers from bad loads yet, `memory` must be one that can't fault:
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
        // A list without the C library, which nobody unloads, was cut.
        let is_cut = self.find(self.c_library).is_some() && !self.is_placed(self.c_library, &refreshing);
        if list == ListState::Broken || is_cut || refreshing.found.refused > 0 {
            self.keep_known(memory, &mut refreshing);
        }
        self.add_unlisted(memory, self.auxiliary.linker, ImageKind::DynamicLinker, &mut refreshing);
        self.add_unlisted(memory, self.auxiliary.vdso, ImageKind::Vdso, &mut refreshing);
        self.publish(&refreshing)
    }

    /// The program itself, which the list has under an empty name.
    fn add_main<M: Memory>(&mut self, memory: &mut M, refreshing: &mut Refreshing) {
        const MAIN: u64 = 1;
        if let Some(slot) = self.find_slot(MAIN, refreshing) {
            // It can't be unloaded.
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
            // By pieces: the path and the slot are parts of one structure.
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
                // This walk met it before.
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
        // Entry, name and image were read one after the other: only if the entry is unchanged do they belong together.
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

    /// Keeps the images of the last refresh that this one did not meet, in a list that is damaged: those whose memory is still what it
    /// was, and where nothing else is now.
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

    /// An image that the kernel mapped, if the list did not have it.
    fn add_unlisted<M: Memory>(&mut self, memory: &mut M, header: u64, kind: ImageKind, refreshing: &mut Refreshing) {
        if header == 0 || self.is_placed(header, refreshing) {
            return;
        }
        // No `link_map` starts at an ELF header, so that address is free to be this slot's key.
        if let Some(slot) = self.find_slot(header, refreshing) {
            self.place(slot, refreshing);
            return;
        }
        let image = FileHeader::read(memory, header).and_then(|file| {
            let table = file.headers(header);
            let first = table.find(memory, elf::PT_LOAD)?;
            self.read_image(memory, table, header.wrapping_sub(first.address))
        });
        // A slot is taken only with an image for it: the next refresh would find one of nothing there.
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

    /// Makes what was found the valid state.
    fn publish(&mut self, refreshing: &Refreshing) -> Refresh {
        let mut found = refreshing.found;
        if let Some(generation) = self.generations.get_mut(refreshing.next) {
            let count = generation.count;
            if let Some(places) = generation.places.get_mut(..count) {
                sort(places);
                // A walk that began again may have met an entry twice; other namespaces list the dynamic linker again.
                generation.count = remove_doubles(places);
            }
            found.images = generation.count;
        }
        self.current = refreshing.next;
        self.refresh = refreshing.number;
        found
    }

    /// The slot of an entry, of the valid state or of the one being made.
    fn find_slot(&self, key: u64, refreshing: &mut Refreshing) -> Option<usize> {
        // Entries mostly come in the order of the last refresh.
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

    /// A slot that neither state uses.
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

    /// Puts a slot into the state being made.
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

    /// The valid state.
    fn places(&self) -> &[Place] {
        let generation = self.generations.get(self.current);
        generation.and_then(|generation| generation.places.get(..generation.count)).unwrap_or(&[])
    }

    /// The image whose mapped range holds an address.
    pub fn find(&self, address: u64) -> Option<&Image> {
        let place = self.place_of(address)?;
        self.slots.get(place.slot as usize).map(|slot| &slot.image)
    }

    fn place_of(&self, address: u64) -> Option<&Place> {
        place_of(self.places(), address)
    }

    /// Whether an address is in executable memory of an image; `None` if it is in no image (ask [`Mappings::at`]).
    pub fn is_executable(&self, address: u64) -> Option<bool> {
        self.find(address).map(|image| image.is_executable(address))
    }

    /// The images, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.places().iter().filter_map(|place| Some(&self.slots.get(place.slot as usize)?.image))
    }

    /// Those that can be unloaded, each with the address of its entry in the list.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&Image, u64)> {
        let slots = self.places().iter().map(|place| place.slot as usize);
        let all = slots.filter_map(|slot| Some((&self.slots.get(slot)?.image, *self.link_maps.get(slot)?)));
        all.filter(|(image, _)| image.kind == ImageKind::Library)
    }

    /// Where the dynamic linker's `r_debug` is, for [`fingerprint`](super::fingerprint); 0 if there is none.
    pub fn debug_address(&self) -> u64 {
        self.debug
    }

    /// With another place of the `r_debug`, in whatever memory the next refresh is given: for the fuzz target.
    #[doc(hidden)]
    #[must_use]
    pub fn with_debug_address(self, debug: u64) -> Self {
        Self { debug, ..self }
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// Whether there is none: no refresh has come to its end yet.
    pub fn is_empty(&self) -> bool {
        self.places().is_empty()
    }

    /// The path of an image of this table, in the bytes of its file system: as the dynamic linker opened it, made absolute
    /// where the kernel still knows the file. `[vdso]` for the vdso.
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

    /// Takes the path from a slot that neither state uses any more.
    fn clear_path(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.path_length = 0;
        let long = (core::mem::replace(&mut slot.long_path, 0) as usize).checked_sub(1);
        // Another slot may have got it since.
        if let Some(long) = long.and_then(|long| self.long_paths.get_mut(long))
            && long.slot == (index as u32).wrapping_add(1)
        {
            long.slot = 0;
        }
    }

    /// Adds to a slot's path. What finds no room (all long paths are in use, or it is longer than any path) is left off.
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

    /// Takes an image's path from the list.
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

    /// Asks the kernel for the path of an image that the list has under a relative name, or not at all.
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

/// The length of a path without the mark that the kernel gives a file which was deleted or replaced (an update while the program
/// runs): the name without it is what the file was called. (Unless there is a file of just that name.) Behind the path stands a NUL.
fn unmarked_length(buffer: &[u8], length: usize) -> usize {
    let Some(name) = buffer.get(..length).and_then(|path| path.strip_suffix(DELETED_MARK)) else { return length };
    let path = buffer.get(..=length).and_then(|path| CStr::from_bytes_until_nul(path).ok());
    // By a call that the crash path makes anyway: a seccomp filter may end the process for another one. Nothing is opened for reading.
    let file = path.and_then(|path| files::open(libc::AT_FDCWD, path, libc::O_PATH, 0).ok());
    file.map_or(name.len(), |file| {
        files::close(file);
        length
    })
}

struct Refreshing {
    number: u32,
    next: usize,
    /// How many images' headers may still be searched for.
    searches: u32,
    found: Refresh,
}
