//! Coroner in an Android app: the native methods of the Java class `dev.coroner.Coroner` (`java/dev/coroner/Coroner.java`).
//!
//! The shared library exports them and the C interface (`coroner.h` of `coroner-ffi`), so that an app's Java, Kotlin, C and C++ use one
//! Coroner. Nothing of JNI is used when the process dies by a signal.
//!
//! A native method logs what goes wrong (to logcat, tag `coroner`) and throws no Java exception: an app is not to fail for its crash reporter.
#![deny(missing_docs)]
#![allow(deprecated, reason = "the macro of jni 0.22 uses `fetch_update`, deprecated since Rust 1.99")]
#![expect(clippy::needless_pass_by_value, reason = "a native method owns the references that Java hands over")]

// Linked for what it exports.
extern crate coroner_ffi as _;

mod jni_methods;
#[cfg(target_os = "android")]
mod logcat;
