//! The ring of breadcrumbs.
//!
//! A writer takes the next number, and with it a slot, with one atomic addition. If a process is
//! killed while writing, only the oldest breadcrumb is lost. Two writers get the same slot only if
//! one was delayed while a whole ring was written, and then the checksum shows that the breadcrumb
//! is not whole.

use super::checksum::mix;
use super::layout::{BREADCRUMB_HEADER_WORDS, BREADCRUMB_WORD, CLEARED_WORD, Limits};
use super::numbers::Level;
use super::writer::{RunState, put};
use crate::wire::Encoder;
use crate::wire::keys::breadcrumb;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::fence;

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
    /// Leaves a breadcrumb, overwriting the oldest if the ring is full.
    pub fn breadcrumb(&self, breadcrumb: &Breadcrumb<'_>) {
        let mut buffer = [0; Limits::MAX.breadcrumb_bytes as usize];
        let room = self.layout.breadcrumb_words.saturating_mul(8).min(buffer.len());
        let mut encoder = Encoder::new(buffer.get_mut(..room).unwrap_or_default());
        breadcrumb.encode(&mut encoder);
        let bytes = encoder.written();

        let Some(counter) = self.words.get(BREADCRUMB_WORD) else { return };
        let before = counter.fetch_add(1, Relaxed);
        let Some(slot) = before.checked_rem(self.layout.breadcrumb_count as u64) else { return };
        let number = before.wrapping_add(1);
        let at = self.layout.breadcrumb(slot as usize);
        let end = at.wrapping_add(BREADCRUMB_HEADER_WORDS).wrapping_add(self.layout.breadcrumb_words);
        let Some([number_word, head_word, data @ ..]) = self.words.get(at..end) else { return };
        number_word.store(0, Relaxed);
        // The following stores must not become visible before the slot is known to be invalid.
        fence(Release);
        let check = put(&mut data.iter(), bytes, mix(mix(0, number), bytes.len() as u64));
        head_word.store(head(bytes.len(), check).to_le(), Relaxed);
        number_word.store(number.to_le(), Release);
        let used = at.wrapping_add(BREADCRUMB_HEADER_WORDS).wrapping_add(bytes.len().div_ceil(8));
        self.publish(&[at..used, Self::word_range(BREADCRUMB_WORD)]);
    }

    /// Clears all breadcrumbs left until now.
    pub fn clear_breadcrumbs(&self) {
        self.store(CLEARED_WORD, self.load(BREADCRUMB_WORD));
        self.publish_range(Self::word_range(CLEARED_WORD));
    }
}
