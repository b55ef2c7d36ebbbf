//! Reasons for the end of a walk, and the fallbacks before it: loops, garbage, budgets, the stack
//! scan.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::registers::X86_64Registers;
use coroner_unwind::{
    End, Found, Frame, FramePointers, Image, Images, Options, Registered, Row, Rule, RuleCache, SwiftAsync, Walker,
    X86_64,
};

const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x1000_0000;

/// Walks code without unwind data, in which every address follows a call (`call rax`, at odd
/// addresses its second byte), from these registers with these stack words.
fn walk(stack: &[u64], sp: u64, fp: u64, options: Options) -> (Vec<Frame>, End) {
    // `ud2` ends every path through the code at once, which rules out code analysis.
    let code: Vec<u8> = [0xff, 0xd0, 0x0f, 0x0b].repeat(0x400);
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let ranges = [SnapshotRange { address: CODE, bytes: &code }, SnapshotRange { address: STACK, bytes: &stack }];
    let images = [Image { text: (CODE..CODE + 0x1000).into(), ..Image::default() }];
    let mut registers = X86_64Registers { pc: CODE + 2, ..X86_64Registers::default() };
    registers.gpr[7] = sp;
    registers.gpr[6] = fp;
    let mut cache = Box::new(RuleCache::new());
    let memory = Snapshot { ranges: &ranges };
    let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, &images[..], &mut cache, options);
    let frames = std::iter::from_fn(|| walker.next_frame()).take(300_000).collect();
    (frames, walker.end().expect("an end"))
}

fn options() -> Options {
    Options { scan_words: 0, ..Options::default() }
}

#[test]
fn a_chain_ends_at_zero() {
    let (frames, end) = walk(&[STACK + 16, CODE + 6, 0, CODE + 10], STACK, STACK, options());
    assert_eq!(frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), [CODE + 2, CODE + 6, CODE + 10]);
    assert_eq!(frames[1].found, Found::FramePointer);
    assert_eq!(end, End::EndOfStack);
}

#[test]
fn async_frame_marks_are_removed_from_frame_pointers() {
    let marked = [1 << 60 | (STACK + 16), CODE + 6, 1 << 60 | (STACK + 32), CODE + 10, 0, CODE + 14];
    for swift_async in [SwiftAsync::Ignore, SwiftAsync::Task(0)] {
        let (frames, end) = walk(&marked, STACK, STACK, Options { swift_async, ..options() });
        assert_eq!(frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), [2, 6, 10, 14].map(|at| CODE + at));
        assert_eq!(end, End::EndOfStack, "{swift_async:?}");
    }
    // In a register, as between the instructions that set and store the mark.
    let (frames, _) = walk(&marked, STACK, 1 << 60 | STACK, Options { swift_async: SwiftAsync::Ignore, ..options() });
    assert_eq!(frames.len(), 4);
}

#[test]
fn what_is_found_from_a_guess_is_a_guess() {
    let record = [1, 2, STACK + 32, CODE + 10, STACK + 48, CODE + 14, 0, CODE + 18];
    for (fp, found) in [(STACK + 16, Found::FramePointer), (0, Found::Scan)] {
        let (frames, _) = walk(&record, STACK, fp, Options::default());
        assert_eq!(frames.iter().map(|frame| frame.pc - CODE).collect::<Vec<_>>(), [2, 10, 14, 18]);
        assert!(frames[1..].iter().all(|frame| frame.found == found), "{frames:x?}");
    }
}

#[test]
fn loops_end_the_walk() {
    // A record that points to itself, and two that point to each other
    let (frames, end) = walk(&[STACK, CODE + 6], STACK, STACK, options());
    assert_eq!(frames.len(), 2);
    assert!(matches!(end, End::NoUnwindData { .. }), "{end:?}");
    let (frames, _) = walk(&[STACK + 16, CODE + 6, STACK, CODE + 10], STACK, STACK, options());
    assert_eq!(frames.len(), 3);
    let bytes: Vec<u8> =
        [STACK + 16, CODE + 6, STACK, CODE + 10].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let ranges = [SnapshotRange { address: STACK, bytes: &bytes }];
    let mut chain = FramePointers::<X86_64, _>::new(STACK, Snapshot { ranges: &ranges }, None);
    assert_eq!(chain.by_ref().count(), 2);
    assert_eq!(chain.end(), Some(End::NoProgress { sp: STACK }));
}

#[test]
fn garbage_ends_the_walk() {
    // Frame pointers that are not aligned, not readable, below the stack pointer, at the end of the
    // address space
    for fp in [STACK + 3, 0x5000_0000, STACK - 16, u64::MAX - 7, 1 << 63] {
        let (frames, end) = walk(&[1, 2, 3, 4], STACK, fp, options());
        assert_eq!(frames.len(), 1, "{fp:x}");
        assert!(matches!(end, End::NoUnwindData { .. }), "{end:?}");
    }
    // A stack pointer that is garbage
    for sp in [0, 7, u64::MAX, u64::MAX - 15] {
        let (frames, _) = walk(&[1, 2], sp, sp, Options::default());
        assert_eq!(frames.len(), 1);
    }
}

#[test]
fn a_frame_pointer_into_data_yields_no_caller() {
    // A return address in data, preceded by a word, for example in a saved backtrace
    let data = [STACK + 16, CODE + 10, 5, 0x1234, 0, 0];
    let (frames, end) = walk(&data, 0, STACK, options());
    assert_eq!(frames.len(), 1, "{frames:x?}");
    assert_eq!(end, End::BadReturnAddress { address: CODE + 10 });
    // A function's address, which no call precedes
    let (frames, end) = walk(&[STACK + 16, CODE + 0x41, 0, 0], STACK, STACK, options());
    assert_eq!(frames.len(), 1, "{frames:x?}");
    assert!(matches!(end, End::NoUnwindData { .. }), "{end:?}");
    // A chain of a thread with only a broken stack pointer
    let chain = [STACK + 16, CODE + 10, STACK + 32, CODE + 14, 0, 0];
    let (frames, end) = walk(&chain, 0, STACK, options());
    assert_eq!(frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), [CODE + 2, CODE + 10, CODE + 14]);
    assert_eq!(end, End::EndOfStack);
}

/// Code with frame pointers, described by one rule for all of it.
struct ByFramePointer;

impl Images for ByFramePointer {
    fn find(&self, _: u64) -> Option<Image> {
        None
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some(self.registered(address).is_some())
    }

    fn registered(&self, address: u64) -> Option<Registered> {
        let range = (CODE..CODE + 0x1000).into();
        (CODE..CODE + 0x1000)
            .contains(&address)
            .then(|| Registered { range, rule: Rule::Row(Row::frame_record_at::<X86_64>(6, 0)) })
    }
}

#[test]
fn a_rule_is_not_trusted_if_the_stack_pointer_is_broken() {
    let code: Vec<u8> = [0xff, 0xd0, 0x0f, 0x0b].repeat(0x400);
    let data = [STACK + 16, CODE + 10, 5, 0x1234, 0, 0];
    let chain = [STACK + 16, CODE + 10, STACK + 32, CODE + 14, 0, 0];
    for (words, frames) in [(data, 1), (chain, 3)] {
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let ranges = [SnapshotRange { address: CODE, bytes: &code }, SnapshotRange { address: STACK, bytes: &bytes }];
        let mut registers = X86_64Registers { pc: CODE + 2, ..X86_64Registers::default() };
        registers.gpr[6] = STACK;
        let mut cache = Box::new(RuleCache::new());
        // The second time with cached rules.
        for _ in 0..2 {
            let memory = Snapshot { ranges: &ranges };
            let mut walker = Walker::<X86_64, _, _>::new(&registers, memory, ByFramePointer, &mut cache, options());
            assert_eq!(std::iter::from_fn(|| walker.next_frame()).count(), frames, "{words:x?}");
        }
    }
}

#[test]
fn exhausted_budgets_end_the_walk() {
    let deep: Vec<u64> = (1..=1_000).flat_map(|depth| [STACK + 16 * depth, CODE + 6]).chain([0, 0]).collect();
    let (frames, end) = walk(&deep, STACK, STACK, options());
    assert_eq!((frames.len(), end), (1_001, End::EndOfStack));
    let (frames, end) = walk(&deep, STACK, STACK, Options { frames: 10, ..options() });
    assert_eq!((frames.len(), end), (10, End::FrameBudget));
    let (frames, end) = walk(&deep, STACK, STACK, Options { reads: 500, ..options() });
    assert!(frames.len() < 500);
    assert_eq!(end, End::ReadBudget);
}

#[test]
fn a_deep_recursion_is_walked_to_its_end() {
    let deep: Vec<u64> = (1..=200_000).flat_map(|depth| [STACK + 16 * depth, CODE + 6]).chain([0, 0]).collect();
    let (frames, end) = walk(&deep, STACK, STACK, options());
    assert_eq!((frames.len(), end), (200_001, End::EndOfStack));
}

#[test]
fn a_scan_is_marked_and_finds_only_calls() {
    // An address in data, one in code that follows no call, and one that follows a call, preceded
    // by a frame pointer
    let stack = [1, 0x1234_5678, CODE + 0x41, STACK + 48, CODE + 0x46, 7, 0, CODE + 0x4a];
    let (frames, end) = walk(&stack, STACK, 0, Options::default());
    let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
    assert_eq!(pcs, [CODE + 2, CODE + 0x46, CODE + 0x4a]);
    assert_eq!((frames[1].found, frames[1].sp), (Found::Scan, STACK + 40));
    assert_eq!(frames[2].found, Found::Scan);
    assert_eq!(end, End::EndOfStack);
}

/// Code generated at run time, outside all images, in which no address follows a call.
struct GeneratedCode;

impl Images for GeneratedCode {
    fn find(&self, _address: u64) -> Option<Image> {
        None
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some((CODE..CODE + 0x1000).contains(&address))
    }
}

/// Returns the program counters of a walk through it, and how each was found.
fn walk_generated_code(stack: &[u64], fp: u64, scan_words: u32) -> Vec<(u64, Found)> {
    let mut code = vec![0x90; 0x1000];
    code[0x80..0x82].copy_from_slice(&[0xff, 0xd0]);
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let ranges = [SnapshotRange { address: CODE, bytes: &code }, SnapshotRange { address: STACK, bytes: &stack }];
    let mut registers = X86_64Registers { pc: CODE + 0x20, ..X86_64Registers::default() };
    (registers.gpr[7], registers.gpr[6]) = (STACK, fp);
    let mut cache = Box::new(RuleCache::new());
    let options = Options { scan_words, ..Options::default() };
    let mut walker =
        Walker::<X86_64, _, _>::new(&registers, Snapshot { ranges: &ranges }, GeneratedCode, &mut cache, options);
    std::iter::from_fn(|| walker.next_frame()).map(|frame| (frame.pc - CODE, frame.found)).collect()
}

#[test]
fn an_interpreters_callers_are_found_without_calls() {
    use Found::{Context, FramePointer, Scan};
    // HotSpot's interpreter pushes the address where it continues and jumps to the method.
    let chain = [7, STACK + 32, CODE + 0x30, 7, STACK + 56, CODE + 0x40, 7, STACK + 80, CODE + 0x82, 7, 0, 0];
    let frames = [(0x20, Context), (0x30, FramePointer), (0x40, FramePointer), (0x82, FramePointer)];
    for scan_words in [0, 512] {
        assert_eq!(walk_generated_code(&chain, STACK + 8, scan_words), frames);
    }
    // A certain return address below is the nearer caller.
    let compiled =
        [CODE + 0x82, STACK + 32, CODE + 0x30, 7, STACK + 56, CODE + 0x40, 7, STACK + 80, CODE + 0x82, 7, 0, 0];
    assert_eq!(walk_generated_code(&compiled, STACK + 8, 512)[..2], [(0x20, Context), (0x82, Scan)]);
    // A chain that goes down, one with a large distance, one that leaves the stack, and a return
    // address in data
    for (at, word) in [(1, STACK), (1, STACK + (1 << 21)), (1, STACK + 0x1000), (2, STACK)] {
        let mut broken = chain;
        broken[at] = word;
        assert_eq!(walk_generated_code(&broken, STACK + 8, 0), [(0x20, Context)], "{at} {word:#x}");
    }
}
