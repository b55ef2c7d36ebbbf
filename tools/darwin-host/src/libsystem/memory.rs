//! Memory: malloc (libc's own) and mmap (<sys/mman.h>: other flags).

use crate::host::kernel::{ending::refuse, pages};

const MAP_FIXED: i32 = 0x10;
const MAP_NORESERVE: i32 = 0x40;
const MAP_JIT: i32 = 0x800;
const MAP_ANON: i32 = 0x1000;

extern "C" fn mmap(address: usize, size: usize, protection: i32, flags: i32, file: i32, offset: i64) -> usize {
    let known = 3 | MAP_FIXED | MAP_NORESERVE | MAP_JIT | MAP_ANON;
    if flags & !known != 0 {
        refuse!("mmap with flags {:#x}", flags & !known);
    }
    if flags & MAP_ANON != 0 && flags & MAP_FIXED == 0 && flags & 1 == 0 && size > 0 {
        let place = pages::map_with(size, protection);
        return if place.is_null() { usize::MAX } else { place as usize };
    }
    let mut linux = flags & 3;
    for (darwin, same) in
        [(MAP_FIXED, libc::MAP_FIXED), (MAP_NORESERVE, libc::MAP_NORESERVE), (MAP_ANON, libc::MAP_ANONYMOUS)]
    {
        if flags & darwin != 0 {
            linux |= same;
        }
    }
    let file = if flags & MAP_ANON != 0 { -1 } else { file };
    let mut address = address as *mut libc::c_void;
    if flags & MAP_FIXED == 0 && size > 0 {
        // Linux would choose a multiple of its own page size, which on arm64 is smaller than the
        // program's.
        address = pages::map_with(size, libc::PROT_NONE).cast();
        if address.is_null() {
            return usize::MAX;
        }
        linux |= libc::MAP_FIXED;
    }
    // SAFETY: the program's own mapping, or the address range just reserved.
    let mapped = unsafe { libc::mmap(address, size, protection, linux, file, offset) };
    if mapped == libc::MAP_FAILED && flags & MAP_FIXED == 0 && size > 0 {
        // SAFETY: the range reserved above. Errno stays as mmap set it: munmap of a mapping does
        // not fail.
        unsafe { libc::munmap(address, pages::round(size)) };
    }
    mapped as usize
}

/// `msync`: MS_ASYNC 1 and MS_INVALIDATE 2 are Linux's; MS_SYNC is 0x10 here and 4 there.
extern "C" fn msync(address: usize, size: usize, flags: i32) -> i32 {
    let linux = flags & 3 | if flags & 0x10 != 0 { libc::MS_SYNC } else { 0 };
    // SAFETY: the program's own mapping.
    unsafe { libc::msync(address as *mut libc::c_void, size, linux) }
}

/// `madvise`: MADV_FREE and the following have other numbers.
///
/// Ignoring them is correct, because they are only advice.
extern "C" fn madvise(address: usize, size: usize, advice: i32) -> i32 {
    if advice <= 4 {
        // SAFETY: the program's own mapping; advices 0–4 are Linux's.
        unsafe { libc::madvise(address as *mut libc::c_void, size, advice) }
    } else {
        0
    }
}

extern "C" fn sys_icache_invalidate(start: *mut u8, size: usize) {
    #[cfg(target_arch = "aarch64")]
    {
        unsafe extern "C" {
            fn __clear_cache(start: *mut u8, end: *mut u8);
        }
        // SAFETY: a range of the program's.
        unsafe { __clear_cache(start, start.add(size)) };
    }
    #[cfg(target_arch = "x86_64")]
    let _ = (start, size);
}

/// Writing to MAP_JIT pages is always allowed.
extern "C" fn pthread_jit_write_protect_np(_enabled: i32) {}

extern "C" fn malloc_size(block: *mut libc::c_void) -> usize {
    // SAFETY: a block of libc's.
    unsafe { libc::malloc_usable_size(block) }
}

super::exports! {
    "malloc" => libc::malloc,
    "calloc" => libc::calloc,
    "realloc" => libc::realloc,
    "free" => libc::free,
    "posix_memalign" => libc::posix_memalign,
    "aligned_alloc" => libc::aligned_alloc,
    "malloc_size" => malloc_size,
    "mmap" => mmap,
    "munmap" => libc::munmap,
    "mprotect" => libc::mprotect,
    "msync" => msync,
    "madvise" => madvise,
    "mlock" => libc::mlock,
    "munlock" => libc::munlock,
    "sys_icache_invalidate" => sys_icache_invalidate,
    "pthread_jit_write_protect_np" => pthread_jit_write_protect_np,
}
