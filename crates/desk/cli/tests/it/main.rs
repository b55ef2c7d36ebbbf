//! Integration tests of the `coroner` command, run as a user types it.
//!
//! Tests run as threads of one process. Anything that changes a process is done by the command, by
//! a program that a test compiles, or by a module's `app`: this program, started again with only
//! that test.

mod command;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod core_causes;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod core_dumps;
mod desk;
#[cfg(target_os = "linux")]
mod handled;
#[cfg(target_os = "linux")]
mod outboxes;
#[cfg(target_os = "linux")]
mod run_program;
#[cfg(target_os = "linux")]
mod secrets;
#[cfg(target_os = "linux")]
mod send;
mod swift;
mod symbolicate;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod traced_programs;

use std::path::Path;
use std::process::Command;

/// Copies the `coroner` command to `path`, in another process.
///
/// Programs that other tests start meanwhile would inherit a file that this process has open for
/// writing, and such a file can't be executed.
fn copy_of_the_command(path: &Path) {
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_coroner")).arg(path).status().expect("cp").success());
}
