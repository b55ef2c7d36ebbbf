//! The effects of x86_64 instructions on the general registers.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register as Named,
};

use crate::step::{Base, Effect, Flow, Register, Step};

/// Decodes a function's instructions from first to last. `None` if one of them is invalid.
pub(crate) fn steps(code: &[u8], start: u64) -> Option<Vec<Step>> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut all = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        all.push(step(&instruction, &mut factory));
    }
    Some(all)
}

/// Decodes the first instructions of code that may end inside an instruction.
pub(crate) fn leading(code: &[u8], start: u64, count: usize) -> Vec<Step> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let decoded = decoder.iter().take(count).take_while(|instruction| !instruction.is_invalid());
    decoded.map(|instruction| step(&instruction, &mut factory)).collect()
}

/// Returns the DWARF register number.
fn number(register: Named) -> Option<Register> {
    // iced uses the processor's numbers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi.
    const NUMBERS: [Register; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    if !register.is_gpr() {
        return None;
    }
    let own = register.full_register().number();
    NUMBERS.get(own).copied().or_else(|| u8::try_from(own).ok().filter(|own| *own < 16))
}

fn step(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Step {
    let mut step = Step::new(instruction.ip());
    step.flow = flow(instruction);
    let effect = effect(instruction);
    for used in factory.info(instruction).used_registers() {
        let Some(register) = number(used.register()) else { continue };
        let is_whole = used.register().size() >= 4;
        match used.access() {
            OpAccess::Write | OpAccess::ReadWrite if is_whole => {
                let is_target =
                    instruction.op0_kind() == OpKind::Register && number(instruction.op0_register()) == Some(register);
                step.writes(register, if is_target { effect } else { Effect::Other });
            }
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite => {
                step.may_write(register);
            }
            _ => {}
        }
    }
    // `push rbx` and similar instructions only change the stack pointer.
    step
}

/// Returns the effect on the first operand, a register.
fn effect(instruction: &Instruction) -> Effect {
    let is_long = instruction.op0_register().size() == 8;
    let source = || number(instruction.op1_register()).filter(|_| instruction.op1_kind() == OpKind::Register);
    let immediate = || instruction.try_immediate(1).ok();
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Memory => {
            let width = u32::try_from(instruction.memory_size().size()).unwrap_or(0);
            address(instruction).map_or(Effect::Other, |(base, displacement)| Effect::Load {
                base,
                displacement,
                width,
            })
        }
        Mnemonic::Mov if is_long => match (source(), immediate()) {
            (Some(from), _) => Effect::Copy(from),
            (None, Some(value)) => Effect::Constant(value),
            _ => Effect::Other,
        },
        Mnemonic::Mov => match (source(), immediate()) {
            (None, Some(value)) => Effect::Constant(value & 0xffff_ffff),
            _ => Effect::Other,
        },
        Mnemonic::Xor if source() == number(instruction.op0_register()) && source().is_some() => Effect::Constant(0),
        Mnemonic::Lea if is_long => match address(instruction) {
            Some((Base::Register(register), displacement)) => Effect::Sum(register, displacement),
            Some((Base::Nothing, address)) => Effect::Constant(address as u64),
            None => Effect::Other,
        },
        Mnemonic::Add | Mnemonic::Sub if is_long => match (immediate(), number(instruction.op0_register())) {
            (Some(value), Some(own)) if instruction.mnemonic() == Mnemonic::Add => Effect::Sum(own, value as i64),
            (Some(value), Some(own)) => Effect::Sum(own, (value as i64).wrapping_neg()),
            _ => Effect::Other,
        },
        _ => Effect::Other,
    }
}

/// Returns the address of a memory operand without an index.
fn address(instruction: &Instruction) -> Option<(Base, i64)> {
    let displacement = instruction.memory_displacement64() as i64;
    if instruction.memory_index() != Named::None || matches!(instruction.memory_segment(), Named::FS | Named::GS) {
        return None;
    }
    match instruction.memory_base() {
        // iced has added the address of the next instruction.
        Named::RIP | Named::None => Some((Base::Nothing, displacement)),
        base if base.size() == 8 => Some((Base::Register(number(base)?), displacement)),
        _ => None,
    }
}

fn flow(instruction: &Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch => Flow::Conditional(instruction.near_branch_target()),
        FlowControl::UnconditionalBranch => Flow::Jump(instruction.near_branch_target()),
        FlowControl::Call => Flow::Call(Some(instruction.near_branch_target())),
        FlowControl::IndirectCall => Flow::Call(None),
        FlowControl::IndirectBranch => {
            let is_fixed = instruction.op0_kind() == OpKind::Memory
                && instruction.memory_index() == Named::None
                && matches!(instruction.memory_base(), Named::RIP | Named::None);
            if is_fixed { Flow::Elsewhere } else { Flow::AnyJump }
        }
        // System calls and interrupts change registers that the instruction doesn't list.
        _ => Flow::End,
    }
}
