//! Linker options for the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        // Never unload: the signal handlers may be called at any time, also by handlers that chain
        // to them.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
        // The name by which the app's C++ libraries load it; without one they would use the path
        // they were linked with.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcoroner_android.so");
        // Devices with 16 KiB pages don't load libraries whose segments have a smaller alignment.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=16384");
    }
}
