//! Memory that the process uses and that is available to it, from `/proc` (proc(5)).
//!
//! A container's own limit (cgroup) is not considered: the available memory is that of the machine.

use core::ffi::CStr;

use super::proc_files::{decimal, read_file};
use crate::files::Descriptor;

/// Returns the bytes of physical memory that this process uses (`VmRSS`).
///
/// `page_size` is in bytes. `None` if `/proc` doesn't contain it. Async-signal-safe.
pub fn used(page_size: u32) -> Option<u64> {
    // The second number, in pages; `status` has it, too, but takes the kernel twice as long.
    let mut buffer = [0; 128];
    let length = read_file(Descriptor::WORKING_DIRECTORY, c"/proc/self/statm", &mut buffer).ok()?;
    let pages = decimal(buffer.get(..length)?.split(|byte| *byte == b' ').nth(1)?)?;
    pages.checked_mul(page_size.into())
}

/// Returns the bytes that are available without swapping (`MemAvailable`).
///
/// `None` if `/proc` doesn't contain it. Async-signal-safe.
pub fn available() -> Option<u64> {
    bytes_of(c"/proc/meminfo", b"MemAvailable:")
}

/// Returns the value, in kB, of the line that begins with `key`, as bytes.
fn bytes_of(path: &CStr, key: &[u8]) -> Option<u64> {
    let mut buffer = [0; 256];
    let length = read_file(Descriptor::WORKING_DIRECTORY, path, &mut buffer).ok()?;
    let line = buffer.get(..length)?.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    decimal(line.trim_ascii().strip_suffix(b" kB")?)?.checked_mul(1024)
}
