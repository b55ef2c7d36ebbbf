//! Install in a process that may have little more memory: it fails with an error, and the app
//! continues.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::path::PathBuf;
use std::process::Command;

use coroner::Config;

const STORE: &str = "CORONER_TEST_STORE";
const ROOM: &str = "CORONER_TEST_ROOM";

/// Not a test: the app, when the variable is set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE).map(PathBuf::from) else { return };
    let room: u64 = std::env::var(ROOM).unwrap().parse().unwrap();
    let config = Config::new("com.example.small").store_dir(&store);
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = |bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the kernel reads the limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    };
    limit(pages * 4096 + room);
    let installed = coroner::install(config);
    limit(libc::RLIM_INFINITY);
    match installed {
        Ok(_) => println!("\napp: installed"),
        Err(error) => println!("\napp: {error}"),
    }
}

#[test]
fn install_without_memory_is_an_error() {
    let outcomes: Vec<_> = (0..64).map(|step| install_with(step * 160 * 1024)).collect();
    assert!(outcomes[0].contains("can't allocate memory"), "{outcomes:#?}");
    assert!(!outcomes.iter().any(|outcome| outcome.contains("Errno")), "{outcomes:#?}");
    assert!(outcomes.last().unwrap() == "installed", "{outcomes:#?}");
}

/// Returns what the app prints if it has `room` bytes more than before install.
fn install_with(room: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "low_memory::app", "--nocapture", "--test-threads", "1"]);
    command.env(STORE, folder.path().join("store")).env(ROOM, room.to_string());
    // The heap is one that can grow, as that of the first thread.
    command.env("MALLOC_ARENA_MAX", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.strip_prefix("app: "));
    said.unwrap_or_else(|| panic!("with {room} bytes: {output:?}")).to_string()
}
