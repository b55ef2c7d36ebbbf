//! Memory through Mach: allocate, protect, read without faulting, regions.
//!
//! Sources: <mach/mach_vm.h>, <mach/vm_map.h>, <mach/vm_region.h> (structures packed to four
//! bytes); XNU osfmk/vm/vm_map.c (vm_map_copyin: all or nothing; KERN_INVALID_ADDRESS if nothing is
//! mapped, KERN_PROTECTION_FAILURE if it may not be read).

use super::{KERN_INVALID_ADDRESS, KERN_INVALID_ARGUMENT, KERN_NO_SPACE, KERN_PROTECTION_FAILURE, KERN_SUCCESS};
use crate::host::kernel::{ending::refuse, lock, pages};

const FLAGS_ANYWHERE: i32 = 1;

fn check_task(task: u32) {
    if !lock().is_task(task) {
        refuse!("a memory operation on task {task:#x}, which is not this one");
    }
}

/// Allocates at least one page of fresh memory.
pub(crate) fn allocate(size: usize) -> usize {
    pages::map(size.max(1)) as usize
}

extern "C" fn vm_allocate(task: u32, address: *mut usize, size: usize, flags: i32) -> i32 {
    check_task(task);
    if flags & 0xff & !FLAGS_ANYWHERE != 0 {
        refuse!("vm_allocate with flags {flags:#x}");
    }
    // SAFETY: the program gave the address; a fixed mapping is only made where nothing is.
    unsafe {
        let place = if flags & FLAGS_ANYWHERE != 0 {
            allocate(size)
        } else {
            let place = libc::mmap(
                address.read() as *mut libc::c_void,
                pages::round(size),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            if place == libc::MAP_FAILED { 0 } else { place as usize }
        };
        if place == 0 {
            return KERN_NO_SPACE;
        }
        address.write(place);
    }
    KERN_SUCCESS
}

extern "C" fn vm_deallocate(task: u32, address: usize, size: usize) -> i32 {
    check_task(task);
    if size > 0 {
        let start = address & !(pages::PAGE - 1);
        // SAFETY: memory that the program releases.
        unsafe { libc::munmap(start as *mut libc::c_void, pages::round(address + size - start)) };
    }
    KERN_SUCCESS
}

extern "C" fn vm_protect(task: u32, address: usize, size: usize, set_maximum: i32, protection: i32) -> i32 {
    check_task(task);
    if set_maximum != 0 {
        return KERN_SUCCESS;
    }
    // VM_PROT_COPY (0x10) creates a private copy; everything here is private already.
    if protection & !0x17 != 0 {
        return KERN_INVALID_ARGUMENT;
    }
    let start = address & !(pages::PAGE - 1);
    // SAFETY: the program's memory.
    let result =
        unsafe { libc::mprotect(start as *mut libc::c_void, pages::round(address + size - start), protection & 7) };
    if result == 0 { KERN_SUCCESS } else { KERN_INVALID_ADDRESS }
}

/// Returns the reason a range can't be read.
fn why(mut address: usize, end: usize) -> i32 {
    while address < end {
        match pages::mapping_at_or_after(address) {
            Some(m) if m.start <= address && m.protection & 1 != 0 => address = m.end,
            Some(m) if m.start <= address => return KERN_PROTECTION_FAILURE,
            _ => return KERN_INVALID_ADDRESS,
        }
    }
    KERN_INVALID_ADDRESS
}

/// `vm_read_overwrite` and `mach_vm_read_overwrite`: all or an error.
extern "C" fn vm_read_overwrite(task: u32, address: usize, size: usize, data: usize, out_size: *mut usize) -> i32 {
    check_task(task);
    let Some(end) = address.checked_add(size) else { return KERN_INVALID_ADDRESS };
    let mut window = [0u8; 4096];
    let mut done = 0;
    while done < size {
        let count = (size - done).min(window.len());
        if !pages::copy_in(address + done, &mut window[..count]) {
            return why(address, end);
        }
        if !pages::copy_out(&window[..count], data + done) {
            return KERN_INVALID_ADDRESS;
        }
        done += count;
    }
    // SAFETY: the program gave the address.
    unsafe { out_size.write(size) };
    KERN_SUCCESS
}

/// `vm_read`: into fresh memory.
extern "C" fn vm_read(task: u32, address: usize, size: usize, data: *mut usize, count: *mut u32) -> i32 {
    let copy = allocate(size);
    let mut read = 0;
    let result = vm_read_overwrite(task, address, size, copy, &raw mut read);
    if result == KERN_SUCCESS {
        // SAFETY: the program gave the addresses.
        unsafe {
            data.write(copy);
            count.write(size as u32);
        }
    } else {
        vm_deallocate(task, copy, size);
    }
    result
}

/// `vm_write`.
extern "C" fn vm_write(task: u32, address: usize, data: *const u8, count: u32) -> i32 {
    check_task(task);
    // SAFETY: the program gave `count` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data, count as usize) };
    if pages::copy_out(bytes, address) { KERN_SUCCESS } else { why(address, address + count as usize) }
}

const BASIC_INFO_64: i32 = 9;
const BASIC_INFO_WORDS: u32 = 9;
const SUBMAP_INFO_WORDS: u32 = 19;

/// `vm_region_64` and `mach_vm_region`: the region at or after the address.
extern "C" fn vm_region(
    task: u32,
    address: *mut usize,
    size: *mut usize,
    flavor: i32,
    info: *mut u32,
    count: *mut u32,
    object: *mut u32,
) -> i32 {
    check_task(task);
    if flavor != BASIC_INFO_64 {
        refuse!("vm_region of flavor {flavor}: only VM_REGION_BASIC_INFO_64 (9)");
    }
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        let Some(mapping) = pages::mapping_at_or_after(address.read()) else { return KERN_INVALID_ADDRESS };
        if count.read() < BASIC_INFO_WORDS {
            return KERN_INVALID_ARGUMENT;
        }
        // protection, max_protection, inheritance (copy 1), shared, reserved, offset (8), behavior,
        // wired count.
        let protection = mapping.protection as u32;
        let words = [protection, 7, 1, u32::from(mapping.shared), 0, 0, 0, 0, 0];
        std::ptr::copy_nonoverlapping(words.as_ptr(), info, words.len());
        count.write(BASIC_INFO_WORDS);
        address.write(mapping.start);
        size.write(mapping.end - mapping.start);
        if !object.is_null() {
            object.write(0);
        }
    }
    KERN_SUCCESS
}

/// `vm_region_recurse_64` and `mach_vm_region_recurse`: without submaps.
///
/// Page counts are unknown and 0.
extern "C" fn vm_region_recurse(
    task: u32,
    address: *mut usize,
    size: *mut usize,
    depth: *mut u32,
    info: *mut u32,
    count: *mut u32,
) -> i32 {
    check_task(task);
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        let Some(mapping) = pages::mapping_at_or_after(address.read()) else { return KERN_INVALID_ADDRESS };
        let room = count.read().min(SUBMAP_INFO_WORDS);
        let mut words = [0u32; SUBMAP_INFO_WORDS as usize];
        words[0] = mapping.protection as u32;
        words[1] = 7;
        words[2] = 1;
        // shadow depth, external pager, share mode: SM_PRIVATE 2, SM_SHARED 4.
        words[11] = if mapping.shared { 4 << 24 } else { 2 << 24 };
        std::ptr::copy_nonoverlapping(words.as_ptr(), info, room as usize);
        count.write(room);
        depth.write(0);
        address.write(mapping.start);
        size.write(mapping.end - mapping.start);
    }
    KERN_SUCCESS
}

crate::host::libsystem::exports! {
    "vm_allocate" => vm_allocate,
    "mach_vm_allocate" => vm_allocate,
    "vm_deallocate" => vm_deallocate,
    "mach_vm_deallocate" => vm_deallocate,
    "vm_protect" => vm_protect,
    "mach_vm_protect" => vm_protect,
    "vm_read_overwrite" => vm_read_overwrite,
    "mach_vm_read_overwrite" => vm_read_overwrite,
    "vm_read" => vm_read,
    "mach_vm_read" => vm_read,
    "vm_write" => vm_write,
    "mach_vm_write" => vm_write,
    "vm_region_64" => vm_region,
    "mach_vm_region" => vm_region,
    "vm_region_recurse_64" => vm_region_recurse,
    "mach_vm_region_recurse" => vm_region_recurse,
}
