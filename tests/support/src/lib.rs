//! Shared by the tests of every crate. Has no dependencies, so that a crate of any layer can use
//! it.
//!
//! The integration tests of a crate are one program, in which tests run side by side on threads. A
//! test that changes the process (installs a handler, forks, sets an environment variable, crashes
//! a thread) runs its body with [`isolated`], in a process of its own.

#[cfg(target_os = "macos")]
pub mod death_cases;

use std::env;
use std::process::Command;

pub use programs::has_program;

mod programs;

/// Set in a process that [`isolated`] started; contains the name of its test.
const ISOLATED: &str = "CORONER_ISOLATED_TEST";

/// Runs `body` in a process of its own: starts the current test program again with only this test.
///
/// `test` is the test's path, as in `concat!(module_path!(), "::name_of_the_test")`.
///
/// # Panics
/// The test failed in its process, or that process ran no test of this name. The output of a failed
/// test is printed.
pub fn isolated(test: &str, body: impl FnOnce()) {
    // libtest's names don't begin with the crate.
    let name = test.split_once("::").map_or(test, |(_, name)| name);
    if env::var_os(ISOLATED).is_some_and(|isolated| isolated == name) {
        return body();
    }
    let program = env::current_exe().expect("the path of the test program");
    // A cross-compiled test program needs its emulator again.
    let runner = env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().map(Into::into).chain([program.into_os_string()]);
    let output = Command::new(words.next().expect("a program"))
        .args(words)
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env(ISOLATED, name)
        .output()
        .expect("starting the test program again");
    let stdout = String::from_utf8_lossy(&output.stdout);
    print!("{stdout}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed in its own process: {}", output.status);
    assert!(stdout.contains("1 passed"), "the test program has no test named {name}");
}
