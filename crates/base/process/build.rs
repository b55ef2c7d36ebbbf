//! Sets `cfg(supported)` for targets on which a crash can be reported.
//!
//! On other targets, crash-time code is left out, code that reads reports is compiled, and
//! `coroner` uses the standard library. `coroner-capture`, `coroner` and `coroner-outbox` do the
//! same; `coroner-walk` and `-exceptions` have the condition in their `lib.rs`.
//!
//! tvOS and watchOS are not supported: Apple forbids apps there to use exception ports, messages,
//! alternate signal stacks and, on watchOS, the registers of other threads (`__TVOS_PROHIBITED`,
//! `__WATCHOS_PROHIBITED` in <mach/task.h>, <mach/thread_act.h>, <mach/message.h>, <signal.h>).
//!
//! Also decides whether `pthread_create` is interposed (see `src/linux/pthread_create.rs`): only in
//! programs that are linked with a shared glibc, where the C library's own definition is found
//! after ours.

use std::env::var;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(supported, interpose)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let is_system = matches!(target("OS").as_str(), "linux" | "android" | "macos" | "ios" | "visionos");
    let is_machine = matches!(target("ARCH").as_str(), "x86_64" | "aarch64");
    let supported = is_system && is_machine && target("POINTER_WIDTH") == "64" && target("ENDIAN") == "little";
    if supported {
        println!("cargo::rustc-cfg=supported");
    }
    let is_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    let wanted = var("CARGO_FEATURE_INTERPOSE_PTHREAD_CREATE").is_ok();
    if supported && wanted && target("OS") == "linux" && target("ENV") == "gnu" && !is_static {
        println!("cargo::rustc-cfg=interpose");
    }
}
