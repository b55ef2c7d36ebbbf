//! Crashes of real processes on Darwin: each case is this program, started again, and its report is
//! compared with the expected exception, codes, signal, thread, frame names, other threads, and
//! end.
//!
//! Run as a Mach-O program: on a Mac, or by `cargo xtask darwin cargo test -p coroner-capture
//! --test darwin`. Frames are named by this program itself (dladdr), at the same offset from its
//! own header.

#[cfg(target_os = "macos")]
mod cases;
#[cfg(target_os = "macos")]
mod deaths;
#[cfg(target_os = "macos")]
mod earlier;
#[cfg(target_os = "macos")]
mod expect;
#[cfg(target_os = "macos")]
mod forged;
#[cfg(target_os = "macos")]
mod host;

#[cfg(target_os = "macos")]
fn main() {
    use coroner_test_support::death_cases::{CASE, check_all};
    if let Ok(case) = std::env::var(CASE) {
        return cases::run(&case);
    }
    check_all(cases::CASES, |case| case.name, expect::check)
}

#[cfg(not(target_os = "macos"))]
fn main() {}
