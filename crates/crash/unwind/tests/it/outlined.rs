//! Outlined functions on arm64, as created by LLVM: a small machine runs each program and tracks
//! the true stack, and a walk at every instruction must find all of it. (`cargo xtask oracle` does
//! the same with compiled programs.)

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::registers::Aarch64Registers;
use coroner_unwind::{Aarch64, Image, ImageFormat, Options, RuleCache, Walker};
use std::collections::HashMap;

const BASE: u64 = 0x1_0000_0000;
const CODE: u64 = BASE + 0x1000;
const INFO: u64 = BASE + 0x8000;
const STACK: u64 = 0x7000_0000;
const STACK_LENGTH: usize = 0x1000;

const SP: usize = 31;
const LR: usize = 30;
const FP: usize = 29;

/// Compact encodings: a frame record with register pairs below it, from x19 and x20 on, and a
/// frameless function.
const FRAME: u32 = 0x0400_0000;
const FRAME_ONE_PAIR: u32 = 0x0400_0001;
const FRAME_TWO_PAIRS: u32 = 0x0400_0003;
const FRAMELESS: u32 = 0x0200_0000;

/// An instruction. Offsets of loads and stores are in bytes from the stack pointer.
#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// `stp a, b, [sp, #-bytes]!`
    Push2(usize, usize, i64),
    /// `ldp a, b, [sp], #bytes`
    Pop2(usize, usize, i64),
    /// `stp a, b, [sp, #offset]`
    Store2(usize, usize, i64),
    /// `ldp a, b, [sp, #offset]`
    Load2(usize, usize, i64),
    /// `str x30, [sp, #-16]!`
    PushLink,
    /// `ldr x30, [sp], #16`
    PopLink,
    /// `add to, from, #bytes`, or `sub`; register 31 is the stack pointer
    Add(usize, usize, i64),
    /// `mov to, from`
    Move(usize, usize),
    /// `mov to, #value`
    Set(usize, u64),
    Call(&'static str),
    Jump(&'static str),
    /// `ret` to the address in this register
    Return(usize),
    /// The end of the program: `brk #1`
    End,
}
use Instruction::{Add, Call, End, Jump, Load2, Move, Pop2, PopLink, Push2, PushLink, Return, Set, Store2};

/// A function: its name, compact encoding and code.
type Function = (&'static str, u32, Vec<Instruction>);

struct Program {
    functions: Vec<Function>,
    starts: HashMap<&'static str, u64>,
    code: Vec<u8>,
    info: Vec<u8>,
}

impl Program {
    fn new(functions: Vec<Function>) -> Program {
        let mut starts = HashMap::new();
        let mut at = CODE;
        for (name, _, code) in &functions {
            starts.insert(*name, at);
            at += 4 * code.len() as u64;
        }
        let mut words = Vec::new();
        for (_, _, code) in &functions {
            for instruction in code {
                let at = CODE + 4 * words.len() as u64;
                words
                    .push(encode(*instruction, |name| (starts[name].wrapping_sub(at) as i64 / 4) as u32 & 0x03ff_ffff));
            }
        }
        // One regular page of __unwind_info.
        let count = functions.len() as u32;
        let offset = |address: u64| (address - BASE) as u32;
        let mut info = vec![1, 28, 0, 28, 0, 28, 2, offset(CODE), 52, 0, offset(at), 0, 0];
        info.extend([2, 8 | count << 16]);
        for (name, encoding, _) in &functions {
            info.extend([offset(starts[name]), *encoding]);
        }
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (code, info) = (bytes(&words), bytes(&info));
        Program { functions, starts, code, info }
    }

    fn instruction(&self, pc: u64) -> Instruction {
        let (name, _, code) =
            self.functions.iter().rev().find(|(name, _, _)| self.starts[name] <= pc).expect("a pc in the code");
        code[((pc - self.starts[name]) / 4) as usize]
    }

    fn describe(&self, pc: u64) -> String {
        let function = self.functions.iter().rev().find(|(name, _, _)| self.starts[name] <= pc);
        function.map_or(format!("{pc:#x}"), |(name, _, _)| format!("{name}+{:#x}", pc - self.starts[name]))
    }
}

fn encode(instruction: Instruction, distance: impl Fn(&'static str) -> u32) -> u32 {
    let pair = |base: u32, a: usize, b: usize, offset: i64| {
        base | ((offset / 8) as u32 & 0x7f) << 15 | (b as u32) << 10 | (SP as u32) << 5 | a as u32
    };
    match instruction {
        Push2(a, b, bytes) => pair(0xa980_0000, a, b, -bytes),
        Pop2(a, b, bytes) => pair(0xa8c0_0000, a, b, bytes),
        Store2(a, b, offset) => pair(0xa900_0000, a, b, offset),
        Load2(a, b, offset) => pair(0xa940_0000, a, b, offset),
        PushLink => 0xf81f_0ffe,
        PopLink => 0xf841_07fe,
        Add(to, from, bytes) => {
            let base: u32 = if bytes < 0 { 0xd100_0000 } else { 0x9100_0000 };
            base | (bytes.unsigned_abs() as u32) << 10 | (from as u32) << 5 | to as u32
        }
        Move(to, from) => 0xaa00_03e0 | (from as u32) << 16 | to as u32,
        Set(to, value) => 0xd280_0000 | (value as u32) << 5 | to as u32,
        Call(name) => 0x9400_0000 | distance(name),
        Jump(name) => 0x1400_0000 | distance(name),
        Return(link) => 0xd65f_0000 | (link as u32) << 5,
        End => 0xd420_0020,
    }
}

/// A call that has not returned: its number, return address, and the caller's stack pointer and
/// registers.
#[derive(Clone, Copy)]
struct PendingCall {
    number: usize,
    pc: u64,
    sp: u64,
    x: [u64; 32],
}

struct Machine {
    x: [u64; 32],
    pc: u64,
    stack: Vec<u8>,
    calls: Vec<PendingCall>,
    call_count: usize,
}

impl Machine {
    fn new(program: &Program) -> Machine {
        let mut x = [0; 32];
        for (number, value) in x.iter_mut().enumerate().skip(19).take(10) {
            *value = 0xaaaa_0000 + number as u64;
        }
        // The bottom of the stack: no frame pointer and no return address.
        (x[FP], x[LR], x[SP]) = (0, 0, STACK + STACK_LENGTH as u64 - 64);
        Machine { x, pc: program.starts["main"], stack: vec![0x5a; STACK_LENGTH], calls: Vec::new(), call_count: 0 }
    }

    fn word(&mut self, offset: i64) -> &mut [u8] {
        let from = (self.x[SP].wrapping_add_signed(offset) - STACK) as usize;
        &mut self.stack[from..from + 8]
    }

    fn store(&mut self, number: usize, offset: i64) {
        let value = self.x[number];
        self.word(offset).copy_from_slice(&value.to_le_bytes());
    }

    fn load(&mut self, number: usize, offset: i64) {
        self.x[number] = u64::from_le_bytes((*self.word(offset)).try_into().expect("eight bytes"));
    }

    fn move_sp(&mut self, bytes: i64) {
        self.x[SP] = self.x[SP].wrapping_add_signed(bytes);
    }

    /// Runs an instruction. For a return, returns the call that has returned.
    fn run(&mut self, program: &Program) -> Option<PendingCall> {
        let mut next = self.pc + 4;
        let mut returned = None;
        match program.instruction(self.pc) {
            Push2(a, b, bytes) => {
                self.move_sp(-bytes);
                self.store(a, 0);
                self.store(b, 8);
            }
            Pop2(a, b, bytes) => {
                self.load(a, 0);
                self.load(b, 8);
                self.move_sp(bytes);
            }
            Store2(a, b, offset) => {
                self.store(a, offset);
                self.store(b, offset + 8);
            }
            Load2(a, b, offset) => {
                self.load(a, offset);
                self.load(b, offset + 8);
            }
            PushLink => {
                self.move_sp(-16);
                self.store(LR, 0);
            }
            PopLink => {
                self.load(LR, 0);
                self.move_sp(16);
            }
            Add(to, from, bytes) => self.x[to] = self.x[from].wrapping_add_signed(bytes),
            Move(to, from) => self.x[to] = self.x[from],
            Set(to, value) => self.x[to] = value,
            Call(name) => {
                self.calls.push(PendingCall { number: self.call_count, pc: next, sp: self.x[SP], x: self.x });
                self.call_count += 1;
                self.x[LR] = next;
                next = program.starts[name];
            }
            Jump(name) => next = program.starts[name],
            Return(link) => {
                next = self.x[link];
                let call = self.calls.pop().expect("a return without a call");
                assert_eq!(next, call.pc, "return to the wrong address");
                returned = Some(call);
            }
            End => unreachable!("the program has ended"),
        }
        self.pc = next;
        returned
    }

    fn has_ended(&self, program: &Program) -> bool {
        matches!(program.instruction(self.pc), End)
    }
}

/// Walks at each instruction of a program whose `main` calls the tested function, and checks every
/// frame's address, stack pointer and preserved registers: a caller's stack pointer is the one with
/// which its call returns. Returns the number of walks.
fn check_every_instruction(functions: Vec<Function>) -> usize {
    let program = Program::new(functions);
    // The first run determines the stack pointers with which calls return.
    let mut machine = Machine::new(&program);
    let mut returns = HashMap::new();
    while !machine.has_ended(&program) {
        if let Some(call) = machine.run(&program) {
            returns.insert(call.number, machine.x);
        }
    }
    let mut machine = Machine::new(&program);
    let image = Image {
        format: ImageFormat::MachO,
        text: (CODE..CODE + program.code.len() as u64).into(),
        base: BASE,
        unwind_info: (INFO..INFO + program.info.len() as u64).into(),
        ..Image::default()
    };
    let images = [image];
    let mut cache = Box::new(RuleCache::new());
    let options = Options { scan_words: 0, ..Options::default() };
    let mut walks = 0;
    loop {
        let mut truth = vec![(machine.pc, machine.x[SP])];
        truth.extend(machine.calls.iter().rev().map(|call| {
            let sp = returns.get(&call.number).map_or(call.sp, |x| x[SP]);
            (call.pc, sp)
        }));
        let ranges = [
            SnapshotRange { address: CODE, bytes: &program.code },
            SnapshotRange { address: INFO, bytes: &program.info },
            SnapshotRange { address: STACK, bytes: &machine.stack },
        ];
        // On some systems a thread's pc contains the kernel's authentication code.
        let pc = machine.pc | 0x1d_u64 << 48;
        let mut registers = Aarch64Registers { pc, sp: machine.x[SP], ..Default::default() };
        registers.x.copy_from_slice(&machine.x[..31]);
        // With the cache of the previous walks, and with an empty one.
        for fresh in [false, true] {
            if fresh {
                cache.clear();
            }
            let memory = Snapshot { ranges: &ranges };
            let mut walker = Walker::<Aarch64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
            let mut below = machine.x;
            for (index, (pc, sp)) in truth.iter().enumerate() {
                let place = format!("at {}, frame {index}", program.describe(machine.pc));
                let frame = walker.frame();
                assert_eq!((program.describe(frame.pc), frame.sp), (program.describe(*pc), *sp), "{place}");
                let call = index.checked_sub(1).map(|above| machine.calls[machine.calls.len() - 1 - above]);
                for number in 19..29 {
                    let Some(seen) = walker.registers().certain(number) else { continue };
                    let number = usize::from(number);
                    let right = call.map_or(seen == below[number], |call| {
                        // A register set by an outlined function has the value set so far in the
                        // function that called it.
                        let after = returns.get(&call.number).map_or(call.x[number], |x| x[number]);
                        seen == call.x[number] || after != call.x[number] && (seen == after || seen == below[number])
                    });
                    assert!(right, "{place}: x{number} is {seen:#x}");
                }
                if let Some(call) = call {
                    below = call.x;
                }
                let last = index + 1 == truth.len();
                assert_eq!(walker.step().is_err(), last, "{place}: {:?}", walker.end());
            }
            walks += 1;
        }
        if machine.has_ended(&program) {
            return walks;
        }
        machine.run(&program);
    }
}

/// Returns a function that calls the tested function and gets its registers back.
fn main_function() -> Function {
    let code = vec![
        Push2(FP, LR, 16),
        Add(FP, SP, 0),
        Set(19, 0x1001),
        Set(20, 0x1002),
        Set(21, 0x1003),
        Set(22, 0x1004),
        Call("shape"),
        Call("shape"),
        End,
    ];
    ("main", FRAME, code)
}

/// Returns a function with a frame that saves, overwrites and restores registers.
fn callee() -> Function {
    let code = vec![
        Push2(20, 19, 32),
        Store2(FP, LR, 16),
        Add(FP, SP, 16),
        Set(19, 0x2001),
        Set(20, 0x2002),
        Load2(FP, LR, 16),
        Pop2(20, 19, 32),
        Return(LR),
    ];
    ("callee", FRAME_ONE_PAIR, code)
}

fn leaf() -> Function {
    ("leaf", FRAMELESS, vec![Set(0, 1), Add(0, 0, 1), Return(LR)])
}

const OVERWRITE: [Instruction; 4] = [Set(19, 0x3001), Set(20, 0x3002), Set(21, 0x3003), Set(22, 0x3004)];

fn shape(encoding: u32, code: &[&[Instruction]]) -> Function {
    ("shape", encoding, code.concat())
}

fn outlined(name: &'static str, code: &[Instruction]) -> Function {
    (name, FRAMELESS, code.to_vec())
}

#[test]
fn an_outlined_half_prologue_moves_the_stack_pointer() {
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Move(9, LR), Call("saves"), Move(LR, 9), Store2(FP, LR, 32), Add(FP, SP, 32)],
            &OVERWRITE,
            &[Call("callee"), Load2(FP, LR, 32), Jump("restores")],
        ],
    );
    let saves = outlined("saves", &[Push2(22, 21, 48), Store2(20, 19, 16), Return(LR)]);
    let restores = outlined("restores", &[Load2(20, 19, 16), Pop2(22, 21, 48), Return(LR)]);
    assert!(check_every_instruction(vec![main_function(), shape, saves, restores, callee()]) > 80);
}

#[test]
fn outlined_functions_save_and_restore_in_their_callers_frame() {
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Add(SP, SP, -48), Store2(FP, LR, 32), Call("saves"), Add(FP, SP, 32)],
            &OVERWRITE,
            &[Call("callee"), Call("restores"), Load2(FP, LR, 32), Add(SP, SP, 48), Return(LR)],
        ],
    );
    let saves = outlined("saves", &[Store2(22, 21, 0), Store2(20, 19, 16), Return(LR)]);
    let restores = outlined("restores", &[Load2(22, 21, 0), Load2(20, 19, 16), Return(LR)]);
    assert!(check_every_instruction(vec![main_function(), shape, saves, restores, callee()]) > 80);
}

#[test]
fn a_shared_prologue_and_epilogue_are_followed() {
    // As with `-homogeneous-prolog-epilog`: the function creates the frame record, the helpers do
    // the rest.
    let prologue = || outlined("prologue", &[Push2(22, 21, 32), Store2(20, 19, 16), Add(FP, SP, 32), Return(LR)]);
    let begin = [Push2(FP, LR, 16), Call("prologue")];
    let epilogue =
        outlined("epilogue", &[Move(16, LR), Load2(FP, LR, 32), Load2(20, 19, 16), Pop2(22, 21, 48), Return(16)]);
    let calls = shape(FRAME_TWO_PAIRS, &[&begin, &OVERWRITE, &[Call("callee"), Call("epilogue"), Jump("leaf")]]);
    assert!(check_every_instruction(vec![main_function(), calls, prologue(), epilogue, callee(), leaf()]) > 90);

    let epilogue = outlined("epilogue", &[Load2(FP, LR, 32), Load2(20, 19, 16), Pop2(22, 21, 48), Return(LR)]);
    let jumps = shape(FRAME_TWO_PAIRS, &[&begin, &OVERWRITE, &[Call("callee"), Jump("epilogue")]]);
    assert!(check_every_instruction(vec![main_function(), jumps, prologue(), epilogue, callee()]) > 80);
}

#[test]
fn an_outlined_epilogue_with_the_tail_call_is_followed() {
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Push2(22, 21, 48), Store2(20, 19, 16), Store2(FP, LR, 32), Add(FP, SP, 32)],
            &OVERWRITE,
            &[Call("callee"), Load2(FP, LR, 32), Jump("restores")],
        ],
    );
    let restores = outlined("restores", &[Load2(20, 19, 16), Pop2(22, 21, 48), Jump("caller")]);
    let caller = ("caller", FRAME, vec![Push2(FP, LR, 16), Add(FP, SP, 0), Call("leaf"), Pop2(FP, LR, 16), Return(LR)]);
    assert!(check_every_instruction(vec![main_function(), shape, restores, callee(), caller, leaf()]) > 80);
}

#[test]
fn a_function_continues_after_its_outlined_epilogue() {
    // The jump after the outlined function stays in the function, although the stack pointer is
    // higher than before.
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Push2(22, 21, 48), Store2(20, 19, 16), Store2(FP, LR, 32), Add(FP, SP, 32)],
            &OVERWRITE,
            &[Call("restores"), Jump("rest")],
        ],
    );
    let restores = outlined("restores", &[Pop2(22, 21, 16), Return(LR)]);
    let rest = vec![Call("leaf"), Load2(20, 19, 0), Load2(FP, LR, 16), Add(SP, SP, 32), Return(LR)];
    let rest = ("rest", FRAME_TWO_PAIRS, rest);
    assert!(check_every_instruction(vec![main_function(), shape, restores, rest, leaf()]) > 60);
}

#[test]
fn a_leaf_saves_the_link_register_for_an_outlined_function() {
    let part = || outlined("part", &[Set(8, 1), Add(8, 8, 1), Return(LR)]);
    let on_the_stack = shape(FRAMELESS, &[&[Set(0, 1), PushLink, Call("part"), PopLink, Add(0, 0, 1), Return(LR)]]);
    assert!(check_every_instruction(vec![main_function(), on_the_stack, part()]) > 40);
    let in_a_register = shape(FRAMELESS, &[&[Set(0, 1), Move(9, LR), Call("part"), Move(LR, 9), Return(LR)]]);
    assert!(check_every_instruction(vec![main_function(), in_a_register, part()]) > 40);
}

#[test]
fn nested_outlined_functions_are_followed() {
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Move(9, LR), Call("saves"), Move(LR, 9), Store2(FP, LR, 32), Add(FP, SP, 32)],
            &OVERWRITE,
            &[Call("callee"), Load2(FP, LR, 32), Jump("restores")],
        ],
    );
    let saves = outlined("saves", &[Move(10, LR), Call("saves_more"), Move(LR, 10), Store2(20, 19, 16), Return(LR)]);
    let saves_more = outlined("saves_more", &[Push2(22, 21, 48), Return(LR)]);
    let restores = outlined("restores", &[Load2(20, 19, 16), Jump("restores_more")]);
    let restores_more = outlined("restores_more", &[Pop2(22, 21, 48), Return(LR)]);
    assert!(
        check_every_instruction(vec![main_function(), shape, saves, saves_more, restores, restores_more, callee()])
            > 90
    );
}

#[test]
fn an_outlined_function_ends_with_a_call() {
    let shape = shape(
        FRAME_ONE_PAIR,
        &[
            &[Push2(20, 19, 32), Store2(FP, LR, 16), Add(FP, SP, 16)],
            &[Call("thunk"), Call("thunk"), Load2(FP, LR, 16), Pop2(20, 19, 32), Return(LR)],
        ],
    );
    let thunk = outlined("thunk", &[Set(19, 5), Set(0, 6), Jump("callee")]);
    assert!(check_every_instruction(vec![main_function(), shape, thunk, callee()]) > 80);
}

#[test]
fn an_outlined_function_is_called_more_often_than_nesting_allows() {
    let shape = shape(
        FRAME_TWO_PAIRS,
        &[
            &[Push2(22, 21, 48), Store2(20, 19, 16), Store2(FP, LR, 32), Add(FP, SP, 32)],
            &[Call("part"); 9],
            &[Call("callee"), Load2(FP, LR, 32), Load2(20, 19, 16), Pop2(22, 21, 48), Return(LR)],
        ],
    );
    let part = outlined("part", &[Set(19, 7), Jump("end_of_part")]);
    let end_of_part = ("end_of_part", FRAMELESS, vec![Set(20, 8), Return(LR)]);
    assert!(check_every_instruction(vec![main_function(), shape, part, end_of_part, callee()]) > 120);
}

#[test]
fn code_that_switches_stacks_is_not_outlined() {
    // Code that switches stacks also returns with another stack pointer: in the body before that
    // call, unwind data hold.
    let shape =
        shape(FRAME, &[&[Push2(FP, LR, 16), Add(FP, SP, 0), Set(0, 0), Call("swap"), Pop2(FP, LR, 16), Return(LR)]]);
    let swap = outlined("swap", &[End, Push2(FP, LR, 16), Add(SP, 0, 0), Pop2(FP, LR, 16), Return(LR)]);
    assert!(check_every_instruction(vec![main_function(), shape, swap]) > 20);
}
