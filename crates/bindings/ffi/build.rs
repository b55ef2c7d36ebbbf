//! The shared library stays loaded: its signal handlers may be called at any time, also by others that chained to them. And it has a name by which
//! programs that were linked with it need it.

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
    if system == "windows" && std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        // The id that ties a report to its debug file, as Microsoft's linker gives one; and no time, so that the same sources make the same bytes.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--build-id,--no-insert-timestamp");
    }
    name_it(&system);
    if system == "android" {
        // Devices with pages of 16 KiB load nothing whose segments are aligned to less.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=16384");
    }
}

/// The name that a program which is linked with the library has of it. With the version on Linux, as far as functions may change between two of them:
/// a program never gets one that it was not made for. Without on Android, which loads a library by that name and packs no other, and on Apple's
/// systems, where a program brings its own, which it finds by its run path.
fn name_it(system: &str) {
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let version = if part("MAJOR") == "0" { format!("0.{}", part("MINOR")) } else { part("MAJOR") };
    let (option, name) = match system {
        "linux" => ("-soname", format!("libcoroner_ffi.so.{version}")),
        "android" => ("-soname", "libcoroner_ffi.so".to_owned()),
        "macos" | "ios" | "tvos" | "watchos" | "visionos" => {
            ("-install_name", "@rpath/libcoroner_ffi.dylib".to_owned())
        }
        _ => ("", "libcoroner_ffi.so".to_owned()),
    };
    if !option.is_empty() && std::env::var_os("CARGO_FEATURE_SONAME").is_some() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{option},{name}");
    }
    println!("cargo::rustc-env=CORONER_SONAME={name}");
}
