//! The checksum of values and breadcrumbs.
//!
//! It has to distinguish a version that was written whole from one of which any words are of another, at a price that a tag
//! can pay: one multiplication for eight bytes, where a CRC without the processor's help takes eight loads from tables
//! that an app does not keep in its caches.

/// 2⁶⁴ divided by the golden ratio, odd.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Takes one more word in: the two halves of the 128-bit product of (state ⊕ word) and the multiplier, one ⊕ the other.
/// A checksum begins with state 0.
#[inline(always)]
pub(super) fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word).wrapping_mul(u128::from(MULTIPLIER));
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
