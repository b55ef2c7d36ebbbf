//! Counts allocations (including those of C libraries) and page faults.

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

// The program's own definitions take precedence over the C library's for every library in the
// process.

/// Counts and forwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own malloc under its other name.
    unsafe { __libc_malloc(length) }
}

/// Counts and forwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own calloc under its other name.
    unsafe { __libc_calloc(count, length) }
}

/// Counts and forwards.
///
/// # Safety
/// Same as C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, length: usize) -> *mut c_void {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: glibc's own realloc under its other name; the caller follows C's rules.
    unsafe { __libc_realloc(block, length) }
}

/// Returns the number of this process's allocations so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Returns this thread's page faults so far that needed no disk read.
pub(crate) fn minor_faults() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the structure, which is valid when zeroed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt
}
