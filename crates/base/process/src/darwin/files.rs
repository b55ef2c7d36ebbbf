//! The file and mapping functions that differ on Darwin.

use super::syscall::{Errno, Result, check};
use crate::file::Descriptor;

pub(crate) const POPULATE: i32 = libc::MADV_WILLNEED;
/// Whether `POPULATE` guarantees present pages: here it is only advice.
pub(crate) const POPULATES: bool = false;

pub(crate) fn set_times(file: &Descriptor, times: &[libc::timespec; 2]) -> Result<usize> {
    // SAFETY: the kernel reads two `timespec`s. Async-signal-safe: one system call.
    check(unsafe { libc::futimens(file.number(), times.as_ptr()) } as isize)
}

/// Reserves space for a file. `false` if the file system can't.
pub(crate) fn preallocate(file: &Descriptor, bytes: u32) -> Result<bool> {
    let mut store = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: bytes.into(),
        fst_bytesalloc: 0,
    };
    // SAFETY: the kernel reads and writes one `fstore_t` (fcntl(2), F_PREALLOCATE). It does not
    // change the file's length.
    match check(unsafe { libc::fcntl(file.number(), libc::F_PREALLOCATE, &raw mut store) } as isize) {
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        Ok(_) => check(unsafe { libc::ftruncate(file.number(), bytes.into()) } as isize).map(|_| true),
        Err(Errno(libc::ENOTSUP | libc::EINVAL | libc::ENODEV | libc::ENOTTY)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Does nothing on Darwin.
///
/// The crash is written on Coroner's own threads, and a mapping isn't known to be placed next to
/// the previous one.
pub(crate) fn map_inaccessible(_address: usize, _length: usize) {}

/// Not available on Darwin.
///
/// # Safety
/// Always safe here: nothing is changed.
pub(crate) unsafe fn install_guard(_address: usize, _length: usize) -> bool {
    false
}

/// Not available on Darwin.
pub(crate) fn zero_range(_file: &Descriptor, _bytes: u32) -> bool {
    false
}

pub(crate) fn random(into: &mut [u8; 16]) -> bool {
    // SAFETY: the kernel writes 16 bytes (getentropy(2)). Async-signal-safe: one system call.
    unsafe { libc::getentropy(into.as_mut_ptr().cast(), into.len()) == 0 }
}
