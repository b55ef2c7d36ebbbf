//! The last resort: words of the stack that look like return addresses.

use crate::arch::Architecture;
use crate::call_site::follows_call;
use crate::image::Images;
use coroner_machine::memory::Memory;

/// A word that looks like a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it is.
    pub place: u64,
    /// The address, without authentication code.
    pub pc: u64,
    /// The frame pointer before it, if that looks like one: it points above the word, and not far.
    pub fp: Option<u64>,
}

/// How far above its frame record a caller's record is taken to be at most.
const NEAR: u64 = 1 << 20;

/// The first word from `sp` on, among `words`, that is certainly an address of code behind a call.
pub fn scan<A: Architecture, M: Memory, I: Images>(
    memory: &mut M,
    images: &I,
    sp: u64,
    words: u32,
    mask: u64,
) -> Option<Candidate> {
    let mut before = 0;
    for index in 0..u64::from(words) {
        let place = (sp.wrapping_add(7) & !7).checked_add(index.wrapping_mul(8))?;
        let word = memory.read_u64(place).ok()?;
        let pc = word & mask;
        if pc >= 0x1000
            && images.is_executable(pc.wrapping_sub(1)) == Some(true)
            && follows_call::<A, _>(memory, pc) == Some(true)
        {
            let near = before > place && before.wrapping_sub(place) < NEAR && before.is_multiple_of(8);
            return Some(Candidate { place, pc, fp: near.then_some(before) });
        }
        before = word;
    }
    None
}
