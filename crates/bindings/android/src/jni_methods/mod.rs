//! The JNI methods, one file for each group of methods of the Java class.

mod exceptions;
mod install;
mod scope;

use jni::Env;
use jni::errors::Error;
use jni::objects::JString;

/// The reason for a native method's failure.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Jni(#[from] Error),
    #[error("{0}")]
    Scope(#[from] coroner::ScopeError),
    #[error("{0}")]
    Install(#[from] coroner::InstallError),
    #[error("invalid DSN: {0}")]
    Dsn(String),
    #[error("invalid OTLP server: {0}")]
    Otlp(String),
    #[error("invalid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("Coroner is not installed")]
    NotInstalled,
}

/// Converts a Java string; `None` if it is null.
fn optional(env: &Env<'_>, text: &JString<'_>) -> Result<Option<String>, Failure> {
    if text.is_null() { Ok(None) } else { Ok(Some(text.try_to_string(env)?)) }
}

fn installed() -> Result<coroner::Coroner, Failure> {
    coroner::installed().ok_or(Failure::NotInstalled)
}
