use super::*;
use coroner_process::memory::Unreadable;
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess};

extern crate std;

struct Bytes<'b>(&'b [u8]);

impl Memory for Bytes<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let from = address.checked_sub(0x1000).ok_or(Unreadable { address })? as usize;
        let bytes = self.0.get(from..from + into.len()).ok_or(Unreadable { address })?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

fn decode_bytes(bytes: &[u8]) -> (Effect, u64) {
    let mut padded = [0u8; 80];
    padded[..bytes.len()].copy_from_slice(bytes);
    let mut memory = Bytes(&padded);
    let range = crate::image::AddressRange { start: 0x1000, end: 0x1050 };
    let mut cursor = Cursor::new(&mut memory, range, 0x1000).unwrap();
    let effect = decode(&mut cursor).unwrap();
    (effect, cursor.address() - 0x1000)
}

/// Returns the general registers that an instruction with this effect writes, as bits by DWARF
/// number; `None` if the instruction is a path's end, or one whose effect is that of a call.
fn written(effect: Effect) -> Option<u32> {
    Some(match effect {
        Effect::Other | Effect::Jump(_) => 0,
        Effect::Set { to, .. } | Effect::Combine { to, .. } => bit(to),
        Effect::ThreadWord { load, register } => {
            if load {
                bit(register)
            } else {
                0
            }
        }
        Effect::Unknown { registers } | Effect::Branch { unknown: registers, .. } => registers,
        Effect::Access(access) => {
            let [first, second] = access.registers.map(|register| if access.load { bit(register) } else { 0 });
            first | second | if access.update != 0 { bit(access.base) } else { 0 }
        }
        Effect::Leave => RBP_RSP,
        _ => return None,
    })
}

/// Calls `check` with instructions of all opcode maps, as `iced_x86` decodes them.
fn for_instructions(mut check: impl FnMut(&[u8], &iced_x86::Instruction)) {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Half of them start with common bytes, so that all opcode maps are reached.
    const BEGINNINGS: [&[u8]; 17] = [
        &[0x48],
        &[0x0f],
        &[0x66, 0x0f],
        &[0xf3, 0x0f],
        &[0xf2, 0x0f],
        &[0xc5],
        &[0xc4, 0xe2],
        &[0xc4, 0xe3],
        &[0x62, 0xf1],
        &[0x62, 0xf5],
        &[0x0f, 0x38],
        &[0xf2, 0x0f, 0x38],
        &[0xf3, 0x0f, 0x38],
        &[0x66, 0x0f, 0x3a],
        &[0x0f, 0x01],
        &[0xf3],
        &[0x49],
    ];
    for round in 0..1_000_000 {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
        if round % 2 == 0 {
            let beginning = BEGINNINGS[round / 2 % BEGINNINGS.len()];
            bytes[..beginning.len()].copy_from_slice(beginning);
        }
        let instruction = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE).decode();
        if !instruction.is_invalid() {
            check(&bytes, &instruction);
        }
    }
}

#[test]
fn lengths_agree_with_another_decoder() {
    let mut compared = 0;
    for_instructions(|bytes, instruction| {
        let (effect, length) = decode_bytes(bytes);
        if effect != Effect::Trap {
            assert_eq!(length, instruction.len() as u64, "{bytes:02x?}: {:?} {effect:?}", instruction.code());
            compared += 1;
        }
    });
    assert!(compared > 300_000, "{compared}");
}

#[test]
fn written_registers_agree_with_another_decoder() {
    // What a system call, an interrupt or an abort leaves in scratch registers is not an operand.
    const SCRATCH: u32 = RAX | RCX | RDX | RSI | RDI | R11;
    let mut factory = InstructionInfoFactory::new();
    let mut compared = std::collections::BTreeSet::new();
    for_instructions(|bytes, instruction| {
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::Return | FlowControl::Exception) {
            return;
        }
        let (effect, _) = decode_bytes(bytes);
        let Some(ours) = written(effect) else { return };
        let mut theirs = 0;
        for used in factory.info(instruction).used_registers() {
            let write = matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if write && used.register().is_gpr() {
                theirs |= bit(dwarf_number(used.register().full_register().number() as u8));
            }
        }
        let context = || std::format!("{bytes:02x?}: {:?} {effect:?}", instruction.code());
        assert_eq!(theirs & !ours, 0, "missing: {}", context());
        assert_eq!(ours & !theirs & !SCRATCH, 0, "not written: {}", context());
        compared.insert(std::format!("{:?}", instruction.mnemonic()));
    });
    assert!(compared.len() > 1_000, "{} mnemonics", compared.len());
}

#[test]
fn effects_are_decoded() {
    let access = |load, base, offset, update, register| {
        Effect::Access(Access { load, base, offset, update, registers: [register, NO_REGISTER], partial: false })
    };
    let cases: [(&[u8], Effect); 26] = [
        (&[0x55], access(false, 7, -8, -8, 6)),                                // push rbp
        (&[0x41, 0x57], access(false, 7, -8, -8, 15)),                         // push r15
        (&[0x5b], access(true, 7, 0, 8, 3)),                                   // pop rbx
        (&[0x41, 0x5c], access(true, 7, 0, 8, 12)),                            // pop r12
        (&[0x50], access(false, 7, -8, -8, 0)),                                // push rax
        (&[0x6a, 1], access(false, 7, -8, -8, NO_REGISTER)),                   // push 1
        (&[0x48, 0x89, 0xe5], Effect::Set { to: 6, from: 7, add: 0 }),         // mov rbp, rsp
        (&[0x48, 0x8b, 0xec], Effect::Set { to: 6, from: 7, add: 0 }),         // mov rbp, rsp (other form)
        (&[0x48, 0x83, 0xec, 0x18], Effect::Set { to: 7, from: 7, add: -24 }), // sub rsp, 24
        (&[0x48, 0x83, 0xc4, 0x18], Effect::Set { to: 7, from: 7, add: 24 }),  // add rsp, 24
        (&[0x48, 0x81, 0xec, 0, 0x10, 0, 0], Effect::Set { to: 7, from: 7, add: -4096 }), // sub rsp, 4096
        (&[0x48, 0x83, 0xe4, 0xe0], Effect::Unknown { registers: 1 << 7 }),    // and rsp, -32
        (&[0x48, 0x29, 0xc4], Effect::Unknown { registers: 1 << 7 }),          // sub rsp, rax
        (&[0x48, 0x8d, 0x65, 0xd8], Effect::Set { to: 7, from: 6, add: -40 }), // lea rsp, [rbp-40]
        (&[0x49, 0x8d, 0x62, 0xf8], Effect::Set { to: 7, from: 10, add: -8 }), // lea rsp, [r10-8]
        (&[0x48, 0x8b, 0x5c, 0x24, 0x10], access(true, 7, 16, 0, 3)),          // mov rbx, [rsp+16]
        (&[0x48, 0x89, 0x5c, 0x24, 0x10], access(false, 7, 16, 0, 3)),         // mov [rsp+16], rbx
        (&[0xc9], Effect::Leave),
        (&[0xc3], Effect::Return(NO_REGISTER)),
        (&[0xe8, 0, 0, 0, 0], Effect::Call(Some(0x1005))),
        (&[0xeb, 0x10], Effect::Jump(0x1012)),
        (&[0x74, 0xfe], Effect::Branch { to: 0x1000, unknown: 0 }),
        (&[0x0f, 0x84, 0, 1, 0, 0], Effect::Branch { to: 0x1106, unknown: 0 }),
        (&[0xff, 0xe0], Effect::IndirectJump),                    // jmp rax
        (&[0xff, 0x25, 0, 0, 0, 0], Effect::Return(NO_REGISTER)), // jmp [rip+0]
        (&[0x0f, 0x0b], Effect::Trap),
    ];
    for (bytes, expected) in cases {
        assert_eq!(decode_bytes(bytes), (expected, bytes.len() as u64), "{bytes:02x?}");
    }
}
