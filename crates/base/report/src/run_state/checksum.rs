//! The checksum of values and breadcrumbs.
//!
//! It has to distinguish a version that was written whole from one that contains words of another
//! version, at a cost that is acceptable for setting a tag: one multiplication per eight bytes. A
//! CRC without the processor's help takes eight loads from tables that an app doesn't keep in its
//! caches.

/// 2⁶⁴ divided by the golden ratio, odd.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Adds a word to a checksum, whose initial state is 0.
///
/// XORs the two halves of the 128-bit product of (state ⊕ word) and the multiplier.
#[inline(always)]
pub(super) fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word).wrapping_mul(u128::from(MULTIPLIER));
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
