//! The table of faults, and a check that each ends a process as described.

use coroner_faults::{Ending, FAULTS, find};

#[test]
fn names_are_unique_and_fit_a_command_line() {
    let all: Vec<_> = FAULTS.iter().collect();
    for (index, fault) in all.iter().enumerate() {
        assert!(fault.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", fault.name);
        assert!(!fault.about.is_empty() && !fault.frames.is_empty(), "{}", fault.name);
        assert!(!all[..index].iter().any(|other| other.name == fault.name), "duplicate name: {}", fault.name);
        assert_eq!(find(fault.name).map(|found| found.about), Some(fault.about));
    }
}

/// Every fault ends a process as its entry describes.
///
/// A child runs it with the signal handling of a C program and without a crash reporter's.
/// `CORONER_TEST_RUNNER` is a command that runs programs for this architecture (an emulator with
/// its options), if the system can't.
#[test]
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn each_fault_ends_the_process_as_described() {
    if let Ok(name) = std::env::var("CORONER_FAULT") {
        (find(&name).expect("a fault of the table").run)();
        return;
    }
    let program = std::env::current_exe().expect("this program's path");
    let children: Vec<_> = FAULTS
        .iter()
        .map(|fault| {
            let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
            let mut words = runner.split_whitespace().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
            let child = std::process::Command::new(words.next().expect("a program"))
                .args(words)
                .args(["--exact", "table::each_fault_ends_the_process_as_described", "--test-threads=1", "--nocapture"])
                .env("CORONER_FAULT", fault.name)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("a child");
            (fault, child)
        })
        .collect();
    for (fault, mut child) in children {
        let status = child.wait().expect("the child's status");
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        let is_expected = match fault.ending {
            Ending::Signal(expected) => signal == Some(expected),
            Ending::Either(one, other) => signal == Some(one) || signal == Some(other),
            Ending::Child(_) => status.success(),
        };
        assert!(is_expected, "{}: got {status}, expected {:?}", fault.name, fault.ending);
    }
}
