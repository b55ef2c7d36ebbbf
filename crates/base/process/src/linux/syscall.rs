//! System calls made directly, without the C library.
//!
//! No errno (a thread-local), no cancellation point, no lazily bound stub that would enter the
//! dynamic linker, nothing that a sanitizer or an app interposes.
//!
//! Numbers come from the `libc` crate's `SYS_*` constants; the calling convention from syscall(2)
//! in the Linux man-pages. A call that doesn't exist in a kernel or that a sandbox denies is an
//! error like any other, which every caller handles.

#[cfg(not(miri))]
use core::arch::asm;

pub use crate::errno::{Errno, Result};

/// Makes system call `number` with six arguments (unused ones are 0).
///
/// Always inlined, so that the number is a constant next to the instruction and `xtask
/// signal-safety` can identify the call.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// The call must be sound for these arguments: the caller must own the memory that the call writes.
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn syscall6(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Result<usize> {
    let answer: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's own convention: it keeps all registers but rax, rcx and r11.
    // Async-signal-safe: one instruction.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's own convention: it keeps all registers but x0. Async-signal-safe: one
    // instruction.
    unsafe {
        asm!("svc #0", in("x8") number as isize, inlateout("x0") a as isize => answer, in("x1") b, in("x2") c,
            in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    if (-4095..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as usize) }
}

/// Calls the fake kernel of coroner-capture's tests, under Miri.
///
/// `crates/crash/capture/src/miri/fake_kernel.rs`.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// As above.
#[cfg(miri)]
pub unsafe fn syscall6(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Result<usize> {
    unsafe extern "C-unwind" {
        fn coroner_system_call(number: i64, arguments: &[usize; 6]) -> isize;
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { coroner_system_call(number, &[a, b, c, d, e, f]) };
    if (-4095..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as usize) }
}

/// [`syscall6`] with fewer arguments: `syscall!(libc::SYS_close, fd)`; every argument is converted
/// with `as usize`.
#[macro_export]
#[doc(hidden)]
macro_rules! raw_syscall {
    ($n:expr) => { $crate::syscall::syscall6($n, 0, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr) => { $crate::syscall::syscall6($n, $a as usize, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr) => { $crate::syscall::syscall6($n, $a as usize, $b as usize, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::syscall::syscall6($n, $a as usize, $b as usize, $c as usize, 0, 0, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::syscall::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, 0, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::syscall::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::syscall::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize)
    };
}
pub use raw_syscall as syscall;

/// The number of a call that [`call`] makes.
macro_rules! number {
    (close) => {
        libc::SYS_close
    };
    (fcntl) => {
        libc::SYS_fcntl
    };
    // libc lacks these three for Android (asm/unistd_64.h, asm-generic/unistd.h).
    (fstatat) => {
        if cfg!(target_arch = "x86_64") { 262_i64 } else { 79 }
    };
    (fstat) => {
        if cfg!(target_arch = "x86_64") { 5 } else { 80 }
    };
    (ftruncate) => {
        if cfg!(target_arch = "x86_64") { 77 } else { 46 }
    };
    (geteuid) => {
        libc::SYS_geteuid
    };
    (getrlimit) => {
        libc::SYS_getrlimit
    };
    (madvise) => {
        libc::SYS_madvise
    };
    (mkdirat) => {
        libc::SYS_mkdirat
    };
    (mknodat) => {
        libc::SYS_mknodat
    };
    (mmap) => {
        libc::SYS_mmap
    };
    (mprotect) => {
        libc::SYS_mprotect
    };
    (munmap) => {
        libc::SYS_munmap
    };
    (openat) => {
        libc::SYS_openat
    };
    (pread) => {
        libc::SYS_pread64
    };
    (pwrite) => {
        libc::SYS_pwrite64
    };
    (renameat) => {
        libc::SYS_renameat
    };
    (sigaltstack) => {
        libc::SYS_sigaltstack
    };
    (unlinkat) => {
        libc::SYS_unlinkat
    };
}
pub(crate) use number;

/// Makes a call that all systems have: `call!(close, fd)`, for shared code.
macro_rules! call {
    ($name:ident $(, $argument:expr)*) => {
        $crate::syscall::syscall!($crate::linux::syscall::number!($name) $(, $argument)*)
    };
}
pub(crate) use call;
