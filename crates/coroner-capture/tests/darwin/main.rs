//! Crashes of real processes on Darwin: each case is this program, started again, and its report is read and held to what the
//! case must leave: exception, codes, signal, thread, frames by name, all other threads, and the ending.
//!
//! Run as a Mach-O program: on a Mac, or by `cargo xtask darwin cargo test -p coroner-capture --test darwin`. Frames are named
//! by this program itself (dladdr), at the same offset from its own header.

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
    if let Ok(case) = std::env::var(cases::CASE) {
        return cases::run(&case);
    }
    // libtest's arguments: a name, and options that do not matter here.
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut failed = 0;
    let mut count = 0;
    for case in cases::CASES {
        if only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        count += 1;
        match expect::check(case) {
            Ok(()) => println!("{:<28} ok", case.name),
            Err(error) => {
                failed += 1;
                println!("{:<28} FAILED: {error}", case.name);
            }
        }
    }
    println!("{count} deaths, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}

#[cfg(not(target_os = "macos"))]
fn main() {}
