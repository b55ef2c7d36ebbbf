//! How much memory the process has, and how much it could still have, by `/proc` (proc(5)).
//!
//! A container's own limit (cgroup) is not looked at: what is available is that of the machine.

use core::ffi::CStr;

use super::proc_files::{decimal, read_file};

/// Bytes of physical memory that this process uses (`VmRSS`), whose pages are so large. `None` if `/proc` does not say. Async-signal-safe.
pub fn used(page_size: u32) -> Option<u64> {
    // In pages, the second number; `status` has it, too, and takes the kernel twice as long.
    let mut buffer = [0; 128];
    let length = read_file(libc::AT_FDCWD, c"/proc/self/statm", &mut buffer).ok()?;
    let pages = decimal(buffer.get(..length)?.split(|byte| *byte == b' ').nth(1)?)?;
    pages.checked_mul(page_size.into())
}

/// Bytes that can be had without swapping (`MemAvailable`). `None` if `/proc` does not say. Async-signal-safe.
pub fn available() -> Option<u64> {
    bytes_of(c"/proc/meminfo", b"MemAvailable:")
}

/// The value of the line that begins with `key`, which is in kB.
fn bytes_of(path: &CStr, key: &[u8]) -> Option<u64> {
    let mut buffer = [0; 256];
    let length = read_file(libc::AT_FDCWD, path, &mut buffer).ok()?;
    let line = buffer.get(..length)?.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    decimal(line.trim_ascii().strip_suffix(b" kB")?)?.checked_mul(1024)
}
