//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        // Its signal handlers may be called at any time, also by others that chained to them.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
        // The name by which the app's C++ libraries need it; without one it is the path that they were linked with.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcoroner_android.so");
        // Devices with pages of 16 KiB load nothing whose segments are aligned to less.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=16384");
    }
}
