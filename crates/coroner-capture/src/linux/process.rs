//! The process and the thread, asked of the kernel each time: a child made by fork or vfork is another process.

use coroner_machine::syscall::syscall;

/// The parent process.
pub(crate) fn parent_pid() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_getppid) }.map_or(0, |pid| pid as i32)
}

/// Ends the process at once, without running anything.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: does not return. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_exit_group, status) };
    }
}

/// The bits of a code address that are no address.
pub(crate) fn authentication_mask() -> u64 {
    <crate::pipeline::frames::Native as coroner_unwind::Architecture>::AUTHENTICATION_MASK
}
