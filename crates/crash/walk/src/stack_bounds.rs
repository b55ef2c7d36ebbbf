//! Bounds of the calling thread's stack.

use core::ops::Range;

#[cfg(any(target_os = "linux", target_os = "android"))]
use coroner_process::threads::{process_id, this_thread};

/// Returns the calling thread's own stack, from its lowest address to above its highest; empty if
/// the system doesn't report it. Not async-signal-safe; call it once per thread. Everything from
/// the stack pointer up to the end is mapped as long as the thread runs, if the stack pointer is in
/// the range: a coroutine's or a signal's stack is a different one.
///
/// For threads other than the first, glibc allocates to answer.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn stack_bounds() -> Range<u64> {
    if let Some(first) = first_stack() {
        return first;
    }
    // SAFETY: an attribute that pthread_getattr_np fills and pthread_attr_destroy empties; two
    // words are written.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return 0..0;
        }
        let (mut low, mut size) = (core::ptr::null_mut(), 0);
        let status = libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        if status == 0 { low as u64..low as u64 + size as u64 } else { 0..0 }
    }
}

/// Size in bytes of the part of the first thread's stack that is used, from its highest address
/// down.
#[cfg(any(target_os = "linux", target_os = "android"))]
const FIRST_STACK: u64 = 8 << 20;

/// Returns the stack that the kernel gave the process, if the calling thread is the first one. The
/// C library would read through all mappings to find it. The name of the program's file is the last
/// thing on it, and mappings without a fixed address keep 128 MiB away from it (`mmap_base` of
/// Linux's `mm/util.c`), so that nothing else is in the [`FIRST_STACK`] bytes below its end.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn first_stack() -> Option<Range<u64>> {
    // SAFETY: reads a table that the C library set up before `main`.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) };
    let end = (name | 4095).checked_add(1).filter(|_| name != 0 && this_thread() == process_id())?;
    Some(end.saturating_sub(FIRST_STACK)..end)
}

/// Returns the calling thread's own stack, from its lowest address to above its highest. Everything
/// from the stack pointer up to the end is mapped as long as the thread runs, if the stack pointer
/// is in the range: a coroutine's or a signal's stack is a different one.
#[cfg(target_vendor = "apple")]
pub fn stack_bounds() -> Range<u64> {
    // SAFETY: both only ask.
    let (high, size) = unsafe {
        let this = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(this) as u64, libc::pthread_get_stacksize_np(this) as u64)
    };
    high.saturating_sub(size)..high
}
