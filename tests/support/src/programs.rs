//! Programs that a test needs and a machine may not have.

use std::env;

/// Whether `program` is in a folder of `PATH`; prints that `test` is skipped where it is not.
///
/// # Panics
/// The program is missing and the environment variable `CI` is set: what sets it installs all
/// programs first.
pub fn has_program(test: &str, program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return true;
    }
    assert!(env::var_os("CI").is_none(), "{test} needs {program}, which is not installed");
    println!("skipped: {test} needs {program}");
    false
}
