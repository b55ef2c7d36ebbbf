//! Tests the landing of `coroner_guarded_run` with synthetic shadow stacks.
//!
//! Few kernels have shadow stacks, so the instructions are interpreted here one by one.

extern crate std;

use std::{vec, vec::Vec};

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Function, Point, coroner_guarded_run};

/// Returns the instructions from the landing to the return.
fn landing() -> Vec<Instruction> {
    let start = coroner_guarded_run as unsafe extern "C" fn(*const Point, Function, *mut libc::c_void) -> u64;
    let start = start as usize as u64;
    // SAFETY: the routine is longer, or is followed by code of this program.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, 128) };
    let routine: Vec<Instruction> = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter().collect();
    let from = routine.iter().position(|at| at.mnemonic() == Mnemonic::Pop).unwrap();
    let to = routine.iter().position(|at| at.mnemonic() == Mnemonic::Ret).unwrap();
    routine[from..to].to_vec()
}

/// Returns the shadow stack pointer at the return; 0 for none.
///
/// It was `saved` when the run began and is `now` at the landing.
fn after_landing(saved: u64, now: u64) -> u64 {
    let instructions = landing();
    // From the top: the point, the saved pointer twice, callee-saved registers.
    let mut stack = vec![6, 5, 4, 3, 2, 1, saved, saved, 0];
    let mut ssp = now;
    let mut registers = [0_u64; 4];
    registers[1] = 0x1234;
    let place = |register: Register| match register.full_register() {
        Register::RAX => 0,
        Register::RCX => 1,
        Register::RDX => 2,
        _ => 3,
    };
    let (mut zero, mut carry) = (false, false);
    let mut at = 0;
    let mut steps = 0;
    while let Some(instruction) = instructions.get(at) {
        steps += 1;
        assert!(steps < 100_000, "it does not end");
        let to = place(instruction.op0_register());
        let value = match instruction.op1_kind() {
            OpKind::Register => registers[place(instruction.op1_register())],
            _ => instruction.immediate(1),
        };
        let mut jump = false;
        match instruction.mnemonic() {
            Mnemonic::Pop => registers[to] = stack.pop().unwrap(),
            Mnemonic::Mov if instruction.op0_kind() == OpKind::Memory => {}
            Mnemonic::Mov => registers[to] = value,
            Mnemonic::Rdsspq if now == 0 => {}
            Mnemonic::Rdsspq => registers[to] = ssp,
            Mnemonic::Incsspq => {
                assert_ne!(now, 0, "an invalid instruction where there is no shadow stack");
                // The processor uses the lowest eight bits.
                ssp += (registers[to] & 0xff) * 8;
            }
            Mnemonic::Test => zero = registers[to] & value == 0,
            Mnemonic::Sub | Mnemonic::Cmp => {
                (zero, carry) = (registers[to] == value, registers[to] < value);
                if instruction.mnemonic() == Mnemonic::Sub {
                    registers[to] = registers[to].wrapping_sub(value);
                }
            }
            Mnemonic::Shr => registers[to] >>= value,
            Mnemonic::Cmovb if carry => registers[to] = value,
            Mnemonic::Cmovb => {}
            Mnemonic::Je => jump = zero,
            Mnemonic::Jne => jump = !zero,
            Mnemonic::Jbe => jump = zero || carry,
            _ => panic!("an instruction that this does not know: {:?}", instruction.code()),
        }
        at = if jump {
            instructions.iter().position(|other| other.ip() == instruction.near_branch_target()).unwrap()
        } else {
            at + 1
        };
    }
    assert!(stack.is_empty(), "{stack:?}");
    ssp
}

#[test]
fn dropped_frames_are_dropped_from_the_shadow_stack() {
    const SAVED: u64 = 0x7fff_f000;
    for words in [0, 1, 2, 254, 255, 256, 510, 511, 10_000] {
        assert_eq!(after_landing(SAVED, SAVED - 8 * words), SAVED, "{words} words");
    }
}

#[test]
fn without_a_shadow_stack_nothing_is_changed() {
    assert_eq!(after_landing(0, 0), 0);
}

#[test]
fn a_shorter_shadow_stack_is_left_unchanged() {
    assert_eq!(after_landing(0x7000, 0x7008), 0x7008);
}
