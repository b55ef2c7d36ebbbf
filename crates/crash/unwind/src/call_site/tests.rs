use super::*;

/// Returns eight bytes that end with `bytes`.
fn tail(bytes: &[u8]) -> [u8; 8] {
    let mut all = [0x90; 8];
    all[8 - bytes.len()..].copy_from_slice(bytes);
    all
}

#[test]
fn x86_64_calls_are_recognized() {
    let calls: [&[u8]; 11] = [
        &[0xe8, 1, 2, 3, 4],             // call rel32
        &[0xff, 0xd0],                   // call rax
        &[0x41, 0xff, 0xd4],             // call r12
        &[0xff, 0x10],                   // call [rax]
        &[0xff, 0x50, 0x18],             // call [rax+0x18]
        &[0xff, 0x14, 0xc8],             // call [rax+rcx*8]
        &[0xff, 0x54, 0x24, 0x08],       // call [rsp+8]
        &[0xff, 0x15, 1, 2, 3, 4],       // call [rip+…]
        &[0xff, 0x90, 1, 2, 0, 0],       // call [rax+0x201]
        &[0xff, 0x94, 0x24, 1, 2, 0, 0], // call [rsp+0x201]
        &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call [rax*8+…]
    ];
    for call in calls {
        assert!(ends_with_x86_64_call(tail(call)), "{call:x?}");
    }
    let others: [&[u8]; 5] = [
        &[0xff, 0xe0],             // jmp rax
        &[0xff, 0x25, 1, 2, 3, 4], // jmp [rip+…]
        &[0xe9, 1, 2, 3, 4],       // jmp rel32
        &[0xff, 0x30],             // push [rax]
        &[0x48, 0x89, 0xe5],       // mov rbp, rsp
    ];
    for other in others {
        assert!(!ends_with_x86_64_call(tail(other)), "{other:x?}");
    }
}

#[test]
fn arm64_calls_are_recognized() {
    // bl; blr x8; blraaz x8; blraa x8, x17
    for call in [0x9400_0001, 0xd63f_0100, 0xd63f_091f, 0xd73f_0911] {
        assert!(is_aarch64_call(call), "{call:x}");
    }
    // b; br x8; ret; nop
    for other in [0x1400_0001, 0xd61f_0100, 0xd65f_03c0, 0xd503_201f] {
        assert!(!is_aarch64_call(other), "{other:x}");
    }
}
