//! Helpers shared by this crate's tests: fixture paths and reproducible random numbers.

use std::path::PathBuf;

/// Returns the path of a file in `fixtures/symbols`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/symbols").join(name)
}

/// An xorshift64* generator, good enough for picking addresses and bytes.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
