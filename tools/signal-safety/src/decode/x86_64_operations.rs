//! Operations in x86_64 code, decoded by `iced-x86`.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register as Named,
};

use super::operation::{Atomic, Effect, Flow, Operation, Place, Register};

const RAX: Register = 0;
const RSP: Register = 4;
const RBP: Register = 5;

/// Decodes the instructions of `code`, which is at address `start`.
pub(super) fn operations(code: &[u8], start: u64) -> Vec<Operation> {
    let mut factory = InstructionInfoFactory::new();
    Decoder::with_ip(64, code, start, DecoderOptions::NONE)
        .into_iter()
        .map(|instruction| operation(&instruction, &mut factory))
        .collect()
}

/// Returns the general register with this name, or which contains the named part.
fn general(named: Named) -> Option<Register> {
    named.is_gpr().then(|| named.full_register().number() as Register)
}

fn operation(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Operation {
    let mut operation = Operation::new(instruction.ip());
    operation.flow = match instruction.flow_control() {
        FlowControl::ConditionalBranch => Flow::Branch { to: instruction.near_branch_target(), conditional: true },
        FlowControl::UnconditionalBranch => Flow::Branch { to: instruction.near_branch_target(), conditional: false },
        FlowControl::Call if instruction.mnemonic() == Mnemonic::Call => {
            Flow::Call(Some(instruction.near_branch_target()))
        }
        FlowControl::IndirectCall => Flow::Call(None),
        FlowControl::IndirectBranch => Flow::Jump,
        FlowControl::Return | FlowControl::Exception => Flow::End,
        _ => Flow::Next,
    };
    if matches!(operation.flow, Flow::Call(None) | Flow::Jump) {
        operation.through = match instruction.op0_kind() {
            OpKind::Register => general(instruction.op0_register()).map(|register| (register, None)),
            OpKind::Memory => word(instruction).map(|(base, offset)| (base, Some(offset))),
            _ => None,
        };
    }
    operation.system_call = instruction.mnemonic() == Mnemonic::Syscall;
    operation.pauses = instruction.mnemonic() == Mnemonic::Pause;
    if instruction.rflags_modified() != 0 {
        operation.writes.push(Place::Flags);
    }
    if instruction.rflags_read() != 0 {
        operation.reads.push(Place::Flags);
    }
    let zeroes = matches!(instruction.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    let info = factory.info(instruction);
    for used in info.used_registers() {
        let place = match general(used.register()) {
            Some(register) => Place::Register(register),
            None if used.register().is_vector_register() => {
                Place::Vector(used.register().full_register().number() as u8)
            }
            None => continue,
        };
        if reads(used.access()) && !zeroes {
            operation.reads.push(place);
        }
        if writes(used.access()) {
            operation.writes.push(place);
        }
    }
    for used in info.used_memory() {
        // Pushes and pops have their own effects.
        let base = general(used.base());
        let at = match word(instruction) {
            Some((base, offset)) if base == RSP || base == RBP => Some(Place::Word(base, offset)),
            _ if base == Some(RSP) => Some(Place::Word(RSP, used.displacement() as i64)),
            _ => None,
        };
        if reads(used.access()) {
            if let Some(place) = at {
                operation.reads.push(place);
            } else {
                let by = [used.base(), used.index()].into_iter().filter_map(general);
                operation.loads.get_or_insert_default().extend(by);
            }
        }
        if writes(used.access()) {
            match at {
                Some(place) => operation.writes.push(place),
                None => operation.stores = true,
            }
        }
    }
    operation.atomic = atomic(instruction);
    effects(instruction, &mut operation);
    operation
}

fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Returns the memory operand as a distance from a register.
fn word(instruction: &Instruction) -> Option<(Register, i64)> {
    if instruction.memory_index() != Named::None || instruction.segment_prefix() != Named::None {
        return None;
    }
    Some((general(instruction.memory_base())?, instruction.memory_displacement64() as i64))
}

fn atomic(instruction: &Instruction) -> Option<Atomic> {
    let in_memory = instruction.op_count() > 0
        && (instruction.op0_kind() == OpKind::Memory
            || instruction.op_count() > 1 && instruction.op1_kind() == OpKind::Memory);
    match instruction.mnemonic() {
        // Always locked.
        Mnemonic::Xchg if in_memory => Some(Atomic::Exchange),
        _ if !instruction.has_lock_prefix() => None,
        Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => Some(Atomic::CompareExchange(RAX)),
        Mnemonic::Xadd | Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Add | Mnemonic::Sub => Some(Atomic::Add),
        _ => Some(Atomic::Exchange),
    }
}

fn effects(instruction: &Instruction, operation: &mut Operation) {
    let count = instruction.op_count();
    let kind = |index| if index < count { instruction.op_kind(index) } else { OpKind::FarBranch16 };
    // Only whole registers: an operation on a part of an address doesn't leave an address.
    let whole = |index: u32| {
        let named = if kind(index) == OpKind::Register { instruction.op_register(index) } else { Named::None };
        named.is_gpr64().then(|| named.number() as Register)
    };
    let constant = |index: u32| match kind(index) {
        OpKind::Register | OpKind::Memory | OpKind::FarBranch16 => None,
        _ => Some(instruction.immediate(index) as i64),
    };
    let moves = |by: i64| Effect::Copy { to: RSP, from: RSP, add: by };
    match instruction.mnemonic() {
        Mnemonic::Push => {
            operation.effects.push(moves(-8));
            if let Some(from) = whole(0) {
                operation.effects.push(Effect::Store { base: RSP, offset: 0, from });
            }
        }
        Mnemonic::Pop => {
            if let Some(to) = whole(0) {
                operation.effects.push(Effect::Fill { to, base: RSP, offset: 0 });
            }
            operation.effects.push(moves(8));
        }
        Mnemonic::Pushfq => operation.effects.push(moves(-8)),
        Mnemonic::Popfq => operation.effects.push(moves(8)),
        Mnemonic::Leave => {
            operation.effects.push(Effect::Copy { to: RSP, from: RBP, add: 8 });
            operation.effects.push(Effect::Fill { to: RBP, base: RSP, offset: -8 });
        }
        Mnemonic::Mov => match (whole(0), whole(1)) {
            (Some(to), Some(from)) => operation.effects.push(Effect::Copy { to, from, add: 0 }),
            (Some(to), None) if kind(1) == OpKind::Memory => {
                if instruction.is_ip_rel_memory_operand() {
                    let address = instruction.ip_rel_memory_address();
                    operation.effects.push(Effect::Load { to, address });
                } else if let Some((base, offset)) = word(instruction) {
                    operation.effects.push(Effect::Fill { to, base, offset });
                }
            }
            (None, Some(from)) if kind(0) == OpKind::Memory => {
                if let Some((base, offset)) = word(instruction) {
                    operation.effects.push(Effect::Store { base, offset, from });
                }
            }
            _ => {}
        },
        Mnemonic::Lea => {
            if let Some(to) = whole(0) {
                if instruction.is_ip_rel_memory_operand() {
                    let address = instruction.ip_rel_memory_address();
                    operation.effects.push(Effect::Address { to, address });
                } else if let Some((from, add)) = word(instruction) {
                    operation.effects.push(Effect::Copy { to, from, add });
                }
            }
        }
        Mnemonic::Add | Mnemonic::Sub => {
            if let (Some(to), Some(by)) = (whole(0), constant(1)) {
                let add = if instruction.mnemonic() == Mnemonic::Sub { -by } else { by };
                operation.effects.push(Effect::Copy { to, from: to, add });
            }
        }
        Mnemonic::And => {
            if let (Some(register), Some(mask)) = (whole(0), constant(1))
                && mask < 0
                && mask.unsigned_abs().is_power_of_two()
            {
                operation.effects.push(Effect::Align { register, alignment: -mask });
            }
        }
        Mnemonic::Cmp => {
            operation.probe = match (whole(0), whole(1)) {
                (Some(RSP), other) | (other, Some(RSP)) => other,
                _ => None,
            };
        }
        _ => {}
    }
}
