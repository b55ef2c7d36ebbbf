//! Decides whether `pthread_create` is interposed (see `src/linux/pthread_create.rs`): only in programs that are linked with a shared
//! glibc, where the C library's own definition is found behind ours.

use std::env::var;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(interpose)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let is_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    let wanted = var("CARGO_FEATURE_INTERPOSE_PTHREAD_CREATE").is_ok();
    if wanted && target("OS") == "linux" && target("ENV") == "gnu" && !is_static {
        println!("cargo::rustc-cfg=interpose");
    }
}
