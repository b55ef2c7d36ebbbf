//! Frame pointer walk: follows only the chain of frame records, the cheapest walk, for code that
//! keeps frame pointers.

use crate::arch::Architecture;
use crate::frame::End;
use crate::swift_async::without_mark;
use core::marker::PhantomData;
use coroner_process::memory::Memory;

/// Iterator over the return addresses along the chain of frame records:
/// `pc' = *(fp + 8); fp' = *fp`.
///
/// If a function on the way keeps no frame record, its caller is missing, without notice: this is
/// for live backtraces of code that was built with frame pointers, and costs one read per frame.
/// [`crate::Walker`] finds such callers.
///
/// ```
/// use coroner_process::memory::{Snapshot, SnapshotRange};
/// use coroner_unwind::{Aarch64, End, FramePointers};
///
/// let words: [u64; 4] = [0x7010, 0x1_0040, 0, 0x1_0080];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let ranges = [SnapshotRange { address: 0x7000, bytes: &bytes }];
/// let mut chain = FramePointers::<Aarch64, _>::new(0x7000, Snapshot { ranges: &ranges }, None);
/// assert_eq!(chain.by_ref().collect::<Vec<u64>>(), [0x1_0040, 0x1_0080]);
/// assert_eq!(chain.end(), Some(End::EndOfStack));
/// ```
#[derive(Debug)]
pub struct FramePointers<A, M> {
    fp: u64,
    memory: M,
    mask: u64,
    end: Option<End>,
    arch: PhantomData<A>,
}

impl<A: Architecture, M: Memory> FramePointers<A, M> {
    /// Creates the chain that begins with the record at `fp`. For `authentication_mask`, see
    /// [`crate::Options`].
    #[inline]
    pub fn new(fp: u64, memory: M, authentication_mask: Option<u64>) -> FramePointers<A, M> {
        let mask = !authentication_mask.unwrap_or(A::AUTHENTICATION_MASK);
        let end = if fp == 0 { Some(End::EndOfStack) } else { None };
        FramePointers { fp, memory, mask, end, arch: PhantomData }
    }

    /// Returns the reason for the chain's end; `None` before the end.
    #[inline]
    pub const fn end(&self) -> Option<End> {
        self.end
    }
}

impl<A: Architecture, M: Memory> Iterator for FramePointers<A, M> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.end.is_some() {
            return None;
        }
        let (caller, pc) = match self.memory.read_pair(self.fp) {
            Ok(record) => record,
            Err(unreadable) => {
                self.end = Some(End::Unreadable { address: unreadable.address });
                return None;
            }
        };
        let pc = pc & self.mask;
        let caller = without_mark(caller);
        if pc == 0 {
            self.end = Some(End::EndOfStack);
            return None;
        }
        if caller <= self.fp {
            self.end = Some(if caller == 0 { End::EndOfStack } else { End::NoProgress { sp: caller } });
        }
        self.fp = caller;
        Some(pc)
    }
}
