//! The JSON of the reports that tests read, kept for a check against the published schema.
//!
//! `tools/json-schema-check` checks the files. It is a separate tool because its schema validator
//! takes longer to build than these tests.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

/// Environment variable with the folder for the files.
pub const FOLDER: &str = "CORONER_TEST_REPORTS";

/// Writes a report's JSON to a new file in the folder from [`FOLDER`]; does nothing if that is not
/// set.
///
/// # Errors
/// The file can't be written.
pub fn keep(json: impl FnOnce() -> String) -> anyhow::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(&folder).join(format!("{}-{number}.json", std::process::id()));
    std::fs::write(&path, json()).with_context(|| format!("can't write {}", path.display()))
}
