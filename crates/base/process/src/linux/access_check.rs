//! Checks of memory by the kernel, which changes nothing.
//!
//! A bad address is an error of the system call and not a fault.

use super::syscall::{Errno, syscall};

/// Whether this process may currently read, or write, the byte at `address`.
///
/// Nothing changes: the kernel is asked to compare the word with a value (`FUTEX_WAIT` that doesn't
/// wait), or to add 0 to it (`FUTEX_WAKE_OP`), see futex(2). The word is aligned, so it can't
/// extend across the end of accessible memory.
pub fn is_accessible(address: u64, write: bool) -> bool {
    /// `FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0x7ff)`.
    const ADD_NOTHING: u32 = 1 << 28 | 0x7ff;
    let word = address & !3;
    let (own, at_once) = (0_u32, [0_i64; 2]);
    let answer = if write {
        let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel adds 0 to the word by one atomic instruction, or returns an error.
        // Async-signal-safe: one system call.
        unsafe { syscall!(libc::SYS_futex, &raw const own, operation, 0, 0, word, ADD_NOTHING) }
    } else {
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel reads the word and a timespec of zeros. Async-signal-safe: one system
        // call.
        unsafe { syscall!(libc::SYS_futex, word, operation, own, at_once.as_ptr()) }
    };
    answer.is_ok() || matches!(answer, Err(Errno(libc::EAGAIN | libc::ETIMEDOUT)))
}

/// Whether the 32-bit word at `address`, a multiple of 4, is zero; `false` if it can't be read.
///
/// The kernel compares it (`FUTEX_WAIT` that doesn't wait, as in [`is_accessible`]).
pub fn is_zero(address: u64) -> bool {
    let at_once = [0_i64; 2];
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and a timespec of zeros. Async-signal-safe: one system
    // call.
    let answer = unsafe { syscall!(libc::SYS_futex, address, operation, 0_u32, at_once.as_ptr()) };
    answer == Err(Errno(libc::ETIMEDOUT))
}
