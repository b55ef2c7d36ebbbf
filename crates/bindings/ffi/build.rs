//! Linker options for the shared library.
//!
//! It is never unloaded, because its signal handlers may be called at any time, also by handlers
//! that chain to them. It has a soname (install name), by which programs that are linked with it
//! load it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    // A process gets a shadow stack only if every library is marked for it (CET: `SHSTK` in
    // `.note.gnu.property`), and the linker marks no library with Rust code. Code whose calls
    // return normally needs no change, and where Coroner's own doesn't, it handles shadow stacks
    // itself (coroner-process, `recovery`). Landing pads (`IBT`, arm64's `BTI`) are different:
    // Rust's standard library has none.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64")
        && matches!(system.as_str(), "linux" | "android")
    {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,shstk");
    }
    if system == "linux" {
        // `timer_create` makes a static program link the C library's own `pthread_create`
        // (coroner-process). Don't let the shared library refer to it: glibc before 2.34 has it in
        // librt, and programs linked with the shared library would fail to find it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=timer_create=0");
    }
    if system == "windows" && std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        // The build ID that ties a report to its debug file, as Microsoft's linker writes it; and
        // no timestamp, for reproducible builds.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--build-id,--no-insert-timestamp");
    }
    name_it(&system);
    if system == "android" {
        // Devices with 16 KiB pages don't load libraries whose segments have a smaller alignment.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=16384");
    }
}

/// Sets the name by which programs linked with the library load it.
///
/// On Linux the name includes the part of the version within which functions stay compatible, so
/// that a program never loads an incompatible library. Android loads a library by that name and
/// packages no other, and on Apple systems a program bundles its own copy and finds it by its run
/// path, so there the name has no version.
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
