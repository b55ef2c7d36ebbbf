//! Facts about the app, the system and the device that do not change during a run.

use super::numbers::Fact;
use crate::wire::Encoder;

/// Encodes facts: a CBOR map from [`Fact`] numbers to values. Facts that don't fit are left out.
///
/// Arguments and environment variables of the process are not facts, because they may contain
/// secrets.
#[derive(Debug)]
pub struct FactsEncoder<'a> {
    encoder: Encoder<'a>,
    left_out: u32,
    open: bool,
}

impl<'a> FactsEncoder<'a> {
    /// Begins the facts at the start of `encoder`, which should be empty.
    pub fn new(mut encoder: Encoder<'a>) -> Self {
        encoder.begin_map();
        FactsEncoder { encoder, left_out: 0, open: true }
    }

    /// Adds a text fact. An empty text is not written.
    pub fn text(&mut self, fact: Fact, text: &str) {
        if !text.is_empty() {
            self.pair(fact, |encoder| encoder.text(text.as_bytes()));
        }
    }

    /// Adds an integer fact.
    pub fn uint(&mut self, fact: Fact, value: u64) {
        self.pair(fact, |encoder| encoder.uint(value));
    }

    /// Adds a boolean fact.
    pub fn bool(&mut self, fact: Fact, value: bool) {
        self.pair(fact, |encoder| encoder.bool(value));
    }

    /// Adds already encoded facts: the bytes between two [positions](Self::position).
    pub fn written_before(&mut self, bytes: &[u8]) {
        self.encoder.element(|encoder| encoder.raw(bytes));
    }

    /// Number of bytes written so far.
    pub fn position(&self) -> usize {
        self.encoder.position()
    }

    /// Number of facts that did not fit.
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// Ends the map.
    pub fn finish(&mut self) {
        if core::mem::take(&mut self.open) {
            self.encoder.end();
        }
    }

    /// Returns the bytes once the map is [finished](Self::finish); empty before that.
    pub fn written(&self) -> &[u8] {
        if self.open { &[] } else { self.encoder.written() }
    }

    fn pair(&mut self, fact: Fact, value: impl FnOnce(&mut Encoder<'a>)) {
        let written = self.open
            && self.encoder.element(|encoder| {
                encoder.uint(fact.0.into());
                value(encoder);
            });
        self.left_out = self.left_out.saturating_add(u32::from(!written));
    }
}
