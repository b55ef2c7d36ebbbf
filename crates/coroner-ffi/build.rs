//! The shared library stays loaded: its signal handlers may be called at any time, also by others that chained to them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    // A process has a shadow stack only if each library of it is marked for that (CET: `SHSTK` in `.note.gnu.property`), and the linker marks
    // none with Rust code. It needs nothing of code whose calls return to where they came from, and where Coroner's own does not, it sees to it
    // (coroner-process, `recovery`). Landing pads (`IBT`, arm64's `BTI`) are another matter: Rust's standard library has none.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64")
        && matches!(system.as_str(), "linux" | "android")
    {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,shstk");
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
