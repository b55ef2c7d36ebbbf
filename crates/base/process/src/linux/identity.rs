//! Process identities from `/proc` (proc(5)).

use super::proc_files::{decimal, read_file, read_link};
use super::syscall::{Errno, Result, syscall};
use super::threads::{now, now_by_library, process_id};
use crate::files::Descriptor;
use crate::path::Path;
use crate::process_identity::ProcessIdentity;
use core::ffi::{CStr, c_char};

/// The relevant fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Start time in clock ticks after boot.
    pub start: u64,
    /// Number of pages of physical memory that the process uses.
    pub resident: u64,
    /// Whether all threads have exited, and the parent has not waited for the process yet.
    pub ended: bool,
}

/// Nanoseconds per clock tick as visible to programs.
///
/// `USER_HZ` in asm-generic/param.h, and in those of both architectures.
const TICK: u64 = 1_000_000_000 / 100;

pub(crate) fn of_this_process() -> ProcessIdentity {
    identity(process_id(), boot_id().unwrap_or_default(), now(libc::CLOCK_BOOTTIME))
}

pub(crate) fn in_this_boot(pid: i32) -> ProcessIdentity {
    // Miri's tests have a kernel, and so a clock, of their own.
    identity(pid, [0; 16], (if cfg!(miri) { now } else { now_by_library })(libc::CLOCK_BOOTTIME))
}

fn identity(pid: i32, boot_id: [u8; 16], now: u64) -> ProcessIdentity {
    ProcessIdentity { pid: pid.unsigned_abs(), start: now / TICK, boot_id, pid_namespace: pid_namespace().unwrap_or(0) }
}

pub(crate) fn lives(process: &ProcessIdentity, own: &ProcessIdentity) -> Option<bool> {
    if process.pid == 0 || process.start == 0 {
        return None;
    }
    let boots = [process.boot_id, own.boot_id];
    if process.boot_id != own.boot_id && !boots.contains(&[0; 16]) {
        return Some(false);
    }
    if process.pid_namespace == 0 || process.pid_namespace != own.pid_namespace {
        return None;
    }
    // `/proc` may be that of another namespace, in which the id belongs to another process.
    if self_in_proc() == Some(own.pid)
        && let Ok(stat) = read_stat(stat_path(process.pid).as_c_str())
    {
        // An emulated kernel (gVisor) may not report the start time.
        return (stat.start != 0).then_some(stat.start <= process.start && !stat.ended);
    }
    // Hidden (`hidepid`), or not there. The id may have been reused; waiting for the end of that
    // process loses nothing.
    // SAFETY: signal 0 only asks (kill(2)). Async-signal-safe: one system call.
    Some(unsafe { syscall!(libc::SYS_kill, process.pid, 0) } != Err(Errno(libc::ESRCH)))
}

/// Returns the process id of the caller in `/proc`.
fn self_in_proc() -> Option<u32> {
    let mut text = [0; 16];
    u32::try_from(decimal(read_link(c"/proc/self", &mut text))?).ok()
}

/// Returns the inode in `/proc/self/ns/pid`, a link to `pid:[INODE]`.
fn pid_namespace() -> Option<u64> {
    let mut text = [0; 32];
    decimal(read_link(c"/proc/self/ns/pid", &mut text).strip_prefix(b"pid:[")?.strip_suffix(b"]")?)
}

/// Returns the boot id, written as 32 hexadecimal digits with hyphens in between.
fn boot_id() -> Option<[u8; 16]> {
    let mut text = [0; 64];
    let length = read_file(Descriptor::WORKING_DIRECTORY, c"/proc/sys/kernel/random/boot_id", &mut text).ok()?;
    let mut digits = text.get(..length)?.iter().filter_map(|byte| char::from(*byte).to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        *byte = (digits.next()? << 4 | digits.next()?) as u8;
    }
    Some(id)
}

fn read_stat(path: &CStr) -> Result<Stat> {
    let mut text = [0; 1024];
    let length = read_file(Descriptor::WORKING_DIRECTORY, path, &mut text)?;
    text.get(..length).and_then(parse_stat).ok_or(Errno(libc::ENODATA))
}

/// Parses the fields of `/proc/PID/stat` after the second, the name in parentheses.
///
/// The name may contain anything.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    // "PID (NAME) STATE …": after the space, the state is field 3.
    let mut fields = text.get(name_end.checked_add(2)?..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let threads = decimal(fields.nth(16)?)?; // Field 20.
    let start = decimal(fields.nth(1)?)?; // Field 22.
    let resident = fields.nth(1).and_then(decimal).unwrap_or(0); // Field 24.
    // A process whose first thread has exited is also a zombie while its other threads continue.
    let ended = matches!(state, b'X' | b'x') || (state == b'Z' && threads <= 1);
    Some(Stat { start, resident, ended })
}

fn stat_path(pid: u32) -> Path {
    Path::new().push(b"/proc/").push_decimal(pid).push(b"/stat")
}

/// Returns a time of this boot at which the process ran, in nanoseconds since the epoch.
///
/// Its precision is the kernel's clock tick.
pub(crate) fn started_at(identity: &ProcessIdentity) -> Option<u64> {
    since_epoch(identity.start, now_by_library)
}

/// Returns the calling process's start time and its physical memory in bytes.
///
/// The time is in nanoseconds since the epoch, with the precision of the kernel's clock tick.
/// `page_size` is in bytes. Each is `None` if `/proc` doesn't contain it. Needs a free descriptor.
/// Async-signal-safe.
pub fn start_and_memory(page_size: u32) -> (Option<u64>, Option<u64>) {
    // The first thread's file: for the whole process the kernel would add up the times of all
    // threads.
    let path = Path::new().push(b"/proc/self/task/").push_decimal(process_id().unsigned_abs()).push(b"/stat");
    let Ok(stat) = read_stat(path.as_c_str()) else { return (None, None) };
    let memory = stat.resident.checked_mul(page_size.into()).filter(|bytes| *bytes > 0);
    (since_epoch(stat.start, now), memory)
}

fn since_epoch(ticks: u64, now: impl Fn(i32) -> u64) -> Option<u64> {
    let age = now(libc::CLOCK_BOOTTIME).checked_sub(ticks.checked_mul(TICK)?)?;
    (ticks != 0).then(|| now(libc::CLOCK_REALTIME).saturating_sub(age))
}

/// Returns the path of the program's file, as far as it fits; empty if `/proc` doesn't contain it.
pub fn program_path(into: &mut [u8]) -> &[u8] {
    read_link(c"/proc/self/exe", into)
}

/// Returns the path by which the program was started, made absolute by the current directory.
///
/// Empty if it doesn't fit, or names a descriptor, as after `fexecve`. For a process without
/// `/proc`, before it has changed its directory (not async-signal-safe: it calls the C library).
///
/// For a program started as `ld.so ./program` this is the interpreter's path, and for a program
/// that runs a script the script's.
pub(crate) fn path_of_execution(into: &mut [u8]) -> &[u8] {
    // SAFETY: reads a table that the C library set up before `main`.
    let at = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if at == 0 {
        return &[];
    }
    // SAFETY: the kernel put the string at the end of the first stack (`create_elf_tables` in its
    // fs/binfmt_elf.c), which stays mapped.
    let name = unsafe { CStr::from_ptr(at as *const c_char) }.to_bytes();
    if name.starts_with(b"/dev/fd/") {
        return &[];
    }
    let mut length = 0;
    if !name.starts_with(b"/") {
        // SAFETY: the kernel writes at most `into.len()` bytes including the NUL, and returns their
        // number.
        length = unsafe { syscall!(libc::SYS_getcwd, into.as_mut_ptr(), into.len()) }.unwrap_or(0).saturating_sub(1);
        // The kernel marks a directory that can't be reached from the root, in parentheses.
        if into.first() != Some(&b'/') || length == 0 {
            return &[];
        }
    }
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let separator: &[u8] = if length > 1 { b"/" } else { b"" };
    for part in [separator, name] {
        let Some(to) = into.get_mut(length..).and_then(|into| into.get_mut(..part.len())) else { return &[] };
        to.copy_from_slice(part);
        length += part.len();
    }
    into.get(..length).unwrap_or_default()
}

#[cfg(test)]
mod tests;
