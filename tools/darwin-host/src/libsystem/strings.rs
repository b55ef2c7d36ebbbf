//! Strings, numbers and sorting: libc's own functions, whose contracts are the same.

use std::ffi::c_char;

use crate::host::kernel::ending::refuse;

extern "C" fn bzero(place: *mut u8, size: usize) {
    // SAFETY: the program gave the range.
    unsafe { libc::memset(place.cast(), 0, size) };
}

/// `memset_pattern16` (<string.h>): compilers generate calls to it from loops.
extern "C" fn memset_pattern16(place: *mut u8, pattern: *const u8, size: usize) {
    for index in 0..size {
        // SAFETY: the program gave the ranges.
        unsafe { place.add(index).write(pattern.add(index % 16).read()) };
    }
}

extern "C" fn strlcpy(to: *mut c_char, from: *const c_char, size: usize) -> usize {
    // SAFETY: the program gave the string and the buffer.
    unsafe {
        let length = libc::strlen(from);
        if size > 0 {
            let count = length.min(size - 1);
            libc::memcpy(to.cast(), from.cast(), count);
            to.add(count).write(0);
        }
        length
    }
}

extern "C" fn strlcat(to: *mut c_char, from: *const c_char, size: usize) -> usize {
    // SAFETY: the program gave the strings and the buffer.
    unsafe {
        let used = libc::strnlen(to, size);
        used + if used < size { strlcpy(to.add(used), from, size - used) } else { libc::strlen(from) }
    }
}

extern "C" fn stack_chk_fail() {
    refuse!("the program smashed its stack (__stack_chk_fail)");
}

/// `__memcpy_chk` and similar functions: the compiler knew the destination's size.
extern "C" fn memcpy_chk(
    to: *mut libc::c_void,
    from: *const libc::c_void,
    size: usize,
    room: usize,
) -> *mut libc::c_void {
    if size > room {
        refuse!("__memcpy_chk: {size} bytes into {room}");
    }
    // SAFETY: checked by the caller's compiler, and above.
    unsafe { libc::memcpy(to, from, size) }
}

extern "C" fn memset_chk(to: *mut libc::c_void, value: i32, size: usize, room: usize) -> *mut libc::c_void {
    if size > room {
        refuse!("__memset_chk: {size} bytes into {room}");
    }
    // SAFETY: as above.
    unsafe { libc::memset(to, value, size) }
}

super::exports! {
    "memcpy" => libc::memcpy,
    "memmove" => libc::memmove,
    "memset" => libc::memset,
    "memcmp" => libc::memcmp,
    "memchr" => libc::memchr,
    "bzero" => bzero,
    "__bzero" => bzero,
    "memset_pattern16" => memset_pattern16,
    "__memcpy_chk" => memcpy_chk,
    "__memset_chk" => memset_chk,
    "__stack_chk_fail" => stack_chk_fail,
    "strlen" => libc::strlen,
    "strnlen" => libc::strnlen,
    "strcmp" => libc::strcmp,
    "strncmp" => libc::strncmp,
    "strcasecmp" => libc::strcasecmp,
    "strcpy" => libc::strcpy,
    "strncpy" => libc::strncpy,
    "strcat" => libc::strcat,
    "strchr" => libc::strchr,
    "strrchr" => libc::strrchr,
    "strstr" => libc::strstr,
    "strdup" => libc::strdup,
    "strlcpy" => strlcpy,
    "strlcat" => strlcat,
    "strtol" => libc::strtol,
    "strtoul" => libc::strtoul,
    "strtoll" => libc::strtoll,
    "strtoull" => libc::strtoull,
    "strtod" => libc::strtod,
    "atoi" => libc::atoi,
    "qsort" => libc::qsort,
    "rand" => libc::rand,
    "srand" => libc::srand,
}
