//! Memory that is there before it is needed.

use super::syscall::syscall;

/// Linux 5.14; not in every libc's headers.
const MADV_POPULATE_WRITE: i32 = 23;

/// Gives every page of fresh, zeroed memory its frame (normal life), so that none has to be found when memory is short.
///
/// One system call where the kernel has it (5.14): a page costs half of what a fault does.
///
/// # Safety
/// `address..address + length` is a private mapping, writable, that nobody else uses and nothing was written to.
pub(super) unsafe fn touch(address: usize, length: usize, page: usize) {
    let page = page.max(4096);
    let start = address & !(page - 1);
    let end = address.saturating_add(length);
    // SAFETY: the call changes no byte.
    if unsafe { syscall!(libc::SYS_madvise, start, end - start, MADV_POPULATE_WRITE) }.is_ok() {
        return;
    }
    let mut at = start;
    while at < end {
        // SAFETY: by the contract: a page of zeros that is writable and ours.
        unsafe { (at as *mut u8).write_volatile(0) };
        at += page;
    }
}
