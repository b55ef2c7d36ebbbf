//! Facts of the app, the system and the device that do not change during a run.

use super::numbers::Fact;
use crate::wire::Encoder;

/// Encodes facts: a CBOR map from [`Fact`] numbers to values. What does not fit is left out.
///
/// Arguments and environment variables of the process are no facts: they hold secrets.
#[derive(Debug)]
pub struct FactsEncoder<'a> {
    encoder: Encoder<'a>,
    left_out: u32,
    open: bool,
}

impl<'a> FactsEncoder<'a> {
    /// Facts at the start of `encoder`, which should have nothing in it.
    pub fn new(mut encoder: Encoder<'a>) -> Self {
        encoder.begin_map();
        FactsEncoder { encoder, left_out: 0, open: true }
    }

    /// A fact that is text. An empty one says nothing and is not written.
    pub fn text(&mut self, fact: Fact, text: &str) {
        if !text.is_empty() {
            self.pair(fact, |encoder| encoder.text(text.as_bytes()));
        }
    }

    /// A fact that is an integer.
    pub fn uint(&mut self, fact: Fact, value: u64) {
        self.pair(fact, |encoder| encoder.uint(value));
    }

    /// A fact that is true or not.
    pub fn bool(&mut self, fact: Fact, value: bool) {
        self.pair(fact, |encoder| encoder.bool(value));
    }

    /// Facts as they were written before, the bytes between two [positions](Self::position).
    pub fn written_before(&mut self, bytes: &[u8]) {
        self.encoder.element(|encoder| encoder.raw(bytes));
    }

    /// Bytes that were written so far.
    pub fn position(&self) -> usize {
        self.encoder.position()
    }

    /// Facts that did not fit.
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// Ends the map.
    pub fn finish(&mut self) {
        if core::mem::take(&mut self.open) {
            self.encoder.end();
        }
    }

    /// The bytes, once it is [finished](Self::finish); nothing before.
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
