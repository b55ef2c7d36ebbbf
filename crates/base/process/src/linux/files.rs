//! The file and mapping functions that differ on Linux.

use super::access_check::is_accessible;
use super::syscall::{Errno, Result, syscall};
use crate::file::Descriptor;

/// `MADV_POPULATE_WRITE`, asm-generic/mman-common.h: Linux 5.14, not in every libc's headers.
pub(crate) const POPULATE: i32 = 23;
/// Whether `POPULATE` guarantees present pages.
pub(crate) const POPULATES: bool = true;

pub(crate) fn set_times(file: &Descriptor, times: &[libc::timespec; 2]) -> Result<usize> {
    // SAFETY: the kernel reads two 64-bit `timespec`s. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_utimensat, file.number(), 0_usize, times.as_ptr(), 0) }
}

/// Reserves space for a file. `false` if the file system can't (`EOPNOTSUPP`).
pub(crate) fn preallocate(file: &Descriptor, bytes: u32) -> Result<bool> {
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    match unsafe { syscall!(libc::SYS_fallocate, file.number(), 0, 0, bytes) } {
        Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Maps inaccessible memory at an address if nothing is mapped there.
pub(crate) fn map_inaccessible(address: usize, length: usize) {
    /// `MAP_FIXED_NOREPLACE` in asm-generic/mman-common.h. Before Linux 4.17 the address is only a
    /// hint.
    const AT_FREE_ADDRESS: i32 = 0x10_0000;
    // Miri chooses the address itself.
    if cfg!(miri) {
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | AT_FREE_ADDRESS;
    // SAFETY: nothing that is mapped is replaced. Async-signal-safe: one system call.
    let mapped = unsafe { syscall!(libc::SYS_mmap, address, length, libc::PROT_NONE, flags, -1_isize, 0) };
    if let Ok(elsewhere) = mapped
        && elsewhere != address
    {
        // SAFETY: mapped above, and nobody has it.
        let _ = unsafe { syscall!(libc::SYS_munmap, elsewhere, length) };
    }
}

/// Makes pages inaccessible within their mapping, which stays one. `false` if the kernel can't.
///
/// Mappings are counted (`vm.max_map_count`), and each thread has such a page.
///
/// # Safety
/// The caller must own the pages, and nobody may use them.
pub(crate) unsafe fn install_guard(address: usize, length: usize) -> bool {
    /// `MADV_GUARD_INSTALL` (asm-generic/mman-common.h): Linux 6.13.
    const GUARD_INSTALL: i32 = 102;
    // SAFETY: by the contract. Async-signal-safe: one system call.
    let advised = unsafe { syscall!(libc::SYS_madvise, address, length, GUARD_INSTALL) };
    // An emulator of the kernel ignores advice that it doesn't know.
    advised.is_ok() && !is_accessible(address as u64, false)
}

/// Zeroes the start of a file. `false` if the file system can't.
pub(crate) fn zero_range(file: &Descriptor, bytes: u32) -> bool {
    /// `FALLOC_FL_ZERO_RANGE` (linux/falloc.h).
    const ZERO_RANGE: i32 = 0x10;
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_fallocate, file.number(), ZERO_RANGE, 0, bytes) }.is_ok()
}

pub(crate) fn random(into: &mut [u8; 16]) -> bool {
    // SAFETY: the kernel writes at most 16 bytes. Async-signal-safe: one system call.
    let count = unsafe { syscall!(libc::SYS_getrandom, into.as_mut_ptr(), into.len(), libc::GRND_NONBLOCK) };
    count == Ok(into.len())
}
