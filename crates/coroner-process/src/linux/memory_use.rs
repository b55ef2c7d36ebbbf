//! How much memory the process has, and how much it could still have, by `/proc` (proc(5)).
//!
//! A container's own limit (cgroup) is not looked at: what is available is that of the machine.

use core::ffi::CStr;

use super::proc::{decimal, read_file};

/// Bytes of physical memory that this process uses (`VmRSS`). `None` if `/proc` does not say. Async-signal-safe.
pub fn used() -> Option<u64> {
    bytes_of(c"/proc/self/status", b"VmRSS:")
}

/// Bytes that can be had without swapping (`MemAvailable`). `None` if `/proc` does not say. Async-signal-safe.
pub fn available() -> Option<u64> {
    bytes_of(c"/proc/meminfo", b"MemAvailable:")
}

/// The value of the line that begins with `key`, which is in kB.
fn bytes_of(path: &CStr, key: &[u8]) -> Option<u64> {
    // Both lines come within the first 600 bytes, unless the process is in hundreds of groups.
    let mut buffer = [0; 2048];
    let length = read_file(libc::AT_FDCWD, path, &mut buffer).ok()?;
    let line = buffer.get(..length)?.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    decimal(line.trim_ascii().strip_suffix(b" kB")?)?.checked_mul(1024)
}
