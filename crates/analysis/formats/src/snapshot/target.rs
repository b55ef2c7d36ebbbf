//! Another process as a source of reports: threads with registers, images, memory, and a reason.
//!
//! [`Snapshot::take`] reads all that a report needs while the process is stopped;
//! [`Snapshot::report`] walks the stacks afterwards, when the process may run again or be gone.

use std::fs::File;

use coroner_process::memory::{Memory, Unreadable};
use coroner_report::Report;
use coroner_report::model::{
    Address, Annotation, Code, Crash, CrashFlag, Exception, Header, Image, Mapping, Problem, Registers, StackMemory,
    Thread,
};
use coroner_report::wire::{Language, Monitor};
use coroner_symbols::Symbolizer;
use coroner_unwind::AddressRange;

use super::elf_images::MappedFile;
use super::{SavedMemory, futex, kept_stacks, walk_threads};

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, x86_64).
const RED_ZONE: u64 = 128;
/// Maximum bytes of one stack, of the crashed thread's, and of all stacks together.
const MAX_STACK: u64 = 1 << 20;
const MAX_CRASHED_STACK: u64 = 16 << 20;
const MAX_STACKS: u64 = 1 << 29;
/// Bytes of the crashed thread's stack that a report of a crash keeps.
const CRASHED_STACK: usize = 2048;
/// Size in bytes of the pieces of memory kept around a register's value.
const BLOCK: u64 = 256;
/// Minimum number of bytes kept from a register's value on.
const MIN_BLOCK: u64 = 128;
/// Size in bytes of the pieces of code before and after an address.
const CODE_PIECE: u64 = 64;
/// Bytes to read at an image's start, for its headers and build ID.
const HEADERS: u64 = 8192;
/// Nothing is mapped below this address.
const NEAR_NULL: u64 = 0x1_0000;
/// The bits of an address: arm64 ignores the uppermost byte.
const ADDRESS_BITS: u64 = if cfg!(target_arch = "aarch64") { !(0xff << 56) } else { u64::MAX };

/// A stopped process.
pub trait Target {
    /// Returns the report's header.
    fn header(&self) -> Header;

    /// Returns the threads with their registers, states and names. The thread that the report is
    /// about is marked as crashed and comes first.
    fn threads(&self) -> Vec<Thread>;

    /// Returns the mappings in ascending order.
    fn mappings(&self) -> Vec<Mapping>;

    /// Returns the start addresses of images.
    fn image_starts(&self) -> Vec<u64>;

    /// Returns the images, whose headers are in `memory`.
    fn images(&self, memory: &SavedMemory<'_>) -> Vec<Image>;

    /// Reads memory; returns the number of bytes read, which is less at the end of a mapping.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;

    /// Returns the reason for the report.
    fn reason(&self) -> Crash;

    /// Returns the records of the process's own libraries about its end.
    fn last_words(&self, _images: &[Image]) -> LastWords {
        LastWords::default()
    }

    /// Returns the image's file, if the image's path leads to another file or to none.
    fn file(&self, _image: &Image) -> Option<File> {
        None
    }

    /// Whether locks record their owners by ids that mean the same threads as in the report.
    fn has_lock_owners(&self) -> bool {
        true
    }

    /// Returns what is missing.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// Records of a process's own libraries about its end.
#[derive(Debug, Default)]
pub struct LastWords {
    /// The C library's message before it called `abort`.
    pub annotation: Option<Annotation>,
    /// The C++ exception that the crashed thread is handling.
    pub exception: Option<Exception>,
}

/// A target as [`Memory`].
struct TargetMemory<'t>(&'t dyn Target);

impl Memory for TargetMemory<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.0.read(address, into) == into.len() { Ok(()) } else { Err(Unreadable { address }) }
    }
}

/// All that a report needs of a process.
#[derive(Debug)]
pub struct Snapshot {
    report: Report,
    exception: Option<Exception>,
    memory: Vec<(u64, Vec<u8>)>,
    mapped: Vec<(AddressRange, bool)>,
    /// Files of images whose paths lead elsewhere.
    files: Vec<(String, File)>,
}

/// Returns the report of a stopped process, with its stacks walked and named.
pub fn report_of(target: &dyn Target, symbolizer: &mut Symbolizer) -> Report {
    Snapshot::take(target).report(symbolizer)
}

impl Snapshot {
    /// Reads the process.
    pub fn take(target: &dyn Target) -> Snapshot {
        let (header, crash, mappings) = (target.header(), target.reason(), target.mappings());
        let mut threads = target.threads();
        let is_crash = !crash.has(CrashFlag::NotFatal);
        let crashed = threads.first().filter(|_| is_crash).and_then(|thread| thread.registers.clone());
        if target.has_lock_owners() {
            for thread in &mut threads {
                let registers = thread.registers.as_ref();
                thread.futex = registers.and_then(|registers| futex(registers, thread.syscall, TargetMemory(target)));
            }
        }
        let mut ranges = stack_ranges(&threads, &mappings);
        let starts = target.image_starts();
        ranges.extend(starts.into_iter().map(|start| (start, end_of(&mappings, start, HEADERS))));
        if let Some(registers) = &crashed {
            ranges.extend(blocks(registers).map(|block| (block, block + BLOCK)));
            ranges.extend(code_ranges(registers, target));
        }
        let memory = read_ranges(target, ranges);
        let saved = SavedMemory::new(memory.iter().map(|(start, bytes)| (*start, &bytes[..])).collect());
        let images = target.images(&saved);
        let files = images.iter().filter_map(|image| Some((image.path.clone(), target.file(image)?))).collect();
        let words = if is_crash { target.last_words(&images) } else { LastWords::default() };
        let mut report = Report {
            header,
            stack_memory: match &crashed {
                Some(registers) => crash_memory(threads[0].tid, registers, &saved),
                None => {
                    let stacks = threads
                        .iter()
                        .filter_map(|thread| Some((u32::try_from(thread.tid).ok()?, thread.registers.as_ref()?.sp()?)));
                    kept_stacks(stacks, &saved)
                }
            },
            threads,
            images,
            annotations: words.annotation.into_iter().collect(),
            problems: target.problems(),
            ..Report::default()
        };
        if let Some(registers) = &crashed {
            report.code = code_ranges(registers, target).filter_map(|(start, end)| code(&saved, start, end)).collect();
            report.mappings = mappings_around(&crash, registers, &mappings);
        }
        let overflow = crashed.as_ref().is_some_and(|registers| is_stack_overflow(&crash, registers, &mappings));
        report.crash = Some(crash);
        if let Some(crash) = report.crash.as_mut().filter(|_| overflow) {
            crash.flags.push(CrashFlag::StackOverflow);
        }
        let range = |mapping: &Mapping| AddressRange { start: mapping.start.0, end: end(mapping) };
        let mapped = mappings.iter().map(|mapping| (range(mapping), mapping.protection & 1 != 0)).collect();
        Snapshot { report, exception: words.exception, memory, mapped, files }
    }

    /// Walks the stacks and names their frames.
    pub fn report(self, symbolizer: &mut Symbolizer) -> Report {
        let Snapshot { mut report, exception, memory, mapped, files } = self;
        #[cfg(unix)]
        for (path, file) in &files {
            use std::os::fd::AsRawFd;
            symbolizer.take_file(path, format!("/proc/self/fd/{}", file.as_raw_fd()));
        }
        let saved = SavedMemory::new(memory.iter().map(|(start, bytes)| (*start, &bytes[..])).collect());
        walk_threads(&mut report, &saved, mapped, symbolizer);
        report.complete = report.problems.is_empty();
        symbolizer.symbolicate_report(&mut report);
        let is_abort = |crash: &Crash| crash.signal.as_ref().is_some_and(|signal| signal.name == Some("SIGABRT"));
        if report.crash.as_ref().is_some_and(is_abort) {
            add_exception(&mut report, exception);
            symbolizer.symbolicate_report(&mut report);
        }
        symbolizer.release_files();
        report
    }
}

/// Adds the exception if the crashed thread called `std::terminate`, or that there is none: the
/// stack is still the throw's, because a handler is searched before anything is unwound.
fn add_exception(report: &mut Report, exception: Option<Exception>) {
    const TERMINATES: [&str; 3] =
        ["std::terminate", "__cxxabiv1::__terminate", "__gnu_cxx::__verbose_terminate_handler"];
    let Some(thread) = report.threads.first() else { return };
    let position = |wanted: &[&str]| {
        let is_it = |name: &str| wanted.contains(&name.split('(').next().unwrap_or(name));
        thread.frames.iter().position(|frame| frame.function.as_deref().is_some_and(is_it))
    };
    if position(&TERMINATES).is_none() {
        return;
    }
    let thrown = position(&["__cxa_throw", "__cxa_rethrow"]);
    let none = || Exception {
        language: Language::CPP,
        message: Some("terminate called without an active exception".to_owned()),
        ..Exception::default()
    };
    let mut exception = exception.unwrap_or_else(none);
    exception.tid = thread.tid;
    exception.frames = thrown.and_then(|at| thread.frames.get(at + 1..)).unwrap_or_default().to_vec();
    if let Some(crash) = &mut report.crash {
        crash.monitor = Monitor::CPP_EXCEPTION;
        crash.exception_type.clone_from(&exception.type_name);
        crash.message.clone_from(&exception.message);
    }
    report.exceptions.push(exception);
}

/// Reads ranges, each as far as it can be read, without reading any address twice.
fn read_ranges(target: &dyn Target, mut ranges: Vec<(u64, u64)>) -> Vec<(u64, Vec<u8>)> {
    ranges.sort_unstable();
    let mut last = 0;
    let mut memory = Vec::new();
    for (start, end) in ranges {
        let start = start.max(last);
        if start >= end {
            continue;
        }
        last = end;
        let mut bytes = vec![0; (end - start) as usize];
        let length = target.read(start, &mut bytes);
        bytes.truncate(length);
        memory.push((start, bytes));
    }
    memory
}

fn end(mapping: &Mapping) -> u64 {
    mapping.start.0.saturating_add(mapping.size)
}

fn mapping_at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start.0 <= address);
    mappings.get(after.checked_sub(1)?).filter(|mapping| mapping.contains(Address(address)))
}

/// Returns the end of a range within its mapping.
fn end_of(mappings: &[Mapping], start: u64, size: u64) -> u64 {
    mapping_at(mappings, start).map_or(start, end).min(start.saturating_add(size))
}

/// The used part of each stack, as ranges that don't overlap.
fn stack_ranges(threads: &[Thread], mappings: &[Mapping]) -> Vec<(u64, u64)> {
    let start = |thread: &Thread| Some(thread.registers.as_ref()?.sp()?.0.saturating_sub(RED_ZONE) & !7);
    let first = threads.first().and_then(start);
    let mut starts: Vec<u64> = threads.iter().filter_map(start).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut all = 0;
    let ranges = starts.iter().enumerate().filter_map(|(index, &start)| {
        // The stack pointer of an overflow is below its mapping.
        let mapping = match mapping_at(mappings, start).filter(|mapping| mapping.protection & 4 != 0) {
            Some(mapping) => mapping,
            None => mappings.iter().find(|mapping| mapping.start.0 > start && mapping.protection & 4 != 0)?,
        };
        let size = if Some(start) == first { MAX_CRASHED_STACK } else { MAX_STACK };
        let start = start.max(mapping.start.0);
        let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
        let end = end(mapping).min(start.saturating_add(size)).min(next);
        all += end.saturating_sub(start);
        (start < end && all <= MAX_STACKS).then_some((start, end))
    });
    ranges.collect()
}

/// The blocks of memory that the general registers point to.
fn blocks(registers: &Registers) -> impl Iterator<Item = u64> {
    let mut blocks: Vec<u64> = registers
        .general
        .iter()
        .flat_map(|value| [*value, value.wrapping_add(MIN_BLOCK)])
        .map(|address| address & ADDRESS_BITS & !(BLOCK - 1))
        .filter(|block| *block >= NEAR_NULL && block.checked_add(BLOCK).is_some())
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter()
}

/// The code around the program counter and, after a jump to a bad address, before the return
/// address.
fn code_ranges(registers: &Registers, target: &dyn Target) -> impl Iterator<Item = (u64, u64)> + use<> {
    let mut memory = TargetMemory(target);
    let pc = registers.pc().map(|pc| pc.0);
    let is_code = pc.is_some_and(|pc| memory.read(pc, &mut [0]).is_ok());
    let caller = match registers.aarch64() {
        Some(registers) => Some(registers.x[30] & ADDRESS_BITS),
        None => registers.sp().and_then(|sp| memory.read_u64(sp.0).ok()),
    };
    let around = |address: u64| (address.saturating_sub(CODE_PIECE), address.saturating_add(CODE_PIECE));
    [pc, caller.filter(|_| !is_code)].into_iter().flatten().filter(|address| *address >= NEAR_NULL).map(around)
}

fn code(memory: &SavedMemory<'_>, start: u64, end: u64) -> Option<Code> {
    // The page before may be missing.
    let (at, bytes) = [start, start + CODE_PIECE].into_iter().find_map(|at| Some((at, memory.at(at)?)))?;
    let bytes = &bytes[..bytes.len().min((end - at) as usize)];
    Some(Code { address: Address(at), bytes: bytes.to_vec().into(), ..Code::default() })
}

/// The crashed thread's stack, and the memory that its registers point to.
fn crash_memory(tid: u64, registers: &Registers, memory: &SavedMemory<'_>) -> Vec<StackMemory> {
    let piece = |start: u64, size: usize| {
        let bytes = memory.at(start)?;
        let bytes = bytes[..bytes.len().min(size)].to_vec();
        Some(StackMemory { tid, address: Address(start), bytes: bytes.into(), ..StackMemory::default() })
    };
    let stack = registers.sp().and_then(|sp| piece(sp.0.saturating_sub(RED_ZONE) & !15, CRASHED_STACK));
    let kept = stack.as_ref().map_or(0..0, |stack| stack.address.0..stack.address.0 + stack.bytes.len() as u64);
    let is_other = |block: &u64| !(*block < kept.end && block + BLOCK > kept.start);
    let blocks: Vec<_> = blocks(registers).filter(is_other).filter_map(|at| piece(at, BLOCK as usize)).collect();
    stack.into_iter().chain(blocks).collect()
}

/// Whether a fault has an address that the processor could not access.
fn fault_address(crash: &Crash) -> Option<u64> {
    let is_memory = crash.signal.as_ref().is_some_and(|signal| matches!(signal.name, Some("SIGSEGV" | "SIGBUS")));
    crash.address.filter(|_| is_memory).map(|address| address.0)
}

/// The mapping that contains the fault address or the program counter; otherwise, and around one
/// that allows no access, the nearest ones. Also those one flipped bit away from an address where
/// nothing is mapped.
fn mappings_around(crash: &Crash, registers: &Registers, mappings: &[Mapping]) -> Vec<Mapping> {
    let Some(address) = fault_address(crash).or_else(|| registers.pc().map(|pc| pc.0)) else { return Vec::new() };
    let is_guard = |mapping: &Mapping| mapping.protection & 7 == 0;
    let at = mapping_at(mappings, address);
    let mut found: Vec<Mapping> = match at {
        Some(whole) if !is_guard(whole) => vec![whole.clone()],
        _ => {
            let after = mappings.partition_point(|mapping| mapping.start.0 <= address);
            let first = after.saturating_sub(1 + usize::from(at.is_some()));
            mappings.get(first..(after + 1).min(mappings.len())).unwrap_or_default().to_vec()
        }
    };
    if at.is_none() && address >= NEAR_NULL && fault_address(crash).is_some() {
        let is_near = |mapping: &&Mapping| {
            mapping.protection & 4 != 0 && (24..64).any(|bit| mapping.contains(Address(address ^ 1 << bit)))
        };
        found.extend(mappings.iter().filter(is_near).take(4).cloned());
    }
    found.sort_by_key(|mapping| mapping.start.0);
    found.dedup_by_key(|mapping| mapping.start.0);
    found
}

/// Whether the thread ran out of stack: it accessed memory at its stack pointer where its stack has
/// none, in a guard page or below all memory that its stack has.
fn is_stack_overflow(crash: &Crash, registers: &Registers, mappings: &[Mapping]) -> bool {
    const ABOVE: u64 = 64 << 10;
    const BELOW: u64 = if cfg!(target_arch = "x86_64") { 128 } else { 1024 };
    const FRAME: u64 = 1 << 20;
    let (Some(address), Some(Address(sp))) = (fault_address(crash), registers.sp()) else { return false };
    let is_near = address <= sp.saturating_add(ABOVE) && address >= sp.saturating_sub(BELOW);
    let is_stack = |mapping: &Mapping| mapping.protection & 6 == 6;
    let is_jump = registers.pc().is_some_and(|pc| pc.0 == address);
    if is_jump || !is_near {
        return false;
    }
    if sp < address && mapping_at(mappings, sp).is_some_and(is_stack) {
        return false;
    }
    let first = mappings.partition_point(|mapping| end(mapping) <= address);
    let above = match mappings.get(first..) {
        Some([guard, above, ..]) if guard.protection & 7 == 0 && above.start.0 == end(guard) => Some(above),
        Some([at, ..]) if at.protection & 7 != 0 => Some(at),
        _ => None,
    };
    above.is_some_and(|stack| is_stack(stack) && stack.start.0.saturating_sub(address) <= FRAME)
}

/// Returns the mapped parts of files.
pub fn mapped_files(mappings: &[Mapping]) -> Vec<MappedFile> {
    let as_file = |mapping: &Mapping| {
        let path = mapping.name.as_deref().filter(|path| is_file(path))?;
        Some(MappedFile {
            start: mapping.start.0,
            end: end(mapping),
            offset: mapping.file_offset.unwrap_or(0),
            path: path.to_owned(),
            is_code: mapping.protection & 1 != 0,
        })
    };
    mappings.iter().filter_map(as_file).collect()
}

/// Whether a mapping's name is the path of a file that may be an image.
pub fn is_file(name: &str) -> bool {
    name.starts_with('/') && !name.starts_with("/dev/")
}
