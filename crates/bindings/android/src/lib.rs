//! The native methods of the Java class `dev.coroner.Coroner` (`java/dev/coroner/Coroner.java`).
//!
//! The shared library exports these methods and the C API (`coroner.h` of `coroner-ffi`), so that
//! an app's Java, Kotlin, C and C++ code share one Coroner. Crashes by a signal don't involve JNI.
//!
//! A native method logs failures (to logcat, tag `coroner`) and throws no Java exception: a crash
//! reporter's failure must not break the app.
#![deny(missing_docs)]
#![allow(deprecated, reason = "the macro of jni 0.22 uses `fetch_update`, deprecated since Rust 1.99")]
#![expect(clippy::needless_pass_by_value, reason = "a native method owns the references that Java hands over")]

// Linked for its exports.
extern crate coroner_ffi as _;

mod jni_methods;
#[cfg(target_os = "android")]
mod logcat;
