//! Says `cfg(supported)` where a crash can be reported, as `coroner-process` does. Elsewhere
//! `system::portable` is in the place of crash time, and `cfg(windows_crashes)` where it reports
//! faults, too.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(supported)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let is_system = matches!(target("OS").as_str(), "linux" | "android" | "macos" | "ios" | "visionos");
    let is_machine = matches!(target("ARCH").as_str(), "x86_64" | "aarch64");
    if is_system && is_machine && target("POINTER_WIDTH") == "64" && target("ENDIAN") == "little" {
        println!("cargo::rustc-cfg=supported");
    }
    // The feature is without effect elsewhere.
    println!("cargo::rustc-check-cfg=cfg(windows_crashes)");
    let is_wanted = std::env::var_os("CARGO_FEATURE_WINDOWS_CRASHES").is_some();
    if is_wanted && target("OS") == "windows" && target("ARCH") == "x86_64" {
        println!("cargo::rustc-cfg=windows_crashes");
    }
}
