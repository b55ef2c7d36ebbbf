//! Memory that was saved earlier.

use super::{Memory, Unreadable};

/// Memory that was saved earlier: ranges of bytes with their original addresses.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The ranges; where two overlap, the first that contains all requested bytes is used.
    pub ranges: &'a [SnapshotRange<'a>],
}

/// A range of a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRange<'a> {
    /// The address of the first byte in the saved process.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Memory for Snapshot<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        for range in self.ranges {
            let Some(offset) = address.checked_sub(range.address) else { continue };
            let Ok(offset) = usize::try_from(offset) else { continue };
            if let Some(source) = range.bytes.get(offset..).and_then(|tail| tail.get(..into.len())) {
                into.copy_from_slice(source);
                return Ok(());
            }
        }
        Err(Unreadable { address })
    }
}
