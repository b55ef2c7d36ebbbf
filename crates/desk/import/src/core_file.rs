//! ELF core dumps of Linux processes.

use std::collections::BTreeMap;

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Bytes, Crash, Header, Image, Problem, Registers, Segment, Signal, TextRange, Thread, signal_code_name,
    signal_name,
};
use coroner_report::wire::{FORMAT_VERSION, ImageKind, Monitor, Os};
use coroner_symbols::Symbolizer;
use coroner_unwind::AddressRange;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::core_notes as notes;
use crate::core_notes::{MappedFile, SigInfo};
use crate::walk::{SavedMemory, futex, kept_stacks, walk_threads};
use crate::{ImportError, MAX_IMAGES, MAX_THREADS, damaged, id_of};

/// No program has larger headers, nor more notes with its build id.
const LARGEST_HEADERS: usize = 1 << 20;
/// What reports have in the place of a path for the code that the kernel gives each process.
const VDSO: &str = "[vdso]";
/// Most parts of files.
const FILES: usize = 1 << 18;

type Header64 = elf::FileHeader64<object::Endianness>;

/// Reads a core dump that is in memory as a whole, or mapped.
pub(crate) fn read(bytes: &[u8], symbolizer: &mut Symbolizer) -> Result<Report, ImportError> {
    let core = Core::parse(bytes)?;
    let mut missing = 0_u64;
    let mut saved = Vec::new();
    for part in &core.parts {
        let from = usize::try_from(part.offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(usize::try_from(part.in_file).unwrap_or(usize::MAX)).min(bytes.len());
        missing = missing.saturating_add(part.in_file.saturating_sub((to - from) as u64));
        saved.push((part.address, &bytes[from..to]));
    }
    Ok(core.report(&SavedMemory::new(saved), missing, bytes.len() as u64, symbolizer))
}

/// A part of the memory that a core dump has (`PT_LOAD`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Bytes of it that the file has.
    pub(crate) in_file: u64,
    /// Where it was in the process.
    pub(crate) address: u64,
    /// Bytes that it had there.
    pub(crate) in_memory: u64,
}

/// What a core dump says in its headers and its notes.
pub(crate) struct Core {
    arch: Arch,
    /// In the order of the file's headers.
    pub(crate) parts: Vec<Part>,
    /// The memory that the process had, and whether code could run in it.
    mapped: Vec<(AddressRange, bool)>,
    notes: Notes,
}

impl Core {
    /// By the file, or by as much of it as its notes end in.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Core, ImportError> {
        if bytes.get(4) == Some(&1) {
            return Err(ImportError::Unsupported("a core dump of a 32-bit process".into()));
        }
        let header = Header64::parse(bytes).map_err(|error| damaged(format!("its ELF header: {error}")))?;
        let endian = header.endian().map_err(|error| damaged(format!("its ELF header: {error}")))?;
        let arch = match header.e_machine(endian) {
            elf::EM_X86_64 => Arch::X86_64,
            elf::EM_AARCH64 => Arch::Aarch64,
            other => return Err(ImportError::Unsupported(format!("a core dump of the machine {}", other.0))),
        };
        let segments =
            header.program_headers(endian, bytes).map_err(|error| damaged(format!("its program headers: {error}")))?;
        let parts = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).map(|segment| {
            let (offset, in_file) = segment.file_range(endian);
            Part { offset, in_file, address: segment.p_vaddr(endian), in_memory: segment.p_memsz(endian) }
        });
        let mapped = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).map(|segment| {
            let (start, size) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            (AddressRange { start, end: start.saturating_add(size) }, segment.p_flags(endian).contains(elf::PF_X))
        });
        Ok(Core {
            arch,
            parts: parts.collect(),
            mapped: mapped.collect(),
            notes: Notes::read(endian, segments, bytes, arch)?,
        })
    }

    /// The stack pointers of the threads.
    pub(crate) fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        self.notes.threads.iter().filter_map(|thread| Some(thread.registers.sp()?.0))
    }

    /// What the threads have in the register of a system call's first argument: of one that waits for a lock, its address.
    pub(crate) fn first_arguments(&self) -> impl Iterator<Item = u64> {
        let argument = |registers: &Registers| {
            let x86_64 = registers.x86_64().map(|registers| registers.gpr[5]);
            x86_64.or_else(|| registers.aarch64().map(|registers| registers.x[0]))
        };
        self.notes.threads.iter().filter_map(move |thread| argument(&thread.registers))
    }

    /// Where files begin that are mapped from their first byte on, and the vdso.
    pub(crate) fn image_starts(&self) -> impl Iterator<Item = u64> {
        let files = self.notes.files.iter().filter(|file| file.offset == 0).map(|file| file.start);
        files.take(MAX_IMAGES).chain(notes::auxiliary(&self.notes.auxiliary, notes::AT_SYSINFO_EHDR))
    }

    /// The report, with its stacks walked. Of the memory `missing` bytes were not there: the file ended at `end`.
    pub(crate) fn report(
        &self,
        memory: &SavedMemory<'_>,
        missing: u64,
        end: u64,
        symbolizer: &mut Symbolizer,
    ) -> Report {
        let mut report = report(&self.notes, self.arch, memory);
        // The same death is the same event, in whichever form it came.
        let whole = self.parts.iter().map(|part| part.offset.saturating_add(part.in_file)).max().unwrap_or(0);
        report.header.event_id = id_of([&self.notes.identity[..], &whole.to_le_bytes()]);
        if missing > 0 {
            let what = format!("the core dump is cut off: {missing} bytes of memory are not in it");
            report.problems.push(Problem { section: None, offset: end, what });
        }
        walk_threads(&mut report, memory, self.mapped.iter().copied(), symbolizer);
        report.complete = report.problems.is_empty();
        report
    }
}

/// What the notes say.
#[derive(Default)]
struct Notes {
    threads: Vec<notes::CoreThread>,
    process: notes::Process,
    signal: Option<SigInfo>,
    files: Vec<MappedFile>,
    auxiliary: Vec<u8>,
    /// What tells this death from others: the first bytes of all notes.
    identity: Vec<u8>,
}

impl Notes {
    fn read(
        endian: object::Endianness,
        segments: &[elf::ProgramHeader64<object::Endianness>],
        bytes: &[u8],
        arch: Arch,
    ) -> Result<Notes, ImportError> {
        const IDENTITY: usize = 512;
        let mut found = Notes::default();
        for segment in segments {
            let Ok(Some(mut list)) = segment.notes(endian, bytes) else { continue };
            // A list that is cut off ends where it is.
            while let Ok(Some(note)) = list.next() {
                let (kind, desc) = (note.n_type(endian).0, note.desc());
                if found.identity.len() < 64 * IDENTITY {
                    found.identity.extend_from_slice(&desc[..desc.len().min(IDENTITY)]);
                }
                match (note.name(), kind) {
                    (b"CORE", notes::NT_PRSTATUS) if found.threads.len() < MAX_THREADS => {
                        found.threads.extend(notes::thread(desc, arch));
                    }
                    (b"CORE", notes::NT_PRPSINFO) => found.process = notes::process(desc).unwrap_or_default(),
                    (b"CORE", notes::NT_SIGINFO) if found.signal.is_none() => found.signal = notes::signal(desc),
                    (b"CORE", notes::NT_FILE) => found.files = notes::files(desc, FILES),
                    (b"CORE", notes::NT_AUXV) => found.auxiliary = desc.to_vec(),
                    _ => {}
                }
            }
        }
        if found.threads.is_empty() {
            return Err(damaged("it has no thread (`NT_PRSTATUS`)"));
        }
        Ok(found)
    }
}

fn report(found: &Notes, arch: Arch, memory: &SavedMemory<'_>) -> Report {
    let os = Os::LINUX;
    let first = &found.threads[0];
    let signal = found.signal.unwrap_or(SigInfo { number: first.signal.into(), ..SigInfo::default() });
    // A signal of code 0 or below was sent; SIGILL, SIGFPE, SIGSEGV, SIGBUS and SIGTRAP of the kernel have an address.
    let has_address = signal.code > 0 && signal.code != 0x80 && matches!(signal.number, 4 | 5 | 7 | 8 | 11);
    let address = has_address.then_some(Address(signal.value));
    // `SI_USER`, `SI_QUEUE`, `SI_MESGQ`, `SI_TKILL`: others have the number of a timer there, or what is ready.
    let sent = matches!(signal.code, 0 | -1 | -3 | -6).then_some(signal.value);
    let images = images(&found.files, &found.auxiliary, memory);
    let stacks = found.threads.iter().filter_map(|thread| Some((thread.tid, thread.registers.sp()?)));
    let threads = found.threads.iter().enumerate().map(|(index, thread)| Thread {
        tid: thread.tid.into(),
        name: (thread.tid == found.process.pid).then(|| found.process.name.clone()).filter(|name| !name.is_empty()),
        // The kernel writes the thread that died first.
        crashed: index == 0,
        main: thread.tid == found.process.pid,
        registers: Some(thread.registers.clone()),
        futex: futex(&thread.registers, thread.system_call, memory),
        ..Thread::default()
    });
    Report {
        header: Header {
            format_version: FORMAT_VERSION,
            pid: found.process.pid,
            ppid: found.process.ppid,
            process_name: found.process.name.clone(),
            arch: Some(arch),
            os,
            page_size: 4096,
            ..Header::default()
        },
        crash: Some(Crash {
            monitor: Monitor::SIGNAL,
            tid: first.tid.into(),
            address,
            signal: (signal.number != 0).then(|| Signal {
                number: signal.number,
                name: signal_name(os, signal.number),
                code: signal.code,
                code_name: signal_code_name(os, signal.number, signal.code),
                errno: signal.errno,
                address,
                sender_pid: sent.map(|sender| sender as u32),
                sender_uid: sent.map(|sender| (sender >> 32) as u32),
                ..Signal::default()
            }),
            ..Crash::default()
        }),
        threads: threads.collect(),
        images,
        stack_memory: kept_stacks(stacks, memory),
        ..Report::default()
    }
}

/// The loaded images: files that are mapped from their first byte on, with code, and the vdso.
pub(crate) fn images(files: &[MappedFile], auxiliary: &[u8], memory: &SavedMemory<'_>) -> Vec<Image> {
    let auxiliary = |key| notes::auxiliary(auxiliary, key);
    // The parts of a file that is mapped at several places are of the image that begins last below them.
    let mut by_start: BTreeMap<u64, Vec<&MappedFile>> = BTreeMap::new();
    for file in files {
        if file.offset == 0 && by_start.len() < MAX_IMAGES {
            let of_before = by_start.values().next_back().is_some_and(|parts: &Vec<&MappedFile>| {
                // A page of headers may be mapped again, directly behind.
                parts.last().is_some_and(|last| last.path == file.path && last.end == file.start)
            });
            if !of_before {
                by_start.insert(file.start, vec![file]);
                continue;
            }
        }
        if let Some((_, parts)) = by_start.range_mut(..=file.start).next_back()
            && parts[0].path == file.path
        {
            parts.push(file);
        }
    }
    let mut images: Vec<Image> = by_start.values().filter_map(|parts| image(parts, memory)).collect();
    let main = auxiliary(notes::AT_PHDR).or_else(|| auxiliary(notes::AT_ENTRY));
    if let Some(main) = main.and_then(|address| images.iter_mut().find(|image| image.contains(Address(address)))) {
        main.is_main = true;
    }
    if let Some(vdso) = auxiliary(notes::AT_SYSINFO_EHDR) {
        let part = MappedFile { start: vdso, end: vdso.saturating_add(0x2000), offset: 0, path: VDSO.to_owned() };
        images.extend(image(&[&part], memory));
    }
    images
}

/// An image by its parts, if it is one: by the headers that were saved of it, else by those in its file.
fn image(parts: &[&MappedFile], memory: &SavedMemory<'_>) -> Option<Image> {
    let (first, end) = (parts[0], parts.iter().map(|part| part.end).max()?);
    let saved = memory.at(first.start).filter(|bytes| bytes.starts_with(b"\x7fELF"));
    let facts = match saved {
        Some(_) => Facts::read(|offset, length| memory.bytes(first.start.checked_add(offset)?, length)),
        // The kernel leaves out what can be read in the file; a file that was replaced since has another build id.
        None => Facts::of_file(&first.path),
    };
    let facts = facts?;
    let replaced = facts.build_id.is_empty() && saved.is_some_and(|saved| !begins_with(&first.path, saved));
    let (low, high) = facts.extent;
    let slide = first.start.wrapping_sub(low);
    let text = facts.text.unwrap_or((low, 0));
    Some(Image {
        kind: ImageKind::ELF,
        path: first.path.clone(),
        load_address: Address(first.start),
        slide: Address(slide),
        size: (high - low).max(if first.path == VDSO { 0 } else { end - first.start }),
        text: TextRange { address: Address(text.0.wrapping_add(slide)), size: text.1 },
        build_id: Bytes::from(facts.build_id),
        replaced,
        segments: facts
            .segments
            .iter()
            .map(|(address, size, offset, protection)| Segment {
                address: Address(address.wrapping_add(slide)),
                size: *size,
                file_offset: *offset,
                protection: *protection,
            })
            .collect(),
        ..Image::default()
    })
}

/// Whether the file at `path` begins with the headers that were loaded: of an image without a build id, all that tells it from what was put in its
/// place. True if there is no such file, which nothing can be taken from.
fn begins_with(path: &str, saved: &[u8]) -> bool {
    use std::io::Read;
    /// Bytes that no program has reason to change: the headers, and no relocated data.
    const HEADERS: usize = 4096;
    let is_file = path.starts_with('/') && std::fs::metadata(path).is_ok_and(|about| about.is_file());
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else { return true };
    let mut bytes = Vec::new();
    // What was read before an error counts.
    let _ = file.take(saved.len().min(HEADERS) as u64).read_to_end(&mut bytes);
    // Behind the end of a small file memory has zeros.
    saved.starts_with(&bytes) && bytes.len() > size_of::<Header64>()
}

/// What an ELF file says of itself.
#[derive(Debug, Default)]
struct Facts {
    /// Lowest address, and the one behind the highest.
    extent: (u64, u64),
    /// The code: address and size.
    text: Option<(u64, u64)>,
    /// Address, size, offset in the file, access.
    segments: Vec<(u64, u64, u64, u8)>,
    build_id: Vec<u8>,
}

impl Facts {
    fn of_file(path: &str) -> Option<Facts> {
        use std::io::{Read, Seek, SeekFrom};
        if !path.starts_with('/') || !std::fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let file = std::fs::File::open(path).ok()?;
        Facts::read(|offset, length| {
            let mut bytes = vec![0; length.min(LARGEST_HEADERS)];
            let mut file = &file;
            file.seek(SeekFrom::Start(offset)).ok()?;
            file.read_exact(&mut bytes).ok()?;
            Some(bytes)
        })
    }

    /// By what `read` has at an offset from the file's first byte, as it was loaded.
    fn read(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Facts> {
        const HEADER: usize = size_of::<Header64>();
        let start = read(0, HEADER)?;
        if !start.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        // Little-endian, by `Elf64_Ehdr`: e_phoff, e_phentsize, e_phnum.
        let offset = notes::word(&start, 32)?;
        let (size, count) = (u16::from_le_bytes([start[54], start[55]]), u16::from_le_bytes([start[56], start[57]]));
        if size != 56 || count == 0 {
            return None;
        }
        let headers = read(offset, usize::from(size) * usize::from(count))?;
        let mut facts = Facts { extent: (u64::MAX, 0), ..Facts::default() };
        let mut notes_at = Vec::new();
        for header in headers.chunks_exact(usize::from(size)) {
            // `Elf64_Phdr`: p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
            let (kind, flags) = (notes::half(header, 0)?, notes::half(header, 4)?);
            let (offset, address) = (notes::word(header, 8)?, notes::word(header, 16)?);
            let (in_file, in_memory) = (notes::word(header, 32)?, notes::word(header, 40)?);
            match kind {
                1 => {
                    let end = address.checked_add(in_memory)?;
                    facts.extent = (facts.extent.0.min(address & !0xfff), facts.extent.1.max(end));
                    // Access in reports: 1 execute, 2 write, 4 read, as in `p_flags`.
                    facts.segments.push((address, in_memory, offset, (flags & 7) as u8));
                    if flags & 1 != 0 && facts.text.is_none() {
                        facts.text = Some((address, in_memory));
                    }
                }
                4 => notes_at.push((offset, usize::try_from(in_file).ok()?.min(LARGEST_HEADERS))),
                _ => {}
            }
        }
        if facts.segments.is_empty() {
            return None;
        }
        facts.build_id =
            notes_at.into_iter().find_map(|(offset, size)| build_id(&read(offset, size)?)).unwrap_or_default();
        Some(facts)
    }
}

/// `NT_GNU_BUILD_ID` among notes.
fn build_id(mut list: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while list.len() >= 12 {
        let (name, desc, kind) = (notes::half(list, 0)?, notes::half(list, 4)?, notes::half(list, 8)?);
        let (name_size, desc_size) = (usize::try_from(name).ok()?, usize::try_from(desc).ok()?);
        let name_end = 12_usize.checked_add(name_size)?;
        let desc_at = name_end.checked_next_multiple_of(4)?;
        let desc_end = desc_at.checked_add(desc_size)?;
        if kind == NT_GNU_BUILD_ID && list.get(12..name_end)? == b"GNU\0" {
            return Some(list.get(desc_at..desc_end)?.to_vec());
        }
        list = list.get(desc_end.checked_next_multiple_of(4)?..)?;
    }
    None
}
