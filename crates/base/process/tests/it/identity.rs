//! The identity of a run's process, and whether it is alive.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use coroner_process::identity::ProcessIdentity;

#[test]
fn this_process_lives_and_others_do_not() {
    let own = ProcessIdentity::of_this_process();
    assert_eq!(own.pid, std::process::id());
    assert!(own.start > 0 && own.pid_namespace > 0 && own.boot_id != [0; 16]);
    let age = coroner_process::threads::wall_now() - coroner_process::identity::start_and_memory(4096).0.unwrap();
    assert!(age < 600_000_000_000, "started {age} ns ago");
    assert!((start_of(own.pid)..=start_of(own.pid) + 60_000).contains(&own.start));
    assert_eq!(own.lives(&own), Some(true));
    // Its number under another process, another boot; and cases that can't be determined.
    assert_eq!(ProcessIdentity { start: start_of(own.pid) - 1, ..own }.lives(&own), Some(false));
    assert_eq!(ProcessIdentity { start: start_of(own.pid), ..own }.lives(&own), Some(true));
    assert_eq!(ProcessIdentity { boot_id: [7; 16], ..own }.lives(&own), Some(false));
    assert_eq!(ProcessIdentity { pid_namespace: 1, ..own }.lives(&own), None);
    assert_eq!(ProcessIdentity::default().lives(&own), None);
}

#[test]
fn a_zombie_process_is_not_live() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let start = start_of(child.id());
    let own = ProcessIdentity::of_this_process();
    let identity = ProcessIdentity { pid: child.id(), start, ..own };
    assert_eq!(identity.lives(&own), Some(true));
    child.kill().expect("killed");
    // SAFETY: waits for our child without taking it away (waitid(2)).
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT);
    }
    assert_eq!(identity.lives(&own), Some(false), "a zombie");
    child.wait().expect("ended");
    assert_eq!(identity.lives(&own), Some(false));
}

/// Returns the 22nd field of its `stat`; the second, the name, has no space.
fn start_of(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("there");
    stat.split(' ').nth(21).expect("there").parse().expect("a number")
}
