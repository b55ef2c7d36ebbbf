//! The states in which an unwinder was wrong, grouped by cause.
//!
//! The cause is the instruction whose caller the unwinder did not find.

use std::{collections::BTreeMap, fmt::Write as _};

use coroner_process::registers::Arch;
use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};
use yaxpeax_arch::{Decoder as _, U8Reader};

use super::{
    emulator::State,
    loader::Program,
    walkers::{Verdict, Walk},
};

/// Failures at one instruction.
pub(super) struct Cause {
    /// Number of states that failed here.
    pub(super) states: u64,
    /// The unwinder's result for one of them.
    pub(super) description: String,
}

/// Failures of one program.
///
/// They are grouped by the address of the instruction in the frame whose caller was not found.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) causes: BTreeMap<u64, Cause>,
}

impl Findings {
    /// Adds a state with a wrong verdict.
    pub(super) fn add(&mut self, program: &Program, state: &State<'_>, walk: &Walk, verdict: Verdict) -> u64 {
        let (Verdict::Wrong(index) | Verdict::WrongStackPointer(index) | Verdict::WrongRegister(index)) = verdict
        else {
            return 0;
        };
        let frames = state.truth();
        let truth = |index: usize| frames.get(index).copied();
        // The frame below the wrong one: its instruction, or the call that it is in.
        let below = index.saturating_sub(1);
        let culprit = truth(below).map_or(0, |(pc, _)| if state.is_interrupted(below) { pc } else { pc - 1 });
        let cause = self.causes.entry(culprit).or_insert_with(|| Cause { states: 0, description: String::new() });
        cause.states += 1;
        if cause.description.is_empty() {
            let expected = truth(index).map_or_else(
                || String::from("the end of the stack"),
                |(pc, sp)| format!("{} sp {sp:#x}", program.describe(pc)),
            );
            cause.description = match walk.frames.get(index) {
                Some(seen) if matches!(verdict, Verdict::WrongRegister(_)) => {
                    let preserved = match index.checked_sub(1) {
                        None => Some(state.registers.preserved()),
                        Some(above) => state.calls.iter().rev().nth(above).map(|call| call.preserved),
                    };
                    format!(
                        "frame {index} by {}: registers {:x?}, should be {preserved:x?}",
                        seen.found, seen.preserved
                    )
                }
                Some(seen) => format!(
                    "frame {index}: {} sp {:#x} by {}, should be {expected}",
                    program.describe(seen.pc),
                    seen.sp.unwrap_or(0),
                    seen.found,
                ),
                None => format!("no frame {index}: {}; should be {expected}", walk.end),
            };
            let registers = match &state.registers {
                super::emulator::Registers::X86_64(r) => format!("rsp {:#x} rbp {:#x}", r.sp(), r.fp()),
                super::emulator::Registers::Aarch64(r) => {
                    format!("sp {:#x} fp {:#x} lr {}", r.sp, r.fp(), program.describe(r.lr()))
                }
            };
            let _ = write!(
                cause.description,
                "; frame 0 was at {} with {registers}",
                program.describe(state.registers.pc())
            );
        }
        culprit
    }

    /// Returns the causes by function, with the most states first: name, states, instructions.
    pub(super) fn functions(&self, program: &Program) -> Vec<(String, u64, Vec<u64>)> {
        let mut functions: BTreeMap<&str, (u64, Vec<u64>)> = BTreeMap::new();
        for (&culprit, cause) in &self.causes {
            let name = program.function(culprit).map_or("(outside)", |(name, _)| name);
            let entry = functions.entry(name).or_default();
            entry.0 += cause.states;
            entry.1.push(culprit);
        }
        let mut list: Vec<_> =
            functions.into_iter().map(|(name, (states, pcs))| (name.to_owned(), states, pcs)).collect();
        list.sort_by_key(|(_, states, _)| std::cmp::Reverse(*states));
        list
    }

    /// Writes all details for debugging the unwinder.
    ///
    /// Up to `functions` functions, each with its failing instructions in context.
    pub(super) fn write(&self, program: &Program, functions: usize, into: &mut String) {
        for (name, states, pcs) in self.functions(program).into_iter().take(functions) {
            let _ = writeln!(into, "#### {name}: {states} states at {} instructions", pcs.len());
            // One instruction from each quarter of the function's failing ones.
            for pc in pcs.iter().step_by(pcs.len().div_ceil(4).max(1)) {
                let cause = &self.causes[pc];
                let _ = writeln!(into, "- {} ({} states): {}", program.describe(*pc), cause.states, cause.description);
            }
            let _ = writeln!(into, "```text");
            for (address, text) in disassemble(program, &pcs) {
                let mark = if pcs.contains(&address) { ">" } else { " " };
                let _ = writeln!(into, "{mark} {:<28} {text}", program.describe(address));
            }
            let _ = writeln!(into, "```");
        }
    }
}

/// Disassembles the function of `marked` (sorted) to a little after the last one that fits.
fn disassemble(program: &Program, marked: &[u64]) -> Vec<(u64, String)> {
    let Some(&first) = marked.first() else { return Vec::new() };
    let Some((_, offset)) = program.function(first) else { return Vec::new() };
    let start = first - offset;
    let mut lines = Vec::new();
    let mut address = start;
    let last = marked.iter().copied().filter(|pc| pc - start < 0x400).max().unwrap_or(first);
    while address < last + 24 && lines.len() < 400 {
        let Some(bytes) = program.regions.get(address, 16) else { break };
        let (text, length) = instruction(program.arch, bytes, address);
        lines.push((address, text, length));
        address += length;
    }
    // A return address minus one is inside its call: the call's line is the one to mark.
    let near = |address: u64, length: u64| {
        marked.iter().any(|pc| pc.abs_diff(address) < 40 || (address..address + length).contains(pc))
    };
    let prologue = 14;
    lines
        .iter()
        .enumerate()
        .filter(|(index, (address, _, length))| *index < prologue || near(*address, *length))
        .map(|(_, (address, text, length))| {
            let inside = marked.iter().find(|pc| (*address..*address + *length).contains(*pc));
            (inside.copied().unwrap_or(*address), text.clone())
        })
        .take(60)
        .collect()
}

/// Formats one instruction, and returns its length.
fn instruction(arch: Arch, bytes: &[u8], address: u64) -> (String, u64) {
    match arch {
        Arch::X86_64 => {
            let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
            let mut text = String::new();
            NasmFormatter::new().format(&instruction, &mut text);
            (text, instruction.len().max(1) as u64)
        }
        Arch::Aarch64 => {
            let decoder = yaxpeax_arm::armv8::a64::InstDecoder::default();
            let text = decoder
                .decode(&mut U8Reader::new(bytes))
                .map_or_else(|error| error.to_string(), |instruction| instruction.to_string());
            (text, 4)
        }
    }
}
