//! Reads a running or hung Linux process from outside.
//!
//! Its threads are stopped only while their registers and stacks are read. They are walked
//! afterwards.
//!
//! Sources: ptrace(2) (`PTRACE_SEIZE`, `PTRACE_INTERRUPT`, "Group-stop"), proc(5).

mod last_words;
mod original_file;
pub(crate) mod threads;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use coroner_formats::content_id;
use coroner_formats::snapshot::SavedMemory;
use coroner_formats::snapshot::elf_images::{self, images};
use coroner_formats::snapshot::target::{LastWords, Snapshot, Target, is_file, mapped_files};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, CrashFlag, Header, Id, Image, Mapping, Problem, Thread, Timestamp};
use coroner_report::wire::{FORMAT_VERSION, Monitor, Os};
use coroner_symbols::Symbolizer;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use threads::{Traced, detach, stop_threads};

/// The reason a process can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The process does not exist, or ended meanwhile.
    #[error("can't read process {pid}: no such process")]
    NoProcess {
        /// The process id.
        pid: u32,
    },
    /// The system does not allow this process to read it.
    #[error("can't read process {pid}{why}")]
    Denied {
        /// The process id.
        pid: u32,
        /// The cause, as far as it is known, starting with a separator.
        why: String,
    },
    /// Some of the process's data can't be read.
    #[error("can't read {what} of process {pid}: {source}")]
    System {
        /// The process id.
        pid: u32,
        /// The data that can't be read.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Reads the process `pid`: walks its threads and symbolizes their frames with `symbolizer`.
///
/// The process is stopped for some milliseconds and continues unharmed, except that a system call
/// that fails with `EINTR` when a debugger stops it (such as `epoll_wait`) does so here, too.
///
/// The report's monitor is [`Monitor::USER`], because there was no crash. The process's first
/// thread comes first and takes the crashed thread's place. [`stack_memory`](Report::stack_memory)
/// contains up to 64 KiB of each stack, for a minidump.
///
/// # Errors
/// [`ProcessError`] if no such process exists, or this process may not trace it.
pub fn read_process(pid: u32, symbolizer: &mut Symbolizer) -> Result<Report, ProcessError> {
    if pid == std::process::id() {
        return Err(ProcessError::Denied { pid, why: ": it is this process".to_owned() });
    }
    let id = Pid::from_raw(i32::try_from(pid).map_err(|_| ProcessError::NoProcess { pid })?);
    let (mut threads, problems) = stop_threads(id, Traced::No)?;
    let crash = Crash {
        time: Timestamp::from(SystemTime::now()),
        monitor: Monitor::USER,
        tid: pid.into(),
        flags: vec![CrashFlag::NotFatal],
        exception_type: Some("dump of a running process".to_owned()),
        ..Crash::default()
    };
    let described = threads.iter_mut().map(|stopped| std::mem::take(&mut stopped.thread)).collect::<Vec<_>>();
    for (stopped, thread) in threads.iter_mut().zip(&described) {
        stopped.thread.tid = thread.tid;
    }
    let files = ProcessFiles::open(id);
    let snapshot =
        files.and_then(|files| Ok(Snapshot::take(&LinuxProcess::new(id, files, described, problems, crash)?)));
    detach(&threads);
    Ok(snapshot?.report(symbolizer))
}

/// A process's memory and memory map, opened while that was allowed.
///
/// Both stay readable when the process drops its privileges.
#[derive(Debug)]
pub(crate) struct ProcessFiles {
    memory: File,
    maps: File,
}

impl ProcessFiles {
    /// Opens the files of a process.
    pub(crate) fn open(pid: Pid) -> Result<ProcessFiles, ProcessError> {
        let open = |name: &str, what| {
            let path = format!("/proc/{pid}/{name}");
            File::open(path).map_err(|source| ProcessError::System { pid: pid.as_raw() as u32, what, source })
        };
        Ok(ProcessFiles { memory: open("mem", "the memory")?, maps: open("maps", "the memory map")? })
    }

    /// Reads memory; returns the number of bytes read.
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut length = 0;
        while let Some(rest) = into.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match self.memory.read_at(rest, address.saturating_add(length as u64)) {
                Ok(0) | Err(_) => break,
                Ok(count) => length += count,
            }
        }
        length
    }

    fn mappings(&self) -> io::Result<Vec<MappedRange>> {
        use std::io::{Read, Seek};
        let mut maps = &self.maps;
        let mut text = String::new();
        maps.rewind()?;
        maps.read_to_string(&mut text)?;
        Ok(text.lines().filter_map(MappedRange::parse).collect())
    }
}

/// A stopped process.
pub(crate) struct LinuxProcess {
    pid: Pid,
    files: ProcessFiles,
    threads: Vec<Thread>,
    problems: Vec<Problem>,
    mapped: Vec<MappedRange>,
    auxiliary: Vec<u8>,
    crash: Crash,
}

impl LinuxProcess {
    /// Reads the memory map. The first thread is the one that the report is about.
    pub(crate) fn new(
        pid: Pid,
        files: ProcessFiles,
        mut threads: Vec<Thread>,
        problems: Vec<Problem>,
        crash: Crash,
    ) -> Result<LinuxProcess, ProcessError> {
        let system = |source| ProcessError::System { pid: pid.as_raw() as u32, what: "the memory map", source };
        let mapped = files.mappings().map_err(system)?;
        let auxiliary = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
        if let Some(first) = threads.first_mut() {
            first.crashed = true;
        }
        Ok(LinuxProcess { pid, files, threads, problems, mapped, auxiliary, crash })
    }

    fn number(&self) -> u32 {
        self.pid.as_raw() as u32
    }
}

impl Target for LinuxProcess {
    fn header(&self) -> Header {
        let pid = self.number();
        let main = self.threads.iter().find(|thread| thread.main).and_then(|thread| thread.name.clone());
        let name = executable(self.pid).and_then(|path| Some(path.rsplit('/').next()?.to_owned()));
        Header {
            format_version: FORMAT_VERSION,
            event_id: event_id(pid, self.crash.time),
            pid,
            ppid: status_number(pid, "PPid:").unwrap_or_default(),
            process_name: name.or(main).unwrap_or_default(),
            arch: Some(Arch::NATIVE),
            os: Os::LINUX,
            page_size: 4096,
            process_start: process_start(pid).unwrap_or_default(),
            ..Header::default()
        }
    }

    fn threads(&self) -> Vec<Thread> {
        self.threads.clone()
    }

    fn mappings(&self) -> Vec<Mapping> {
        self.mapped.iter().map(|range| range.mapping.clone()).collect()
    }

    /// Returns the starts of files that are mapped from their first byte, and of the vdso.
    fn image_starts(&self) -> Vec<u64> {
        let vdso = elf_images::auxiliary(&self.auxiliary, elf_images::AT_SYSINFO_EHDR);
        let is_image = |range: &&MappedRange| {
            let mapping = &range.mapping;
            let is_file = mapping.name.as_deref().is_some_and(is_file);
            is_file && mapping.file_offset == Some(0) || Some(mapping.start.0) == vdso
        };
        let starts = self.mapped.iter().filter(is_image).map(|range| range.mapping.start.0);
        starts.take(coroner_formats::MAX_IMAGES).collect()
    }

    fn images(&self, memory: &SavedMemory<'_>) -> Vec<Image> {
        let mut images = images(&mapped_files(&self.mappings()), &self.auxiliary, memory);
        // Without the auxiliary vector: the program is mapped first.
        if self.auxiliary.is_empty()
            && let Some(first) = images.first_mut()
        {
            first.is_main = true;
        }
        images
    }

    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self.files.read(address, into)
    }

    fn reason(&self) -> Crash {
        self.crash.clone()
    }

    fn last_words(&self, images: &[Image]) -> LastWords {
        last_words::read(self, images)
    }

    fn file(&self, image: &Image) -> Option<File> {
        let is_it =
            |range: &&MappedRange| range.mapping.start == image.load_address && range.path() == Some(&image.path);
        let mapping = self.mapped.iter().find(is_it)?;
        File::open(original_file::find_path(self.number(), mapping)?).ok()
    }

    /// Locks record their owners by thread ids of the process's own namespace, which differ from
    /// its ids here.
    fn has_lock_owners(&self) -> bool {
        !is_in_inner_namespace(self.number())
    }

    fn problems(&self) -> Vec<Problem> {
        self.problems.clone()
    }
}

/// Returns the path of a process's program.
pub(crate) fn executable(pid: Pid) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let path = path.to_string_lossy();
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

/// A different id for each dump.
fn event_id(pid: u32, time: Timestamp) -> Id {
    let boot = std::fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default();
    content_id([&boot[..], &pid.to_le_bytes(), &time.0.to_le_bytes()])
}

/// Whether the process is in a nested pid namespace.
///
/// It has an id in each (`NSpid` of proc_pid_status(5)).
pub(crate) fn is_in_inner_namespace(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// Returns a number from `/proc/PID/status`.
pub(crate) fn status_number(pid: u32, field: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok())
}

/// Returns a process's start time: `starttime` of `/proc/PID/stat`, in clock ticks since boot.
fn process_start(pid: u32) -> Option<Timestamp> {
    const START: usize = 22 - 3;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may contain spaces and parentheses.
    let ticks: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(START)?.parse().ok()?;
    let rate = sysconf(SysconfVar::CLK_TCK).ok()??;
    let rate = u64::try_from(rate).ok().filter(|rate| *rate > 0)?;
    let since_boot = Duration::from_nanos(ticks.checked_mul(1_000_000_000 / rate)?);
    let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    Some(Timestamp::from(SystemTime::now() - now.checked_sub(since_boot)?))
}

/// A line of `/proc/PID/maps`.
#[derive(Debug)]
struct MappedRange {
    mapping: Mapping,
    inode: u64,
    /// Whether the file was deleted.
    is_deleted: bool,
}

impl MappedRange {
    /// Parses `start-end access offset device inode path`.
    fn parse(line: &str) -> Option<MappedRange> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let access = words.next()?;
        let bits = [('x', 1), ('w', 2), ('r', 4), ('s', 8)];
        let protection = bits.iter().filter(|(letter, _)| access.contains(*letter)).map(|(_, bit)| bit).sum();
        let offset = hexadecimal(words.next()?)?;
        let inode = words.nth(1)?.parse().ok()?;
        let named = words.next().unwrap_or_default().trim_start();
        // A file that has replaced it since has another build ID or other headers.
        let path = named.strip_suffix(" (deleted)").unwrap_or(named);
        Some(MappedRange {
            mapping: Mapping {
                start: Address(start),
                size: end.saturating_sub(start),
                protection,
                name: Some(path).filter(|path| !path.is_empty()).map(ToOwned::to_owned),
                file_offset: (inode != 0).then_some(offset),
                ..Mapping::default()
            },
            inode,
            is_deleted: path.len() < named.len(),
        })
    }

    fn path(&self) -> Option<&str> {
        self.mapping.name.as_deref()
    }
}
