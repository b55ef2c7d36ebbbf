//! The shared library stays loaded: its signal handlers may be called at any time, also by others that chained to them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
