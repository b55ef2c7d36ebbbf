//! Compares walks of the current thread with the C++ runtime's unwinder.

use coroner_unwind::{Architecture, End, Options, RegisterFile, RuleCache, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, by_unwind_data, capture_here};
use std::ops::ControlFlow;

/// Returns the return addresses found by the C++ runtime's unwinder: libgcc's on Linux, LLVM's on
/// Darwin.
fn by_the_runtime() -> Vec<u64> {
    let mut pcs = Vec::new();
    backtrace::trace(|frame| {
        pcs.push(frame.ip() as u64);
        true
    });
    pcs
}

#[inline(never)]
fn compare(depth: u32) {
    if depth > 0 {
        compare(depth - 1);
        std::hint::black_box(());
    } else {
        compare_here();
    }
}

#[inline(never)]
fn compare_here() {
    let images = Loaded::now();
    let mut cache = Box::new(RuleCache::new());
    let theirs = by_the_runtime();
    let registers = capture_here();
    let mut walker =
        Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, Options::default());
    let frames: Vec<_> = std::iter::from_fn(|| walker.next_frame()).collect();
    assert_eq!(walker.end(), Some(End::EndOfStack));
    assert_eq!(walker.problem(), None);
    let mut ours: Vec<u64> = frames.iter().skip(1).map(|frame| frame.pc).collect();
    // Its result may end with a frame 0, and starts with its own frames.
    let theirs: Vec<u64> = theirs.into_iter().filter(|pc| *pc != 0).collect();
    // On macOS a thread starts in code without unwind data (`thread_start`), and the runtime may
    // stop before it.
    if cfg!(target_vendor = "apple") && theirs.last() != ours.last() {
        ours.pop();
    }
    let same = theirs.iter().rev().zip(ours.iter().rev()).take_while(|(a, b)| a == b).count();
    assert_eq!(same, ours.len(), "ours {ours:x?}\ntheirs {theirs:x?}");
    assert!(frames[1..].iter().all(|frame| by_unwind_data(frame.found)));
    for pair in frames.windows(2) {
        assert_eq!(pair[0].cfa, Some(pair[1].sp));
    }
}

#[test]
fn a_walk_agrees_with_the_runtime() {
    compare(0);
    compare(1);
    compare(40);
}

#[test]
fn a_walk_on_another_thread_agrees_with_the_runtime() {
    std::thread::spawn(|| compare(3)).join().unwrap();
}

/// Returns the callee-saved registers that are certain.
fn certain(registers: &RegisterFile<Native>) -> Vec<Option<u64>> {
    Native::SAVED.iter().take(Native::SAVED_COUNT - 1).map(|number| registers.certain(*number)).collect()
}

#[inline(never)]
fn deep(depth: u64) -> u64 {
    if depth == 0 {
        iterate_in_several_ways();
        return 0;
    }
    // Needed after the call, hence kept in registers that the callee saves.
    let kept = [depth, depth * 3, depth * 5].map(std::hint::black_box);
    let inner = if depth.is_multiple_of(3) { deep(depth - 1) } else { deep_too(depth - 1) };
    std::hint::black_box(inner + kept[0] + kept[1] * kept[2])
}

#[inline(never)]
fn deep_too(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 9]);
    std::hint::black_box(deep(depth) + room[(depth % 9) as usize])
}

#[inline(never)]
fn iterate_in_several_ways() {
    let images = Loaded::now();
    let mut cache = Box::new(RuleCache::new());
    let registers = capture_here();
    macro_rules! walker {
        () => {
            Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, Options::default())
        };
    }
    // One by one, without cached rules, reading each frame's registers.
    let mut walker = walker!();
    let mut expected = Vec::new();
    loop {
        let frame = walker.frame();
        expected.push((frame.pc, frame.sp, frame.found, certain(walker.registers())));
        if walker.step().is_err() {
            break;
        }
    }
    assert!(expected.len() > 300, "{}", expected.len());
    // The same with cached rules, several frames at a time.
    for stop in [1, 2, 3, 15, 16, 17, 63, 64, 65, 66, 129, 140, 254, 255, 256, 257, 258, expected.len() - 1] {
        let mut walker = walker!();
        let mut seen = Vec::new();
        walker.for_each(|frame| {
            seen.push(frame.pc);
            if seen.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let frame = walker.frame();
        let here = (frame.pc, frame.sp, frame.found, certain(walker.registers()));
        assert_eq!(here, expected[stop], "after {stop} frames");
        seen.extend(std::iter::from_fn(|| walker.next_frame()).map(|frame| frame.pc));
        assert!(seen.iter().eq(expected.iter().map(|(pc, ..)| pc)), "after {stop} frames");
        assert_eq!(walker.end(), Some(End::EndOfStack));
    }
    // Up to the end of a budget: the walk may cache the rule of the frame where it ends, which must
    // not change the others.
    for budget in [1, 2, 40, 255, 256, 257, 258, 300] {
        for cold in [true, false, false] {
            if cold {
                cache.clear();
            }
            let options = Options { frames: budget, ..Options::default() };
            let mut walker =
                Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, options);
            let seen: Vec<_> = std::iter::from_fn(|| walker.next_frame()).map(|frame| frame.pc).collect();
            assert!(seen.iter().eq(expected.iter().map(|(pc, ..)| pc).take(budget as usize)), "{budget} frames");
            assert_eq!(walker.end(), Some(End::FrameBudget));
            let here = certain(walker.registers());
            assert_eq!(here, expected[budget as usize - 1].3, "{budget} frames");
            let mut walker = walker!();
            let mut count = 0;
            walker.for_each(|frame| {
                assert_eq!(frame.pc, expected[count].0);
                count += 1;
                ControlFlow::Continue(())
            });
            assert_eq!((count, walker.end()), (expected.len(), Some(End::EndOfStack)));
        }
    }
}

#[test]
fn all_ways_to_iterate_return_the_same_frames() {
    assert_ne!(deep(300), 1);
}
