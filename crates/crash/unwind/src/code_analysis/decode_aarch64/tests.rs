use super::*;

fn store(base: u8, offset: i32, update: i32, registers: [u8; 2]) -> Effect {
    Effect::Access(Access { load: false, base, offset, update, registers })
}

fn load(base: u8, offset: i32, update: i32, registers: [u8; 2]) -> Effect {
    Effect::Access(Access { load: true, base, offset, update, registers })
}

#[test]
fn instructions_are_decoded() {
    const N: u8 = NO_REGISTER;
    let cases: [(u32, Effect); 32] = [
        (0xa9bf_7bfd, store(31, -16, -16, [29, 30])), // stp x29, x30, [sp, #-16]!
        (0xa8c1_7bfd, load(31, 0, 16, [29, 30])),     // ldp x29, x30, [sp], #16
        (0xa902_4ff4, store(31, 32, 0, [20, 19])),    // stp x20, x19, [sp, #32]
        (0x6dbd_23e9, store(31, -48, -48, [N, N])),   // stp d9, d8, [sp, #-48]!
        (0x6cc3_23e9, load(31, 0, 48, [N, N])),       // ldp d9, d8, [sp], #48
        (0xf81f_0ffe, store(31, -16, -16, [30, N])),  // str x30, [sp, #-16]!
        (0xf841_07fe, load(31, 0, 16, [30, N])),      // ldr x30, [sp], #16
        (0xfc1e_0fe8, store(31, -32, -32, [N, N])),   // str d8, [sp, #-32]!
        (0xf900_07f3, store(31, 8, 0, [19, N])),      // str x19, [sp, #8]
        (0xf940_07f3, load(31, 8, 0, [19, N])),       // ldr x19, [sp, #8]
        (0xf85f_83b3, load(29, -8, 0, [19, N])),      // ldur x19, [x29, #-8]
        (0x9100_43fd, Effect::Set { to: 29, from: 31, add: 16 }), // add x29, sp, #16
        (0x9100_03fd, Effect::Set { to: 29, from: 31, add: 0 }), // mov x29, sp
        (0xd100_83ff, Effect::Set { to: 31, from: 31, add: -32 }), // sub sp, sp, #32
        (0xd140_0bff, Effect::Set { to: 31, from: 31, add: -8192 }), // sub sp, sp, #2, lsl #12
        (0xcb29_63ff, Effect::Sum { to: 31, from: 31, other: 9, negative: true }), // sub sp, sp, x9
        (0xd282_0009, Effect::Constant { to: 9, value: 0x1000 }), // mov x9, #0x1000
        (0xf2a0_0029, Effect::Insert { to: 9, value: 1, shift: 16 }), // movk x9, #1, lsl #16
        (0x927c_ec1f, Effect::Unknown { to: 31 }),    // and sp, x0, #0xfffffffffffffff0
        (0xaa13_03fd, Effect::Set { to: 29, from: 19, add: 0 }), // mov x29, x19
        (0x1400_0002, Effect::Jump(0x1008)),          // b .+8
        (0x17ff_ffff, Effect::Jump(0xffc)),           // b .-4
        (0x5400_0040, Effect::Branch(0x1008)),        // b.eq .+8
        (0xb400_0040, Effect::Branch(0x1008)),        // cbz x0, .+8
        (0x3600_0040, Effect::Branch(0x1008)),        // tbz w0, #0, .+8
        (0x9400_0002, Effect::Call(Some(0x1008))),    // bl .+8
        (0xd63f_0100, Effect::Call(None)),            // blr x8
        (0xd65f_03c0, Effect::Return(30)),            // ret
        (0xd65f_0bff, Effect::Return(30)),            // retaa
        (0xd61f_0100, Effect::IndirectJump),          // br x8
        (0xd420_0020, Effect::Trap),                  // brk #1
        (0xd503_233f, Effect::Other),                 // paciasp
    ];
    for (word, expected) in cases {
        assert_eq!(effect(word, 0x1000), expected, "{word:08x}");
    }
}
