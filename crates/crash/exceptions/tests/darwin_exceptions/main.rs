//! Exceptions of languages in real processes on Darwin: each case is this program, started again,
//! which loads a library that throws; its report is compared with the expected type, message,
//! frame names of the throw, and end.
//!
//! Run by `cargo xtask darwin`, which builds the libraries and names them in the environment.
//! Frames are named by the library itself (dladdr), at the same offset from its header.

#[cfg(target_os = "macos")]
mod cases;
#[cfg(target_os = "macos")]
mod expect;
#[cfg(target_os = "macos")]
mod zombies;

#[cfg(target_os = "macos")]
fn main() {
    use coroner_test_support::death_cases::{CASE, check_all};
    if let Ok(case) = std::env::var(CASE) {
        return if case.starts_with("zombie") { zombies::run(&case) } else { cases::run(&case) };
    }
    if std::env::var_os(cases::THROWS).is_none() {
        println!("skipped: {} names no library; cargo xtask darwin builds it", cases::THROWS);
        return;
    }
    let exceptions = cases::CASES.iter().map(Any::Exception);
    let all: Vec<Any> = exceptions.chain(zombies::CASES.iter().map(Any::Zombie)).collect();
    check_all(&all, Any::name, Any::check)
}

/// A case.
#[cfg(target_os = "macos")]
enum Any {
    Exception(&'static cases::Case),
    Zombie(&'static zombies::Case),
}

#[cfg(target_os = "macos")]
impl Any {
    fn name(&self) -> &str {
        match self {
            Any::Exception(case) => case.name,
            Any::Zombie(case) => case.name,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Any::Exception(case) => expect::check(case),
            Any::Zombie(case) => zombies::check(case),
        }
    }
}

#[cfg(not(target_os = "macos"))]
fn main() {}
