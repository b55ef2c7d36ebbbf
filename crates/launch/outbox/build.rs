//! Says `cfg(supported)` where a crash can be reported, as `coroner-process` does: there files are
//! held without locks where none may be locked.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(supported)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let is_system = matches!(target("OS").as_str(), "linux" | "android" | "macos" | "ios" | "visionos");
    let is_machine = matches!(target("ARCH").as_str(), "x86_64" | "aarch64");
    if is_system && is_machine && target("POINTER_WIDTH") == "64" && target("ENDIAN") == "little" {
        println!("cargo::rustc-cfg=supported");
    }
}
