//! What Linux tells of the process, asked at install.

use coroner_machine::syscall::{Result, syscall};

use super::{clock, files};

/// The path of the program's file, as far as it fits; nothing where `/proc` does not tell.
pub(crate) fn program_path(into: &mut [u8; 1024]) -> &[u8] {
    let link = c"/proc/self/exe";
    // SAFETY: the kernel writes at most `into.len()` bytes.
    let read = unsafe { syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), into.as_mut_ptr(), into.len()) };
    into.get(..read.unwrap_or(0)).unwrap_or_default()
}

/// When the process started, in nanoseconds since the epoch (to the kernel's clock tick, usually 10 ms); now, where
/// `/proc` does not tell.
pub(crate) fn process_start() -> u64 {
    let wall = clock::wall();
    let Some(ticks) = start_ticks() else { return wall };
    // SAFETY: only asks (normal life).
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let Ok(per_second @ 1..) = u64::try_from(per_second) else { return wall };
    let started = u128::from(ticks) * 1_000_000_000 / u128::from(per_second);
    wall.saturating_sub(clock::boot().saturating_sub(started as u64))
}

/// Field 22 of `/proc/self/stat`: clock ticks after boot (proc_pid_stat(5)).
fn start_ticks() -> Option<u64> {
    let mut text = [0_u8; 1024];
    let length = read_file(c"/proc/self/stat", &mut text).ok()?;
    let text = text.get(..length)?;
    // The second field is the name in parentheses, which may hold anything.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 2;
    let field = text.get(after_name..)?.split(|byte| *byte == b' ').nth(19)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// Reads the start of a file; answers how many bytes.
fn read_file(path: &core::ffi::CStr, into: &mut [u8]) -> Result<usize> {
    let file = files::open(libc::AT_FDCWD, path.as_ptr().cast(), libc::O_RDONLY, 0)?;
    // SAFETY: the kernel writes at most `into.len()` bytes.
    let read = unsafe { syscall!(libc::SYS_read, file, into.as_mut_ptr(), into.len()) };
    files::close(file);
    read
}
