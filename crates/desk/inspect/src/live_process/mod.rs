//! Reads a running or hung Linux process from outside.
//!
//! Its threads are stopped only while their registers and stacks are read. They are walked
//! afterwards.
//!
//! Sources: ptrace(2) (`PTRACE_SEIZE`, `PTRACE_INTERRUPT`, "Group-stop"), proc(5).

mod original_file;
mod threads;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Crash, CrashFlag, Header, Id, Problem, Thread, Timestamp, system_call_name};
use coroner_report::wire::{CaptureMethod, FORMAT_VERSION, Monitor, Os, ThreadState};
use coroner_symbols::Symbolizer;
use coroner_unwind::AddressRange;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use coroner_formats::MAX_IMAGES;
use coroner_formats::content_id;
use coroner_formats::snapshot::elf_images::{self, MappedFile, images};
use coroner_formats::snapshot::{SavedMemory, futex, kept_stacks, walk_threads};
use threads::{Stopped, StoppedThread};

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, x86_64).
const RED_ZONE: u64 = 128;
/// Maximum bytes of one stack, and of all stacks together.
const MAX_STACK: u64 = 1 << 20;
const MAX_STACKS: u64 = 1 << 29;
/// Bytes to read at an image's start, for its headers and build ID.
const HEADERS: u64 = 8192;

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
    let system = |what| move |source| ProcessError::System { pid, what, source };
    if pid == std::process::id() {
        return Err(ProcessError::Denied { pid, why: ": it is this process".to_owned() });
    }
    let mut stopped = Stopped::stop(pid)?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(system("the memory map"))?;
    let auxiliary = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(system("the memory"))?;
    let mapped = maps.lines().filter_map(Mapping::parse).collect::<Vec<_>>();
    let read = |(start, end): (u64, u64)| read(&memory, start, end);
    let stacks = pieces_of_stacks(&stopped.threads, &mapped).into_iter().map(read).collect::<Vec<_>>();
    let headers = headers(&mapped, &auxiliary).into_iter().map(read).collect::<Vec<_>>();
    // Locks record their owners by thread ids of the process's own namespace, which differ from its
    // ids here.
    let has_numbers = !is_in_inner_namespace(pid);
    for thread in stopped.threads.iter_mut().filter(|_| has_numbers) {
        let registers = thread.registers.as_ref();
        thread.futex = registers.and_then(|registers| futex(registers, thread.system_call, ProcessMemory(&memory)));
    }
    let (threads, problems) = stopped.release();

    let all = || stacks.iter().chain(&headers).map(|(start, bytes)| (*start, &bytes[..]));
    let saved = SavedMemory::new(all().collect());
    let files = files(&mapped);
    let mut report = report(pid, threads, &saved);
    report.images = images(&files, &auxiliary, &saved);
    report.problems = problems;
    for image in &report.images {
        let mapping = mapped.iter().find(|mapping| mapping.start == image.load_address.0 && mapping.path == image.path);
        if let Some(file) = mapping.and_then(|mapping| original_file::find_path(pid, mapping)) {
            symbolizer.take_file(&image.path, file);
        }
    }
    let places = mapped.iter();
    let places = places.map(|mapping| (AddressRange { start: mapping.start, end: mapping.end }, mapping.is_code));
    walk_threads(&mut report, &saved, places, symbolizer);
    report.complete = report.problems.is_empty();
    symbolizer.symbolicate_report(&mut report);
    Ok(report)
}

fn report(pid: u32, threads: Vec<StoppedThread>, memory: &SavedMemory<'_>) -> Report {
    let (os, arch) = (Os::LINUX, Arch::NATIVE);
    let time = Timestamp::from(SystemTime::now());
    let name = threads.first().map(|thread| thread.name.clone()).unwrap_or_default();
    let process_name = std::fs::read_link(format!("/proc/{pid}/exe"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().trim_end_matches(" (deleted)").to_owned()))
        .unwrap_or(name);
    let stacks = threads.iter().filter_map(|thread| Some((thread.tid, thread.registers.as_ref()?.sp()?)));
    let stack_memory = kept_stacks(stacks, memory);
    let as_reported = |thread: StoppedThread| {
        let syscall = thread.system_call;
        Thread {
            tid: thread.tid.into(),
            name: Some(thread.name).filter(|name| !name.is_empty()),
            crashed: thread.tid == pid,
            main: thread.tid == pid,
            state: state(thread.state),
            syscall,
            futex: thread.futex,
            syscall_name: syscall.and_then(|call| system_call_name(os, arch, call)),
            captured_by: thread.registers.is_some().then_some(CaptureMethod::PTRACE),
            not_captured: thread.not_captured,
            registers: thread.registers,
            ..Thread::default()
        }
    };
    Report {
        header: Header {
            format_version: FORMAT_VERSION,
            event_id: event_id(pid, time),
            pid,
            ppid: status_number(pid, "PPid:").unwrap_or_default(),
            process_name,
            arch: Some(arch),
            os,
            page_size: 4096,
            process_start: process_start(pid).unwrap_or_default(),
            ..Header::default()
        },
        crash: Some(Crash {
            time,
            monitor: Monitor::USER,
            tid: pid.into(),
            flags: vec![CrashFlag::NotFatal],
            exception_type: Some("dump of a running process".to_owned()),
            ..Crash::default()
        }),
        threads: threads.into_iter().map(as_reported).collect(),
        stack_memory,
        ..Report::default()
    }
}

/// A different id for each dump.
fn event_id(pid: u32, time: Timestamp) -> Id {
    let boot = std::fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default();
    content_id([&boot[..], &pid.to_le_bytes(), &time.0.to_le_bytes()])
}

/// Converts the state letter of `/proc/PID/task/TID/stat`.
fn state(letter: char) -> Option<ThreadState> {
    match letter {
        'R' => Some(ThreadState::RUNNING),
        'S' => Some(ThreadState::BLOCKED),
        'D' => Some(ThreadState::UNINTERRUPTIBLE),
        'T' | 't' => Some(ThreadState::STOPPED),
        'I' => Some(ThreadState::IDLE),
        'Z' | 'X' => Some(ThreadState::ENDED),
        _ => None,
    }
}

/// Whether the process is in a nested pid namespace.
///
/// It has an id in each (`NSpid` of proc_pid_status(5)).
fn is_in_inner_namespace(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// Returns a number from `/proc/PID/status`.
fn status_number(pid: u32, field: &str) -> Option<u32> {
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
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    inode: u64,
    /// Whether the file was deleted.
    is_deleted: bool,
    path: String,
}

impl Mapping {
    /// Parses `start-end access offset device inode path`.
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let is_code = words.next()?.contains('x');
        let offset = hexadecimal(words.next()?)?;
        let inode = words.nth(1)?.parse().ok()?;
        let named = words.next().unwrap_or_default().trim_start();
        // A file that has replaced it since has another build ID or other headers.
        let path = named.strip_suffix(" (deleted)").unwrap_or(named);
        Some(Mapping {
            start: hexadecimal(start)?,
            end: hexadecimal(end)?,
            offset,
            is_code,
            inode,
            is_deleted: path.len() < named.len(),
            path: path.to_owned(),
        })
    }

    fn is_file(&self) -> bool {
        self.path.starts_with('/') && !self.path.starts_with("/dev/") && !self.path.starts_with("/memfd:")
    }
}

fn files(mapped: &[Mapping]) -> Vec<MappedFile> {
    let as_file = |mapping: &Mapping| MappedFile {
        start: mapping.start,
        end: mapping.end,
        offset: mapping.offset,
        path: mapping.path.clone(),
        is_code: mapping.is_code,
    };
    mapped.iter().filter(|mapping| mapping.is_file()).map(as_file).collect()
}

/// The used part of each stack, as ranges that don't overlap.
fn pieces_of_stacks(threads: &[StoppedThread], mapped: &[Mapping]) -> Vec<(u64, u64)> {
    let mut starts: Vec<u64> = threads
        .iter()
        .filter_map(|thread| thread.registers.as_ref()?.sp())
        .map(|Address(sp)| sp.saturating_sub(RED_ZONE) & !7)
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let mut all = 0;
    let pieces = starts.iter().enumerate().filter_map(|(index, &start)| {
        let after = mapped.partition_point(|mapping| mapping.start <= start);
        let mapping = mapped.get(after.checked_sub(1)?).filter(|mapping| start < mapping.end)?;
        let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
        let end = mapping.end.min(start.saturating_add(MAX_STACK)).min(next);
        all += end - start;
        (all <= MAX_STACKS).then_some((start, end))
    });
    pieces.collect()
}

/// The starts of files that are mapped from their first byte, and of the vdso.
fn headers(mapped: &[Mapping], auxiliary: &[u8]) -> Vec<(u64, u64)> {
    let vdso = elf_images::auxiliary(auxiliary, elf_images::AT_SYSINFO_EHDR);
    let is_image = |mapping: &&Mapping| (mapping.is_file() && mapping.offset == 0) || Some(mapping.start) == vdso;
    let range = |mapping: &Mapping| (mapping.start, mapping.end.min(mapping.start.saturating_add(HEADERS)));
    mapped.iter().filter(is_image).take(MAX_IMAGES).map(range).collect()
}

/// Returns the readable part of a range, from its start.
fn read(memory: &File, start: u64, end: u64) -> (u64, Vec<u8>) {
    let mut bytes = vec![0; (end - start) as usize];
    let mut length = 0;
    while length < bytes.len() {
        match memory.read_at(&mut bytes[length..], start + length as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => length += count,
        }
    }
    bytes.truncate(length);
    (start, bytes)
}

/// A stopped process's memory.
struct ProcessMemory<'f>(&'f File);

impl Memory for ProcessMemory<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read_exact_at(into, address).map_err(|_| Unreadable { address })
    }
}

/// Returns the problem for a thread that was not stopped.
fn not_stopped(tid: u32, why: &str) -> Problem {
    Problem { section: None, offset: 0, what: format!("thread {tid} was not stopped: {why}") }
}
