//! The compared unwinders, each as a function from a state to frames.

use std::ops::Range;

use coroner_process::registers::Arch;
use coroner_unwind::{Aarch64, Architecture as _, Image, ImageFormat, Images, Options, RuleCache, Walker, X86_64};
use framehop::{
    ExplicitModuleSectionInfo, Module, Unwinder as _,
    aarch64::{CacheAarch64, UnwindRegsAarch64, UnwinderAarch64},
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};
use object::BinaryFormat;

use super::{
    emulator::{Preserved, Registers, State},
    loader::{Guest, Program},
};

/// Maximum frames of a walk; no program's stack is that deep.
const MAX_LENGTH: usize = 2000;

/// A frame as found by an unwinder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) pc: u64,
    /// The frame's stack pointer, if the unwinder reports it.
    pub(super) sp: Option<u64>,
    /// The way the frame was found, if the unwinder reports it.
    pub(super) found: &'static str,
    /// The callee-saved registers, in the order of [`Preserved`], with a bit for each known one.
    ///
    /// Only for unwinders that report them.
    pub(super) preserved: Option<(Preserved, u32)>,
}

/// An unwinder's result for a state.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) frames: Vec<Seen>,
    /// The unwinder's reason for ending the walk.
    pub(super) end: String,
}

/// Coroner's own unwinder, over guest memory.
pub(super) struct Ours {
    code: Code,
    cache: Box<RuleCache>,
}

/// The program's image, and the fact that nothing else in the guest is executable.
struct Code([Image; 1]);

impl Images for Code {
    fn find(&self, address: u64) -> Option<Image> {
        self.0.find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some(self.find(address).is_some())
    }
}

impl Ours {
    pub(super) fn new(program: &Program) -> Ours {
        let section = |name: &str| program.sections.get(name).map_or(0..0, |section| section.range.clone()).into();
        let macho = program.format == BinaryFormat::MachO;
        let image = Image {
            format: if macho { ImageFormat::MachO } else { ImageFormat::Elf },
            text: program.text.clone().into(),
            base: program.bias,
            bias: program.bias,
            eh_frame_hdr: section(".eh_frame_hdr"),
            eh_frame: section(if macho { "__eh_frame" } else { ".eh_frame" }),
            unwind_info: section("__unwind_info"),
            stubs: section("__stubs"),
            stub_helper: section("__stub_helper"),
            text_section: section(if macho { "__text" } else { ".text" }).start,
            data: section(".got").start,
            ..Image::default()
        };
        Ours { code: Code([image]), cache: Box::new(RuleCache::new()) }
    }

    pub(super) fn walk(&mut self, program: &Program, state: &State<'_>) -> Walk {
        let mut walk = Walk::default();
        let guest = Guest(&program.regions);
        macro_rules! walk {
            ($arch:ty, $registers:expr) => {{
                let mut walker =
                    Walker::<$arch, _, _>::new($registers, guest, &self.code, &mut self.cache, Options::default());
                while walk.frames.len() < MAX_LENGTH {
                    let (frame, registers) = (walker.frame(), walker.registers());
                    let mut preserved = [0; 11];
                    let mut vouched = 0;
                    let numbers = <$arch>::SAVED.iter().take(<$arch>::SAVED_COUNT - 1);
                    for (index, (value, number)) in preserved.iter_mut().zip(numbers).enumerate() {
                        if let Some(certain) = registers.certain(*number) {
                            *value = certain;
                            vouched |= 1 << index;
                        }
                    }
                    walk.frames.push(Seen {
                        pc: frame.pc,
                        sp: Some(frame.sp),
                        found: frame.found.name(),
                        preserved: Some((preserved, vouched)),
                    });
                    if walker.step().is_err() {
                        break;
                    }
                }
                walk.end = match walker.problem() {
                    Some(problem) => format!("{:x?} after {problem:x?}", walker.end()),
                    None => format!("{:x?}", walker.end()),
                };
            }};
        }
        match &state.registers {
            Registers::X86_64(registers) => walk!(X86_64, registers),
            Registers::Aarch64(registers) => walk!(Aarch64, registers),
        }
        walk
    }
}

/// framehop, over the same memory.
pub(super) enum Framehop {
    X86_64(UnwinderX86_64<Vec<u8>>, CacheX86_64),
    Aarch64(UnwinderAarch64<Vec<u8>>, CacheAarch64),
}

impl Framehop {
    pub(super) fn new(program: &Program) -> Framehop {
        let macho = program.format == BinaryFormat::MachO;
        let stated = |range: &Range<u64>| range.start - program.bias..range.end - program.bias;
        let range = |name: &str| program.sections.get(name).map(|section| stated(&section.range));
        let data = |name: &str| program.sections.get(name).map(|section| section.bytes.clone());
        let text = if macho { "__text" } else { ".text" };
        let eh_frame = if macho { "__eh_frame" } else { ".eh_frame" };
        let segment = usize::try_from(program.text.end - program.text.start).unwrap_or(0);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(text),
            text: data(text),
            stubs_svma: range("__stubs"),
            stub_helper_svma: range("__stub_helper"),
            got_svma: range(".got"),
            unwind_info: data("__unwind_info"),
            eh_frame_svma: range(eh_frame),
            eh_frame: data(eh_frame),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            debug_frame: None,
            text_segment_svma: macho.then(|| stated(&program.text)),
            text_segment: macho.then(|| program.regions.get(program.text.start, segment).unwrap_or_default().to_vec()),
        };
        let module = Module::new(String::from("program"), program.text.clone(), program.bias, sections);
        match program.arch {
            Arch::X86_64 => {
                let mut unwinder = UnwinderX86_64::new();
                unwinder.add_module(module);
                Framehop::X86_64(unwinder, CacheX86_64::new())
            }
            Arch::Aarch64 => {
                let mut unwinder = UnwinderAarch64::new();
                unwinder.add_module(module);
                Framehop::Aarch64(unwinder, CacheAarch64::new())
            }
        }
    }

    pub(super) fn walk(&mut self, program: &Program, state: &State<'_>) -> Walk {
        let mut walk = Walk::default();
        let mut read = |address: u64| program.regions.word(address).ok_or(());
        macro_rules! walk {
            ($unwinder:expr, $registers:expr, $cache:expr) => {{
                let mut frames = $unwinder.iter_frames(state.registers.pc(), $registers, $cache, &mut read);
                loop {
                    match frames.next() {
                        Ok(Some(frame)) if walk.frames.len() < MAX_LENGTH => {
                            walk.frames.push(Seen { pc: frame.address(), sp: None, found: "", preserved: None });
                        }
                        Ok(Some(_)) => break,
                        Ok(None) => {
                            walk.end = String::from("end of stack");
                            break;
                        }
                        Err(error) => {
                            walk.end = error.to_string();
                            break;
                        }
                    }
                }
            }};
        }
        match (self, &state.registers) {
            (Framehop::X86_64(unwinder, cache), Registers::X86_64(r)) => {
                walk!(unwinder, UnwindRegsX86_64::new(r.pc, r.sp(), r.fp()), cache);
            }
            (Framehop::Aarch64(unwinder, cache), Registers::Aarch64(r)) => {
                walk!(unwinder, UnwindRegsAarch64::new(r.lr(), r.sp(), r.fp()), cache);
            }
            _ => unreachable!("a program's states have its architecture's registers"),
        }
        walk
    }
}

/// Walks the chain of frame records from the frame pointer, and nothing else.
pub(super) fn frame_pointers(program: &Program, state: &State<'_>) -> Walk {
    let mut frame_pointer = match &state.registers {
        Registers::X86_64(registers) => registers.fp(),
        Registers::Aarch64(registers) => registers.fp(),
    };
    let mut walk = Walk::default();
    walk.frames.push(Seen { pc: state.registers.pc(), sp: None, found: "", preserved: None });
    while frame_pointer != 0 && walk.frames.len() < MAX_LENGTH {
        let (Some(next), Some(pc)) =
            (program.regions.word(frame_pointer), program.regions.word(frame_pointer.wrapping_add(8)))
        else {
            break;
        };
        if pc == 0 || (next != 0 && next <= frame_pointer) {
            if pc != 0 {
                walk.frames.push(Seen { pc, sp: None, found: "", preserved: None });
            }
            break;
        }
        walk.frames.push(Seen { pc, sp: None, found: "", preserved: None });
        frame_pointer = next;
    }
    walk
}

/// The first frame at which a walk differs from the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every frame is right and there are no others.
    Right,
    /// This frame (counted from the innermost) is missing, has another pc, or is one too many.
    Wrong(usize),
    /// This frame's pc is right, but its stack pointer isn't, and everything before it is right.
    WrongStackPointer(usize),
    /// Every pc and stack pointer is right, but a known register of this frame has a wrong value.
    WrongRegister(usize),
}

/// Compares a walk with the truth.
pub(super) fn judge(walk: &Walk, state: &State<'_>) -> Verdict {
    let truth = state.truth();
    for (index, (pc, sp)) in truth.iter().enumerate() {
        match walk.frames.get(index) {
            Some(frame) if frame.pc == *pc => {
                if frame.sp.is_some_and(|seen| seen != *sp) {
                    return Verdict::WrongStackPointer(index);
                }
            }
            _ => return Verdict::Wrong(index),
        }
    }
    if walk.frames.len() > truth.len() {
        return Verdict::Wrong(truth.len());
    }
    Verdict::Right
}

/// Compares the known callee-saved registers of a walk with correct frames with the truth.
///
/// Also returns whether the unwinder knew every register of every frame.
pub(super) fn judge_registers(walk: &Walk, state: &State<'_>) -> (Verdict, bool) {
    let mut complete = true;
    let mut below = state.registers.preserved();
    let count = match state.registers {
        Registers::X86_64(_) => 6,
        Registers::Aarch64(_) => 11,
    };
    for (index, call) in std::iter::once(None).chain(state.calls.iter().rev().map(Some)).enumerate() {
        if let Some((seen, vouched)) = walk.frames.get(index).and_then(|frame| frame.preserved) {
            complete &= vouched.count_ones() >= count;
            let is_right = |register: usize| match call {
                Some(call) => call.may_be(register, seen[register], below[register]),
                None => seen[register] == below[register],
            };
            if (0..count as usize).any(|register| vouched & 1 << register != 0 && !is_right(register)) {
                return (Verdict::WrongRegister(index), false);
            }
        }
        if let Some(call) = call {
            below = call.preserved;
        }
    }
    (Verdict::Right, complete)
}
