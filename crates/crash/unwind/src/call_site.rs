//! Evidence in the code before a return address: a call, and the mark of an outermost frame.
//!
//! Limits: x86_64 instructions can't be read backwards, so bytes that only look like a call are
//! accepted as one.

use crate::arch::Architecture;
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// Returns `true` if no code can be at that address: no system maps the first page. Reads no
/// memory.
#[inline]
pub(crate) const fn is_in_zero_page(address: u64) -> bool {
    address < 0x1000
}

/// Returns whether the instruction that ends at `address` is a call; `None` if it can't be read.
///
/// On x86_64, whose instructions can't be read backwards, returns whether the bytes could be a
/// call's: about one in twelve addresses in random code passes.
#[inline]
pub fn follows_call<A: Architecture, M: Memory>(memory: &mut M, address: u64) -> Option<bool> {
    match A::ARCH {
        Arch::X86_64 => {
            let bytes = memory.read_u64(address.wrapping_sub(8)).ok()?.to_le_bytes();
            Some(ends_with_x86_64_call(bytes) || is_goroutine_start::<A, M>(memory, address))
        }
        Arch::Aarch64 => {
            if address & 3 != 0 {
                return Some(false);
            }
            let mut bytes = [0u8; 4];
            memory.read(address.wrapping_sub(4), &mut bytes).ok()?;
            Some(is_aarch64_call(u32::from_le_bytes(bytes)))
        }
    }
}

/// Returns `true` if `address` is where a goroutine's function returns to: in `runtime.goexit`,
/// after its first instruction, which isn't a call.
pub(crate) fn is_goroutine_start<A: Architecture, M: Memory>(memory: &mut M, address: u64) -> bool {
    // nop; call goexit1; nop
    A::ARCH == Arch::X86_64
        && matches!(
            memory.read_u64(address.wrapping_sub(1)).map(u64::to_le_bytes),
            Ok([0x90, 0xe8, _, _, _, _, 0x90, _])
        )
}

/// Returns `true` if the code before a return address sets the frame pointer to zero, which marks a
/// program's or thread's outermost frame (System V AMD64 psABI, 3.4.1; AAPCS64, 6.2.3).
pub(crate) fn marks_outermost<A: Architecture, M: Memory>(memory: &mut M, address: u64) -> bool {
    // C libraries do it at most twelve arm64 instructions before.
    let mut code = [0; 64];
    if memory.read(address.wrapping_sub(64), &mut code).is_err() {
        return false;
    }
    match A::ARCH {
        // xor ebp, ebp
        Arch::X86_64 => code.windows(2).any(|bytes| bytes == [0x31, 0xed]),
        // mov x29, #0; mov x29, xzr
        Arch::Aarch64 => {
            let (words, _) = code.as_chunks();
            words.iter().any(|word| matches!(u32::from_le_bytes(*word), 0xd280_001d | 0xaa1f_03fd))
        }
    }
}

/// Returns `true` if a word is `bl`, `blr` or an authenticating `blr`.
pub(crate) const fn is_aarch64_call(word: u32) -> bool {
    word & 0xfc00_0000 == 0x9400_0000 || word & 0xfeff_f000 == 0xd63f_0000
}

/// Returns `true` if a ModRM byte is /2 with `mode` and a base register in its low bits (4 means
/// that a SIB byte follows).
const fn operand(modrm: u8, mode: u8, sib: bool) -> bool {
    modrm >> 3 & 7 == 2 && modrm >> 6 == mode && (modrm & 7 == 4) == sib
}

/// Returns `true` if the bytes end with `call rel32` (E8), or `call r/m64` (FF /2) of any length
/// that its operand may have.
const fn ends_with_x86_64_call(bytes: [u8; 8]) -> bool {
    let [_, b7, b6, b5, b4, b3, b2, b1] = bytes;
    if b5 == 0xe8 {
        return true;
    }
    (b2 == 0xff && (operand(b1, 0, false) && b1 & 7 != 5 || b1 & 0xf8 == 0xd0))
        || (b3 == 0xff && (operand(b2, 1, false) || operand(b2, 0, true) && b1 & 7 != 5))
        || (b4 == 0xff && operand(b3, 1, true))
        || (b6 == 0xff && (operand(b5, 2, false) || operand(b5, 0, false) && b5 & 7 == 5))
        || (b7 == 0xff && (operand(b6, 2, true) || operand(b6, 0, true) && b5 & 7 == 5))
}

#[cfg(test)]
mod tests;
