use super::*;
use crate::arch::{Aarch64, X86_64};
use coroner_process::memory::{Snapshot, SnapshotRange};

extern crate std;
use std::vec::Vec;

const CODE: u64 = 0x20_0000;

fn with<R>(words: &[u32], test: impl FnOnce(&mut Snapshot<'_>) -> R) -> R {
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let table = 0x1234_5678_9abc_u64.to_le_bytes();
    // Two pages further, at 0x120.
    let ranges =
        [SnapshotRange { address: CODE, bytes: &code }, SnapshotRange { address: CODE + 0x2120, bytes: &table }];
    test(&mut Snapshot { ranges: &ranges })
}

/// Returns `true` if the words are code of an outlined function called by the function with the
/// return address `CODE + 0x100`.
fn is_outlined_from_caller(words: &[u32]) -> bool {
    with(words, |memory| is_called_outlined::<Aarch64, _>(memory, CODE, CODE + 0x100, None, &mut { MAX_INSTRUCTIONS }))
}

const RET: u32 = 0xd65f_03c0;

#[test]
fn code_that_no_function_has_is_outlined() {
    let parts: [&[u32]; 7] = [
        &[0xa9bd_57f6, 0xa901_4ff4, RET], // stp x22, x21, [sp, #-48]!; stp x20, x19, [sp, #16]
        &[0xa901_57f6, RET],              // stp x22, x21, [sp, #16]
        &[0xa8c3_57f6, RET],              // ldp x22, x21, [sp], #48
        &[0x9100_43fd, RET],              // add x29, sp, #16
        &[0xaa00_03f3, RET],              // mov x19, x0
        &[0x9100_83ff, RET],              // add sp, sp, #32
        &[0xaa1e_03f0, 0xa8c1_7bfd, 0xd65f_0200], // mov x16, x30; ldp x29, x30, [sp], #16; ret x16
    ];
    for words in parts {
        assert!(is_outlined_from_caller(words), "{words:08x?}");
    }
}

#[test]
fn functions_and_stack_switches_are_not_outlined() {
    let others: [&[u32]; 9] = [
        &[RET],
        &[0x8b01_0000, RET],                           // add x0, x0, x1
        &[0xa9bf_7bfd, 0x9100_03fd, 0xa8c1_7bfd, RET], // a frame, created and removed
        &[0xa900_5013, RET],                           // stp x19, x20, [x0]: setjmp
        &[0xa940_5013, 0xf940_0802, 0x9100_005f, RET], // ldp x19, x20, [x0]; ldr x2, [x0, #16]; mov sp, x2
        &[0x9100_001f, 0xa8c1_7bfd, RET],              // mov sp, x0; ldp x29, x30, [sp], #16
        &[0xaa00_03f3, 0xb400_0040, RET, RET],         // mov x19, x0; cbz x0, …
        &[0xaa00_03f3, 0x1400_0001, 0x8b01_0000, RET], // mov x19, x0; b to a function
        &[0xaa00_03f3, 0x17ff_ffff],                   // an endless loop
    ];
    for words in others {
        assert!(!is_outlined_from_caller(words), "{words:08x?}");
    }
    let x86_64 = with(&[RET; 4], |memory| {
        is_called_outlined::<X86_64, _>(memory, CODE, CODE + 0x100, None, &mut { MAX_INSTRUCTIONS })
    });
    assert!(!x86_64);
}

#[test]
fn the_budget_ends_the_analysis() {
    let words = [&[0xd503_201f; 40][..], &[0xaa00_03f3, RET]].concat();
    let is_outlined = |mut budget: u32| {
        with(&words, |memory| is_called_outlined::<Aarch64, _>(memory, CODE, CODE + 0x100, None, &mut budget))
    };
    assert!(is_outlined(42));
    assert!(!is_outlined(41));
}

#[test]
fn veneers_are_followed() {
    let target = |words: &[u32]| {
        let at = CODE + 4 * (words.len() as u64 - 1);
        with(words, |memory| veneer_target::<Aarch64, _>(memory, at))
    };
    // adrp x16, two pages further
    let page = 0xd000_0010;
    // ldr x17, [x16, #0x120]; add x16, x16, #0x120; br x17
    assert_eq!(target(&[page, 0xf940_9211, 0x9104_8210, 0xd61f_0220]), Some(0x1234_5678_9abc));
    // ldr x16, [x16, #0x120]; br x16
    assert_eq!(target(&[0, page, 0xf940_9210, 0xd61f_0200]), Some(0x1234_5678_9abc));
    // add x16, x16, #0x120; br x16
    assert_eq!(target(&[0, page, 0x9104_8210, 0xd61f_0200]), Some(CODE + 0x2120));
    // Another register for the jump, another for the load, no page, memory that can't be read.
    assert_eq!(target(&[0, page, 0x9104_8210, 0xd61f_0220]), None);
    assert_eq!(target(&[0, page, 0xf940_9230, 0xd61f_0200]), None);
    assert_eq!(target(&[0, 0, 0x9104_8210, 0xd61f_0200]), None);
    assert_eq!(target(&[0, page, 0xf941_9210, 0xd61f_0200]), None);
}
