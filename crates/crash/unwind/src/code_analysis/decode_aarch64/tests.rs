use super::*;

fn store(base: u8, offset: i32, update: i32, registers: [u8; 2]) -> Effect {
    Effect::Access(Access { load: false, base, offset, update, registers, partial: registers == [NO_REGISTER; 2] })
}

fn load(base: u8, offset: i32, update: i32, registers: [u8; 2]) -> Effect {
    Effect::Access(Access { load: true, base, offset, update, registers, partial: registers == [NO_REGISTER; 2] })
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
        (0x927c_ec1f, Effect::Unknown { registers: 1 << 31 }), // and sp, x0, #0xfffffffffffffff0
        (0xaa13_03fd, Effect::Set { to: 29, from: 19, add: 0 }), // mov x29, x19
        (0x1400_0002, Effect::Jump(0x1008)),          // b .+8
        (0x17ff_ffff, Effect::Jump(0xffc)),           // b .-4
        (0x5400_0040, Effect::Branch { to: 0x1008, unknown: 0 }), // b.eq .+8
        (0xb400_0040, Effect::Branch { to: 0x1008, unknown: 0 }), // cbz x0, .+8
        (0x3600_0040, Effect::Branch { to: 0x1008, unknown: 0 }), // tbz w0, #0, .+8
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

/// Returns the general registers that an instruction with this effect writes, as bits.
fn written(effect: Effect) -> u32 {
    match effect {
        Effect::Set { to, .. } | Effect::Constant { to, .. } | Effect::Insert { to, .. } | Effect::Sum { to, .. } => {
            bit(to)
        }
        Effect::Unknown { registers } => registers,
        Effect::Access(access) => {
            let [first, second] = access.registers.map(|register| if access.load { bit(register) } else { 0 });
            first | second | if access.update != 0 { bit(access.base) } else { 0 }
        }
        _ => 0,
    }
}

#[test]
fn written_registers_are_decoded() {
    // From the manual; compared with Capstone 5, apart from atomics, tags and copies, whose writes
    // it omits.
    let cases: [(u32, &[u8]); 62] = [
        (0xb940_0be1, &[1]),                      // ldr w1, [sp, #8]
        (0x7840_05e1, &[1]),                      // ldrh w1, [x15], #0
        (0xb880_4fe1, &[1, 31]),                  // ldrsw x1, [sp, #4]!
        (0xb980_0be1, &[1]),                      // ldrsw x1, [sp, #8]
        (0xf980_0000, &[]),                       // prfm pldl1keep, [x0]
        (0x3dc0_0001, &[]),                       // ldr q1, [x0]
        (0x2940_0be1, &[1, 2]),                   // ldp w1, w2, [sp]
        (0x6940_0be1, &[1, 2]),                   // ldpsw x1, x2, [sp]
        (0x6980_8fe1, &[31]),                     // stgp x1, x3, [sp, #16]!
        (0xf840_0801, &[1]),                      // ldtr x1, [x0]
        (0xf862_6801, &[1]),                      // ldr x1, [x0, x2]
        (0xb8a2_6801, &[1]),                      // ldrsw x1, [x0, x2]
        (0xf822_6801, &[]),                       // str x1, [x0, x2]
        (0xf8a2_6801, &[]),                       // prfm pldl1strm, [x0, x2]
        (0x5800_0041, &[1]),                      // ldr x1, .+8
        (0xd800_0041, &[]),                       // prfm pldl1strm, .+8
        (0xf867_54ce, &[14]),                     // ldraa x14, [x6, #-3256]
        (0xf8e6_3d75, &[11, 21]),                 // ldrab x21, [x11, #-3256]!
        (0xf8bf_c001, &[1]),                      // ldapr x1, [x0]
        (0xd940_0001, &[1]),                      // ldapur x1, [x0]
        (0xd900_0001, &[]),                       // stlur x1, [x0]
        (0xc8df_fc01, &[1]),                      // ldar x1, [x0]
        (0xc89f_fc01, &[]),                       // stlr x1, [x0]
        (0xc85f_7c01, &[1]),                      // ldxr x1, [x0]
        (0xc802_7c01, &[2]),                      // stxr w2, x1, [x0]
        (0xc87f_0801, &[1, 2]),                   // ldxp x1, x2, [x0]
        (0xc823_0801, &[3]),                      // stxp w3, x1, x2, [x0]
        (0xc8a2_7c01, &[2]),                      // cas x2, x1, [x0]
        (0x4824_7c02, &[4, 5]),                   // casp x4, x5, x2, x3, [x0]
        (0xf824_6378, &[24]),                     // ldumax x4, x24, [x27]
        (0xf821_8083, &[3]),                      // swp x1, x3, [x4]
        (0xf820_001f, &[]),                       // stadd x0, [x0]
        (0xf83f_d000, &[0, 1, 2, 3, 4, 5, 6, 7]), // ld64b x0, [x0]
        (0xf839_b292, &[25]),                     // st64bv x25, x18, [x20]
        (0x1947_f782, &[2, 7, 28]),               // cpyfmtn [x2]!, [x7]!, x28!
        (0xd963_6200, &[0]),                      // ldg x0, [x16, #864]
        (0xd9bf_0fff, &[31]),                     // st2g sp, [sp, #-16]!
        (0xd920_0bff, &[]),                       // stg sp, [sp]
        (0x4c9f_703f, &[1]),                      // st1 {v31.16b}, [x1], #16
        (0x0c40_7020, &[]),                       // ld1 {v0.8b}, [x1]
        (0x1b02_7c33, &[19]),                     // mul w19, w1, w2
        (0x5281_0013, &[19]),                     // mov w19, #0x800
        (0x1a9f_17f3, &[19]),                     // cset w19, eq
        (0xfa41_0804, &[]),                       // ccmp x0, #1, #4, eq
        (0xeb01_001f, &[]),                       // cmp x0, x1
        (0x3a00_080d, &[]),                       // setf8 w0
        (0xba00_0405, &[]),                       // rmif x0, #0, #5
        (0xdac1_03fe, &[]),                       // pacia x30, sp
        (0xdac0_1000, &[0]),                      // clz x0, x0
        (0x1100_43ff, &[31]),                     // add wsp, wsp, #16
        (0xd53b_d053, &[19]),                     // mrs x19, tpidr_el0
        (0xd51b_d053, &[]),                       // msr tpidr_el0, x19
        (0xd503_215f, &[17]),                     // pacib1716
        (0xd400_0001, &[0, 1]),                   // svc #0
        (0x9e66_0013, &[19]),                     // fmov x19, d0
        (0x9e67_0260, &[]),                       // fmov d0, x19
        (0x9e78_0013, &[19]),                     // fcvtzs x19, d0
        (0x9e62_0260, &[]),                       // scvtf d0, x19
        (0x1ed8_a928, &[8]),                      // fcvtzs w8, h9, #22
        (0x4e08_3c13, &[19]),                     // mov x19, v0.d[0]
        (0x043f_57df, &[31]),                     // addvl sp, sp, #-2
        (0x04b0_e3f3, &[19]),                     // incw x19
    ];
    for (word, registers) in cases {
        let expected = registers.iter().fold(0, |bits, register| bits | bit(*register));
        assert_eq!(written(effect(word, 0x1000)), expected, "{word:08x}: {:?}", effect(word, 0x1000));
    }
}
