//! Event ids derived from a file's content, so that the same file results in the same event each
//! time.

use coroner_report::model::Id;

/// Returns the 128-bit FNV-1a hash of `parts`, marked as a version 8 UUID (RFC 9562).
pub fn content_id<'b>(parts: impl IntoIterator<Item = &'b [u8]>) -> Id {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for byte in parts.into_iter().flatten() {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    }
    let mut id = hash.to_be_bytes();
    id[6] = id[6] & 0x0F | 0x80;
    id[8] = id[8] & 0x3F | 0x80;
    Id(id)
}
