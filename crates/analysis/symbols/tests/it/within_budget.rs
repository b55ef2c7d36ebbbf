//! Symbolication within a budget: the same result as without one if the budget suffices, never more
//! memory than allowed, the most important frames first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use coroner_report::model::{Address, Frame, Image, Report, Thread};
use coroner_report::wire::{AddressKind, ImageKind};
use coroner_symbols::{
    Exhausted, FileKind, LeftOut, LookupAddress, NAMING_CONTEXT, NamingBudget, Options, SymbolFile, Symbolizer,
};
use object::{Object, ObjectSection, SectionKind};

use crate::common::{Random, fixture};

thread_local! {
    /// In [`peak_memory`]: the bytes that the thread has allocated since the call, and their
    /// maximum.
    static MEMORY: Cell<Option<(isize, isize)>> = const { Cell::new(None) };
}

/// The allocator of this test program. Counts only for threads in [`peak_memory`].
struct Counted;

fn count(bytes: isize) {
    // An exiting thread frees memory after its counter was destroyed.
    let _ = MEMORY.try_with(|memory| {
        if let Some((now, most)) = memory.get() {
            memory.set(Some((now + bytes, most.max(now + bytes))));
        }
    });
}

// SAFETY: calls are forwarded to the system's allocator; the counter has no destructor and
// allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Counted as a move, during which both blocks exist.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// Returns the peak memory use of `act`, in bytes.
fn peak_memory(act: impl FnOnce()) -> usize {
    MEMORY.set(Some((0, 0)));
    act();
    MEMORY.take().map_or(0, |(_, most)| most) as usize
}

const UNLIMITED: NamingBudget = NamingBudget { memory: usize::MAX / 2, time: Duration::MAX, clock: || Duration::ZERO };

fn options() -> Options {
    Options { debug_roots: Vec::new(), ..Options::default() }
}

/// Returns the first slice of a fat Mach-O file, which is the first result of [`SymbolFile::open`];
/// otherwise the whole file.
fn first_slice(bytes: &[u8]) -> &[u8] {
    // <mach-o/fat.h>: `magic, count, { cpu type, cpu subtype, offset, size, align }…`, in
    // big-endian words.
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    if word(0) == 0xcafe_babe { &bytes[word(16)..][..word(20)] } else { bytes }
}

/// Creates a report with frames at `count` addresses spread over a file's code, half of them on a
/// thread that did not crash.
fn report(path: &Path, count: u64) -> Report {
    let file = &SymbolFile::open(path).unwrap()[0];
    let bytes = std::fs::read(path).unwrap();
    let object = object::File::parse(first_slice(&bytes)).unwrap();
    let code = object.sections().filter(|section| section.kind() == SectionKind::Text);
    let code: Vec<(u64, u64)> = code.map(|section| (section.address(), section.size())).collect();
    let size: u64 = code.iter().map(|(_, size)| size).sum();
    let base = file.base_svma();
    let mut threads = [true, false].map(|crashed| Thread { crashed, ..Thread::default() });
    for number in 0..count {
        let mut offset = number * size / count;
        let section = code.iter().find(|(_, size)| {
            let is_in = offset < *size;
            offset -= if is_in { 0 } else { *size };
            is_in
        });
        let address = section.unwrap().0 + offset;
        threads[number as usize % 2].frames.push(Frame {
            address: Address(address),
            address_kind: AddressKind::INSTRUCTION,
            ..Frame::default()
        });
    }
    let kind = if file.kind() == FileKind::MachO { ImageKind::MACHO } else { ImageKind::ELF };
    let image = Image {
        kind,
        path: path.to_str().unwrap().to_owned(),
        build_id: file.debug_id().map(|id| id.as_bytes().to_vec()).unwrap_or_default().into(),
        load_address: Address(base),
        size: 1 << 32,
        ..Image::default()
    };
    Report { threads: threads.into(), images: vec![image], ..Report::default() }
}

/// Returns a thread's frames, and how many of them have a function and a line.
fn frames(report: &Report, thread: usize) -> (Vec<String>, usize, usize) {
    let frames = &report.threads[thread].frames;
    let said = frames.iter().map(|frame| format!("{frame:?}")).collect();
    let named = frames.iter().filter(|frame| frame.function.is_some()).count();
    (said, named, frames.iter().filter(|frame| frame.line.is_some()).count())
}

fn left_out(report: &Report) -> Option<String> {
    let value = report.run.as_ref()?.contexts.get(NAMING_CONTEXT)?;
    Some(value.to_json().to_string())
}

#[test]
fn a_sufficient_budget_changes_nothing() {
    let own = std::env::current_exe().unwrap();
    let program = fixture("program.dylib");
    let dwarf = fixture("program.dylib.dSYM/Contents/Resources/DWARF/program.dylib");
    for (path, count) in [
        (own, 600),
        (fixture("cpp.elf"), 1500),
        (fixture("dwz/plain.elf"), 500),
        (program, 500),
        (dwarf, 500),
        (fixture("debug-map/mapped.dylib"), 300),
    ] {
        let mut whole = report(&path, count);
        let mut within = whole.clone();
        Symbolizer::new(options()).symbolicate_report(&mut whole);
        let left = Symbolizer::new(options()).symbolicate_report_within(&mut within, UNLIMITED);
        assert_eq!(left, None, "{}", path.display());
        for thread in [0, 1] {
            let ((whole, named, lines), (within, ..)) = (frames(&whole, thread), frames(&within, thread));
            let first = whole.iter().zip(&within).find(|(whole, within)| whole != within);
            assert_eq!(first.map(|pair| pair.0), first.map(|pair| pair.1), "{}", path.display());
            println!("{}: {named} names, {lines} lines of {}", path.display(), whole.len());
            assert!(named > 10, "{}", path.display());
        }
    }
}

#[test]
fn bulk_and_single_lookups_agree() {
    let dwarf = fixture("program.dylib.dSYM/Contents/Resources/DWARF/program.dylib");
    let own = std::env::current_exe().unwrap();
    for (path, count) in [(own, 900), (fixture("cpp.elf"), 1500), (fixture("dwz/plain.elf"), 500), (dwarf, 500)] {
        let report = report(&path, count);
        let frames = report.threads.iter().flat_map(|thread| &thread.frames);
        let addresses: Vec<LookupAddress> =
            frames.map(|frame| LookupAddress::of_instruction(frame.address.0)).collect();
        let [at_once, singly] = [true, false].map(|at_once| {
            let file = SymbolFile::open(&path).unwrap().remove(0);
            if at_once {
                file.look_up(&addresses);
            }
            addresses.iter().map(|address| file.calls(*address)).collect::<Vec<_>>()
        });
        for (address, (at_once, singly)) in addresses.iter().zip(at_once.iter().zip(&singly)) {
            assert_eq!(at_once, singly, "{} {:#x}", path.display(), address.svma());
        }
        assert!(singly.iter().any(|calls| calls.len() > 1), "{}: no inlined calls", path.display());
    }
}

#[test]
fn split_debug_information_is_reported_as_left_out() {
    for file in ["dwz/first.elf"] {
        let mut report = report(&fixture(file), 300);
        let left = Symbolizer::new(options()).symbolicate_report_within(&mut report, UNLIMITED);
        assert!(left.is_some_and(|left| left.frames > 0 && left.exhausted.is_none()), "{file}: {left:?}");
        assert!(left_out(&report).is_some_and(|said| said.contains("split debug information")), "{file}");
        Symbolizer::new(options()).symbolicate_report(&mut report);
        assert_eq!(left_out(&report), None, "{file}");
    }
}

#[test]
fn memory_stays_within_the_budget() {
    let own = std::env::current_exe().unwrap();
    let whole = report(&own, 400);
    let mut had = Vec::new();
    for kilobytes in [0, 256, 2048, 32768] {
        let mut report = whole.clone();
        let budget = NamingBudget { memory: kilobytes << 10, ..UNLIMITED };
        let mut left = None;
        let memory = peak_memory(|| left = Symbolizer::new(options()).symbolicate_report_within(&mut report, budget));
        let (named, lines) = (0..2)
            .map(|thread| frames(&report, thread))
            .fold((0, 0), |(named, lines), frames| (named + frames.1, lines + frames.2));
        println!("{kilobytes} KiB: {} KiB, {named} names, {lines} lines, {left:?}", memory >> 10);
        // The report's own contents, mainly its names, are not part of the budget: 400 frames with
        // inlined calls.
        assert!(memory <= (kilobytes << 10) + (1 << 20), "{memory} bytes of {kilobytes} KiB");
        if let Some(LeftOut { exhausted, frames }) = left {
            assert_eq!(exhausted, Some(Exhausted::Memory));
            assert!(frames > 0 && left_out(&report).unwrap().contains("memory"));
        }
        had.push((left.is_none(), lines, named));
        // Only once, because it takes a while.
        if kilobytes == 256 {
            Symbolizer::new(options()).symbolicate_report(&mut report);
            assert_eq!(left_out(&report), None, "symbolication without a budget completes it");
            assert!(frames(&report, 0).2 > 100, "symbolication without a budget completes it");
        }
    }
    assert!(had.is_sorted(), "more memory, more names: {had:?}");
    assert!(!had[0].0 && had.last().unwrap().0, "{had:?}");
}

#[test]
fn damaged_files_end_within_the_budget() {
    let whole = std::fs::read(fixture("cpp.elf")).unwrap();
    let sound = report(&fixture("cpp.elf"), 40);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    let (mut random, mut lines) = (Random::new(17), 0);
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(8) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut report = sound.clone();
        path.to_str().unwrap().clone_into(&mut report.images[0].path);
        let budget = NamingBudget { memory: 16 << 20, time: Duration::from_millis(500), clock };
        let memory = peak_memory(|| {
            Symbolizer::new(options()).symbolicate_report_within(&mut report, budget);
        });
        assert!(memory < 17 << 20, "{memory}");
        lines += frames(&report, 0).2;
    }
    assert!(lines > 300, "most of each file is intact: {lines}");
}

thread_local! {
    static CLOCK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A deterministic clock that advances with each reading.
fn clock() -> Duration {
    CLOCK.set(CLOCK.get() + Duration::from_millis(1));
    CLOCK.get()
}

#[test]
fn the_most_important_frames_are_named_first() {
    let own = std::env::current_exe().unwrap();
    let whole = report(&own, 200);
    let mut named = Vec::new();
    let mut limit = 0;
    loop {
        let mut report = whole.clone();
        let budget = NamingBudget { time: Duration::from_millis(limit), clock, ..UNLIMITED };
        let left = Symbolizer::new(options()).symbolicate_report_within(&mut report, budget);
        let ((_, functions, lines), (_, other_functions, other_lines)) = (frames(&report, 0), frames(&report, 1));
        named.push((functions, other_functions, lines, other_lines));
        let Some(left) = left else { break };
        assert_eq!(left.exhausted, Some(Exhausted::Time), "{limit}");
        assert!(left_out(&report).unwrap().contains("processor time"));
        limit = limit * 2 + 1;
    }
    println!("{named:?}");
    let (_, _, lines, other_lines) = named[named.len() - 1];
    assert!(lines > 50 && other_lines > 50, "{named:?}");
    assert_eq!(named[0], (0, 0, 0, 0));
    assert!(named.is_sorted(), "more time, more names: {named:?}");
    assert!(
        named.iter().all(|said| said.3 == 0 || said.2 == lines),
        "the crashed thread's lines come first: {named:?}"
    );
    assert!(named.iter().any(|said| said.0 > 0 && said.1 > 0 && said.2 == 0), "functions come first: {named:?}");
    assert!(named.iter().any(|said| said.2 == lines && said.3 < other_lines), "{named:?}");
}
