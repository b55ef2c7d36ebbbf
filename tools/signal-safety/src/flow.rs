//! A function's control flow and register values: a forward analysis over the basic blocks.
//!
//! A value claimed for a register holds on every path: where paths meet, only equal values are
//! kept. For the stack pointer the deepest value is kept, so that the depth is an upper bound. A
//! jump through a table is assumed to lead to every block that has no other predecessor; the
//! remaining blocks without one are landing pads, which the unwinder enters with the frame set up
//! and nothing else known.

use std::collections::{BTreeMap, BTreeSet};

use super::decode::operation::{Convention, Effect, Flow, Operation, Place, Register};
use super::program::Machine;

/// The value of a register or a stack word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// An address of code or data.
    Address(u64),
    /// The value at a data address when it was loaded.
    Loaded(u64),
    /// The stack pointer at the function's entry, minus this number of bytes.
    Stack(i64),
    /// The function's argument with this number, from 0.
    Argument(usize),
}

/// Maximum depth of a frame in bytes; the depth of a deeper one is considered unknown.
const MAX_DEPTH: i64 = 64 << 20;

/// The known state at an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    registers: BTreeMap<Register, Value>,
    /// Words of the frame, by their distance in bytes below the stack pointer at entry.
    words: BTreeMap<i64, Value>,
    /// The lowest place in the frame (as its word's key) whose address has escaped.
    ///
    /// Its address is held outside the stack and frame pointers. Called functions may change the
    /// frame from there up.
    escaped: Option<i64>,
}

/// A function's basic blocks, as ranges of its operations.
#[derive(Debug)]
pub(super) struct Flows {
    pub(super) operations: Vec<Operation>,
    /// The first operation of each block, ascending.
    leaders: Vec<usize>,
    /// Each block's successors inside the function.
    pub(super) successors: Vec<Vec<usize>>,
}

/// The results of the analysis.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Bytes of stack in use at a callee's start, by the address of the call or jump.
    pub(super) depths: BTreeMap<u64, i64>,
    /// The maximum bytes of stack in use.
    pub(super) deepest: i64,
    /// A call at which the depth is not known.
    pub(super) unknown_depth: Option<u64>,
    /// The known targets of calls and jumps through a register or a stack word.
    pub(super) through: BTreeMap<u64, Value>,
    /// The known arguments of calls and jumps.
    pub(super) arguments: BTreeMap<u64, Vec<Option<Value>>>,
}

impl Facts {
    /// Returns the value passed as the argument with this number by a call or jump.
    pub(super) fn argument(&self, at: u64, number: usize) -> Option<Value> {
        self.arguments.get(&at)?.get(number).copied().flatten()
    }
}

impl Flows {
    pub(super) fn new(operations: Vec<Operation>) -> Flows {
        let index_of: BTreeMap<u64, usize> = operations.iter().enumerate().map(|(index, o)| (o.at, index)).collect();
        let mut leaders = BTreeSet::from([0]);
        for (index, operation) in operations.iter().enumerate() {
            if let Flow::Branch { to, .. } = operation.flow {
                leaders.extend(index_of.get(&to));
            }
            if !matches!(operation.flow, Flow::Next | Flow::Call(_)) && index + 1 < operations.len() {
                leaders.insert(index + 1);
            }
        }
        let leaders: Vec<usize> = leaders.into_iter().collect();
        let mut flows = Flows { operations, leaders, successors: Vec::new() };
        for block in 0..flows.leaders.len() {
            let mut to = Vec::new();
            if let Some(last) = flows.block(block).last() {
                let next = (block + 1 < flows.leaders.len()).then_some(block + 1);
                match last.flow {
                    Flow::Branch { to: address, conditional } => {
                        let target = index_of.get(&address).and_then(|index| flows.leaders.binary_search(index).ok());
                        to.extend(target);
                        to.extend(next.filter(|_| conditional));
                    }
                    Flow::Next | Flow::Call(_) => to.extend(next),
                    Flow::Jump | Flow::End => {}
                }
            }
            flows.successors.push(to);
        }
        flows.add_table_jumps();
        flows
    }

    /// Returns a block's operations.
    pub(super) fn block(&self, block: usize) -> &[Operation] {
        let start = self.leaders[block];
        let end = self.leaders.get(block + 1).copied().unwrap_or(self.operations.len());
        &self.operations[start..end]
    }

    /// Adds an edge from each jump through a table to every block without a predecessor.
    fn add_table_jumps(&mut self) {
        let reached: BTreeSet<usize> = self.successors.iter().flatten().copied().chain([0]).collect();
        let orphans: Vec<usize> = (0..self.leaders.len()).filter(|block| !reached.contains(block)).collect();
        for block in 0..self.leaders.len() {
            if self.is_table_jump(block) {
                self.successors[block].extend(&orphans);
            }
        }
    }

    fn is_table_jump(&self, block: usize) -> bool {
        self.block(block).last().is_some_and(|last| last.flow == Flow::Jump)
    }

    /// Computes the registers' values and the stack's depth.
    pub(super) fn facts(&self, machine: Machine) -> Facts {
        Analysis {
            flows: self,
            convention: Convention::for_machine(machine),
            states: vec![None; self.leaders.len()],
            deepened: vec![0; self.leaders.len()],
            facts: Facts::default(),
        }
        .run()
    }
}

struct Analysis<'a> {
    flows: &'a Flows,
    convention: Convention,
    /// The state at each block's start.
    states: Vec<Option<State>>,
    /// Number of times that each block's start was found to be deeper than before.
    deepened: Vec<u32>,
    facts: Facts,
}

impl Analysis<'_> {
    fn run(mut self) -> Facts {
        if self.flows.operations.is_empty() {
            return self.facts;
        }
        let arguments = self.convention.arguments.iter().enumerate();
        let mut entry = State::default();
        entry.registers.extend(arguments.map(|(index, register)| (*register, Value::Argument(index))));
        entry.registers.insert(self.convention.stack_pointer, Value::Stack(0));
        self.states[0] = Some(entry);
        self.settle(BTreeSet::from([0]));
        let pads: BTreeSet<usize> =
            (0..self.states.len()).filter(|block| self.states[*block].is_none() && !self.is_padding(*block)).collect();
        for pad in &pads {
            let mut state = State::default();
            state.registers.insert(self.convention.stack_pointer, Value::Stack(self.facts.deepest));
            self.states[*pad] = Some(state);
        }
        self.settle(pads);
        self.note();
        self.facts
    }

    fn is_padding(&self, block: usize) -> bool {
        self.flows.block(block).iter().all(|o| o.flow == Flow::End || o.writes.is_empty() && o.reads.is_empty())
    }

    /// Processes blocks until nothing changes.
    fn settle(&mut self, mut waiting: BTreeSet<usize>) {
        while let Some(block) = waiting.pop_first() {
            let Some(mut state) = self.states[block].clone() else { continue };
            let mut probe = None;
            for operation in self.flows.block(block) {
                self.step(operation, &mut state);
                if let Some(limit) = operation.probe {
                    probe = state.registers.get(&limit).copied();
                }
            }
            let is_table = self.flows.is_table_jump(block);
            for (index, successor) in self.flows.successors[block].iter().enumerate() {
                // A loop that probes each page of a large frame: it ends with the stack pointer at
                // the limit.
                let mut state = state.clone();
                if let Some(Value::Stack(limit)) = probe
                    && self.flows.successors[block].len() == 2
                {
                    if index == 0 && *successor <= block {
                        continue;
                    }
                    state.registers.insert(self.convention.stack_pointer, Value::Stack(limit));
                    self.facts.deepest = self.facts.deepest.max(limit);
                }
                if self.meet(*successor, state) {
                    waiting.insert(*successor);
                }
            }
            // Its table may also lead to blocks that have other predecessors.
            if is_table {
                for other in 0..self.states.len() {
                    if let Some(known) = &mut self.states[other]
                        && keep_common(known, &state, self.convention.stack_pointer)
                    {
                        waiting.insert(other);
                    }
                }
            }
        }
    }

    /// Merges a path's state into a block's. Returns true if less is known now.
    fn meet(&mut self, block: usize, state: State) -> bool {
        let sp = self.convention.stack_pointer;
        let Some(known) = &mut self.states[block] else {
            self.states[block] = Some(state);
            return true;
        };
        let mut changed = keep_common(known, &state, sp);
        let depth = |state: &State| match state.registers.get(&sp) {
            Some(Value::Stack(depth)) => Some(*depth),
            _ => None,
        };
        match (depth(known), depth(&state)) {
            (Some(before), Some(now)) if now > before => {
                self.deepened[block] += 1;
                if self.deepened[block] > 16 || now > MAX_DEPTH {
                    known.registers.remove(&sp);
                } else {
                    known.registers.insert(sp, Value::Stack(now));
                }
                changed = true;
            }
            (Some(_), None) => {
                known.registers.remove(&sp);
                changed = true;
            }
            _ => {}
        }
        changed
    }

    /// Updates the state after an instruction.
    fn step(&mut self, operation: &Operation, state: &mut State) {
        let sp = self.convention.stack_pointer;
        let mut set = BTreeSet::new();
        let mut values = Vec::new();
        for effect in &operation.effects {
            let value = |state: &State, register: Register| state.registers.get(&register).copied();
            let (to, new) = match *effect {
                Effect::Address { to, address } => (to, Some(Value::Address(address))),
                Effect::Load { to, address } => (to, Some(Value::Loaded(address))),
                Effect::Copy { to, from, add } => (to, value(state, from).and_then(|value| moved(value, add))),
                Effect::Fill { to, base, offset } => {
                    let new = match value(state, base) {
                        Some(Value::Stack(depth)) => state.words.get(&(depth - offset)).copied(),
                        Some(Value::Address(address)) => Some(Value::Loaded(address.wrapping_add(offset as u64))),
                        _ => None,
                    };
                    // A pair is loaded from the same base.
                    values.push((to, new));
                    set.insert(to);
                    continue;
                }
                Effect::Store { base, offset, from } => {
                    if let Some(Value::Stack(depth)) = value(state, base) {
                        forget_words(state, depth - offset, 8);
                        if let Some(value) = value(state, from) {
                            state.words.insert(depth - offset, value);
                        }
                    }
                    continue;
                }
                Effect::Align { register, alignment } => {
                    let new = match value(state, register) {
                        Some(Value::Stack(depth)) => Some(Value::Stack(depth + alignment - 1)),
                        _ => None,
                    };
                    state.words.clear();
                    (register, new)
                }
            };
            set.insert(to);
            put(state, to, new);
            if to == sp
                && let Some(Value::Stack(depth)) = new
            {
                self.facts.deepest = self.facts.deepest.max(depth);
            }
        }
        for (to, new) in values {
            put(state, to, new);
        }
        let is_call = matches!(operation.flow, Flow::Call(_));
        for place in &operation.writes {
            match *place {
                Place::Register(register) if !(set.contains(&register) || is_call && register == sp) => {
                    state.registers.remove(&register);
                }
                Place::Word(base, offset) if operation.effects.is_empty() && !is_call => {
                    if let Some(Value::Stack(depth)) = state.registers.get(&base) {
                        let word = depth - offset;
                        // At most the size of the widest vector register.
                        forget_words(state, word, 64);
                    }
                }
                _ => {}
            }
        }
        let frame_pointer = self.convention.frame_pointer;
        for (register, value) in &state.registers {
            if let Value::Stack(depth) = value
                && *register != sp
                && *register != frame_pointer
            {
                state.escaped = state.escaped.max(Some(*depth));
            }
        }
        if let Some(escaped) = state.escaped
            && (is_call || operation.stores)
        {
            state.words.retain(|word, _| *word > escaped);
        }
        if is_call {
            state.registers.retain(|register, _| *register == sp || self.convention.kept.contains(register));
        }
    }

    /// Records the state at each instruction that leaves the function.
    fn note(&mut self) {
        let convention = self.convention;
        for block in 0..self.states.len() {
            let Some(mut state) = self.states[block].take() else { continue };
            for operation in self.flows.block(block) {
                let leaves = !matches!(operation.flow, Flow::Next | Flow::End) || operation.system_call;
                if leaves {
                    let (at, is_call) = (operation.at, matches!(operation.flow, Flow::Call(_)));
                    match state.registers.get(&convention.stack_pointer) {
                        Some(Value::Stack(depth)) if is_call => {
                            self.facts.depths.insert(at, depth + convention.return_address);
                        }
                        Some(Value::Stack(depth)) => drop(self.facts.depths.insert(at, *depth)),
                        None if is_call => self.facts.unknown_depth = Some(at),
                        _ => {}
                    }
                    let through = operation.through.and_then(|(register, offset)| {
                        let value = state.registers.get(&register).copied();
                        match (value, offset) {
                            (value, None) => value,
                            (Some(Value::Stack(depth)), Some(offset)) => state.words.get(&(depth - offset)).copied(),
                            _ => None,
                        }
                    });
                    if let Some(value) = through {
                        self.facts.through.insert(at, value);
                    }
                    let arguments = convention.arguments.iter().map(|register| state.registers.get(register).copied());
                    self.facts.arguments.insert(at, arguments.collect());
                }
                self.step(operation, &mut state);
            }
        }
    }
}

/// Keeps what two states have in common, except the stack pointer.
///
/// Returns true if something was dropped.
fn keep_common(known: &mut State, other: &State, sp: Register) -> bool {
    let before = known.registers.len() + known.words.len();
    known.registers.retain(|register, value| *register == sp || other.registers.get(register) == Some(value));
    known.words.retain(|word, value| other.words.get(word) == Some(value));
    let escaped = known.escaped.max(other.escaped);
    let escapes = escaped != known.escaped;
    known.escaped = escaped;
    escapes || known.registers.len() + known.words.len() != before
}

fn put(state: &mut State, register: Register, value: Option<Value>) {
    match value {
        Some(value) => drop(state.registers.insert(register, value)),
        None => drop(state.registers.remove(&register)),
    }
}

fn moved(value: Value, add: i64) -> Option<Value> {
    match value {
        Value::Address(address) => Some(Value::Address(address.wrapping_add(add as u64))),
        Value::Stack(depth) => Some(Value::Stack(depth - add)),
        Value::Loaded(_) | Value::Argument(_) => (add == 0).then_some(value),
    }
}

/// Forgets the words that a store of `bytes` bytes to a word's address changes.
fn forget_words(state: &mut State, word: i64, bytes: i64) {
    state.words.retain(|known, _| *known <= word - bytes || *known >= word + 8);
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::super::decode::operation;
    use super::*;

    fn flows(build: impl FnOnce(&mut CodeAssembler)) -> Flows {
        let mut assembler = CodeAssembler::new(64).unwrap();
        build(&mut assembler);
        Flows::new(operation::decode(Machine::X86_64, &assembler.assemble(0x1000).unwrap(), 0x1000))
    }

    fn through(build: impl FnOnce(&mut CodeAssembler)) -> Vec<Value> {
        flows(build).facts(Machine::X86_64).through.into_values().collect()
    }

    #[test]
    fn an_address_survives_calls_in_a_saved_register_and_on_the_stack() {
        let found = through(|a| {
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
        assert!(matches!(found[..], [Value::Loaded(one), Value::Loaded(other)] if one == other), "{found:?}");
    }

    #[test]
    fn a_word_whose_address_escapes_is_unknown_after_a_call() {
        let found = through(|a| {
            let mut other = a.create_label();
            a.lea(rax, qword_ptr(other)).unwrap();
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.lea(rdi, rsp + 8).unwrap();
            a.call(other).unwrap();
            a.call(qword_ptr(rsp + 8)).unwrap();
            a.set_label(&mut other).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(found, []);
    }

    #[test]
    fn paths_that_disagree_leave_nothing() {
        let found = through(|a| {
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
        let found = through(|a| {
            let mut again = a.create_label();
            a.lea(rbx, qword_ptr(again)).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(rbx).unwrap();
            a.mov(rbx, rax).unwrap();
            a.jmp(again).unwrap();
        });
        assert_eq!(found, []);
    }

    #[test]
    fn the_deepest_path_of_a_frame_counts() {
        let facts = flows(|a| {
            let mut end = a.create_label();
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.test(edi, edi).unwrap();
            a.je(end).unwrap();
            a.sub(rsp, 0x100).unwrap();
            a.call(end).unwrap();
            a.set_label(&mut end).unwrap();
            a.leave().unwrap();
            a.ret().unwrap();
        })
        .facts(Machine::X86_64);
        assert_eq!(facts.deepest, 0x108);
        assert_eq!(facts.depths.values().max(), Some(&0x110));
        assert_eq!(facts.unknown_depth, None);
    }

    #[test]
    fn a_probed_frame_is_as_large_as_its_limit_and_a_variable_one_unknown() {
        let probed = flows(|a| {
            let mut again = a.create_label();
            a.lea(r11, rsp - 0x10000).unwrap();
            a.set_label(&mut again).unwrap();
            a.sub(rsp, 0x1000).unwrap();
            a.cmp(rsp, r11).unwrap();
            a.jne(again).unwrap();
            a.call(again).unwrap();
            a.ret().unwrap();
        })
        .facts(Machine::X86_64);
        assert_eq!((probed.deepest, probed.unknown_depth), (0x10000, None));
        let variable = flows(|a| {
            let mut end = a.create_label();
            a.sub(rsp, rdi).unwrap();
            a.call(end).unwrap();
            a.set_label(&mut end).unwrap();
            a.ret().unwrap();
        })
        .facts(Machine::X86_64);
        assert!(variable.unknown_depth.is_some());
    }

    #[test]
    fn an_arm64_frame() {
        // stp x29, x30, [sp, #-32]!; mov x29, sp; sub sp, sp, #0x40; bl .; mov sp, x29; ldp x29,
        // x30, [sp], #32; ret
        let words = [0xa9be_7bfd_u32, 0x9100_03fd, 0xd101_03ff, 0x9400_0004, 0x9100_03bf, 0xa8c2_7bfd, 0xd65f_03c0];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let facts = Flows::new(operation::decode(Machine::Aarch64, &code, 0x1000)).facts(Machine::Aarch64);
        assert_eq!((facts.deepest, facts.unknown_depth), (0x60, None));
        assert_eq!(facts.argument(0x100c, 0), Some(Value::Argument(0)));
    }
}
