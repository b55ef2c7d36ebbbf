//! Time, by system call: the C library's vdso pointer may not be touched yet when a crash asks.

use coroner_machine::syscall::syscall;

fn nanoseconds(clock: i32) -> u64 {
    let mut time = [0_i64; 2];
    // SAFETY: the kernel writes one 64-bit `timespec`. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_clock_gettime, clock, time.as_mut_ptr()) };
    let [seconds, nanoseconds] = time;
    (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
}

/// Nanoseconds since the epoch, UTC.
pub(crate) fn wall() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// Nanoseconds since boot, sleep included.
pub(crate) fn boot() -> u64 {
    nanoseconds(libc::CLOCK_BOOTTIME)
}
