//! Counts what a crash path must not do: allocations (also those of C libraries) and page faults.

use std::{
    ffi::c_void,
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn __libc_malloc(length: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, length: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, length: usize) -> *mut c_void;
}

// The program's own definitions go before the C library's for every library of the process.

/// Counts and forwards.
#[unsafe(no_mangle)]
extern "C" fn malloc(length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own malloc under its other name.
    unsafe { __libc_malloc(length) }
}

/// Counts and forwards.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own calloc under its other name.
    unsafe { __libc_calloc(count, length) }
}

/// Counts and forwards.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own realloc under its other name; the caller keeps C's rules.
    unsafe { __libc_realloc(block, length) }
}

/// The allocations of this process so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// The page faults of this thread so far that needed no reading from disk.
pub(crate) fn minor_faults() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a place for the structure, which is valid when zeroed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt
}
