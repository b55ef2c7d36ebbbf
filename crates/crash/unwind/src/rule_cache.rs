//! The cache of rules by address.
//!
//! The caller provides its memory, and uses it for one walk at a time, of one address space. It has no conflict cliff: addresses that
//! share a set cost a comparison, and the oldest rule is replaced.

use crate::arch::Architecture;
use crate::frame::{AddressKind, Found};
use crate::lookup::SectionCache;
use crate::registers::RegisterFile;
use crate::rule::{Row, Rule};

pub(crate) mod step_log;

use step_log::StepLog;

/// Entries of one set.
const WAYS: usize = 4;
const SETS: usize = 256;
const ENTRIES: usize = SETS * WAYS;

/// A rule, and how it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundRule {
    /// The rule.
    pub rule: Rule,
    /// What its result is to be marked with.
    pub found: Found,
    /// The frame is a signal trampoline.
    pub signal_trampoline: bool,
}

/// The place of an entry of a [`RuleCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryIndex(u16);

/// The number of a place is that of the entry times this, so that what is left of it is at once its distance in memory.
const UNIT: u16 = 64;

impl EntryIndex {
    /// Any place.
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

/// What the CFA of a [`Step`] is relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Base {
    /// The rule is not of the kind that a [`Step`] can say.
    #[default]
    Other,
    /// The stack pointer. The return address was saved.
    StackPointer,
    /// The frame pointer, which is the address of the frame record.
    FramePointer,
}

/// What a walk needs to go from a frame to its caller, for the rules of nearly all frames. Distances are in words of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub base: Base,
    /// The CFA minus the base; positive where that is the stack pointer.
    pub cfa: i16,
    /// Where the return address was saved, from the CFA.
    pub return_address: i16,
    /// Where the frame pointer was saved, from the CFA; 0 where it was not.
    pub frame_pointer: i16,
    /// [`Row::saved`] but for the return address.
    pub saved: u16,
}

impl Step {
    const OTHER: Step = Step { base: Base::Other, cfa: 0, return_address: 0, frame_pointer: 0, saved: 0 };

    fn of<A: Architecture>(rule: &FoundRule) -> Step {
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

/// One entry: a cache line, of which a walk needs nothing else for a frame. All zero is an entry of no epoch.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// What [`key()`] gives.
    key: u64,
    /// The [`RuleCache::epoch`] that the entry is of, plus one: it counts in no other.
    epoch: u32,
    /// Where the rule of the caller was the last time. A frame mostly has the caller that it had before, and to look
    /// there first takes the way from one return address to the next out of the chain of what must wait for what.
    pub(crate) caller: EntryIndex,
    pub(crate) step: Step,
    signal_trampoline: bool,
    /// The number of the [`Found`].
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
    /// What the caller is to be marked with.
    #[inline]
    pub(crate) fn found(&self) -> Found {
        Found::from_number(self.found).unwrap_or(Found::Context)
    }

    /// Whether there is no caller.
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

/// One set of the index: where the rules of addresses are whose hashes fall together. What it names may have been replaced.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Set {
    /// For each a part of its key's hash: what is not there is known from one line of memory.
    tags: [u32; WAYS],
    places: [EntryIndex; WAYS],
    /// The way that is replaced next.
    next: u8,
}

const NO_SET: Set = Set { tags: [0; WAYS], places: [EntryIndex::NONE; WAYS], next: 0 };

/// The rules of the 1,024 addresses that were kept last, in the order in which they came: those of one walk lie side by side, in as
/// few lines and pages as can be, which is what a first walk waits for. They are found by an index in sets of four: addresses
/// that fall together cost a comparison and not a recomputation.
///
/// Plain memory of about 80 KiB, made before it is needed: a `static` (it is all zero, and takes no room in the file), or a
/// field of something allocated at install. One cache serves one walk at a time, of one address space and architecture; it
/// may serve crash and live walks in turn. Rules are dropped when [`crate::Images::generation`] changes.
#[derive(Debug)]
pub struct RuleCache {
    index: [Set; SETS],
    entries: [Entry; ENTRIES],
    /// The number of the entry that is replaced next: the oldest.
    next: u16,
    generation: u64,
    /// Another one after each [`Self::clear`], which so costs nothing.
    epoch: u32,
    pub(crate) sections: SectionCache,
    pub(crate) log: StepLog,
}

impl Default for RuleCache {
    fn default() -> Self {
        RuleCache::new()
    }
}

/// The key of a frame's address: that of an interrupted instruction is not that of a return address, since the rules of
/// some formats hold at calls only. 0 is never asked for, as no code is at 0.
#[inline]
const fn key(pc: u64, kind: AddressKind) -> u64 {
    match kind {
        AddressKind::ReturnAddress => pc,
        // No code of a process is in the upper half of the address space.
        _ => pc | 1 << 63,
    }
}

/// The set of a key and its tag there.
#[inline]
const fn set_and_tag(key: u64) -> (usize, u32) {
    // Fibonacci hashing: the top bits of the product depend on all bits of the key.
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((product >> 56) as usize & (SETS - 1), (product >> 24) as u32)
}

impl RuleCache {
    /// An empty cache.
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

    /// Not async-signal-safe: empties the cache and writes to all of its memory, so that the first walk takes no page fault for it.
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
            // Entries of no epoch would count.
            self.prepare();
        }
        self.sections.clear();
    }

    /// Empties the cache if `generation` is another one than before.
    #[inline]
    pub(crate) fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            self.clear();
            self.generation = generation;
        }
    }

    /// What entries that count have as their epoch.
    #[inline]
    pub(crate) fn current(&self) -> u32 {
        self.epoch.wrapping_add(1)
    }

    /// Where the rule of a frame with this address is, if it is known. Valid until the next [`Self::put`].
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

    /// Whether the next rule takes the place of none that counts.
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

    /// Whether the rule at `place` is that of the return address `pc`. `current` is [`Self::current`].
    #[inline]
    pub(crate) fn is_of(&self, place: EntryIndex, pc: u64, current: u32) -> bool {
        let entry = self.entry(place);
        entry.key == pc && entry.epoch == current
    }

    /// Remembers where the rule of the caller of the frame at `place` is.
    #[inline]
    pub(crate) fn set_caller(&mut self, place: EntryIndex, caller: EntryIndex) {
        self.entries[place.index()].caller = caller;
    }

    /// Keeps the rule of frames with this address, and says where.
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
            step: Step::of::<A>(rule),
            signal_trampoline: rule.signal_trampoline,
            found: rule.found as u8,
            rule: rule.rule,
        };
        place
    }
}

#[cfg(test)]
mod tests;
