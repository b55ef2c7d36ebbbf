//! References in AArch64 code.
//!
//! The encodings are those of the Arm Architecture Reference Manual, chapter C4 ("A64 instruction
//! set encoding"). Only instructions that transfer control or compute an address are decoded; for
//! others, only the register that they write.

use std::collections::BTreeMap;

use super::{Reference, Target};

/// Number of preceding instructions to search for a jump table's base.
const NEARBY: usize = 16;

/// The known content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A page address (`adrp`).
    Page(u64),
    /// A small constant (`mov`).
    Number(u32),
}

/// Returns the references in `code`, which is at address `start`.
pub(crate) fn references(code: &[u8], start: u64) -> Vec<Reference> {
    let words: Vec<u32> = code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut found = Vec::new();
    let mut known: [Option<Known>; 32] = [None; 32];
    // The known registers at forward branches, by target.
    let mut ahead: BTreeMap<u64, [Option<Known>; 32]> = BTreeMap::new();
    let mut falls_through = true;
    for (index, word) in words.iter().copied().enumerate() {
        let at = start + 4 * index as u64;
        // After a jump, the earlier state doesn't apply if the branches to this instruction are
        // known.
        if let Some(before) = ahead.remove(&at) {
            known = if falls_through { either(known, before) } else { before };
        }
        let branch = branch_target(word, at);
        falls_through = word & 0xfc00_0000 != 0x1400_0000;
        if let Some(to) = branch.filter(|to| *to > at) {
            let before = ahead.get(&to).copied().unwrap_or_default();
            ahead.insert(to, either(known, before));
        }
        let mut add = |target| found.push(Reference { at, target });
        let low = (word & 31) as usize;
        let base = ((word >> 5) & 31) as usize;
        let page = |register: usize| match known[register] {
            Some(Known::Page(page)) => Some(page),
            _ => None,
        };
        let mut writes = Some(low);
        if word & 0x7c00_0000 == 0x1400_0000 {
            // b, bl
            add(Target::Code(at.wrapping_add(signed(word, 0, 26).wrapping_mul(4) as u64)));
            writes = None;
            if word >> 31 == 1 {
                forget_scratch(&mut known);
            }
        } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
            // b.cond, cbz, cbnz
            add(Target::Code(at.wrapping_add(signed(word, 5, 19).wrapping_mul(4) as u64)));
            writes = None;
        } else if word & 0x7e00_0000 == 0x3600_0000 {
            // tbz, tbnz
            add(Target::Code(at.wrapping_add(signed(word, 5, 14).wrapping_mul(4) as u64)));
            writes = None;
        } else if word & 0xffff_fc1f == 0xd63f_0000 || word & 0xfeff_f800 == 0xd63f_0800 {
            // blr and its authenticating forms
            add(Target::Unknown);
            writes = None;
            forget_scratch(&mut known);
        } else if word & 0xffff_fc1f == 0xd61f_0000 || word & 0xfedf_f800 == 0xd61f_0800 {
            // br
            if !is_table_jump(base, &words[index.saturating_sub(NEARBY)..index]) {
                add(Target::Unknown);
            }
            writes = None;
        } else if word & 0xffe0_001f == 0xd400_0001 {
            // svc: the number is in x8
            add(Target::SystemCall(match known[8] {
                Some(Known::Number(number)) => Some(number),
                _ => None,
            }));
            writes = Some(0);
        } else if word & 0x1f00_0000 == 0x1000_0000 {
            // adr, adrp
            let distance = (signed(word, 5, 19) << 2) | i64::from((word >> 29) & 3);
            if word >> 31 == 1 {
                known[low] = Some(Known::Page((at & !0xfff).wrapping_add((distance << 12) as u64)));
            } else {
                add(Target::Address(at.wrapping_add(distance as u64)));
                known[low] = None;
            }
            writes = None;
        } else if word & 0xff80_0000 == 0x9100_0000
            && let Some(page) = page(base)
        {
            // add, 64-bit, immediate: completes the address, which another add may change.
            let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
            let address = page.wrapping_add(u64::from((word >> 10) & 0xfff) << shift);
            add(Target::Address(address));
            known[low] = Some(Known::Page(address));
            writes = None;
        } else if word & 0x3b00_0000 == 0x3900_0000
            && let Some(page) = page(base)
        {
            // Load or store, unsigned immediate, scaled by the size.
            let vector = word >> 26 & 1 == 1;
            let wide = vector && word >> 23 & 1 == 1;
            let scale = if wide { 4 } else { word >> 30 };
            let address = page.wrapping_add(u64::from((word >> 10) & 0xfff) << scale);
            add(Target::Load(address));
            let loads = word >> 22 & 3 != 0;
            writes = (loads && !vector).then_some(low);
        } else if word & 0x3a00_0000 == 0x2800_0000 {
            // Load or store pair; its base may be an address computed by adrp and add.
            if let Some(page) = page(base) {
                add(Target::Load(page));
            }
            writes = None;
            if word >> 22 & 1 == 1 && word >> 26 & 1 == 0 {
                known[low] = None;
                known[((word >> 10) & 31) as usize] = None;
            }
        } else if word & 0x0a00_0000 == 0x0800_0000 {
            // Other loads and stores: a store changes no general register except its base, with
            // writeback.
            if let Some(page) = page(base) {
                add(Target::Load(page));
            }
            let loads = word >> 22 & 3 != 0;
            let vector = word >> 26 & 1 == 1;
            writes = (loads && !vector).then_some(low);
        } else if word & 0x7f80_0000 == 0x5280_0000 {
            // movz
            let shift = 16 * ((word >> 21) & 3);
            known[low] = ((word >> 5) & 0xffff).checked_shl(shift).map(Known::Number);
            writes = None;
        } else if word & 0xffff_ffe0 == 0xaa1f_03e0 || word & 0xffff_ffe0 == 0x2a1f_03e0 {
            // mov from the zero register
            known[low] = Some(Known::Number(0));
            writes = None;
        } else if word & 0xffff_ffe0 == 0xd53b_d040 {
            // mrs, tpidr_el0
            add(Target::ThreadLocal);
        }
        if let Some(register) = writes {
            known[register] = None;
        }
    }
    found
}

/// Returns the target of a branch that is not a call.
fn branch_target(word: u32, at: u64) -> Option<u64> {
    let words = if word & 0xfc00_0000 == 0x1400_0000 {
        signed(word, 0, 26)
    } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        signed(word, 5, 19)
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        signed(word, 5, 14)
    } else {
        return None;
    };
    Some(at.wrapping_add(words.wrapping_mul(4) as u64))
}

/// Merges the states of two paths: code that uses a register has set it on both.
///
/// A number is kept only if both paths set the same one.
fn either(one: [Option<Known>; 32], other: [Option<Known>; 32]) -> [Option<Known>; 32] {
    std::array::from_fn(|register| match (one[register], other[register]) {
        (Some(Known::Number(a)), Some(Known::Number(b))) if a != b => None,
        (one, other) => one.or(other),
    })
}

/// Returns the signed field of `bits` bits from bit `from`.
pub(super) fn signed(word: u32, from: u32, bits: u32) -> i64 {
    let field = i64::from(word >> from) & ((1 << bits) - 1);
    (field << (64 - bits)) >> (64 - bits)
}

/// A call clobbers x0 to x18 (AAPCS64).
fn forget_scratch(known: &mut [Option<Known>; 32]) {
    known[..19].fill(None);
}

/// Whether a jump goes through a table of distances, which compilers generate for a `match`.
///
/// Such code is `adr x9, here; ldrh w10, [x8, x0, lsl 1]; add x9, x9, x10, lsl 2; br x9`, or uses
/// ldrb or ldrsw. The jump stays inside the function.
pub(super) fn is_table_jump(register: usize, before: &[u32]) -> bool {
    let near = &before[before.len().saturating_sub(12)..];
    // add (shifted or extended register) into the jump's register
    let adds = near.iter().any(|word| {
        (word & 0xff20_0000 == 0x8b00_0000 || word & 0xffe0_0000 == 0x8b20_0000) && (word & 31) as usize == register
    });
    // ldrb, ldrh, ldrsw with a register offset
    let loads = near
        .iter()
        .any(|word| [0x3860_0800, 0x7860_0800, 0xb8a0_0800, 0x78a0_0800, 0x38a0_0800].contains(&(word & 0xffe0_0c00)));
    adds && loads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(words: &[u32]) -> Vec<Target> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        references(&code, 0x10_000).into_iter().map(|reference| reference.target).collect()
    }

    #[test]
    fn calls() {
        assert_eq!(targets(&[0x9400_0004]), [Target::Code(0x10_010)]); // bl
        assert_eq!(targets(&[0x17ff_ffff]), [Target::Code(0xfffc)]); // b, backwards
        assert_eq!(targets(&[0x5400_0080]), [Target::Code(0x10_010)]); // b.eq
        assert_eq!(targets(&[0xb400_0080]), [Target::Code(0x10_010)]); // cbz
        assert_eq!(targets(&[0x3600_0080]), [Target::Code(0x10_010)]); // tbz
        assert_eq!(targets(&[0xd63f_0100]), [Target::Unknown]); // blr x8
        assert_eq!(targets(&[0xd61f_0100]), [Target::Unknown]); // br x8
    }

    #[test]
    fn addresses() {
        // adrp x0, 0x20000; add x0, x0, #0x18
        assert_eq!(targets(&[0x9000_0080, 0x9100_6000]), [Target::Address(0x20_018)]);
        // adrp x0, 0x20000; ldr x1, [x0, #0x18]
        assert_eq!(targets(&[0x9000_0080, 0xf940_0c01]), [Target::Load(0x20_018)]);
        // adrp x0; mov x0, x1; ldr x1, [x0, #0x18]: no longer the page
        assert_eq!(targets(&[0x9000_0080, 0xaa01_03e0, 0xf940_0c01]), []);
        // adrp x9, 0x20000; b over; cbz x0, over; ldr x1, [x9, #0x18]; over: ldr x1, [x9, #0x18]
        let found = targets(&[0x9000_0089, 0x1400_0003, 0xb400_0040, 0xf940_0d21, 0xf940_0d21]);
        let loads = found.iter().filter(|target| matches!(target, Target::Load(0x20_018)));
        assert_eq!(loads.count(), 2);
        // cbz x0, behind; adrp x9, 0x20000; b .; behind: ldr x1, [x9, #0x18]: another x9
        let found = targets(&[0xb400_0060, 0x9000_0089, 0x1400_0000, 0xf940_0d21]);
        assert!(!found.iter().any(|target| matches!(target, Target::Load(_))), "{found:?}");
        // adr x0, +8
        assert_eq!(targets(&[0x1000_0040]), [Target::Address(0x10_008)]);
        // mrs x8, tpidr_el0
        assert_eq!(targets(&[0xd53b_d048]), [Target::ThreadLocal]);
    }

    #[test]
    fn system_calls() {
        assert_eq!(targets(&[0x5280_15a8, 0xd400_0001]), [Target::SystemCall(Some(173))]); // mov w8, #173; svc #0
        assert_eq!(targets(&[0xaa00_03e8, 0xd400_0001]), [Target::SystemCall(None)]); // mov x8, x0; svc #0
    }

    #[test]
    fn a_match_is_not_an_unknown_jump() {
        // adr x9, .; ldrb w10, [x8, x0]; add x9, x9, x10, lsl #2; br x9
        let found = targets(&[0x1000_0009, 0x3860_690a, 0x8b0a_0929, 0xd61f_0120]);
        assert_eq!(found, [Target::Address(0x10_000)]);
    }
}
