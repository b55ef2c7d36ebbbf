//! Reads ELF core dumps of Linux processes.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Crash, CrashFlag, Header, Mapping, Problem, Registers, Signal, Thread, signal_code_name, signal_name,
};
use coroner_report::wire::{FORMAT_VERSION, Monitor, Os};
use coroner_symbols::Symbolizer;
use coroner_unwind::AddressRange;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use super::core_notes::{self as notes, SigInfo};
use super::error::{DumpError, damaged};
use super::evidence;
use crate::content_id;
use crate::snapshot::elf_images::{self, MappedFile};
use crate::snapshot::{SavedMemory, futex, kept_stacks, walk_threads};
use crate::{MAX_IMAGES, MAX_THREADS};

/// Maximum number of mapped file parts.
const MAX_MAPPED_FILES: usize = 1 << 18;

type Header64 = elf::FileHeader64<object::Endianness>;

/// Reads a core dump that is completely in memory, or mapped.
pub(crate) fn read(bytes: &[u8], symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
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

/// A part of the memory in a core dump (`PT_LOAD`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Number of bytes in the file.
    pub(crate) in_file: u64,
    /// Address in the process.
    pub(crate) address: u64,
    /// Number of bytes in the process.
    pub(crate) in_memory: u64,
}

/// The headers and notes of a core dump.
pub(crate) struct Core {
    arch: Arch,
    /// In the order of the file's headers.
    pub(crate) parts: Vec<Part>,
    /// Sorted by address.
    mappings: Vec<Mapping>,
    notes: Notes,
}

impl Core {
    /// Parses the file, or as much of it as contains the notes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Core, DumpError> {
        if bytes.get(4) == Some(&1) {
            return Err(DumpError::Unsupported("a core dump of a 32-bit process".into()));
        }
        let header = Header64::parse(bytes).map_err(|error| damaged(format!("invalid ELF header: {error}")))?;
        let endian = header.endian().map_err(|error| damaged(format!("invalid ELF header: {error}")))?;
        let arch = match header.e_machine(endian) {
            elf::EM_X86_64 => Arch::X86_64,
            elf::EM_AARCH64 => Arch::Aarch64,
            other => return Err(DumpError::Unsupported(format!("a core dump for ELF machine {}", other.0))),
        };
        let segments = header
            .program_headers(endian, bytes)
            .map_err(|error| damaged(format!("invalid program headers: {error}")))?;
        let parts = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).map(|segment| {
            let (offset, in_file) = segment.file_range(endian);
            Part { offset, in_file, address: segment.p_vaddr(endian), in_memory: segment.p_memsz(endian) }
        });
        let mut notes = Notes::read(endian, segments, bytes, arch)?;
        let loaded = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
        let mut mappings: Vec<Mapping> = loaded
            .map(|segment| {
                let start = segment.p_vaddr(endian);
                let of_file = |file: &&MappedFile| (file.start..file.end).contains(&start);
                let file = notes.files.iter().find(of_file);
                Mapping {
                    start: Address(start),
                    size: segment.p_memsz(endian),
                    // As in reports: 1 execute, 2 write, 4 read.
                    protection: (segment.p_flags(endian).0 & 7) as u8,
                    name: file.map(|file| file.path.clone()),
                    file_offset: file.map(|file| file.offset.saturating_add(start - file.start)),
                    ..Mapping::default()
                }
            })
            .collect();
        mappings.sort_by_key(|mapping| mapping.start);
        for file in &mut notes.files {
            let place = mappings.binary_search_by_key(&file.start, |mapping| mapping.start.0);
            file.is_code = place.is_ok_and(|place| mappings[place].protection & 1 != 0);
        }
        Ok(Core { arch, parts: parts.collect(), mappings, notes })
    }

    /// Returns the threads' stack pointers.
    pub(crate) fn stack_pointers(&self) -> impl Iterator<Item = u64> {
        self.notes.threads.iter().filter_map(|thread| Some(thread.registers.sp()?.0))
    }

    /// Returns the threads' values of a system call's first argument register.
    ///
    /// For a thread that waits for a lock, it is the lock's address.
    pub(crate) fn first_arguments(&self) -> impl Iterator<Item = u64> {
        let argument = |registers: &Registers| {
            let x86_64 = registers.x86_64().map(|registers| registers.gpr[5]);
            x86_64.or_else(|| registers.aarch64().map(|registers| registers.x[0]))
        };
        self.notes.threads.iter().filter_map(move |thread| argument(&thread.registers))
    }

    /// Returns the addresses of files that are mapped from their first byte on, and of the vdso.
    pub(crate) fn image_starts(&self) -> impl Iterator<Item = u64> {
        let files = self.notes.files.iter().filter(|file| file.offset == 0).map(|file| file.start);
        files.take(MAX_IMAGES).chain(elf_images::auxiliary(&self.notes.auxiliary, elf_images::AT_SYSINFO_EHDR))
    }

    /// Returns the ranges of memory for the explanation: around the crashed thread's addresses, and
    /// for an abort glibc's data with the memory that its message may be in.
    pub(crate) fn evidence(&self) -> impl Iterator<Item = (u64, u64)> {
        /// Maximum size of the mapping with the message, and of glibc's data, in bytes.
        const MAX_MESSAGE_MAPPING: u64 = 64 << 10;
        const MAX_DATA: u64 = 64 << 10;
        let first = self.notes.threads.first();
        let is_abort = first.is_some_and(|thread| thread.signal == 6);
        let around = first.into_iter().flat_map(|thread| evidence::addresses(&thread.registers));
        let around = around.filter_map(|at| {
            let mapping = self.mappings.iter().find(|mapping| mapping.contains(Address(at)))?;
            Some((
                at.saturating_sub(evidence::AROUND_BYTES).max(mapping.start.0),
                at.saturating_add(evidence::AROUND_BYTES),
            ))
        });
        let name = |path: &str| path.rsplit('/').next().is_some_and(evidence::is_glibc);
        let of_abort = self.mappings.windows(2).filter(move |_| is_abort).flat_map(move |pair| {
            let [mapping, next] = pair else { return [None, None] };
            let is_writable = |mapping: &Mapping| mapping.protection == 6;
            let range =
                |mapping: &Mapping, most| (mapping.start.0, mapping.start.0.saturating_add(mapping.size.min(most)));
            let is_data = is_writable(mapping) && mapping.name.as_deref().is_some_and(name);
            let may_be_message = is_writable(mapping) && mapping.name.is_none() && mapping.size <= MAX_MESSAGE_MAPPING;
            [
                (is_data || may_be_message).then(|| range(mapping, MAX_DATA)),
                (is_data && is_writable(next) && next.name.is_none()).then(|| range(next, MAX_DATA)),
            ]
        });
        around.chain(of_abort.flatten().take(64))
    }

    /// Returns the report with its stacks walked. `missing` bytes of the memory were not available,
    /// because the file ended at `end`.
    pub(crate) fn report(
        &self,
        memory: &SavedMemory<'_>,
        missing: u64,
        end: u64,
        symbolizer: &mut Symbolizer,
    ) -> Report {
        let mut report = report(&self.notes, self.arch, memory);
        // The same crash results in the same event, in whichever form it is read.
        let whole = self.parts.iter().map(|part| part.offset.saturating_add(part.in_file)).max().unwrap_or(0);
        report.header.event_id = content_id([&self.notes.identity[..], &whole.to_le_bytes()]);
        if missing > 0 {
            let what = format!("the core dump is truncated: {missing} bytes of memory are missing");
            report.problems.push(Problem { section: None, offset: end, what });
        }
        let mapped = self.mappings.iter().map(|mapping| {
            let (start, end) = (mapping.start.0, mapping.start.0.saturating_add(mapping.size));
            (AddressRange { start, end }, mapping.protection & 1 != 0)
        });
        walk_threads(&mut report, memory, mapped, symbolizer);
        let on_main_stack = elf_images::auxiliary(&self.notes.auxiliary, elf_images::AT_RANDOM);
        evidence::add(&mut report, self.mappings.clone(), on_main_stack, memory, symbolizer);
        report.complete = report.problems.is_empty();
        report
    }
}

/// The contents of the notes.
#[derive(Default)]
struct Notes {
    threads: Vec<notes::CoreThread>,
    process: notes::Process,
    signal: Option<SigInfo>,
    files: Vec<MappedFile>,
    auxiliary: Vec<u8>,
    /// Distinguishes this crash from others: the first bytes of all notes.
    identity: Vec<u8>,
}

impl Notes {
    fn read(
        endian: object::Endianness,
        segments: &[elf::ProgramHeader64<object::Endianness>],
        bytes: &[u8],
        arch: Arch,
    ) -> Result<Notes, DumpError> {
        const IDENTITY: usize = 512;
        let mut found = Notes::default();
        for segment in segments {
            let Ok(Some(mut list)) = segment.notes(endian, bytes) else { continue };
            // A truncated list ends there.
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
                    (b"CORE", notes::NT_FILE) => found.files = notes::files(desc, MAX_MAPPED_FILES),
                    (b"CORE", notes::NT_AUXV) => found.auxiliary = desc.to_vec(),
                    _ => {}
                }
            }
        }
        if found.threads.is_empty() {
            return Err(damaged("the core dump has no threads (`NT_PRSTATUS`)"));
        }
        Ok(found)
    }
}

fn report(found: &Notes, arch: Arch, memory: &SavedMemory<'_>) -> Report {
    let os = Os::LINUX;
    let first = &found.threads[0];
    let signal = found.signal.unwrap_or(SigInfo { number: first.signal.into(), ..SigInfo::default() });
    let is_known = found.signal.is_some();
    // A debugger's dump of a running process (gcore): the kernel makes none for these signals.
    let is_dump = matches!(signal.number, 0 | 18..=22);
    // A signal with code 0 or below was sent; SIGILL, SIGFPE, SIGSEGV, SIGBUS and SIGTRAP from the
    // kernel have an address.
    let has_address = signal.code > 0 && signal.code != 0x80 && matches!(signal.number, 4 | 5 | 7 | 8 | 11);
    let address = has_address.then_some(Address(signal.value));
    // `SI_USER`, `SI_QUEUE`, `SI_MESGQ`, `SI_TKILL`: others have a timer's number or an event mask
    // in its place.
    let sent = (is_known && matches!(signal.code, 0 | -1 | -3 | -6)).then_some(signal.value);
    let images = elf_images::images(&found.files, &found.auxiliary, memory);
    let stacks = found.threads.iter().filter_map(|thread| Some((thread.tid, thread.registers.sp()?)));
    let threads = found.threads.iter().enumerate().map(|(index, thread)| Thread {
        tid: thread.tid.into(),
        name: (thread.tid == found.process.pid).then(|| found.process.name.clone()).filter(|name| !name.is_empty()),
        // The kernel writes the crashed thread first.
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
            monitor: if is_dump { Monitor::USER } else { Monitor::SIGNAL },
            flags: if is_dump { vec![CrashFlag::NotFatal] } else { Vec::new() },
            exception_type: is_dump.then(|| "dump of a running process".to_owned()),
            tid: first.tid.into(),
            address,
            signal: (!is_dump).then(|| Signal {
                number: signal.number,
                name: signal_name(os, signal.number),
                code: signal.code,
                code_name: signal_code_name(os, signal.number, signal.code).filter(|_| is_known),
                unknown_code: !is_known,
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
