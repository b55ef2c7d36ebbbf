//! Evidence for explanations from a core dump: its mappings, the memory and code that the crashed
//! thread used, the C library's message before an abort, and whether the stack overflowed.

use coroner_process::registers::Arch as Machine;
use coroner_report::Report;
use coroner_report::model::{Address, Annotation, Code, CrashFlag, Image, Mapping, Registers, StackMemory, Thread};
use coroner_report::wire::FoundBy;
use coroner_symbols::{Arch, ImageKey, Symbolizer};

use crate::snapshot::SavedMemory;

/// Bits of [`Mapping::protection`].
const MAY_READ_AND_WRITE: u8 = 6;
const MAY_ALL: u8 = 7;
/// Maximum number of mappings in a report; those closest to the fault are kept.
const MAX_MAPPINGS: usize = 4096;
/// Bytes before and after the program counter and each register's value, as in a report by the
/// process itself.
pub(crate) const AROUND_BYTES: u64 = 256;
/// Bytes below the stack pointer that a function may use, or that a return has just left.
pub(crate) const RED_ZONE: u64 = 128;
/// The same for arm64, where functions store a pair of registers while moving the stack pointer.
const MAX_BELOW_BYTES: u64 = 1024;
/// Maximum distance above the stack pointer of the first access to a frame that does not fit, and
/// below the stack's end of any access by a frame that does not fit, in bytes.
const MAX_ABOVE_BYTES: u64 = 64 << 10;
const MAX_FRAME_BYTES: u64 = 1 << 20;
/// Size in bytes of the smallest signal frame (`struct rt_sigframe`) with its red zone.
const MIN_SIGNAL_FRAME_BYTES: u64 = 1080;
/// Bytes of a signal frame that are kept: up to its `siginfo`.
const SIGNAL_FRAME_BYTES: usize = 304;
/// Maximum size of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Adds the evidence to a report with threads and images. `mappings` are sorted by address;
/// `on_main_stack` is an address that the kernel put on the first thread's stack.
pub(crate) fn add(
    report: &mut Report,
    mut mappings: Vec<Mapping>,
    on_main_stack: Option<u64>,
    memory: &SavedMemory<'_>,
    symbolizer: &mut Symbolizer,
) {
    for thread in &mut report.threads {
        let mapping = thread.registers.as_ref().and_then(Registers::sp).and_then(|sp| at_or_after(&mappings, sp.0));
        // A signal handler's or a coroutine's stack may be in the heap.
        let is_whole_stack = |at: &&Mapping| {
            let is_main = on_main_stack.is_some_and(|address| at.contains(Address(address)));
            let below = at.start.0.checked_sub(1).and_then(|below| at_or_after(&mappings, below));
            is_main || below.is_some_and(|below| end(below) == at.start.0 && below.protection & MAY_ALL == 0)
        };
        let stack = mapping.filter(|at| is_stack(at)).filter(is_whole_stack);
        thread.stack = stack.map(|at| (at.start, Address(end(at))));
    }
    if is_stack_overflow(report, &mappings)
        && let Some(crash) = &mut report.crash
    {
        crash.flags.push(CrashFlag::StackOverflow);
    }
    report.annotations.extend(abort_message(report, memory, symbolizer));
    let Some(Thread { tid, registers: Some(registers), .. }) = report.crashed_thread().cloned() else { return };
    let around = |address: u64| {
        let start = address.saturating_sub(AROUND_BYTES);
        let piece = |start| Some((start, memory.at(start)?)).filter(|(_, bytes)| address - start < bytes.len() as u64);
        let (start, bytes) = piece(start).or_else(|| piece(address))?;
        let length = bytes.len().min((address - start + AROUND_BYTES) as usize);
        Some((Address(start), bytes[..length].to_vec().into()))
    };
    report.code.extend(registers.pc().and_then(|pc| around(pc.0)).map(|(address, bytes)| Code {
        address,
        bytes,
        ..Code::default()
    }));
    let addresses = addresses(&registers);
    // The registers before a signal handler ran.
    let thread = report.crashed_thread();
    let place = thread.and_then(|thread| thread.frames.iter().position(|at| at.found_by == FoundBy::SIGNAL_FRAME));
    let handler = thread.zip(place).and_then(|(thread, place)| thread.frames.get(place.checked_sub(1)?)?.sp);
    let signal_frame = handler.and_then(|sp| Some((sp, memory.bytes(sp.0, SIGNAL_FRAME_BYTES)?.into())));
    let pieces: Vec<_> = addresses.filter_map(around).chain(signal_frame).collect();
    report.stack_memory.extend(pieces.into_iter().map(|(address, bytes)| StackMemory {
        tid,
        address,
        bytes,
        ..StackMemory::default()
    }));
    let crash = report.crash.as_ref().and_then(|crash| crash.address).or(registers.pc()).unwrap_or_default();
    if mappings.len() > MAX_MAPPINGS {
        mappings.sort_by_key(|mapping| mapping.start.0.abs_diff(crash.0));
        mappings.truncate(MAX_MAPPINGS);
        mappings.sort_by_key(|mapping| mapping.start);
    }
    report.mappings = mappings;
}

/// Returns the crashed thread's register values that are addresses.
pub(crate) fn addresses(registers: &Registers) -> impl Iterator<Item = u64> + '_ {
    const NEAR_NULL: u64 = 0x1_0000;
    let values = registers.named().filter(|(name, _)| !name.ends_with("flags")).map(|(_, value)| value);
    values.filter(|value| (NEAR_NULL..1 << 56).contains(value))
}

fn end(mapping: &Mapping) -> u64 {
    mapping.start.0.saturating_add(mapping.size)
}

/// Returns the mapping that contains an address, or the first one above it.
fn at_or_after(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    mappings.get(mappings.partition_point(|mapping| end(mapping) <= address))
}

fn is_stack(mapping: &Mapping) -> bool {
    mapping.protection & MAY_READ_AND_WRITE == MAY_READ_AND_WRITE && mapping.file_offset.is_none()
}

/// Whether the crashed thread ran out of stack: it accessed memory at its stack pointer, in a guard
/// page or below all memory that its stack has. The rules are those of the process itself
/// (`stack_overflow.rs` in `coroner-capture`).
fn is_stack_overflow(report: &Report, mappings: &[Mapping]) -> bool {
    const SIGSEGV: i32 = 11;
    const SI_KERNEL: i32 = 0x80;
    let crash = report.crash.as_ref();
    let signal = crash.and_then(|crash| crash.signal.as_ref()).filter(|signal| signal.number == SIGSEGV);
    let registers = report.crashed_thread().and_then(|thread| thread.registers.as_ref());
    let Some((signal, registers)) = signal.zip(registers) else { return false };
    let (Some(sp), pc) = (registers.sp().map(|sp| sp.0), registers.pc()) else { return false };
    let is_guard = |mapping: &Mapping| mapping.protection & MAY_ALL == 0;
    let found = at_or_after(mappings, sp).filter(|at| at.start.0 <= sp && is_stack(at));
    // The kernel had no room for the frame of a signal.
    if signal.code == SI_KERNEL
        && let Some(stack) = found
    {
        let below = stack.start.0.checked_sub(1).and_then(|below| at_or_after(mappings, below));
        let is_end = below.is_none_or(|below| below.start == stack.start || is_guard(below));
        return sp - stack.start.0 < MIN_SIGNAL_FRAME_BYTES && is_end;
    }
    let address = crash.and_then(|crash| crash.address).map(|address| address.0);
    let Some(address) = address.or((signal.code == SI_KERNEL).then_some(sp)) else { return false };
    let below = if report.header.arch == Some(Machine::X86_64) { RED_ZONE } else { MAX_BELOW_BYTES };
    let is_of_frame = address <= sp.saturating_add(MAX_ABOVE_BYTES) && address >= sp.saturating_sub(below);
    // A buffer that is overrun up to a guard page above it: the stack pointer is valid.
    if pc == Some(Address(address)) || !is_of_frame || (sp < address && found.is_some()) {
        return false;
    }
    let Some(at) = at_or_after(mappings, address) else { return false };
    let is_inside = at.start.0 <= address;
    let stack = if is_inside && is_guard(at) {
        // A frame may reach across it, to where nothing is mapped.
        at_or_after(mappings, end(at)).filter(|above| above.start.0 == end(at))
    } else {
        // A guard may be within the mapping (`MADV_GUARD_INSTALL`).
        (!is_inside || signal.code == 1).then_some(at)
    };
    stack.is_some_and(|stack| is_stack(stack) && stack.start.0.saturating_sub(address) <= MAX_FRAME_BYTES)
}

/// Returns glibc's message before it called `abort`: `__abort_msg` points to its size and text
/// (include/stdlib.h).
fn abort_message(report: &Report, memory: &SavedMemory<'_>, symbolizer: &mut Symbolizer) -> Option<Annotation> {
    let signal = report.crash.as_ref()?.signal.as_ref()?;
    let arch = match report.header.arch? {
        Machine::X86_64 => Arch::X86_64,
        Machine::Aarch64 => Arch::Aarch64,
    };
    let mut images = report.images.iter().filter(|image| signal.name == Some("SIGABRT") && may_have_message(image));
    images.find_map(|image| {
        let files = symbolizer.files(&ImageKey::from_image(image, arch));
        let offset = files.iter().find_map(|file| file.variable(b"__abort_msg")?.checked_sub(file.base_svma()))?;
        let word = |address| Some(u64::from_le_bytes(*memory.bytes(address, 8)?.first_chunk()?));
        let at = word(image.load_address.0.checked_add(offset)?).filter(|at| *at != 0)?;
        let size = (word(at)? as u32 as usize).saturating_sub(4).min(MAX_MESSAGE_BYTES);
        let text = memory.at(at.checked_add(4)?)?;
        let text = text[..text.len().min(size)].split(|byte| *byte == 0).next().filter(|text| !text.is_empty())?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Annotation { source: "libc.so.6".to_owned(), text, ..Annotation::default() })
    })
}

/// Whether an image is glibc, or the program, which may contain it.
fn may_have_message(image: &Image) -> bool {
    image.is_main || is_glibc(image.name())
}

/// Whether a file is named as glibc is.
pub(crate) fn is_glibc(name: &str) -> bool {
    name == "libc.so.6" || name.starts_with("libc-2.")
}
