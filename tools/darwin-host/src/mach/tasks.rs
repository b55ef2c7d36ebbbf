//! The task: its facts, and its own port.
//!
//! Sources: <mach/task_info.h>, <mach/mach_init.h>; XNU osfmk/kern/task.c (task_info).

use super::{KERN_FAILURE, KERN_INVALID_ARGUMENT, KERN_SUCCESS};
use crate::host::{
    kernel::{ending::refuse, lock},
    loader::images,
};

/// `mach_task_self_`, the variable that `mach_task_self()` reads.
pub(crate) static mut MACH_TASK_SELF: u32 = 0;

/// Sets the variables that programs read.
pub(crate) fn prepare() {
    let task = lock().task;
    // SAFETY: before the program runs.
    unsafe { MACH_TASK_SELF = task };
}

extern "C" fn mach_task_self() -> u32 {
    lock().task
}

/// Returns the process's total and resident memory (`/proc/self/statm`), in bytes.
fn memory() -> (u64, u64) {
    let mut text = [0u8; 128];
    // SAFETY: this function's own descriptor and a local buffer.
    let length = unsafe {
        let file = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        length.max(0) as usize
    };
    let text = std::str::from_utf8(&text[..length]).unwrap_or("");
    let mut pages = text.split_whitespace().map(|f| f.parse::<u64>().unwrap_or(0) * 4096);
    (pages.next().unwrap_or(0), pages.next().unwrap_or(0))
}

const MACH_TASK_BASIC_INFO: u32 = 20;
const TASK_DYLD_INFO: u32 = 17;
const TASK_VM_INFO: u32 = 22;
/// Words of task_vm_info up to revision 1 (`phys_footprint` is the last).
const TASK_VM_INFO_REV1_WORDS: usize = 38;

extern "C" fn task_info(task: u32, flavor: u32, info: *mut u32, count: *mut u32) -> i32 {
    if !lock().is_task(task) {
        return KERN_INVALID_ARGUMENT;
    }
    let mut bytes = Vec::new();
    let mut longs = |longs: &[u64]| longs.iter().for_each(|l| bytes.extend_from_slice(&l.to_le_bytes()));
    let (total, resident) = memory();
    match flavor {
        // Times are those of ended threads, which aren't recorded. Policy POLICY_TIMESHARE 1;
        // suspend count 0.
        MACH_TASK_BASIC_INFO => longs(&[total, resident, resident, 0, 0, 1]),
        // The format is TASK_DYLD_ALL_IMAGE_INFO_64, 1.
        TASK_DYLD_INFO => {
            longs(&[images::infos_address() as u64, images::INFOS_SIZE as u64]);
            bytes.extend_from_slice(&1u32.to_le_bytes());
        }
        TASK_VM_INFO => {
            // virtual_size; region_count and page_size; resident_size and its peak; then device,
            // internal, external, reusable, purgeable, compressed (12 values); phys_footprint.
            longs(&[total, (crate::host::kernel::pages::PAGE as u64) << 32, resident, resident]);
            bytes.resize((TASK_VM_INFO_REV1_WORDS - 2) * 4, 0);
            bytes.extend_from_slice(&resident.to_le_bytes());
        }
        other => refuse!(
            "task_info of flavor {other}: only MACH_TASK_BASIC_INFO (20), TASK_DYLD_INFO (17), TASK_VM_INFO (22)"
        ),
    }
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        let room = count.read() as usize * 4;
        if flavor != TASK_VM_INFO && room < bytes.len() {
            return KERN_INVALID_ARGUMENT;
        }
        let size = bytes.len().min(room);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), info.cast::<u8>(), size);
        count.write((size / 4) as u32);
    }
    KERN_SUCCESS
}

/// `task_for_pid` is for debuggers: refused as the system refuses it to ordinary programs.
extern "C" fn task_for_pid(_target: u32, _pid: i32, task: *mut u32) -> i32 {
    // SAFETY: the program gave the address.
    unsafe { task.write(0) };
    KERN_FAILURE
}

/// `mach_error_string` (libsyscall/mach/error_codes.c), for the kernel's first codes.
extern "C" fn mach_error_string(code: i32) -> *const std::ffi::c_char {
    let text = match code {
        0 => c"(os/kern) successful",
        1 => c"(os/kern) invalid address",
        2 => c"(os/kern) protection failure",
        3 => c"(os/kern) no space available",
        4 => c"(os/kern) invalid argument",
        5 => c"(os/kern) failure",
        15 => c"(os/kern) invalid name",
        17 => c"(os/kern) invalid right",
        18 => c"(os/kern) invalid value",
        0x1000_0003 => c"(ipc/send) invalid destination port",
        0x1000_4003 => c"(ipc/rcv) timed out",
        _ => c"unknown error code",
    };
    text.as_ptr()
}

crate::host::libsystem::exports! {
    "mach_task_self" => mach_task_self,
    "task_self_trap" => mach_task_self,
    "task_info" => task_info,
    "task_for_pid" => task_for_pid,
    "mach_error_string" => mach_error_string,
}
