//! A program with more rights than its caller, which must not choose where it writes and sends.
//!
//! The program is this test program: its copy belongs to root, has the set-user-ID bit, and is
//! started by another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const SHOWS: &str = "CORONER_TEST_SHOWS_STORE";
/// `nobody`.
const CALLER: u32 = 65_534;

/// Not a test: the program, when the variable is set.
#[test]
fn app() {
    if std::env::var_os(SHOWS).is_some() {
        println!("effective user: {}", nix::unistd::geteuid().as_raw());
        println!("store: {:?}", coroner::default_store_dir("com.example.paint"));
        #[cfg(feature = "sentry")]
        println!("sentry: {}", coroner::SentrySink::from_env().unwrap().is_some());
    }
}

/// Runs the program as that user; returns what it prints of its store and sinks.
fn run(program: &std::path::Path, caller: u32) -> String {
    let mut command = Command::new(program);
    command.args(["--exact", "set_user_id::app", "--nocapture", "--test-threads=1"]).current_dir("/");
    command
        .env(SHOWS, "1")
        .env("HOME", "/")
        .env("XDG_STATE_HOME", "/home/caller")
        .env("SENTRY_DSN", "https://key@caller.example/1");
    let output = command.uid(caller).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_environment_of_the_caller_is_ignored() {
    if !nix::unistd::geteuid().is_root() {
        println!("only root can make a program of another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();

    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let usual = run(&program, CALLER);
    assert!(usual.contains("store: Some(\"/home/caller/com.example.paint/coroner\")"), "{usual}");
    assert!(!usual.contains("sentry: false"), "{usual}");

    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let with_rights = run(&program, CALLER);
    if !with_rights.contains("effective user: 0\n") {
        println!("the set-user-ID bit has no effect here (nosuid, no_new_privs)");
        return;
    }
    assert!(with_rights.contains("store: Some(\"/var/lib/com.example.paint/coroner\")"), "{with_rights}");
    assert!(!with_rights.contains("sentry: true"), "{with_rights}");
}
