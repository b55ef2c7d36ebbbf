//! The host port: page size, time base, and a few facts.
//!
//! Sources: <mach/mach_host.h>, <mach/mach_time.h>, <mach/vm_page_size.h>.

use super::{KERN_SUCCESS, ports::Right};
use crate::host::kernel::{ending::refuse, lock, pages};

/// The variables of <mach/vm_page_size.h>.
pub(crate) static VM_PAGE_SIZE: usize = pages::PAGE;
pub(crate) static VM_PAGE_MASK: usize = pages::PAGE - 1;
pub(crate) static VM_PAGE_SHIFT: i32 = pages::PAGE.trailing_zeros() as i32;

extern "C" fn mach_host_self() -> u32 {
    let mut mach = lock();
    let host = mach.host;
    match mach.ports.id(host) {
        Some(port) => mach.ports.copy_out(port, Right::Send),
        None => 0,
    }
}

extern "C" fn host_page_size(_host: u32, size: *mut usize) -> i32 {
    // SAFETY: the program gave the address.
    unsafe { size.write(pages::PAGE) };
    KERN_SUCCESS
}

/// `host_statistics64(HOST_VM_INFO64)`: free and active pages, from sysinfo(2).
///
/// The other counters are 0.
extern "C" fn host_statistics64(_host: u32, flavor: i32, info: *mut u32, count: *mut u32) -> i32 {
    if flavor != 4 {
        refuse!("host_statistics64 of flavor {flavor}: only HOST_VM_INFO64 (4)");
    }
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        let mut facts: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&raw mut facts);
        let pages_of = |bytes: u64| (bytes * u64::from(facts.mem_unit) / pages::PAGE as u64) as u32;
        std::ptr::write_bytes(info, 0, count.read() as usize);
        if count.read() >= 2 {
            info.write(pages_of(facts.freeram));
            info.add(1).write(pages_of(facts.totalram - facts.freeram));
        }
    }
    KERN_SUCCESS
}

/// One unit is one nanosecond here, as on Intel Macs. (Apple silicon returns 125/3.)
extern "C" fn mach_timebase_info(info: *mut [u32; 2]) -> i32 {
    // SAFETY: the program gave the address.
    unsafe { info.write([1, 1]) };
    KERN_SUCCESS
}

fn clock(clock: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local result.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time since boot without sleep: Linux's monotonic clock.
pub(crate) extern "C" fn mach_absolute_time() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

extern "C" fn mach_continuous_time() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

extern "C" fn mach_wait_until(deadline: u64) -> i32 {
    loop {
        let now = mach_absolute_time();
        if now >= deadline {
            return KERN_SUCCESS;
        }
        std::thread::sleep(std::time::Duration::from_nanos(deadline - now));
    }
}

crate::host::libsystem::exports! {
    "mach_host_self" => mach_host_self,
    "host_page_size" => host_page_size,
    "_host_page_size" => host_page_size,
    "host_statistics64" => host_statistics64,
    "mach_timebase_info" => mach_timebase_info,
    "mach_absolute_time" => mach_absolute_time,
    "mach_approximate_time" => mach_absolute_time,
    "mach_continuous_time" => mach_continuous_time,
    "mach_wait_until" => mach_wait_until,
}
