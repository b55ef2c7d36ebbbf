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
fn main() {
    if let Ok(case) = std::env::var(cases::CASE) {
        return cases::run(&case);
    }
    if std::env::var_os(cases::THROWS).is_none() {
        println!("skipped: {} names no library; cargo xtask darwin builds it", cases::THROWS);
        return;
    }
    // libtest's arguments: a name, and options that do not matter here.
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &&cases::Case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str()));
    let (mut count, mut failed) = (0, 0);
    for case in cases::CASES.iter().filter(wanted) {
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
    std::process::exit(i32::from(failed > 0 || count == 0));
}

#[cfg(not(target_os = "macos"))]
fn main() {}
