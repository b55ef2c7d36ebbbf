//! Code ranges that the app registers, each with its own rule.
//!
//! A [`RangeTable`] is a `static` that threads write outside signal handlers while others walk, one
//! of them perhaps in a signal handler that interrupted a writer. There is no lock: a range that is
//! being written is not found.

use crate::image::{AddressRange, Image, Images, Registered};
use crate::rule::{Row, Rule};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Number of words in which a rule is stored.
const RULE_WORDS: usize = 4;

/// Kinds of stored rules: the lowest byte of the first word.
const ROW: u64 = 1;
const FRAME_RECORD: u64 = 2;
const OUTERMOST: u64 = 3;

/// Reason why a range was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is empty, or contains addresses that no process has.
    BadRange,
    /// The rule needs unwind data, or the kernel's frame, and can't be registered.
    BadRule,
    /// The table is full.
    Full,
}

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            RegisterError::BadRange => "not a valid range of code addresses",
            RegisterError::BadRule => "unsupported rule",
            RegisterError::Full => "too many registered ranges",
        })
    }
}

impl core::error::Error for RegisterError {}

/// Handle from [`RangeTable::register`] for unregistering the range. Each handle is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration(NonZeroU64);

/// Number of bits of a [`Registration`] that are the slot's index; the others are the slot's
/// version.
const INDEX_BITS: u32 = 16;

impl Registration {
    fn new(index: usize, version: u64) -> Option<Registration> {
        NonZeroU64::new(version << INDEX_BITS | index as u64).map(Registration)
    }

    /// Returns the registration as a number that is not 0, for passing through other languages.
    pub const fn to_number(self) -> u64 {
        self.0.get()
    }

    /// Returns the registration with that number; `None` for 0.
    pub const fn from_number(number: u64) -> Option<Registration> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Registration(number)),
            None => None,
        }
    }

    const fn index(self) -> usize {
        (self.0.get() & ((1 << INDEX_BITS) - 1)) as usize
    }

    const fn version(self) -> u64 {
        self.0.get() >> INDEX_BITS
    }
}

/// Mask of a version's lowest two bits, which are its slot's state.
const STATE: u64 = 3;
const FREE: u64 = 0;
const USED: u64 = 2;

/// A range. The version is incremented at the beginning and at the end of each write, so that a
/// reader can check whether what it read is consistent.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    version: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    rule: [AtomicU64; RULE_WORDS],
}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            version: AtomicU64::new(FREE),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            rule: [const { AtomicU64::new(0) }; RULE_WORDS],
        }
    }

    /// Returns the range if it contains `address`.
    fn holding(&self, address: u64) -> Option<Registered> {
        let version = self.version.load(Ordering::Acquire);
        if version & STATE != USED {
            return None;
        }
        let range = AddressRange { start: self.start.load(Ordering::Relaxed), end: self.end.load(Ordering::Relaxed) };
        if !range.contains(address) {
            return None;
        }
        let words = self.rule.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        Some(Registered { range, rule: rule_of(words)? })
    }

    /// Writes a range if the slot is free, and returns the slot's new version.
    fn fill(&self, range: AddressRange, words: [u64; RULE_WORDS]) -> Option<u64> {
        let free = self.version.load(Ordering::Relaxed);
        if free & STATE != FREE {
            return None;
        }
        self.version.compare_exchange(free, free | 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Whoever reads one of the following words also sees the preceding version.
        fence(Ordering::Release);
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
        for (place, word) in self.rule.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        let used = free | USED;
        self.version.store(used, Ordering::Release);
        Some(used)
    }
}

fn words_of(rule: &Rule) -> Option<[u64; RULE_WORDS]> {
    let row = match rule {
        Rule::Row(row) => row,
        Rule::FrameRecord => return Some([FRAME_RECORD, 0, 0, 0]),
        Rule::Outermost => return Some([OUTERMOST, 0, 0, 0]),
        Rule::Program(_) | Rule::SignalContext(_) => return None,
    };
    let register = u64::from(row.cfa_register) << 8;
    let mut words = [ROW | register | u64::from(row.saved) << 16 | u64::from(row.cfa_offset as u32) << 32, 0, 0, 0];
    for (word, slots) in words.iter_mut().skip(1).zip(row.slots.chunks(4)) {
        *word = slots.iter().rev().fold(0, |word, slot| word << 16 | u64::from(*slot as u16));
    }
    Some(words)
}

fn rule_of(words: [u64; RULE_WORDS]) -> Option<Rule> {
    let [head, ..] = words;
    match head & 0xff {
        ROW => {
            let mut row = Row::new((head >> 8) as u8, (head >> 32) as i32);
            row.saved = (head >> 16) as u16;
            for (slots, mut word) in row.slots.chunks_mut(4).zip(words.into_iter().skip(1)) {
                for slot in slots {
                    *slot = word as i16;
                    word >>= 16;
                }
            }
            Some(Rule::Row(row))
        }
        FRAME_RECORD => Some(Rule::FrameRecord),
        OUTERMOST => Some(Rule::Outermost),
        _ => None,
    }
}

/// Table of at most `N` ranges with their own rules (`N` at most 65,536), for all walks of a
/// process.
///
/// Registering, unregistering and finding take no lock, allocate nothing and may be done by any
/// threads at once. Finding a range checks each slot that was ever in use, which takes a nanosecond
/// or two: it is done once per address that isn't in the cache.
///
/// ```
/// use coroner_unwind::{Images, RangeTable, Row, Rule, X86_64};
///
/// static RANGES: RangeTable<16> = RangeTable::new();
///
/// // A trampoline whose frame record is 0xd0 bytes above its stack pointer.
/// let rule = Rule::Row(Row::frame_record_at::<X86_64>(7, 0xd0));
/// let registration = RANGES.register((0x1000..0x1200).into(), &rule)?;
/// assert_eq!(RANGES.find(0x11ff).unwrap().rule, rule);
///
/// // What a walk is given: the images, and the ranges before them.
/// let images: [coroner_unwind::Image; 0] = [];
/// assert!(RANGES.before(&images[..]).registered(0x1000).is_some());
///
/// RANGES.unregister(registration);
/// assert!(RANGES.find(0x1000).is_none());
/// # Ok::<(), coroner_unwind::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct RangeTable<const N: usize> {
    slots: [Slot; N],
    /// Slots from this index on were never used.
    used: AtomicUsize,
    generation: AtomicU64,
}

impl<const N: usize> Default for RangeTable<N> {
    fn default() -> Self {
        RangeTable::new()
    }
}

impl<const N: usize> RangeTable<N> {
    /// Creates an empty table.
    pub const fn new() -> RangeTable<N> {
        const { assert!(N <= 1 << INDEX_BITS) };
        RangeTable { slots: [const { Slot::empty() }; N], used: AtomicUsize::new(0), generation: AtomicU64::new(0) }
    }

    /// Registers `rule` as finding the caller of a frame at every instruction of `range`. If ranges
    /// overlap, the shortest one counts.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&self, range: AddressRange, rule: &Rule) -> Result<Registration, RegisterError> {
        // The lowest page and the upper half of the address space contain no code of a process.
        if range.is_empty() || range.start < 0x1000 || range.end > 1 << 63 {
            return Err(RegisterError::BadRange);
        }
        let words = words_of(rule).ok_or(RegisterError::BadRule)?;
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.version.load(Ordering::Relaxed) & STATE != FREE {
                continue;
            }
            // Before the slot is filled, so that a reader checks the slot once it is filled.
            self.used.fetch_max(index.saturating_add(1), Ordering::AcqRel);
            if let Some(version) = slot.fill(range, words) {
                // After it, so that rules which were found in the meantime are dropped.
                self.generation.fetch_add(1, Ordering::AcqRel);
                return Registration::new(index, version).ok_or(RegisterError::Full);
            }
        }
        Err(RegisterError::Full)
    }

    /// Unregisters a range; returns `false` if that was already done. The code may be removed
    /// afterwards: walks in progress may still have the rule, but nothing else.
    pub fn unregister(&self, registration: Registration) -> bool {
        let Some(slot) = self.slots.get(registration.index()) else { return false };
        let used = registration.version();
        // Nothing is written: the next one to fill the slot gives it a new version.
        let freed = used.wrapping_add(USED);
        let done = used & STATE == USED
            && slot.version.compare_exchange(used, freed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if done {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        done
    }

    /// Returns the shortest range that contains `address`.
    #[inline]
    pub fn find(&self, address: u64) -> Option<Registered> {
        match self.used.load(Ordering::Acquire) {
            // Nearly every process.
            0 => None,
            used => self.find_among(used, address),
        }
    }

    #[cold]
    fn find_among(&self, used: usize, address: u64) -> Option<Registered> {
        let mut found: Option<Registered> = None;
        for slot in self.slots.iter().take(used) {
            if let Some(registered) = slot.holding(address)
                && found.is_none_or(|found| registered.range.len() < found.range.len())
            {
                found = Some(registered);
            }
        }
        found
    }

    /// Returns a number that changes with every change of the table.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Combines these ranges with `images`; the ranges have priority.
    #[inline]
    pub const fn before<I: Images>(&self, images: I) -> WithRanges<'_, I, N> {
        WithRanges { ranges: self, images }
    }
}

/// Images combined with a table's ranges, which have priority; see [`RangeTable::before`].
#[derive(Clone, Copy, Debug)]
pub struct WithRanges<'t, I, const N: usize> {
    ranges: &'t RangeTable<N>,
    images: I,
}

impl<I: Images, const N: usize> Images for WithRanges<'_, I, N> {
    const MACH_O: bool = I::MACH_O;

    #[inline]
    fn find(&self, address: u64) -> Option<Image> {
        self.images.find(address)
    }

    #[inline]
    fn is_executable(&self, address: u64) -> Option<bool> {
        if self.ranges.find(address).is_some() { Some(true) } else { self.images.is_executable(address) }
    }

    #[inline]
    fn registered(&self, address: u64) -> Option<Registered> {
        self.ranges.find(address).or_else(|| self.images.registered(address))
    }

    /// Combines both: counters far below 2³² don't collide.
    #[inline]
    fn generation(&self) -> u64 {
        self.images.generation() ^ self.ranges.generation().rotate_left(32)
    }
}
