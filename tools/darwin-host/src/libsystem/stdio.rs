//! The parts of stdio that test programs use, with libc's own streams.
//!
//! On x86_64 `printf` and similar functions are libc's, because both systems pass variadic
//! arguments the same way. On arm64 Darwin passes them all on the stack in slots of eight bytes,
//! and `va_list` is a pointer to them: an AAPCS64 `va_list` whose registers are used up reads
//! exactly that.

use super::Export;

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

#[cfg(target_arch = "aarch64")]
mod variadic {
    use std::ffi::c_char;

    use crate::host::kernel::thread;

    /// `va_list` of AAPCS64 (§B.4).
    #[repr(C)]
    struct List {
        stack: usize,
        general_top: usize,
        vector_top: usize,
        general_offset: i32,
        vector_offset: i32,
    }

    impl List {
        const fn at(stack: usize) -> Self {
            Self { stack, general_top: 0, vector_top: 0, general_offset: 0, vector_offset: 0 }
        }
    }

    unsafe extern "C" {
        #[link_name = "vfprintf"]
        fn libc_vfprintf(stream: *mut libc::FILE, format: *const c_char, list: *mut List) -> i32;
        #[link_name = "vsnprintf"]
        fn libc_vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, list: *mut List) -> i32;
    }

    pub(super) extern "C" fn vfprintf(stream: *mut libc::FILE, format: *const c_char, list: usize) -> i32 {
        // SAFETY: the program's format describes the arguments on its stack.
        unsafe { libc_vfprintf(stream, format, &mut List::at(list)) }
    }

    pub(super) extern "C" fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, list: usize) -> i32 {
        // SAFETY: as above.
        unsafe { libc_vsnprintf(buffer, size, format, &mut List::at(list)) }
    }

    pub(super) extern "C" fn fprintf(stream: *mut libc::FILE, format: *const c_char) -> i32 {
        vfprintf(stream, format, thread::current().gate_frame().sp)
    }

    pub(super) extern "C" fn printf(format: *const c_char) -> i32 {
        // SAFETY: libc's stream.
        vfprintf(unsafe { super::stdout }, format, thread::current().gate_frame().sp)
    }

    pub(super) extern "C" fn snprintf(buffer: *mut c_char, size: usize, format: *const c_char) -> i32 {
        vsnprintf(buffer, size, format, thread::current().gate_frame().sp)
    }
}

#[cfg(target_arch = "x86_64")]
mod variadic {
    unsafe extern "C" {
        pub(super) fn vfprintf();
        pub(super) fn vsnprintf();
    }
    pub(super) use libc::{fprintf, printf, snprintf};
}

/// The variables of <stdio.h>: `stdout` is `__stdoutp`.
pub(super) fn variables() -> Vec<Export> {
    vec![
        Export::variable("__stdinp", &raw const stdin),
        Export::variable("__stdoutp", &raw const stdout),
        Export::variable("__stderrp", &raw const stderr),
    ]
}

super::exports! {
    "printf" => variadic::printf,
    "fprintf" => variadic::fprintf,
    "snprintf" => variadic::snprintf,
    "vfprintf" => variadic::vfprintf,
    "vsnprintf" => variadic::vsnprintf,
    "puts" => libc::puts,
    "putchar" => libc::putchar,
    "fputs" => libc::fputs,
    "fputc" => libc::fputc,
    "fwrite" => libc::fwrite,
    "fread" => libc::fread,
    "fgets" => libc::fgets,
    "fopen" => libc::fopen,
    "fclose" => libc::fclose,
    "fflush" => libc::fflush,
    "setvbuf" => libc::setvbuf,
    "perror" => libc::perror,
}
