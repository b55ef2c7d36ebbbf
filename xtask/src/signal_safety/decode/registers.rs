//! Which registers of x86_64 code hold a function's address, by a forward analysis over the function's basic blocks.
//!
//! Compilers load the address of `memcpy` once and call it through a register ever after; without this, each such call
//! would look like one that only the running program knows. What is claimed holds on every path: where paths meet, only
//! what they agree on stays; a jump through a table is taken to lead to every block; a block that nothing is seen to lead
//! to (a landing pad) begins with nothing known.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::Target;

/// A place that can hold an address: a register, or a word of the stack at a distance from a register.
type Place = (Register, Option<u64>);

/// What places hold: [`Target::CodeThrough`] a slot or [`Target::Code`] at an address.
type Held = BTreeMap<Place, Target>;

/// For the instructions (by index) that call or jump through a register or a word of the stack: where to, if that is
/// known on every path.
pub(super) fn resolve(instructions: &[Instruction]) -> BTreeMap<usize, Target> {
    let wanted: Vec<usize> =
        (0..instructions.len()).filter(|index| indirect(&instructions[*index]).is_some()).collect();
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let at_entry = entry_states(instructions);
    let mut factory = InstructionInfoFactory::new();
    let mut resolved = BTreeMap::new();
    let mut held: Option<Held> = None;
    for (index, instruction) in instructions.iter().enumerate() {
        if let Some(state) = at_entry.get(&index) {
            held = state.clone();
        }
        let state = held.get_or_insert_default();
        if let Some(place) = indirect(instruction)
            && let Some(target) = state.get(&place)
        {
            resolved.insert(index, target.clone());
        }
        step(instruction, state, &mut factory);
    }
    resolved
}

/// The place that an indirect call or jump reads.
fn indirect(instruction: &Instruction) -> Option<Place> {
    if !matches!(instruction.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch) {
        return None;
    }
    match instruction.op0_kind() {
        OpKind::Register => Some((instruction.op0_register(), None)),
        OpKind::Memory => stack_word(instruction),
        _ => None,
    }
}

/// The word of the stack that the memory operand is.
fn stack_word(instruction: &Instruction) -> Option<Place> {
    let base = instruction.memory_base();
    let on_stack = matches!(base, Register::RSP | Register::RBP) && instruction.memory_index() == Register::None;
    on_stack.then(|| (base, Some(instruction.memory_displacement64())))
}

/// What is held at the start of each basic block, by the index of its first instruction; `None` where nothing was found
/// to lead there.
fn entry_states(instructions: &[Instruction]) -> BTreeMap<usize, Option<Held>> {
    let index_of: BTreeMap<u64, usize> = instructions.iter().enumerate().map(|(index, i)| (i.ip(), index)).collect();
    let branch = |instruction: &Instruction| match instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            index_of.get(&instruction.near_branch64()).copied()
        }
        _ => None,
    };
    let mut leaders = BTreeSet::from([0]);
    for (index, instruction) in instructions.iter().enumerate() {
        leaders.extend(branch(instruction));
        if !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall)
            && index + 1 < instructions.len()
        {
            leaders.insert(index + 1);
        }
    }
    let mut states: BTreeMap<usize, Option<Held>> = leaders.iter().map(|leader| (*leader, None)).collect();
    states.insert(0, Some(Held::new()));
    let mut factory = InstructionInfoFactory::new();
    let mut waiting: BTreeSet<usize> = leaders.clone();
    while let Some(leader) = waiting.pop_first() {
        let Some(mut held) = states.get(&leader).cloned().flatten() else { continue };
        let end = leaders.range(leader + 1..).next().copied().unwrap_or(instructions.len());
        let mut successors: Vec<usize> = Vec::new();
        for (index, instruction) in instructions.iter().enumerate().take(end).skip(leader) {
            step(instruction, &mut held, &mut factory);
            successors.extend(branch(instruction));
            let falls = !matches!(
                instruction.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::Return | FlowControl::IndirectBranch
            );
            if instruction.flow_control() == FlowControl::IndirectBranch {
                successors.extend(leaders.iter().copied());
            } else if index + 1 == end && falls && end < instructions.len() {
                successors.push(end);
            }
        }
        for successor in successors {
            let Some(state) = states.get_mut(&successor) else { continue };
            let changed = match state {
                None => {
                    *state = Some(held.clone());
                    true
                }
                Some(known) => {
                    let before = known.len();
                    known.retain(|place, target| held.get(place) == Some(target));
                    known.len() != before
                }
            };
            if changed {
                waiting.insert(successor);
            }
        }
    }
    // A landing pad: reached by the unwinder. What it falls or jumps into is no longer known either.
    let end_of = |leader: usize| leaders.range(leader + 1..).next().copied().unwrap_or(instructions.len());
    let is_padding = |leader: usize| {
        instructions[leader..end_of(leader)].iter().all(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
    };
    let mut unknown: BTreeSet<usize> =
        leaders.iter().copied().filter(|leader| states[leader].is_none() && !is_padding(*leader)).collect();
    while let Some(leader) = unknown.pop_first() {
        let end = end_of(leader);
        let mut held = Held::new();
        let mut successors = Vec::new();
        for instruction in &instructions[leader..end] {
            step(instruction, &mut held, &mut factory);
            successors.extend(branch(instruction));
        }
        if end < instructions.len() {
            successors.push(end);
        }
        for successor in successors {
            if let Some(Some(known)) = states.get_mut(&successor) {
                let before = known.len();
                known.retain(|place, target| held.get(place) == Some(target));
                if known.len() != before {
                    unknown.insert(successor);
                }
            }
        }
    }
    states
}

/// What places hold after an instruction.
fn step(instruction: &Instruction, held: &mut Held, factory: &mut InstructionInfoFactory) {
    let mut new = None;
    let to_register = instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register;
    let to_memory = instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Memory;
    if instruction.mnemonic() == Mnemonic::Mov && to_register {
        let to = (instruction.op0_register(), None);
        new = match instruction.op1_kind() {
            OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                Some((to, Target::CodeThrough(instruction.ip_rel_memory_address())))
            }
            OpKind::Memory => stack_word(instruction).and_then(|from| held.get(&from).map(|t| (to, t.clone()))),
            OpKind::Register => held.get(&(instruction.op1_register(), None)).map(|target| (to, target.clone())),
            _ => None,
        };
    } else if instruction.mnemonic() == Mnemonic::Lea && to_register && instruction.is_ip_rel_memory_operand() {
        new = Some(((instruction.op0_register(), None), Target::Code(instruction.ip_rel_memory_address())));
    } else if instruction.mnemonic() == Mnemonic::Mov && to_memory && instruction.op1_kind() == OpKind::Register {
        new = stack_word(instruction)
            .and_then(|to| held.get(&(instruction.op1_register(), None)).map(|target| (to, target.clone())));
    }
    let info = factory.info(instruction);
    for used in info.used_registers() {
        if matches!(
            used.access(),
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
        ) {
            let written = used.register().full_register();
            let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            // A call comes back with the stack pointer that it began with.
            if !(is_call && written == Register::RSP) {
                held.retain(|(register, _), _| *register != written);
            }
        }
    }
    for used in info.used_memory() {
        if matches!(
            used.access(),
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
        ) && let Some(at) = stack_word(instruction)
        {
            let Some(at) = at.1 else { continue };
            let size = used.memory_size().size().max(8) as u64;
            held.retain(|(_, word), _| {
                word.is_none_or(|word| word.wrapping_add(8) <= at || word >= at.wrapping_add(size))
            });
        }
    }
    if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        // System V AMD64: rax, rcx, rdx, rsi, rdi, r8 to r11 are the callee's to change.
        let kept =
            [Register::RBX, Register::RBP, Register::RSP, Register::R12, Register::R13, Register::R14, Register::R15];
        held.retain(|(register, _), _| kept.contains(register));
    }
    if let Some((place, target)) = new {
        held.insert(place, target);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    fn resolved(build: impl FnOnce(&mut CodeAssembler)) -> Vec<Target> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        build(&mut assembler);
        let code = assembler.assemble(0x1000).unwrap();
        let decoder = iced_x86::Decoder::with_ip(64, &code, 0x1000, 0);
        resolve(&decoder.into_iter().collect::<Vec<_>>()).into_values().collect()
    }

    #[test]
    fn an_address_survives_calls_in_a_saved_register_and_on_the_stack() {
        let found = resolved(|a| {
            let mut slot = a.create_label();
            a.mov(rbx, qword_ptr(slot)).unwrap();
            a.mov(qword_ptr(rsp + 8), rbx).unwrap();
            a.call(rbx).unwrap();
            a.xor(ebx, ebx).unwrap();
            a.mov(rax, qword_ptr(rsp + 8)).unwrap();
            a.call(rax).unwrap();
            a.call(rax).unwrap(); // rax is the callee's: unknown
            a.ret().unwrap();
            a.set_label(&mut slot).unwrap();
            a.nop().unwrap();
        });
        assert!(
            matches!(found[..], [Target::CodeThrough(one), Target::CodeThrough(other)] if one == other),
            "{found:?}"
        );
    }

    #[test]
    fn paths_that_disagree_leave_nothing() {
        let found = resolved(|a| {
            let mut other = a.create_label();
            let mut both = a.create_label();
            a.test(edi, edi).unwrap();
            a.je(other).unwrap();
            a.lea(rbx, qword_ptr(both)).unwrap();
            a.jmp(both).unwrap();
            a.set_label(&mut other).unwrap();
            a.mov(rbx, rsi).unwrap();
            a.set_label(&mut both).unwrap();
            a.call(rbx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(found, []);
    }

    #[test]
    fn a_loop_that_changes_the_register_is_seen() {
        let found = resolved(|a| {
            let mut again = a.create_label();
            a.lea(rbx, qword_ptr(again)).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(rbx).unwrap();
            a.mov(rbx, rax).unwrap();
            a.jmp(again).unwrap();
        });
        assert_eq!(found, []);
    }
}
