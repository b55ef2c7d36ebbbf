//! Cache of rules by address.
//!
//! The caller provides the cache's memory, and uses it for one walk at a time, of one address
//! space. There is no conflict cliff: addresses that share a set cost a comparison, and the oldest
//! rule is replaced.

use crate::arch::Architecture;
use crate::frame::{AddressKind, Found};
use crate::lookup::SectionCache;
use crate::registers::RegisterFile;
use crate::rule::{Row, Rule};

pub(crate) mod step_log;

use step_log::StepLog;

/// Number of entries per set.
const WAYS: usize = 4;
const SETS: usize = 256;
const ENTRIES: usize = SETS * WAYS;

/// A rule, and how it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundRule {
    /// The rule.
    pub rule: Rule,
    /// The method with which the caller's frame is marked.
    pub found: Found,
    /// Whether the frame is a signal trampoline.
    pub signal_trampoline: bool,
}

/// Place of an entry in a [`RuleCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryIndex(u16);

/// Factor between an entry's number and its place, so that the place is directly proportional to
/// the entry's distance in memory.
const UNIT: u16 = 64;

impl EntryIndex {
    /// An arbitrary place.
    pub(crate) const NONE: EntryIndex = EntryIndex(0);

    #[inline]
    const fn new(index: usize) -> EntryIndex {
        EntryIndex((index as u16).wrapping_mul(UNIT))
    }

    #[inline]
    const fn index(self) -> usize {
        (self.0 / UNIT) as usize
    }
}

const _: () = assert!(ENTRIES == (u16::MAX / UNIT) as usize + 1);

/// Base of a [`Step`]'s CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Base {
    /// The rule can't be expressed as a [`Step`].
    #[default]
    Other,
    /// The stack pointer. The return address was saved.
    StackPointer,
    /// The frame pointer, which is the address of the frame record.
    FramePointer,
}

/// Everything that a walk needs to go from a frame to its caller, for the rules of nearly all
/// frames. Distances are in words of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub base: Base,
    /// The CFA minus the base; positive if the base is the stack pointer.
    pub cfa: i16,
    /// Place of the saved return address, relative to the CFA.
    pub return_address: i16,
    /// Place of the saved frame pointer, relative to the CFA; 0 if it was not saved.
    pub frame_pointer: i16,
    /// [`Row::saved`] without the return address.
    pub saved: u16,
}

impl Step {
    const OTHER: Step = Step { base: Base::Other, cfa: 0, return_address: 0, frame_pointer: 0, saved: 0 };

    fn from_rule<A: Architecture>(rule: &FoundRule) -> Step {
        let Rule::Row(row) = &rule.rule else { return Step::OTHER };
        let (Some(return_address), Ok(cfa)) = (row.saved_words::<A>(A::RA), i16::try_from(row.cfa_offset >> 3)) else {
            return Step::OTHER;
        };
        let saved_fp = row.saved_words::<A>(A::FP);
        let frame_pointer = saved_fp.unwrap_or(0);
        let is_record = frame_pointer == cfa.wrapping_neg() && return_address == frame_pointer.wrapping_add(1);
        let base = match row.cfa_register {
            _ if rule.signal_trampoline || row.cfa_offset % 8 != 0 || saved_fp == Some(0) => Base::Other,
            number if number == A::SP && cfa > 0 => Base::StackPointer,
            number if number == A::FP && is_record => Base::FramePointer,
            _ => Base::Other,
        };
        Step { base, cfa, return_address, frame_pointer, saved: row.saved & RegisterFile::<A>::SLOTS }
    }
}

/// A cache entry: one cache line, which is all that a walk needs for a frame. All zero is an entry
/// of no epoch.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// The entry's [`key()`].
    key: u64,
    /// The [`RuleCache::epoch`] of the entry, plus one: the entry is valid only in that epoch.
    epoch: u32,
    /// Place of the caller's rule at the last use. A frame usually has the same caller as before,
    /// and checking this place first removes the lookup of the next return address from the chain
    /// of dependent operations.
    pub(crate) caller: EntryIndex,
    pub(crate) step: Step,
    signal_trampoline: bool,
    /// Number of the [`Found`].
    found: u8,
    rule: Rule,
}

const _: () = assert!(size_of::<Entry>() == 64);

const EMPTY: Entry = Entry {
    key: 0,
    epoch: 0,
    caller: EntryIndex(0),
    step: Step::OTHER,
    signal_trampoline: false,
    found: 0,
    rule: Rule::Row(Row::new(0, 0)),
};

impl Entry {
    /// Returns how the caller's frame is marked as found.
    #[inline]
    pub(crate) fn found(&self) -> Found {
        Found::from_number(self.found).unwrap_or(Found::Context)
    }

    /// Returns `true` if there is no caller.
    #[inline]
    pub(crate) fn is_outermost(&self) -> bool {
        self.rule == Rule::Outermost
    }

    #[inline]
    pub(crate) fn row(&self) -> Option<&Row> {
        match &self.rule {
            Rule::Row(row) => Some(row),
            _ => None,
        }
    }
}

/// A set of the index: places of the rules for addresses whose hashes collide. The entries at these
/// places may have been replaced.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Set {
    /// A part of each key's hash: one line of memory suffices to rule out an address.
    tags: [u32; WAYS],
    places: [EntryIndex; WAYS],
    /// The way that is replaced next.
    next: u8,
}

const NO_SET: Set = Set { tags: [0; WAYS], places: [EntryIndex::NONE; WAYS], next: 0 };

/// Cache of the rules for the last 1,024 addresses, in the order in which they were added: those of
/// one walk are adjacent, in as few lines and pages as possible, which dominate the time of a first
/// walk. They are found through an index in sets of four: addresses that collide cost a comparison,
/// not a recomputation.
///
/// Plain memory of about 80 KiB, created before it is needed: a `static` (it is all zero, and takes
/// no room in the file), or a field of something allocated at install. One cache serves one walk at
/// a time, of one address space and architecture; it may serve crash and live walks in turn. Rules
/// are dropped when [`crate::Images::generation`] changes.
#[derive(Debug)]
pub struct RuleCache {
    index: [Set; SETS],
    entries: [Entry; ENTRIES],
    /// Number of the entry that is replaced next: the oldest.
    next: u16,
    generation: u64,
    /// Changes with each [`Self::clear`], which is therefore cheap.
    epoch: u32,
    pub(crate) sections: SectionCache,
    pub(crate) log: StepLog,
}

impl Default for RuleCache {
    fn default() -> Self {
        RuleCache::new()
    }
}

/// Returns the key of a frame's address: an interrupted instruction has a different key from a
/// return address, since the rules of some formats hold at calls only. 0 is never looked up, as no
/// code is at 0.
#[inline]
const fn key(pc: u64, kind: AddressKind) -> u64 {
    match kind {
        AddressKind::ReturnAddress => pc,
        // No code of a process is in the upper half of the address space.
        _ => pc | 1 << 63,
    }
}

/// Returns the set of a key, and the key's tag in it.
#[inline]
const fn set_and_tag(key: u64) -> (usize, u32) {
    // Fibonacci hashing: the top bits of the product depend on all bits of the key.
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((product >> 56) as usize & (SETS - 1), (product >> 24) as u32)
}

impl RuleCache {
    /// Creates an empty cache.
    // Evaluated at compile time or boxed outside a signal handler.
    #[allow(clippy::large_stack_arrays)]
    pub const fn new() -> RuleCache {
        RuleCache {
            index: [NO_SET; SETS],
            entries: [EMPTY; ENTRIES],
            next: 0,
            generation: 0,
            epoch: 0,
            sections: SectionCache::new(),
            log: StepLog::EMPTY,
        }
    }

    /// Empties the cache and writes to all of its memory, so that the first walk takes no page
    /// fault for it. Not async-signal-safe.
    pub fn prepare(&mut self) {
        for entry in &mut self.entries {
            entry.key = 0;
            entry.epoch = 0;
        }
        self.epoch = 0;
        self.index = [NO_SET; SETS];
        self.next = 0;
        self.sections.clear();
        self.log = StepLog::EMPTY;
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.next = 0;
        if self.epoch == u32::MAX {
            // Otherwise entries of no epoch would be valid.
            self.prepare();
        }
        self.sections.clear();
    }

    /// Empties the cache if `generation` has changed.
    #[inline]
    pub(crate) fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            self.clear();
            self.generation = generation;
        }
    }

    /// Returns the epoch value of valid entries.
    #[inline]
    pub(crate) fn current(&self) -> u32 {
        self.epoch.wrapping_add(1)
    }

    /// Returns the place of the rule for a frame with this address, if it is known. Valid until the
    /// next [`Self::put`].
    #[inline]
    pub(crate) fn find(&self, pc: u64, kind: AddressKind) -> Option<EntryIndex> {
        let key = key(pc, kind);
        let (set, tag) = set_and_tag(key);
        let current = self.current();
        let set = &self.index[set];
        let mut places = set.tags.iter().zip(&set.places).filter(|(own, _)| **own == tag).map(|(_, place)| *place);
        places.find(|place| {
            let entry = self.entry(*place);
            entry.key == key && entry.epoch == current
        })
    }

    /// Returns `true` if the next rule doesn't replace a valid one.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.entries[usize::from(self.next) & (ENTRIES - 1)].epoch != self.current()
    }

    #[inline]
    pub(crate) fn entry(&self, place: EntryIndex) -> &Entry {
        &self.entries[place.index()]
    }

    #[inline]
    pub(crate) fn at(&self, place: EntryIndex) -> FoundRule {
        let entry = self.entry(place);
        FoundRule { rule: entry.rule, found: entry.found(), signal_trampoline: entry.signal_trampoline }
    }

    /// Returns `true` if the rule at `place` is for the return address `pc`. `current` is
    /// [`Self::current`].
    #[inline]
    pub(crate) fn is_rule_for(&self, place: EntryIndex, pc: u64, current: u32) -> bool {
        let entry = self.entry(place);
        entry.key == pc && entry.epoch == current
    }

    /// Stores the place of the caller's rule for the frame at `place`.
    #[inline]
    pub(crate) fn set_caller(&mut self, place: EntryIndex, caller: EntryIndex) {
        self.entries[place.index()].caller = caller;
    }

    /// Stores the rule of frames with this address, and returns its place.
    #[inline]
    pub(crate) fn put<A: Architecture>(&mut self, pc: u64, kind: AddressKind, rule: &FoundRule) -> EntryIndex {
        let key = key(pc, kind);
        let (set, tag) = set_and_tag(key);
        let number = usize::from(self.next) & (ENTRIES - 1);
        self.next = (number as u16).wrapping_add(1);
        let place = EntryIndex::new(number);
        let set = &mut self.index[set];
        let way = usize::from(set.next) & (WAYS - 1);
        set.next = (way as u8).wrapping_add(1);
        set.tags[way] = tag;
        set.places[way] = place;
        self.entries[place.index()] = Entry {
            key,
            epoch: self.current(),
            caller: EntryIndex(0),
            step: Step::from_rule::<A>(rule),
            signal_trampoline: rule.signal_trampoline,
            found: rule.found as u8,
            rule: rule.rule,
        };
        place
    }
}

#[cfg(test)]
mod tests;
