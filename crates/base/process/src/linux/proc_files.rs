//! Reads files and links in `/proc` (proc(5)), and the numbers in them. Async-signal-safe.

use core::ffi::CStr;

use super::syscall::{Errno, Result, syscall};
use crate::files::{Descriptor, open};

/// Reads the start of a file below `directory`; returns the number of bytes.
pub(crate) fn read_file(directory: &Descriptor, path: &CStr, into: &mut [u8]) -> Result<usize> {
    let file = open(directory, path, libc::O_RDONLY, 0)?;
    let mut filled = 0;
    loop {
        let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) else { return Ok(filled) };
        // SAFETY: the kernel writes at most `rest.len()` bytes into it. Async-signal-safe: one
        // system call.
        match unsafe { syscall!(libc::SYS_read, file.number(), rest.as_mut_ptr(), rest.len()) } {
            // A file with one record returns all of it at once.
            Ok(count) if count < rest.len() => return Ok(filled.saturating_add(count)),
            Ok(count) => filled = filled.saturating_add(count),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the target of a link, as far as it fits; empty if it can't be read.
pub(crate) fn read_link<'p>(path: &CStr, into: &'p mut [u8]) -> &'p [u8] {
    // SAFETY: a NUL-terminated path; the kernel writes at most `into.len()` bytes.
    // Async-signal-safe: one system call.
    let length =
        unsafe { syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), into.as_mut_ptr(), into.len()) };
    into.get(..length.unwrap_or(0)).unwrap_or_default()
}

/// Parses a decimal number; `None` if there is anything else, or nothing.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let mut number = None;
    for digit in text {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = Some(number.unwrap_or(0_u64).checked_mul(10)?.checked_add(u64::from(digit & 0xf))?);
    }
    number
}
