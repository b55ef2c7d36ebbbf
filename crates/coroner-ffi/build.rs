//! The shared library stays loaded: its signal handlers may be called at any time, also by others that chained to them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    if system == "linux" {
        // The name that makes a static program have the C library's own `pthread_create` (coroner-process) is nobody else's business:
        // a C library before glibc 2.28 does not have it, and programs linked with the shared library would look for it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=thrd_create=0");
    }
    if system == "android" {
        // Android loads a library by the name that others need it by, not by the path that they were linked with; and devices with pages of
        // 16 KiB load nothing whose segments are aligned to less.
        if std::env::var_os("CARGO_FEATURE_SONAME").is_some() {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcoroner_ffi.so");
        }
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=16384");
    }
}
