//! What the system tells of the process, asked at install.

use super::{clock, process};

unsafe extern "C" {
    /// <mach-o/dyld.h>: the program's path, and -1 where there is too little room.
    fn _NSGetExecutablePath(to: *mut libc::c_char, size: *mut u32) -> i32;
}

/// The path of the program's file; nothing where it does not fit.
pub(crate) fn program_path(into: &mut [u8; 1024]) -> &[u8] {
    let mut size = into.len() as u32;
    // SAFETY: dyld writes at most `size` bytes.
    if unsafe { _NSGetExecutablePath(into.as_mut_ptr().cast(), &raw mut size) } != 0 {
        return &[];
    }
    let length = into.iter().position(|byte| *byte == 0).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

/// When the process started, in nanoseconds since the epoch; now, where the kernel does not tell.
pub(crate) fn process_start() -> u64 {
    process::started().unwrap_or_else(clock::wall)
}
