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

mod exceptions;
mod install;
#[cfg(target_os = "android")]
mod logcat;
mod scope;

use jni::Env;
use jni::errors::Error;
use jni::objects::JString;

/// Why a native method did nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Jni(#[from] Error),
    #[error("{0}")]
    Scope(#[from] coroner::ScopeError),
    #[error("{0}")]
    Install(#[from] coroner::InstallError),
    #[error("no DSN: {0}")]
    Dsn(String),
    #[error("no OTLP server: {0}")]
    Otlp(String),
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("Coroner is not installed")]
    NotInstalled,
}

/// A text of Java's; `None` if it is null.
fn optional(env: &Env<'_>, text: &JString<'_>) -> Result<Option<String>, Failure> {
    if text.is_null() { Ok(None) } else { Ok(Some(text.try_to_string(env)?)) }
}

fn installed() -> Result<coroner::Coroner, Failure> {
    coroner::installed().ok_or(Failure::NotInstalled)
}
