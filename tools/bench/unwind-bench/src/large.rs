//! Cold walks in images with many functions.
//!
//! A frame's cost may grow with the image only by the steps of a binary search. An x86_64 image is
//! created in memory (functions of 32 bytes, each with its own frame description), and a stack of
//! functions spread all over it, which ours and framehop walk without caches.

use std::{hint::black_box, ops::Range, time::Instant};

use coroner_process::{
    memory::{Memory, Unreadable},
    registers::X86_64Registers,
};
use coroner_unwind::{Image, Options, RuleCache, Walker, X86_64};
use framehop::{
    ExplicitModuleSectionInfo, Module, Unwinder as _,
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};

const CODE: u64 = 0x1_0000_0000;
const FUNCTION: u64 = 32;
const STACK: u64 = 0x7_0000_0000;
/// Return addresses on the stack.
const CALLS: usize = 63;

/// An image and a stack.
struct Large {
    eh_frame_hdr: (u64, Vec<u8>),
    eh_frame: (u64, Vec<u8>),
    code: Range<u64>,
    stack: Vec<u8>,
    registers: X86_64Registers,
}

impl Large {
    fn new(functions: u32) -> Large {
        let code = CODE..CODE + FUNCTION * u64::from(functions);
        let eh_frame_at = code.end.next_multiple_of(0x1000);
        let mut eh_frame = Vec::new();
        // Length 20; id 0, version 1, "zR", alignments 1 and -8, return address column 16, pointers
        // pcrel | sdata4; DW_CFA_def_cfa rsp + 8, DW_CFA_offset ra at cfa - 8, padding.
        eh_frame.extend_from_slice(&[
            20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
        ]);
        let relative = |from: u64, to: u64| (to.wrapping_sub(from) as u32).to_le_bytes();
        let mut table = Vec::new();
        let count = u64::from(functions);
        let eh_frame_hdr_at = (eh_frame_at + 24 + 24 * count + 4).next_multiple_of(0x1000);
        for index in 0..functions {
            let at = eh_frame_at + eh_frame.len() as u64;
            let start = CODE + FUNCTION * u64::from(index);
            table.extend_from_slice(&relative(eh_frame_hdr_at, start));
            table.extend_from_slice(&relative(eh_frame_hdr_at, at));
            eh_frame.extend_from_slice(&20u32.to_le_bytes());
            eh_frame.extend_from_slice(&relative(eh_frame_at, at + 4));
            eh_frame.extend_from_slice(&relative(at + 8, start));
            eh_frame.extend_from_slice(&(FUNCTION as u32).to_le_bytes());
            // No augmentation; DW_CFA_def_cfa_offset after two bytes; padding.
            eh_frame.extend_from_slice(&[0, 0x42, 0x0e, size(index), 0, 0, 0, 0]);
        }
        eh_frame.extend_from_slice(&[0; 4]);
        let mut eh_frame_hdr = vec![1, 0x1b, 0x03, 0x3b];
        eh_frame_hdr.extend_from_slice(&relative(eh_frame_hdr_at + 4, eh_frame_at));
        eh_frame_hdr.extend_from_slice(&functions.to_le_bytes());
        eh_frame_hdr.extend_from_slice(&table);

        let mut chance = 88_172_645_463_325_252u64;
        let mut function = || {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            (chance % count) as u32
        };
        let (mut stack, mut below) = (Vec::new(), function());
        let registers = {
            let mut registers = X86_64Registers { pc: CODE + FUNCTION * u64::from(below) + 16, ..Default::default() };
            registers.gpr[7] = STACK;
            registers
        };
        for call in 0..=CALLS {
            stack.resize(stack.len() + usize::from(size(below)) - 8, 0);
            below = function();
            let caller = CODE + FUNCTION * u64::from(below) + 16;
            stack.extend_from_slice(&if call == CALLS { 0 } else { caller }.to_le_bytes());
        }
        Large {
            eh_frame_hdr: (eh_frame_hdr_at, eh_frame_hdr),
            eh_frame: (eh_frame_at, eh_frame),
            code,
            stack,
            registers,
        }
    }

    fn image(&self) -> Image {
        let range = |(at, bytes): &(u64, Vec<u8>)| (*at..*at + bytes.len() as u64).into();
        Image {
            text: self.code.clone().into(),
            eh_frame_hdr: range(&self.eh_frame_hdr),
            eh_frame: range(&self.eh_frame),
            ..Image::default()
        }
    }

    fn module(&self) -> Module<&[u8]> {
        let range = |(at, bytes): &(u64, Vec<u8>)| Some(at - CODE..at - CODE + bytes.len() as u64);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_hdr_svma: range(&self.eh_frame_hdr),
            eh_frame_hdr: Some(&self.eh_frame_hdr.1[..]),
            eh_frame_svma: range(&self.eh_frame),
            eh_frame: Some(&self.eh_frame.1[..]),
            ..Default::default()
        };
        Module::new(String::new(), self.code.clone(), CODE, sections)
    }
}

/// Returns the bytes from a function's stack pointer to its canonical frame address.
fn size(function: u32) -> u8 {
    16 + 16 * (function % 4) as u8
}

impl Memory for &Large {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        for (at, bytes) in
            [(STACK, &self.stack), (self.eh_frame.0, &self.eh_frame.1), (self.eh_frame_hdr.0, &self.eh_frame_hdr.1)]
        {
            let found = address.checked_sub(at).and_then(|offset| bytes.get(offset as usize..)?.get(..into.len()));
            if let Some(found) = found {
                into.copy_from_slice(found);
                return Ok(());
            }
        }
        Err(Unreadable { address })
    }
}

/// Prints a frame's cold cost in images of growing size.
pub(crate) fn run(rounds: u32) {
    for functions in [100, 10_000, 100_000, 1_000_000] {
        let large = Large::new(functions);
        let mut times = [const { Vec::new() }; 2];
        let mut frames = [0usize; 2];
        let images = [large.image()];
        let mut cache = Box::new(RuleCache::new());
        cache.prepare();
        let mut unwinder = UnwinderX86_64::new();
        unwinder.add_module(large.module());
        let mut framehop_cache = CacheX86_64::new();
        for _ in 0..rounds.max(1) * 10 {
            cache.clear();
            let start = Instant::now();
            let mut walker =
                Walker::<X86_64, _, _>::new(&large.registers, &large, &images[..], &mut cache, Options::default());
            frames[0] = 0;
            while let Some(frame) = walker.next_frame() {
                black_box(frame.pc);
                frames[0] += 1;
            }
            times[0].push(start.elapsed().as_secs_f64());

            // Its cache can't be cleared: adding a module changes the generation, which invalidates
            // its rules.
            unwinder.add_module(Module::new(
                String::new(),
                0x10..0x20,
                0x10,
                ExplicitModuleSectionInfo::<&[u8]>::default(),
            ));
            unwinder.remove_module(0x10);
            let start = Instant::now();
            let mut read = |address: u64| {
                let offset = address.checked_sub(STACK).ok_or(())? as usize;
                large.stack.get(offset..).and_then(|tail| Some(u64::from_le_bytes(*tail.first_chunk()?))).ok_or(())
            };
            let registers = UnwindRegsX86_64::new(large.registers.pc, STACK, 0);
            let mut iterator = unwinder.iter_frames(large.registers.pc, registers, &mut framehop_cache, &mut read);
            frames[1] = 0;
            while let Ok(Some(frame)) = iterator.next() {
                black_box(frame.address());
                frames[1] += 1;
            }
            times[1].push(start.elapsed().as_secs_f64());
        }
        for ((name, mut times), frames) in ["ours cfi cold", "framehop cold"].into_iter().zip(times).zip(frames) {
            times.sort_by(f64::total_cmp);
            let per_frame = |time: f64| time * 1e9 / f64::from(CALLS as u32 + 1);
            let (least, median) = (per_frame(times[0]), per_frame(times[times.len() / 2]));
            let right = frames == CALLS + 1;
            println!(
                r#"{{"name":"{name}, {functions} functions","frames":{frames},"min":{least},"median":{median},"right":{right}}}"#
            );
        }
    }
}
