//! Exceptions of languages in real processes on Darwin: each case is this program, started again, which loads a library that throws;
//! its report is read and held to type, message, the frames of the throw by name, and the ending.
//!
//! Run by `cargo xtask darwin`, which builds the libraries and names them in the environment. Frames are named by the library
//! itself (dladdr), at the same offset from its header.

#[cfg(target_os = "macos")]
mod cases;
#[cfg(target_os = "macos")]
mod expect;
#[cfg(target_os = "macos")]
#[path = "../../../coroner-capture/tests/support/mod.rs"]
mod support;

#[cfg(target_os = "macos")]
fn main() {
    if let Ok(case) = std::env::var(support::CASE) {
        return cases::run(&case);
    }
    if std::env::var_os(cases::THROWS).is_none() {
        println!("skipped: {} names no library; cargo xtask darwin builds it", cases::THROWS);
        return;
    }
    support::check_all(cases::CASES, |case| case.name, expect::check)
}

#[cfg(not(target_os = "macos"))]
fn main() {}
