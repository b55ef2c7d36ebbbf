//! References in x86_64 code, decoded by `iced-x86`.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Reference, Target};

/// Number of preceding instructions to search for a system call's number or a jump table.
const NEARBY: usize = 24;

/// Returns the references in `code`, which is at address `start`.
pub(crate) fn references(code: &[u8], start: u64) -> Vec<Reference> {
    let instructions: Vec<Instruction> = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter().collect();
    let mut found = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let at = instruction.ip();
        let before = &instructions[index.saturating_sub(NEARBY)..index];
        let mut add = |target| found.push(Reference { at, target });
        match instruction.mnemonic() {
            Mnemonic::Syscall => add(Target::SystemCall(system_call_number(before))),
            Mnemonic::Call | Mnemonic::Jmp => match instruction.op0_kind() {
                OpKind::NearBranch64 => add(Target::Code(instruction.near_branch64())),
                OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                    add(Target::CodeThrough(instruction.ip_rel_memory_address()));
                }
                _ if is_table_jump(instruction, before) => {}
                _ => add(Target::Unknown),
            },
            _ => {
                if instruction.is_jcc_short_or_near() {
                    add(Target::Code(instruction.near_branch64()));
                } else if instruction.is_ip_rel_memory_operand() {
                    let address = instruction.ip_rel_memory_address();
                    let takes = instruction.mnemonic() == Mnemonic::Lea;
                    add(if takes { Target::Address(address) } else { Target::Load(address) });
                }
                if instruction.memory_segment() == Register::FS {
                    add(Target::ThreadLocal);
                }
            }
        }
    }
    found
}

/// Returns the number in eax at a `syscall`, if the last write to it was a constant.
fn system_call_number(before: &[Instruction]) -> Option<u32> {
    let writer = before.iter().rev().find(|instruction| {
        instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().full_register() == Register::RAX
            && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
    })?;
    match writer.mnemonic() {
        Mnemonic::Mov if writer.op1_kind() != OpKind::Register && writer.op1_kind() != OpKind::Memory => {
            u32::try_from(writer.immediate(1)).ok()
        }
        Mnemonic::Xor if writer.op1_kind() == OpKind::Register && writer.op1_register() == writer.op0_register() => {
            Some(0)
        }
        Mnemonic::Pop => {
            let push = before.iter().rev().find(|instruction| instruction.mnemonic() == Mnemonic::Push)?;
            (push.op0_kind() != OpKind::Register).then(|| push.immediate(0) as u32)
        }
        _ => None,
    }
}

/// Whether a jump goes through a table of distances, which compilers generate for a `match`.
///
/// Such code is `movsxd r, [table + 4 * index]; add r, table; jmp r`. The jump stays inside the
/// function.
fn is_table_jump(jump: &Instruction, before: &[Instruction]) -> bool {
    if jump.mnemonic() != Mnemonic::Jmp {
        return false;
    }
    let near = &before[before.len().saturating_sub(12)..];
    let register = match jump.op0_kind() {
        OpKind::Register => jump.op0_register(),
        // The compiler ran out of registers: the sum was just stored on the stack.
        OpKind::Memory if jump.memory_base() == Register::RSP && jump.memory_index() == Register::None => {
            let is_same = |store: &&Instruction| {
                store.mnemonic() == Mnemonic::Mov
                    && store.op0_kind() == OpKind::Memory
                    && store.op1_kind() == OpKind::Register
                    && store.memory_base() == Register::RSP
                    && store.memory_index() == Register::None
                    && store.memory_displacement64() == jump.memory_displacement64()
            };
            match near.iter().rev().find(is_same) {
                Some(store) => store.op1_register(),
                None => return false,
            }
        }
        _ => return false,
    };
    let writes = |mnemonic: Mnemonic| {
        near.iter().any(|instruction| {
            instruction.mnemonic() == mnemonic && instruction.op0_register().full_register() == register.full_register()
        })
    };
    let loads = near.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Movsxd);
    writes(Mnemonic::Add) && loads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(code: &[u8]) -> Vec<Target> {
        references(code, 0x1000).into_iter().map(|reference| reference.target).collect()
    }

    #[test]
    fn calls_and_addresses() {
        assert_eq!(targets(&[0xe8, 0x10, 0, 0, 0]), [Target::Code(0x1015)]); // call
        assert_eq!(targets(&[0xe9, 0x10, 0, 0, 0]), [Target::Code(0x1015)]); // jmp
        assert_eq!(targets(&[0xff, 0x15, 0x10, 0, 0, 0]), [Target::CodeThrough(0x1016)]); // call [rip + 0x10]
        assert_eq!(targets(&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0]), [Target::Address(0x1017)]); // lea rax, [rip + 0x10]
        assert_eq!(targets(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0]), [Target::Load(0x1017)]); // mov rax, [rip + 0x10]
        assert_eq!(targets(&[0xff, 0xd0]), [Target::Unknown]); // call rax
        assert_eq!(targets(&[0xff, 0x50, 0x18]), [Target::Unknown]); // call [rax + 0x18]
        assert_eq!(targets(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]), [Target::ThreadLocal]); // mov rax, fs:[0]
    }

    #[test]
    fn system_calls() {
        assert_eq!(targets(&[0xb8, 0x27, 0, 0, 0, 0x0f, 0x05]), [Target::SystemCall(Some(39))]); // mov eax, 39
        assert_eq!(targets(&[0x31, 0xc0, 0x0f, 0x05]), [Target::SystemCall(Some(0))]); // xor eax, eax
        assert_eq!(targets(&[0x6a, 0x27, 0x58, 0x0f, 0x05]), [Target::SystemCall(Some(39))]); // push 39; pop rax
        assert_eq!(targets(&[0x89, 0xf8, 0x0f, 0x05]), [Target::SystemCall(None)]); // mov eax, edi
    }

    #[test]
    fn a_match_is_not_an_unknown_jump() {
        // movsxd rax, [rcx + rdi * 4]; add rax, rcx; jmp rax
        assert_eq!(targets(&[0x48, 0x63, 0x04, 0xb9, 0x48, 0x01, 0xc8, 0xff, 0xe0]), []);
        // movsxd rax, [rcx + rdi * 4]; add rax, rcx; mov [rsp + 0x20], rax; jmp [rsp + 0x20] (and
        // [rsp + 0x28])
        let spilled = |at| {
            targets(&[0x48, 0x63, 0x04, 0xb9, 0x48, 0x01, 0xc8, 0x48, 0x89, 0x44, 0x24, 0x20, 0xff, 0x64, 0x24, at])
        };
        assert_eq!((spilled(0x20), spilled(0x28)), (vec![], vec![Target::Unknown]));
        assert_eq!(targets(&[0xff, 0xe0]), [Target::Unknown]);
    }
}
