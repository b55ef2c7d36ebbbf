//! Reads core dumps from a compressed file, or from the kernel while the process still exists.
//!
//! In core dumps by the kernel, systemd-coredump, apport and gdb, the headers and the notes come
//! first. They determine which memory a stack walk needs: the used part of each stack, the headers
//! of the images, and the locks that threads wait for. Only that memory is kept and the rest is
//! skipped, so that memory use depends on the stacks and not on the size of the core dump.

use std::fs::File;
use std::io::{ErrorKind, Read};

use coroner_report::Report;
use coroner_symbols::Symbolizer;

use super::core_file::{Core, Part};
use super::error::{DumpError, damaged};
use super::evidence::RED_ZONE;
use crate::snapshot::{SavedMemory, user_regs};

/// Maximum number of bytes before the memory: headers and notes.
const MAX_HEAD_BYTES: u64 = 64 << 20;
/// Maximum size of one stack, minimum for each of many, and maximum of all together, in bytes.
const MAX_STACK_BYTES: u64 = 1 << 20;
const MIN_STACK_BYTES: u64 = 16 << 10;
const MAX_ALL_STACKS_BYTES: u64 = 48 << 20;
/// Number of bytes at an image's start, with its headers and its build id, and maximum for all
/// images.
const HEADERS_BYTES: u64 = 8192;
const MAX_ALL_HEADERS_BYTES: u64 = 16 << 20;
/// Number of bytes before and after the word that a thread waits for.
const LOCK_CONTEXT_BYTES: u64 = 64;
/// Number of bytes skipped at once.
const SKIP_CHUNK_BYTES: usize = 256 << 10;

/// `ET_CORE`, and the sizes of `Elf64_Ehdr` and `Elf64_Phdr`.
const ET_CORE: u16 = 4;
const EHDR: u64 = 64;
const PHDR: u64 = 56;
/// More program headers than the field can hold (`PN_XNUM`): their number is at the end of the
/// file.
const PN_XNUM: u16 = 0xffff;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

/// Reads a core dump from `stream`. With the process's `memory` (`/proc/PID/mem`), while it still
/// exists, only headers and notes are read from the stream.
pub(crate) fn read(
    mut stream: impl Read,
    memory: Option<&File>,
    symbolizer: &mut Symbolizer,
) -> Result<Report, DumpError> {
    let head = head(&mut stream)?;
    let core = Core::parse(&head)?;
    let wanted = wanted(&core);
    let from_process = memory.and_then(|memory| read_from_process(memory, &wanted));
    let (pieces, missing, end) = match from_process {
        Some(pieces) => (pieces, 0, 0),
        None => read_from_stream(stream, head.len() as u64, &core, &wanted),
    };
    let saved = SavedMemory::new(pieces.iter().map(|(start, bytes)| (*start, &bytes[..])).collect());
    Ok(core.report(&saved, missing, end, symbolizer))
}

/// Reads until `into` is full. Returns the number of bytes, which is less at the end of the stream
/// or after an error, and the error.
fn fill(stream: &mut impl Read, into: &mut [u8]) -> (usize, Option<std::io::Error>) {
    let mut length = 0;
    while length < into.len() {
        match stream.read(&mut into[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (length, Some(error)),
        }
    }
    (length, None)
}

/// Continues reading until `head` has `length` bytes.
fn extend(head: &mut Vec<u8>, stream: &mut impl Read, length: u64) -> Result<(), DumpError> {
    if length > MAX_HEAD_BYTES {
        return Err(damaged(format!(
            "the notes end at byte {length}; the limit for a core dump read as a stream is {MAX_HEAD_BYTES}"
        )));
    }
    let from = head.len();
    if length as usize > from {
        head.resize(length as usize, 0);
        let (read, why) = fill(stream, &mut head[from..]);
        if from + read < length as usize {
            let why = why.map_or_else(String::new, |error| format!(": {error}"));
            return Err(damaged(format!(
                "the core dump is truncated at byte {}, in its headers and notes{why}",
                from + read
            )));
        }
    }
    Ok(())
}

/// Reads everything up to the end of the notes.
fn head(stream: &mut impl Read) -> Result<Vec<u8>, DumpError> {
    let mut head = Vec::new();
    extend(&mut head, stream, EHDR)?;
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if !head.starts_with(b"\x7fELF") || half(16) != ET_CORE {
        return Err(DumpError::NotADump);
    }
    if head[4] == 1 {
        return Err(DumpError::Unsupported("a core dump of a 32-bit process".into()));
    }
    let offset = user_regs::word(&head, 32).unwrap_or_default();
    let (size, count) = (half(54), half(56));
    if u64::from(size) != PHDR || count == PN_XNUM {
        return Err(damaged("can't read the program headers from a stream: decompress the file first"));
    }
    let end = offset
        .checked_add(PHDR * u64::from(count))
        .ok_or_else(|| damaged("the program headers are beyond the address space"))?;
    extend(&mut head, stream, end)?;
    let (mut notes_end, mut memory_start) = (end, u64::MAX);
    for header in head[offset as usize..end as usize].as_chunks::<{ PHDR as usize }>().0 {
        let word = |at| user_regs::word(header, at).unwrap_or_default();
        let (start, length) = (word(8), word(32));
        match user_regs::half(header, 0) {
            Some(PT_NOTE) => notes_end = notes_end.max(start.saturating_add(length)),
            Some(PT_LOAD) if length > 0 => memory_start = memory_start.min(start),
            _ => {}
        }
    }
    if notes_end > memory_start {
        return Err(damaged(
            "can't read the core dump from a stream, because its notes follow its memory: decompress the file first",
        ));
    }
    extend(&mut head, stream, notes_end)?;
    Ok(head)
}

/// Returns what a walk needs: non-overlapping address ranges within the memory in the core dump.
fn wanted(core: &Core) -> Vec<(u64, u64)> {
    let count = core.stack_pointers().count().max(1) as u64;
    let each = (MAX_ALL_STACKS_BYTES / count).clamp(MIN_STACK_BYTES, MAX_STACK_BYTES);
    let stacks = core.stack_pointers().map(|sp| {
        let start = sp.saturating_sub(RED_ZONE) & !7;
        (start, start.saturating_add(each))
    });
    let stacks = stacks.take((MAX_ALL_STACKS_BYTES / MIN_STACK_BYTES) as usize);
    let locks =
        core.first_arguments().map(|at| (at.saturating_sub(LOCK_CONTEXT_BYTES), at.saturating_add(LOCK_CONTEXT_BYTES)));
    let headers = core.image_starts().map(|start| (start, start.saturating_add(HEADERS_BYTES)));
    let headers = headers.take((MAX_ALL_HEADERS_BYTES / HEADERS_BYTES) as usize);
    let mut ranges: Vec<(u64, u64)> = stacks.chain(locks).chain(headers).chain(core.evidence()).collect();
    ranges.sort_unstable();
    let mut parts: Vec<&Part> = core.parts.iter().collect();
    parts.sort_unstable_by_key(|part| part.address);
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        let start = wanted.last().map_or(start, |last| start.max(last.1));
        // A lock in a stack or in headers that are already included.
        if start >= end {
            continue;
        }
        let after = parts.partition_point(|part| part.address <= start);
        let Some(part) = after.checked_sub(1).map(|index| parts[index]) else { continue };
        let end = end.min(part.address.saturating_add(part.in_memory));
        if start < end {
            wanted.push((start, end));
        }
    }
    wanted
}

type Pieces = Vec<(u64, Vec<u8>)>;

/// Reads the ranges from the process. `None` if none of them can be read any more.
#[cfg(unix)]
fn read_from_process(memory: &File, wanted: &[(u64, u64)]) -> Option<Pieces> {
    use std::os::unix::fs::FileExt;
    let mut pieces = Vec::new();
    for &(start, end) in wanted {
        let mut bytes = vec![0; (end - start) as usize];
        let mut length = 0;
        while length < bytes.len() {
            match memory.read_at(&mut bytes[length..], start + length as u64) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(count) => length += count,
            }
        }
        bytes.truncate(length);
        if length > 0 {
            pieces.push((start, bytes));
        }
    }
    (!pieces.is_empty()).then_some(pieces)
}

/// Returns `None`: other systems don't provide a process's memory as a file.
#[cfg(not(unix))]
fn read_from_process(_memory: &File, _wanted: &[(u64, u64)]) -> Option<Pieces> {
    None
}

/// Reads the ranges from the stream, of which `position` bytes were read. Also returns how many
/// bytes of them were missing, and where the stream ended.
fn read_from_stream(
    mut stream: impl Read,
    mut position: u64,
    core: &Core,
    wanted: &[(u64, u64)],
) -> (Pieces, u64, u64) {
    // In file order: offset, address, number of bytes.
    let mut places: Vec<(u64, u64, u64)> = Vec::new();
    for part in &core.parts {
        let end = part.address.saturating_add(part.in_file);
        let first = wanted.partition_point(|(_, to)| *to <= part.address);
        for (from, to) in wanted[first..].iter().take_while(|(from, _)| *from < end) {
            let (from, to) = ((*from).max(part.address), (*to).min(end));
            places.push((part.offset.saturating_add(from - part.address), from, to - from));
        }
    }
    places.sort_unstable();
    let (mut pieces, mut missing) = (Vec::new(), 0_u64);
    let mut stride = vec![0; SKIP_CHUNK_BYTES];
    let mut has_ended = false;
    for (offset, address, length) in places {
        while position < offset && !has_ended {
            let next = (offset - position).min(SKIP_CHUNK_BYTES as u64) as usize;
            // A damaged compressed file ends there.
            let (read, _) = fill(&mut stream, &mut stride[..next]);
            position += read as u64;
            has_ended = read < next;
        }
        // Overlapping parts, which well-formed dumps don't have.
        if position > offset {
            continue;
        }
        let mut bytes = vec![0; if has_ended { 0 } else { length as usize }];
        let (read, _) = fill(&mut stream, &mut bytes);
        position += read as u64;
        has_ended |= read < bytes.len();
        missing += length - read as u64;
        bytes.truncate(read);
        pieces.push((address, bytes));
    }
    (pieces, missing, position)
}
