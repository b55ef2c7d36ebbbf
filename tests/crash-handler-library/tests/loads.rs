//! The library can be loaded and has its function. It is also why `cargo test --no-run` builds the library, which rows of the worst
//! minute load: cargo builds a library for the integration tests of its package, if other crates can link it.
#![cfg(target_os = "linux")]

#[test]
fn the_library_can_be_loaded() {
    let program = std::env::current_exe().expect("this program's path");
    let path = program.with_file_name("libcrash_handler_library.so");
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the library has no initializers of its own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{} can't be loaded", path.to_string_lossy());
    // SAFETY: a handle of dlopen and a string that ends in NUL.
    let attach = unsafe { libc::dlsym(library, c"attach_crash_handler".as_ptr()) };
    assert!(!attach.is_null(), "the library has no attach_crash_handler");
}
