//! The breadcrumbs: the first ones of the run, a ring of those of level warning and above, and a
//! ring of all others.
//!
//! A writer takes the next number with one atomic addition, and a slot with another one. If a
//! process is killed while writing, only the oldest breadcrumb of a ring is lost. Two writers get
//! the same slot only if one was delayed while a whole ring was written, and then the checksum
//! shows that the breadcrumb is not whole.
//!
//! A breadcrumb that equals the one before it, except for its time, is counted there, so that a
//! storm of one message doesn't replace what led to it.

use super::checksum::mix;
use super::layout::{
    BREADCRUMB_HEADER_WORDS, BREADCRUMB_RINGS_WORD, BREADCRUMB_WORD, BreadcrumbAreas, CLEARED_WORD, Limits,
};
use super::numbers::{Level, Scalar};
use super::writer::{RunState, put};
use crate::wire::Encoder;
use crate::wire::keys::breadcrumb;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

/// An event that is recorded before a possible crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breadcrumb<'a> {
    /// Time of the event, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Severity of the event.
    pub level: Level,
    /// Type, such as `navigation`, `http`; may be empty.
    pub kind: &'a str,
    /// Category, such as `ui.click`; may be empty.
    pub category: &'a str,
    /// The message; may be empty. Truncated if it doesn't fit.
    pub message: &'a str,
    /// Data: one CBOR map, encoded. Left out if it doesn't fit.
    pub data: Option<&'a [u8]>,
}

/// The second word of a slot: the length, and the high half of the checksum.
pub(super) fn head(len: usize, check: u64) -> u64 {
    (len as u64 & 0xFFFF_FFFF) | check >> 32 << 32
}

/// Number of low bits of a slot's first word that hold the breadcrumb's number; the others count
/// its repetitions.
pub(super) const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// Number of low bits of [`Scalar::NEWEST_BREADCRUMB`] that hold the slot, plus 1; the others hold
/// the number.
const SLOT_BITS: u32 = 16;

/// Splits a slot's first word into the breadcrumb's number and the number of its repetitions.
pub(super) fn split(number_word: u64) -> (u64, u64) {
    (number_word & NUMBER_MASK, number_word >> NUMBER_BITS)
}

/// Returns the number of the breadcrumb that was left last; 0 if it is not known.
#[cfg(feature = "std")]
pub(super) fn newest(word: u64) -> u64 {
    word >> SLOT_BITS
}

/// Bytes reserved for the heads of a message and of the pairs around it.
const HEADS: usize = 8;

impl Breadcrumb<'_> {
    /// Encodes the breadcrumb into the space that the encoder has.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(breadcrumb::TIME, self.time_ns);
        encoder.uint_pair(breadcrumb::LEVEL, self.level.0.into());
        for (key, text) in [(breadcrumb::KIND, self.kind), (breadcrumb::CATEGORY, self.category)] {
            if !text.is_empty() {
                encoder.element(|encoder| {
                    encoder.uint(key);
                    encoder.text(text.as_bytes());
                });
            }
        }
        if !self.message.is_empty() {
            let mut len = self.message.len().min(encoder.remaining().saturating_sub(HEADS));
            let bytes = self.message.as_bytes();
            while len > 0 && bytes.get(len).is_some_and(|byte| byte & 0xC0 == 0x80) {
                len = len.wrapping_sub(1);
            }
            encoder.element(|encoder| {
                encoder.text_pair(breadcrumb::MESSAGE, bytes.get(..len).unwrap_or_default());
            });
        }
        if let Some(data) = self.data {
            encoder.element(|encoder| {
                encoder.uint(breadcrumb::DATA);
                encoder.raw(data);
            });
        }
        encoder.end();
    }
}

impl RunState<'_> {
    /// Leaves a breadcrumb, overwriting the oldest of its ring if that is full.
    pub fn breadcrumb(&self, breadcrumb: &Breadcrumb<'_>) {
        let mut buffer = [0; Limits::MAX.breadcrumb_bytes as usize];
        let room = self.layout.breadcrumb_words.saturating_mul(8).min(buffer.len());
        let mut encoder = Encoder::new(buffer.get_mut(..room).unwrap_or_default());
        breadcrumb.encode(&mut encoder);
        let bytes = encoder.written();

        if self.repeats_newest(breadcrumb, bytes) {
            return;
        }
        let Some(counter) = self.words.get(BREADCRUMB_WORD) else { return };
        let number = counter.fetch_add(1, Relaxed).wrapping_add(1) & NUMBER_MASK;
        let Some(slot) = self.breadcrumb_slot(number, breadcrumb.level) else { return };
        let Some([number_word, head_word, data @ ..]) = self.breadcrumb_words(slot) else { return };
        number_word.store(0, Relaxed);
        // The following stores must not become visible before the slot is known to be invalid.
        fence(Release);
        let check = put(&mut data.iter(), bytes, mix(mix(0, number), bytes.len() as u64));
        head_word.store(head(bytes.len(), check).to_le(), Relaxed);
        number_word.store(number.to_le(), Release);
        if let Some(newest) = self.scalar_word(Scalar::NEWEST_BREADCRUMB) {
            newest.store((number << SLOT_BITS | slot.wrapping_add(1)).to_le(), Relaxed);
        }
        let at = self.layout.breadcrumb(slot as usize);
        let used = at.wrapping_add(BREADCRUMB_HEADER_WORDS).wrapping_add(bytes.len().div_ceil(8));
        self.publish(&[
            at..used,
            Self::word_range(BREADCRUMB_WORD),
            Self::word_range(BREADCRUMB_RINGS_WORD),
            self.scalar_range(Scalar::NEWEST_BREADCRUMB),
        ]);
    }

    fn breadcrumb_words(&self, slot: u64) -> Option<&[AtomicU64]> {
        let at = self.layout.breadcrumb(slot as usize);
        self.words.get(at..at.wrapping_add(BREADCRUMB_HEADER_WORDS).wrapping_add(self.layout.breadcrumb_words))
    }

    /// Returns the slot for a new breadcrumb; `None` if there are no slots.
    fn breadcrumb_slot(&self, number: u64, level: Level) -> Option<u64> {
        let BreadcrumbAreas { first, warnings, others } = self.layout.breadcrumb_areas();
        let in_run = number.wrapping_sub(self.load(CLEARED_WORD));
        if (1..=first).contains(&in_run) {
            return Some(in_run.wrapping_sub(1));
        }
        let rings = self.words.get(BREADCRUMB_RINGS_WORD)?;
        // Warnings are counted in the low half.
        if level.0 >= Level::WARNING.0 && warnings > 0 {
            let warning = (rings.fetch_add(1, Relaxed) & 0xFFFF_FFFF).checked_rem(warnings)?;
            return Some(first.wrapping_add(warning));
        }
        let other = (rings.fetch_add(1 << 32, Relaxed) >> 32).checked_rem(others)?;
        Some(first.wrapping_add(warnings).wrapping_add(other))
    }

    /// Counts a breadcrumb as a repetition of the one before it. Returns `false` if it isn't one.
    fn repeats_newest(&self, breadcrumb: &Breadcrumb<'_>, bytes: &[u8]) -> bool {
        let newest = self.scalar(Scalar::NEWEST_BREADCRUMB);
        let (number, slot) = (newest >> SLOT_BITS, newest & ((1 << SLOT_BITS) - 1));
        if slot == 0 || number <= self.load(CLEARED_WORD) {
            return false;
        }
        let Some([number_word, head_word, data @ ..]) = self.breadcrumb_words(slot.wrapping_sub(1)) else {
            return false;
        };
        let before = u64::from_le(number_word.load(Acquire));
        let is_whole =
            split(before).0 == number && u64::from_le(head_word.load(Relaxed)) as u32 as usize == bytes.len();
        if !is_whole {
            return false;
        }
        // The time comes first.
        let mut time = [0; 16];
        let mut encoder = Encoder::new(&mut time);
        encoder.begin_map();
        encoder.uint_pair(breadcrumb::TIME, breadcrumb.time_ns);
        let compared = encoder.position();
        let is_equal = |(index, byte): (usize, &u8)| {
            let word = data.get(index / 8).map_or(0, |word| u64::from_le(word.load(Relaxed)));
            word.to_le_bytes().get(index % 8) == Some(byte)
        };
        if !bytes.iter().enumerate().skip(compared).all(is_equal) {
            return false;
        }
        let is_most = before >> NUMBER_BITS == u64::MAX >> NUMBER_BITS;
        let after = if is_most { before } else { before.wrapping_add(1 << NUMBER_BITS) };
        // Fails if another thread has counted one or replaced the breadcrumb meanwhile.
        let counted = number_word.compare_exchange(before.to_le(), after.to_le(), AcqRel, Relaxed).is_ok();
        if counted && let Some(repeated) = self.scalar_word(Scalar::BREADCRUMB_REPEATED) {
            repeated.store(breadcrumb.time_ns.to_le(), Relaxed);
            let at = self.layout.breadcrumb(slot.wrapping_sub(1) as usize);
            self.publish(&[Self::word_range(at), self.scalar_range(Scalar::BREADCRUMB_REPEATED)]);
        }
        counted
    }

    /// Clears all breadcrumbs left until now.
    pub fn clear_breadcrumbs(&self) {
        self.store(CLEARED_WORD, self.load(BREADCRUMB_WORD));
        self.publish_range(Self::word_range(CLEARED_WORD));
    }
}
