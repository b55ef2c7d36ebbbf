//! Pieces of the process's code for a report.

use coroner_process::memory::Memory;
use coroner_report::wire::{Code, Encoder};

/// Number of bytes of code kept before an address, and from it on.
pub(crate) const CODE_PIECE: usize = 256;
/// Size in bytes of the smallest page: nothing may be mapped after its end.
const PAGE: u64 = 4096;

/// Encodes the code before an address and from it on, [`CODE_PIECE`] bytes each, or up to the
/// page's boundary. Returns `false` if none can be read from the address on.
pub(crate) fn encode_code_around<M: Memory>(encoder: &mut Encoder<'_>, mut memory: M, at: u64) -> bool {
    let in_page = (at % PAGE) as usize;
    let start = at.wrapping_sub(in_page as u64);
    _ = encode_code(encoder, &mut memory, at.wrapping_sub(CODE_PIECE as u64), CODE_PIECE)
        || encode_code(encoder, &mut memory, start, in_page);
    encode_code(encoder, &mut memory, at, CODE_PIECE)
        || encode_code(encoder, &mut memory, at, (PAGE as usize).wrapping_sub(in_page))
}

/// Encodes `length` bytes of code, at most [`CODE_PIECE`]. Returns `false` if they can't be read,
/// or don't fit.
pub(crate) fn encode_code<M: Memory>(encoder: &mut Encoder<'_>, mut memory: M, address: u64, length: usize) -> bool {
    let mut bytes = [0; CODE_PIECE];
    let Some(bytes) = bytes.get_mut(..length).filter(|bytes| !bytes.is_empty()) else { return false };
    memory.read(address, bytes).is_ok() && Code { address, bytes }.encode(encoder)
}
