//! The layout of a run state file, in little-endian 64-bit words.

/// The first eight bytes of a run state file. Written last when it is created.
pub const MAGIC: &[u8; 8] = b"CRNRRUN\x1A";

/// Version of the layout. A reader rejects other versions; reserved words may get a meaning without
/// a new version.
pub const VERSION: u32 = 2;

/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 200;

/// Number of words in the header. The indices of its words follow.
pub(super) const HEADER_WORDS: usize = 16;
/// Index of the [`MAGIC`].
pub(super) const MAGIC_WORD: usize = 0;
/// Index of the [`VERSION`], with [`HEADER_WORDS`] in the high half.
pub(super) const VERSION_WORD: usize = 1;
/// Index of the size of the whole file in bytes.
pub(super) const SIZE_WORD: usize = 2;
/// Index of the run id, two words.
pub(super) const RUN_ID_WORD: usize = 3;
/// Index of the [`Limits`], four words.
pub(super) const LIMITS_WORD: usize = 5;
/// Index of the CRC-32C of the words from `VERSION_WORD` up to this one.
pub(super) const CHECK_WORD: usize = 9;
/// Index of the counter of slot updates: the sequence number of the last one.
pub(super) const SEQUENCE_WORD: usize = 10;
/// Index of the counter of breadcrumbs: the number of the last one.
pub(super) const BREADCRUMB_WORD: usize = 11;
/// Index of the number up to which breadcrumbs were cleared.
pub(super) const CLEARED_WORD: usize = 12;
/// Index of the counter of crash records: the number of the last one.
pub(super) const CRASH_WORD: usize = 13;
/// Index of the sequence number up to which pending versions are committed.
///
/// Pending versions belong to a change of several keys.
pub(super) const COMMITTED_WORD: usize = 14;
/// Index of the counters of the rings of breadcrumbs: in the low half of those of level warning and
/// above, in the high half of the others.
pub(super) const BREADCRUMB_RINGS_WORD: usize = 15;

/// Number of words for [`Scalar`](super::Scalar)s.
pub(super) const SCALAR_WORDS: usize = 64;

/// Number of words in the process identity, the last two reserved.
pub(super) const IDENTITY_WORDS: usize = 8;
/// Number of words in a crash record, the last one reserved.
pub(super) const CRASH_RECORD_WORDS: usize = 12;
/// Number of crash records in a run state.
pub(super) const CRASH_RECORDS: usize = 2;

/// Bytes at the start of the file that hold all parts of fixed size.
///
/// These are the header, scalars, process identity and crash records. They suffice to read how the
/// run ended, if the rest is treated as zeros.
pub const FIXED_BYTES: u64 =
    (HEADER_WORDS + SCALAR_WORDS + IDENTITY_WORDS + CRASH_RECORDS * CRASH_RECORD_WORDS) as u64 * 8;

/// Words before the data of a slot's version.
///
/// These are its sequence number (0: none), its meta word and its checksum.
pub(super) const VERSION_HEADER_WORDS: usize = 3;
/// Words before a breadcrumb's data: its number (0: none), then its length and checksum.
pub(super) const BREADCRUMB_HEADER_WORDS: usize = 2;

/// Capacity of a run state, which determines the file's [`size`](Self::size).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for the facts about app, system and device. At most 64 KiB.
    pub facts_bytes: u32,
    /// Number of slots for tags. At most 1,024.
    pub small_slots: u32,
    /// Bytes of a tag's key and value together, each rounded up to 8. At most 1,024.
    pub small_bytes: u32,
    /// Number of slots for everything else: contexts, extra data, the user, the fingerprint. At
    /// most 1,024.
    pub large_slots: u32,
    /// Bytes of a large slot's key and value together. At most 64 KiB.
    pub large_bytes: u32,
    /// Number of breadcrumbs. At most 4,096.
    pub breadcrumbs: u32,
    /// Bytes of an encoded breadcrumb. At most 1,024.
    pub breadcrumb_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

impl Limits {
    /// The default limits, which make a file of 384 KiB.
    ///
    /// 64 tags of 416 bytes (Sentry's limits: a key of 200, a value of 200), 32 others of 4 KiB,
    /// 100 breadcrumbs of 512 bytes, 8 KiB of facts.
    pub const DEFAULT: Limits = Limits {
        facts_bytes: 8 << 10,
        small_slots: 64,
        small_bytes: 416,
        large_slots: 32,
        large_bytes: 4 << 10,
        breadcrumbs: 100,
        breadcrumb_bytes: 512,
    };

    /// The maximum values.
    pub const MAX: Limits = Limits {
        facts_bytes: 64 << 10,
        small_slots: 1024,
        small_bytes: 1024,
        large_slots: 1024,
        large_bytes: 64 << 10,
        breadcrumbs: 4096,
        breadcrumb_bytes: 1024,
    };

    /// The size in bytes of a file with these limits.
    pub fn size(&self) -> usize {
        Layout::new(self).words.saturating_mul(8)
    }

    /// Returns the nearest allowed limits.
    ///
    /// Sizes are rounded up to 8 bytes, and nothing is beyond [`MAX`](Self::MAX).
    #[must_use]
    pub fn allowed(&self) -> Limits {
        let bytes = |bytes: u32, max: u32| bytes.saturating_add(7).min(max) & !7;
        let max = Limits::MAX;
        Limits {
            facts_bytes: bytes(self.facts_bytes, max.facts_bytes),
            small_slots: self.small_slots.min(max.small_slots),
            small_bytes: bytes(self.small_bytes, max.small_bytes),
            large_slots: self.large_slots.min(max.large_slots),
            large_bytes: bytes(self.large_bytes, max.large_bytes),
            breadcrumbs: self.breadcrumbs.min(max.breadcrumbs),
            breadcrumb_bytes: bytes(self.breadcrumb_bytes, max.breadcrumb_bytes),
        }
    }

    pub(super) fn to_words(self) -> [u64; 4] {
        let pair = |count: u32, bytes: u32| u64::from(count) | u64::from(bytes) << 32;
        [
            self.facts_bytes.into(),
            pair(self.small_slots, self.small_bytes),
            pair(self.large_slots, self.large_bytes),
            pair(self.breadcrumbs, self.breadcrumb_bytes),
        ]
    }

    #[cfg(feature = "std")]
    pub(super) fn from_words([facts, small, large, breadcrumbs]: [u64; 4]) -> Limits {
        let (count, bytes) = (|pair: u64| pair as u32, |pair: u64| (pair >> 32) as u32);
        Limits {
            facts_bytes: count(facts),
            small_slots: count(small),
            small_bytes: bytes(small),
            large_slots: count(large),
            large_bytes: bytes(large),
            breadcrumbs: count(breadcrumbs),
            breadcrumb_bytes: bytes(breadcrumbs),
        }
    }
}

/// Word indices of each area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Index of the [`Scalar`](super::Scalar)s.
    pub(super) scalars: usize,
    /// Index of the process identity.
    pub(super) identity: usize,
    /// Index of the crash records.
    pub(super) crash_records: usize,
    /// Index of a word with length and checksum, followed by the facts.
    pub(super) facts: usize,
    pub(super) facts_words: usize,
    /// The table of tags.
    pub(super) small: Table,
    /// The table of everything else with a key.
    pub(super) large: Table,
    /// Index of the ring of breadcrumbs.
    pub(super) breadcrumbs: usize,
    pub(super) breadcrumb_count: usize,
    /// Number of words in a breadcrumb's data.
    pub(super) breadcrumb_words: usize,
    pub(super) words: usize,
}

/// The numbers of slots of each kind of breadcrumbs, in the order of the slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct BreadcrumbAreas {
    /// Slots of the first breadcrumbs, which are never overwritten.
    pub(super) first: u64,
    /// Slots of the ring of breadcrumbs of level warning and above.
    pub(super) warnings: u64,
    /// Slots of the ring of all others.
    pub(super) others: u64,
}

/// A table of slots: a directory with one word per slot (the hash of its key), then the slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    /// Index of the directory.
    pub(super) directory: usize,
    /// Number of slots.
    pub(super) slots: usize,
    /// Number of words in the data of one version of a slot.
    pub(super) data_words: usize,
    /// Whether slots are assigned from the first one on, instead of by the key's hash.
    ///
    /// Used for the last table of the file: its unused part is zeros at the end, which need not be
    /// stored.
    pub(super) in_order: bool,
}

impl Table {
    /// Number of words in a slot: the claim, and two versions.
    pub(super) fn slot_words(&self) -> usize {
        1 + 2 * (VERSION_HEADER_WORDS + self.data_words)
    }

    /// Index of slot `number`.
    pub(super) fn slot(&self, number: usize) -> usize {
        (self.directory + self.slots).wrapping_add(number.wrapping_mul(self.slot_words()))
    }

    /// Index of a version (0 or 1) of slot `number`.
    pub(super) fn version(&self, number: usize, version: usize) -> usize {
        self.slot(number).wrapping_add(1).wrapping_add(version.wrapping_mul(VERSION_HEADER_WORDS + self.data_words))
    }

    fn end(&self) -> usize {
        self.slot(self.slots)
    }
}

impl Layout {
    /// Computes the layout for the [allowed](Limits::allowed) limits.
    ///
    /// The size is below 2³² bytes, so nothing here can overflow.
    pub(super) fn new(limits: &Limits) -> Layout {
        let limits = limits.allowed();
        let scalars = HEADER_WORDS;
        let identity = scalars + SCALAR_WORDS;
        let crash_records = identity + IDENTITY_WORDS;
        let facts = FIXED_BYTES as usize / 8;
        let facts_words = limits.facts_bytes as usize / 8;
        let table = |directory, slots: u32, bytes: u32, in_order| Table {
            directory,
            slots: slots as usize,
            data_words: bytes as usize / 8,
            in_order,
        };
        let breadcrumbs = facts + 1 + facts_words;
        let breadcrumb_count = limits.breadcrumbs as usize;
        let breadcrumb_words = limits.breadcrumb_bytes as usize / 8;
        let end = breadcrumbs + breadcrumb_count * (BREADCRUMB_HEADER_WORDS + breadcrumb_words);
        let small = table(end, limits.small_slots, limits.small_bytes, false);
        let large = table(small.end(), limits.large_slots, limits.large_bytes, true);
        let words = large.end();
        Layout {
            scalars,
            identity,
            crash_records,
            facts,
            facts_words,
            small,
            large,
            breadcrumbs,
            breadcrumb_count,
            breadcrumb_words,
            words,
        }
    }

    /// Index of the record of crash `number`.
    ///
    /// It replaces the record of the crash before the previous one.
    #[inline(always)]
    pub(super) fn crash_record(&self, number: u64) -> usize {
        let place = number as usize % CRASH_RECORDS;
        self.crash_records.wrapping_add(place.wrapping_mul(CRASH_RECORD_WORDS))
    }

    /// Divides the slots of breadcrumbs: a twelfth is for the first ones of the run, a sixth for
    /// those of level warning and above.
    pub(super) fn breadcrumb_areas(&self) -> BreadcrumbAreas {
        let count = self.breadcrumb_count as u64;
        let (first, warnings) = (count / 12, count / 6);
        BreadcrumbAreas { first, warnings, others: count.wrapping_sub(first).wrapping_sub(warnings) }
    }

    /// Index of breadcrumb slot `number`.
    pub(super) fn breadcrumb(&self, number: usize) -> usize {
        self.breadcrumbs.wrapping_add(number.wrapping_mul(BREADCRUMB_HEADER_WORDS + self.breadcrumb_words))
    }
}
