//! Memory that the process uses and that is available to it.
//!
//! Through `task_info` and `host_statistics64`.

use mach2::mach_init::mach_host_self;
use mach2::mach_port::mach_port_deallocate;
use mach2::task::task_info;
use mach2::task_info::TASK_VM_INFO;
use mach2::traps::mach_task_self;
use mach2::vm_page_size::vm_page_size;

/// Offset of `phys_footprint` in `struct task_vm_info`, <mach/task_info.h>, in words of 4 bytes.
///
/// It is the last field of revision 1.
const PHYS_FOOTPRINT: usize = 36;
/// Offset of `limit_bytes_remaining`, revision 4: after 2 addresses and 21 ledgers.
const LIMIT_BYTES_REMAINING: usize = 38 + 2 * (2 + 21);
/// Number of words up to and including that field.
const WORDS: usize = LIMIT_BYTES_REMAINING + 2;

/// Returns the bytes of memory that count as this process's.
///
/// This is `phys_footprint`, to which the system applies its limits. Async-signal-safe: one message
/// to the kernel.
pub fn used(_page_size: u32) -> Option<u64> {
    task_vm_info(PHYS_FOOTPRINT)
}

/// Returns the bytes of memory still available to the process.
///
/// Up to its limit if it has one (iOS), else the free or inactive memory (macOS).
/// Async-signal-safe: two messages to the kernel.
pub fn available() -> Option<u64> {
    task_vm_info(LIMIT_BYTES_REMAINING).or_else(free)
}

/// Returns a field of `struct task_vm_info`; `None` if it is 0 or the system is older.
fn task_vm_info(at: usize) -> Option<u64> {
    let mut info = [0_u32; WORDS];
    let mut count = WORDS as u32;
    // SAFETY: the kernel writes at most `count` words, and returns how many it has.
    let result = unsafe { task_info(mach_task_self(), TASK_VM_INFO, info.as_mut_ptr().cast(), &raw mut count) };
    let known = info.get(..count as usize).filter(|_| result == 0)?;
    let &[low, high] = known.get(at..at + 2)? else { return None };
    Some(u64::from(low) | u64::from(high) << 32).filter(|value| *value > 0)
}

/// Returns the bytes of the machine's free and inactive pages.
fn free() -> Option<u64> {
    /// <mach/host_info.h>.
    const HOST_VM_INFO64: i32 = 4;
    /// Maximum number of words that the kernel may write.
    ///
    /// `free_count`, `active_count` and `inactive_count` are the first words of `struct
    /// vm_statistics64`, <mach/vm_statistics.h>.
    const WORDS: usize = 64;
    let mut info = [0_i32; WORDS];
    let mut count = WORDS as u32;
    // SAFETY: the kernel writes at most `count` words; the right to the host's port is released.
    let result = unsafe {
        let host = mach_host_self();
        let result = libc::host_statistics64(host, HOST_VM_INFO64, info.as_mut_ptr(), &raw mut count);
        mach_port_deallocate(mach_task_self(), host);
        result
    };
    let [free, _, inactive, ..] = info;
    // SAFETY: a constant of the system, which the C library has read.
    let page = unsafe { vm_page_size } as u64;
    (result == 0)
        .then(|| u64::from(free.cast_unsigned()).saturating_add(inactive.cast_unsigned().into()).saturating_mul(page))
}
