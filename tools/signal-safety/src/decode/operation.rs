//! Machine-independent instructions for the analyses of flow, constants, stack use and loops.

use super::super::program::{Function, Machine, Program};

/// A general register: x86_64's encoding (rsp is 4); arm64's x0 to x30, and 31 for sp.
pub(crate) type Register = u8;

/// A place that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A general register.
    Register(Register),
    /// A vector register.
    Vector(u8),
    /// The condition flags.
    Flags,
    /// A word of the stack: a register with a stack address, and the distance from it in bytes.
    Word(Register, i64),
}

/// Control flow after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// To an address, or also to the next instruction if the branch is conditional.
    Branch {
        to: u64,
        conditional: bool,
    },
    /// To a function and back; the address if the instruction contains it.
    Call(Option<u64>),
    /// Through a register or memory, without return: a jump table or a tail call.
    Jump,
    /// Out of the function, or nowhere (a trap).
    End,
}

/// An instruction's effect on known registers and stack words. All forms are 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// `to = address`
    Address { to: Register, address: u64 },
    /// `to = *address`
    Load { to: Register, address: u64 },
    /// `to = from + add`
    Copy { to: Register, from: Register, add: i64 },
    /// `*(base + offset) = from`
    Store { base: Register, offset: i64, from: Register },
    /// `to = *(base + offset)`
    Fill { to: Register, base: Register, offset: i64 },
    /// `register &= -alignment`
    Align { register: Register, alignment: i64 },
}

/// An instruction's access to memory that other threads may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    /// Compare and exchange; the register with the expected value, which receives the old one.
    CompareExchange(Register),
    /// An exchange, or another read-modify-write that may take a lock (`bts`, `or`).
    Exchange,
    /// An addition, which makes progress by itself.
    Add,
    /// A load-exclusive, which a store-exclusive completes.
    LoadExclusive,
    /// A store-exclusive; the register that receives its status.
    StoreExclusive(Register),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub at: u64,
    pub flow: Flow,
    pub reads: Vec<Place>,
    pub writes: Vec<Place>,
    /// Effects in order.
    pub effects: Vec<Effect>,
    pub atomic: Option<Atomic>,
    /// The registers of a load's address, if the load is not from the stack.
    pub loads: Option<Vec<Register>>,
    /// Whether it stores to memory other than the stack.
    pub stores: bool,
    pub system_call: bool,
    /// Whether it is an instruction for waiting loops (`pause`, `yield`, `isb`, `wfe`).
    pub pauses: bool,
    /// The operand of an indirect call or jump: a register, or a memory word relative to one.
    pub through: Option<(Register, Option<i64>)>,
    /// The register that it compares with the stack pointer.
    ///
    /// The comparison ends a loop that probes a large frame.
    pub probe: Option<Register>,
}

impl Operation {
    pub(super) fn new(at: u64) -> Operation {
        Operation {
            at,
            flow: Flow::Next,
            reads: Vec::new(),
            writes: Vec::new(),
            effects: Vec::new(),
            atomic: None,
            loads: None,
            stores: false,
            system_call: false,
            pauses: false,
            through: None,
            probe: None,
        }
    }

    /// Whether it computes only from registers.
    pub(crate) fn is_arithmetic(&self) -> bool {
        self.loads.is_none() && self.atomic.is_none() && !matches!(self.flow, Flow::Call(_)) && !self.system_call
    }
}

/// A machine's calling convention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convention {
    pub stack_pointer: Register,
    pub frame_pointer: Register,
    /// Registers for arguments, in order.
    pub arguments: &'static [Register],
    /// Registers that a call preserves, without the stack pointer.
    pub kept: &'static [Register],
    /// Bytes that a call itself pushes on the stack.
    pub return_address: i64,
}

impl Convention {
    pub(crate) fn for_machine(machine: Machine) -> Convention {
        match machine {
            // System V AMD64 ABI, figure 3.4: rdi, rsi, rdx, rcx, r8, r9; rbx, rbp, r12 to r15.
            Machine::X86_64 => Convention {
                stack_pointer: 4,
                frame_pointer: 5,
                arguments: &[7, 6, 2, 1, 8, 9],
                kept: &[3, 5, 12, 13, 14, 15],
                return_address: 8,
            },
            // AAPCS64, section 6.1.1.
            Machine::Aarch64 => Convention {
                stack_pointer: 31,
                frame_pointer: 29,
                arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
                kept: &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
                return_address: 0,
            },
        }
    }
}

/// Decodes a function's instructions.
pub(crate) fn operations(program: &Program, function: &Function) -> Vec<Operation> {
    decode(program.machine, program.code(function), function.start)
}

/// Decodes the instructions of a function whose `code` is at address `start`.
pub(crate) fn decode(machine: Machine, code: &[u8], start: u64) -> Vec<Operation> {
    let convention = Convention::for_machine(machine);
    let mut operations = match machine {
        Machine::X86_64 => super::x86_64_operations::operations(code, start),
        Machine::Aarch64 => super::aarch64_operations::operations(code, start),
    };
    for operation in operations.iter_mut().filter(|operation| matches!(operation.flow, Flow::Call(_))) {
        let arguments = convention.arguments.iter().copied();
        operation.reads.extend(arguments.map(Place::Register));
        let lost = (0..31).filter(|r| *r != convention.stack_pointer && !convention.kept.contains(r));
        operation.writes.extend(lost.map(Place::Register));
    }
    // A function may use the frame pointer for anything: then a word relative to it is not a word
    // of the stack.
    let sets_frame_pointer = |operation: &Operation| {
        operation.effects.iter().any(|effect| {
            matches!(effect, Effect::Copy { to, from, .. } if *to != *from && *from == convention.stack_pointer)
        })
    };
    if !operations.iter().any(sets_frame_pointer) {
        let is_other = |place: &Place| matches!(place, Place::Word(base, _) if *base != convention.stack_pointer);
        for operation in &mut operations {
            for place in operation.reads.extract_if(.., |place| is_other(place)) {
                if let Place::Word(base, _) = place {
                    operation.loads.get_or_insert_default().push(base);
                }
            }
            operation.stores |= operation.writes.extract_if(.., |place| is_other(place)).count() > 0;
        }
    }
    operations
}
