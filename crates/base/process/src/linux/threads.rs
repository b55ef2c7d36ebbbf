//! The threads of this process in `/proc/self/task`: ids, names, kernel states.
//!
//! The directory is opened at install and kept, so that a process without a free descriptor can
//! still list its threads. Formats: proc(5) in the Linux man-pages, `proc_pid_stat(5)`,
//! `proc_pid_status(5)`, getdents64 in getdents(2).

use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;

use super::proc_files::{self, decimal};
use super::syscall::{Errno, Result, syscall};
use crate::descriptor::OwnedDescriptor;
use crate::files::{Descriptor, File, open, status};
use crate::memory::Memory;
use crate::path::Path;
use crate::process_mark::ProcessMark;
use crate::registers::Registers;

/// A thread's id, as returned by gettid(2).
pub type Tid = i32;

/// Maximum length of a name in the kernel (`TASK_COMM_LEN` minus its terminator).
pub const NAME_LENGTH: usize = 15;

/// A thread's name in the kernel: at most 15 bytes chosen by the thread, not always UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    bytes: [u8; NAME_LENGTH + 1],
}

impl ThreadName {
    /// Creates the name from the two words of `PR_GET_NAME`.
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let mut name = ThreadName::default();
        let from = words.iter().flat_map(|word| word.to_le_bytes());
        for (to, byte) in name.bytes.iter_mut().take(NAME_LENGTH).zip(from) {
            *to = byte;
        }
        name
    }

    /// Returns the bytes before the first NUL.
    pub fn as_bytes(&self) -> &[u8] {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_LENGTH);
        self.bytes.get(..length).unwrap_or(&[])
    }
}

/// The handle with which to list threads later.
pub type TaskList = TaskDirectory;

/// Opens the handle for listing threads, if possible, and returns the calling thread's id.
///
/// Not async-signal-safe. If there is only one thread, its id is the process's, `pid`.
pub fn list_first(pid: i32) -> (TaskList, Tid) {
    let tasks = TaskDirectory::open_by(pid).unwrap_or_else(|_| TaskDirectory::unopened());
    (tasks, if tasks.had_one_thread() { pid } else { this_thread() })
}

/// A thread's state in the kernel: the state letter in `/proc/self/task/TID/stat`.
///
/// The numbers are the letters' ASCII codes, and part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KernelState {
    /// On a processor or ready for one.
    Running = b'R',
    /// Waiting, interruptible by a signal.
    Sleeping = b'S',
    /// Waiting, not interruptible by a signal: disk, a page from a stopped server, a vfork child.
    DiskSleep = b'D',
    /// Stopped by a job-control signal.
    Stopped = b'T',
    /// Stopped by a tracer.
    Traced = b't',
    /// Exited, not yet reaped.
    Zombie = b'Z',
    /// Exiting.
    Dead = b'X',
    /// Idle kernel thread.
    Idle = b'I',
    /// Parked.
    Parked = b'P',
    /// A letter that this version does not know.
    Unknown = b'?',
}

impl KernelState {
    /// Returns the state for a letter in `stat`.
    pub const fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => KernelState::Running,
            b'S' => KernelState::Sleeping,
            b'D' => KernelState::DiskSleep,
            b'T' => KernelState::Stopped,
            b't' => KernelState::Traced,
            b'Z' => KernelState::Zombie,
            b'X' | b'x' => KernelState::Dead,
            b'I' => KernelState::Idle,
            b'P' => KernelState::Parked,
            _ => KernelState::Unknown,
        }
    }
}

/// Whether an interrupted thread was in a system call, determined from its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The thread ran instructions of its own.
    Running,
    /// The thread waited in a system call, which continues (or returns `EINTR`) with the thread.
    InSystemCall {
        /// The call's number if it is still known.
        ///
        /// x86_64 overwrites it when the call returns `EINTR`, and then only the instruction before
        /// the call may contain it.
        number: Option<u32>,
    },
    /// The instruction could not be read.
    Unknown,
}

impl Activity {
    /// Returns the activity of a thread that a signal or a tracer interrupted with these registers.
    ///
    /// The kernel leaves one of two marks (`arch_do_signal_or_restart` and its arm64 counterpart):
    /// for a call that will be restarted, pc is on the system call instruction and its number in
    /// place; for one that returns `EINTR`, pc is after that instruction and -EINTR in the result
    /// register. A thread that was about to make a system call looks like the first and counts as
    /// being in it.
    pub fn of<M: Memory>(registers: &Registers, memory: &mut M) -> Activity {
        /// -EINTR in a register.
        const INTERRUPTED: u64 = (-(libc::EINTR as i64)) as u64;
        let pc = registers.pc;
        #[cfg(target_arch = "x86_64")]
        {
            /// `syscall`.
            const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
            let result = registers.gpr[0];
            let mut bytes = [0; 2];
            if memory.read(pc, &mut bytes).is_err() {
                return Activity::Unknown;
            }
            if bytes == INSTRUCTION && result < 0x1000 {
                return Activity::InSystemCall { number: Some(result as u32) };
            }
            if result == INTERRUPTED && memory.read(pc.wrapping_sub(2), &mut bytes).is_ok() && bytes == INSTRUCTION {
                return Activity::InSystemCall { number: number_before(pc.wrapping_sub(2), memory) };
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            /// `svc #0`, little endian.
            const INSTRUCTION: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
            let (result, number) = (registers.x[0], registers.x[8] as u32);
            let mut bytes = [0; 4];
            if memory.read(pc, &mut bytes).is_err() {
                return Activity::Unknown;
            }
            let interrupted =
                result == INTERRUPTED && memory.read(pc.wrapping_sub(4), &mut bytes).is_ok() && bytes == INSTRUCTION;
            if interrupted || bytes == INSTRUCTION {
                return Activity::InSystemCall { number: Some(number) };
            }
        }
        Activity::Running
    }
}

/// Returns the system call number set by the instruction before `address`.
///
/// Only if that is `mov eax, number`.
#[cfg(target_arch = "x86_64")]
fn number_before<M: Memory>(address: u64, memory: &mut M) -> Option<u32> {
    let mut bytes = [0; 5];
    memory.read(address.wrapping_sub(5), &mut bytes).ok()?;
    let [0xb8, number @ ..] = bytes else { return None };
    Some(u32::from_le_bytes(number)).filter(|number| *number < 0x1000)
}

/// Announced threads by id, each at the place for its id or one of the next.
///
/// They save a listing by the kernel, which creates a file for each thread that was not listed
/// before (4 µs). This is a hint: some may have exited, and others are missing.
static KNOWN: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];

/// Returns the possible places of a thread.
fn places_of(tid: Tid) -> impl Iterator<Item = &'static AtomicI32> {
    (0..8).filter_map(move |step| KNOWN.get((tid as usize).wrapping_add(step) % KNOWN.len()))
}

/// Announces the calling thread, once (not async-signal-safe: it must be withdrawn when it exits).
pub fn announce_thread() {
    let tid = this_thread();
    let _ = places_of(tid).find(|place| place.compare_exchange(0, tid, Relaxed, Relaxed).is_ok());
}

/// Withdraws the calling thread, which is exiting.
pub fn withdraw_thread() {
    let tid = this_thread();
    let _ = places_of(tid).find(|place| place.compare_exchange(tid, 0, Relaxed, Relaxed).is_ok());
}

/// Returns the announced threads, those created after `first` in that order.
pub(crate) fn announced_threads(first: Tid) -> impl Iterator<Item = Tid> {
    let (before, after) = KNOWN.split_at(first as usize % KNOWN.len());
    after.iter().chain(before).map(|place| place.load(Relaxed)).filter(|tid| *tid != 0)
}

/// The result of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Number of threads found.
    pub found: usize,
    /// The error that ended the listing early, if any; the threads found before it are valid.
    pub error: Option<Errno>,
}

/// `/proc/self/task`, open if it could be opened.
#[derive(Clone, Copy, Debug)]
pub struct TaskDirectory {
    /// If there is none, the directory is opened for each use.
    descriptor: Option<OwnedDescriptor>,
    /// The process that opened it: a child of fork inherits the descriptor of its parent's threads.
    process: ProcessMark,
}

/// A current descriptor of a task directory.
enum Current<'d> {
    Kept(&'d Descriptor),
    /// Opened only for this use.
    Fresh(File),
}

impl core::ops::Deref for Current<'_> {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        match self {
            Current::Kept(descriptor) => descriptor,
            Current::Fresh(file) => file,
        }
    }
}

impl TaskDirectory {
    /// Opens the directory (not async-signal-safe).
    ///
    /// # Errors
    /// The error of open: `ENOENT` if `/proc` is not mounted, `EACCES` if a sandbox hides it.
    pub fn open() -> Result<TaskDirectory> {
        Self::open_by(process_id())
    }

    /// Like [`open`](Self::open), for a caller that knows the process id.
    pub fn open_by(pid: i32) -> Result<TaskDirectory> {
        Ok(TaskDirectory {
            descriptor: Some(OwnedDescriptor::adopt(open_task()?)?),
            process: ProcessMark::for_caller(pid),
        })
    }

    /// Creates the value without opening the directory: it is opened at each use.
    pub fn unopened() -> TaskDirectory {
        TaskDirectory { descriptor: None, process: ProcessMark::for_caller(process_id()) }
    }

    /// Whether the directory could be opened when the value was created.
    pub fn is_kept(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Returns the kept descriptor, if it is still ours.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_ref()?.verified()
    }

    /// Closes the directory (not async-signal-safe).
    pub fn close(self) {
        if let Some(descriptor) = self.descriptor {
            descriptor.close();
        }
    }

    /// Returns the kept descriptor if it is still valid, else a fresh one.
    ///
    /// After fork the kept one shows the parent's threads, and some apps close every descriptor
    /// that they don't know.
    fn current(&self) -> Result<Current<'_>> {
        if self.process.is_caller(process_id())
            && let Some(descriptor) = self.descriptor()
        {
            return Ok(Current::Kept(descriptor));
        }
        open_task().map(Current::Fresh)
    }

    /// Calls `each` with the id of every thread of this process, including the caller.
    ///
    /// In the order of their creation. Threads that start or exit meanwhile may be missed or
    /// listed: list again until nothing is new.
    pub fn list(&self, each: &mut impl FnMut(Tid)) -> Listing {
        /// Room for about 120 entries per call; small enough for a 16 KiB stack.
        const BUFFER: usize = 4096;
        let mut listing = Listing::default();
        let current = match self.current() {
            Ok(current) => current,
            Err(error) => return Listing { found: 0, error: Some(error) },
        };
        // SAFETY: lseek touches no memory. Async-signal-safe: one system call.
        if let Err(error) = unsafe { syscall!(libc::SYS_lseek, current.number(), 0, libc::SEEK_SET) } {
            listing.error = Some(error);
            return listing;
        }
        let mut buffer = Entries([0; BUFFER]);
        loop {
            let into = buffer.0.as_mut_ptr();
            // SAFETY: the kernel writes at most BUFFER bytes into the buffer. Async-signal-safe:
            // one system call.
            let read = unsafe { syscall!(libc::SYS_getdents64, current.number(), into, BUFFER) };
            let filled = match read {
                Ok(0) => return listing,
                Ok(filled) => filled,
                Err(error) => {
                    listing.error = Some(error);
                    return listing;
                }
            };
            // struct linux_dirent64 {u64 ino; s64 off; u16 reclen; u8 type; char name[]}
            let mut rest = buffer.0.get(..filled).unwrap_or(&[]);
            while let Some(&[low, high]) = rest.get(16..18) {
                let length = usize::from(u16::from_le_bytes([low, high]));
                if let Some(tid) = rest.get(19..length).and_then(thread_id) {
                    listing.found += 1;
                    each(tid);
                }
                match rest.get(length..) {
                    Some(next) if length > 0 => rest = next,
                    _ => break,
                }
            }
        }
    }

    /// Whether the calling thread was the only one when the directory was opened.
    ///
    /// Another thread can then only be created by it. Costs nothing.
    pub fn had_one_thread(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|descriptor| descriptor.links() == 3)
    }

    /// Returns the number of threads in this process, including the caller.
    ///
    /// This is the directory's link count minus two (`proc_task_getattr`). Costs one system call,
    /// whereas a listing examines each thread.
    ///
    /// # Errors
    /// The error of open or fstat.
    pub fn count(&self) -> Result<usize> {
        let current = self.current()?;
        let links = status(&current)?.st_nlink as usize;
        Ok(links.saturating_sub(2))
    }

    /// Returns a thread's name, from `comm`. Needs a free descriptor.
    ///
    /// # Errors
    /// The error of open or read: `ENOENT` for a thread that has exited.
    pub fn name(&self, tid: Tid) -> Result<ThreadName> {
        let mut buffer = [0; NAME_LENGTH + 1];
        let filled = self.read_file(tid, b"comm", &mut buffer)?;
        let mut name = ThreadName::default();
        let text = buffer.get(..filled).unwrap_or(&[]).iter().take_while(|byte| **byte != b'\n');
        for (to, from) in name.bytes.iter_mut().take(NAME_LENGTH).zip(text) {
            *to = *from;
        }
        Ok(name)
    }

    /// Returns a thread's kernel state, from `stat`. Needs a free descriptor.
    ///
    /// # Errors
    /// The error of open or read: `ENOENT` for a thread that has exited.
    pub fn state(&self, tid: Tid) -> Result<KernelState> {
        let mut buffer = [0; 64];
        let filled = self.read_file(tid, b"stat", &mut buffer)?;
        Ok(state_of_stat(buffer.get(..filled).unwrap_or(&[])))
    }

    /// Whether a thread is a kernel worker in this process (io_uring's workers and pollers).
    ///
    /// `PF_IO_WORKER` or `PF_USER_WORKER` (include/linux/sched.h) in field 9 of `stat`. It never
    /// runs the app's code and answers no signal. Needs a free descriptor; false if unknown.
    pub fn is_kernel_worker(&self, tid: Tid) -> bool {
        let mut buffer = [0; 256];
        let Ok(filled) = self.read_file(tid, b"stat", &mut buffer) else { return false };
        is_worker_by_stat(buffer.get(..filled).unwrap_or(&[]))
    }

    /// Reads the start of `/proc/self/task/TID/NAME`; returns the number of bytes.
    fn read_file(&self, tid: Tid, name: &[u8], into: &mut [u8]) -> Result<usize> {
        let path = Path::new().push_decimal(tid.unsigned_abs()).push(b"/").push(name);
        proc_files::read_file(&*self.current()?, path.as_c_str(), into)
    }
}

/// Returns a thread's state from its `stat`: `TID (name) L …`.
///
/// The name may contain spaces and parentheses, so the letter follows the last `)`.
pub fn state_of_stat(text: &[u8]) -> KernelState {
    let close = text.iter().rposition(|byte| *byte == b')');
    let letter = close.and_then(|at| text.get(at.saturating_add(2))).copied();
    letter.map_or(KernelState::Unknown, KernelState::from_letter)
}

/// Whether a `stat` is that of a kernel worker: see [`TaskDirectory::is_kernel_worker`].
pub fn is_worker_by_stat(text: &[u8]) -> bool {
    const WORKER: u64 = 0x10 | 0x4000;
    let Some(close) = text.iter().rposition(|byte| *byte == b')') else { return false };
    // After the name's parenthesis: a space, then field 3.
    let mut fields = text.get(close.saturating_add(2)..).unwrap_or(&[]).split(|byte| *byte == b' ');
    fields.nth(6).and_then(decimal).unwrap_or(0) & WORKER != 0
}

/// A buffer for getdents64, which writes 8-byte words.
#[repr(align(8))]
struct Entries([u8; 4096]);

/// Returns the id of the calling thread.
#[inline(always)]
pub fn this_thread() -> Tid {
    // SAFETY: gettid has no arguments and no effects. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_gettid) }.unwrap_or(0) as Tid
}

/// The process id last recorded by [`note_process_id`].
static NOTED_PROCESS: AtomicI32 = AtomicI32::new(0);

/// Returns the id of this process, from the kernel.
///
/// The C library's may be cached from before a fork. If a sandbox refuses the call, returns the
/// recorded id.
#[inline(always)]
pub fn process_id() -> i32 {
    // SAFETY: getpid has no arguments and no effects. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_getpid) }.map_or_else(|_| NOTED_PROCESS.load(Relaxed), |id| id as i32)
}

/// Returns the id of this process and records it for when a sandbox refuses the call.
///
/// To be called at install, and in a child created by fork.
pub fn note_process_id() -> i32 {
    let id = process_id();
    NOTED_PROCESS.store(id, Relaxed);
    id
}

/// Returns the name of the calling thread.
pub fn this_thread_name() -> ThreadName {
    let mut words = [0_u64; 2];
    // SAFETY: the kernel writes 16 bytes. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_NAME, words.as_mut_ptr()) };
    ThreadName::from_words(words)
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, the clock of every crash path deadline.
///
/// 0 if the kernel refuses.
#[inline(always)]
pub fn monotonic_now() -> u64 {
    now(libc::CLOCK_MONOTONIC)
}

/// Returns nanoseconds since the epoch, UTC.
#[inline(always)]
pub fn wall_now() -> u64 {
    now(libc::CLOCK_REALTIME)
}

/// Returns the monotonic clock and nanoseconds since the epoch, from the C library.
///
/// It usually needs no system call for them (not async-signal-safe: the functions that it calls may
/// not be bound yet).
pub fn clocks() -> [u64; 2] {
    // Miri's tests have a kernel, and so a clock, of their own.
    [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME].map(if cfg!(miri) { now } else { now_by_library })
}

pub(crate) fn now_by_library(clock: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the library writes one `struct timespec`.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Returns a clock's time, by system call.
///
/// The C library's vDSO pointer may not be touched yet in a crash.
#[inline(always)]
pub(crate) fn now(clock: i32) -> u64 {
    let mut now = [0_i64; 2];
    // SAFETY: the kernel writes one timespec of two words. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_clock_gettime, clock, now.as_mut_ptr()) };
    (now[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(now[1] as u64)
}

fn open_task() -> Result<File> {
    open(Descriptor::WORKING_DIRECTORY, c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Parses the name of a thread's directory, which ends with a NUL; `None` for anything else.
fn thread_id(name: &[u8]) -> Option<Tid> {
    name.split(|byte| *byte == 0).next().and_then(decimal).and_then(|number| Tid::try_from(number).ok())
}

#[cfg(test)]
mod tests;
