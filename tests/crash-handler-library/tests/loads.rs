//! Loads the library and finds its function. Because of this test, `cargo test --no-run` builds the
//! library, which rows of the worst minute load: cargo builds a linkable library for its package's
//! integration tests.
#![cfg(target_os = "linux")]

#[test]
fn the_library_can_be_loaded() {
    let program = std::env::current_exe().expect("this program's path");
    let path = program.with_file_name("libcrash_handler_library.so");
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the library has no initializers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{} can't be loaded", path.to_string_lossy());
    // SAFETY: a handle from dlopen and a NUL-terminated string.
    let attach = unsafe { libc::dlsym(library, c"attach_crash_handler".as_ptr()) };
    assert!(!attach.is_null(), "the library has no attach_crash_handler");
}
