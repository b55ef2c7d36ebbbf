//! A program whose `main` isn't Rust's, as in C++: `foreign_main_program STORE ACT`. It calls a
//! function that catches its own panic, and crashes later. `tests/tests/it/panics.rs` runs it.
#![cfg_attr(any(target_os = "linux", target_os = "android"), no_main)]

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn main() {}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod program {
    use std::ffi::{CStr, OsStr, c_char, c_int};
    use std::os::unix::ffi::OsStrExt as _;
    use std::panic::catch_unwind;

    #[inline(never)]
    fn panics() {
        panic!("out of cheese");
    }

    #[unsafe(no_mangle)]
    extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
        assert!(count >= 3);
        // SAFETY: C's `main` has that many arguments, which are NUL-terminated.
        let argument = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
        let store = OsStr::from_bytes(argument(1).to_bytes());
        let config = coroner::Config::new("com.example.panics").store_dir(store);
        let config = config.delivery(coroner::Delivery::new().at_install(false));
        coroner::install(config).expect("can't install Coroner");
        drop(catch_unwind(panics));
        match argument(2).to_bytes() {
            // SAFETY: none: the program crashes by it.
            b"caught-then-crash" => unsafe { std::ptr::null_mut::<u32>().write_volatile(1) },
            b"caught-then-101" => return 101,
            _ => {}
        }
        0
    }
}
