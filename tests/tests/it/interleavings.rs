//! Random orders of calls on eight threads: nothing ends the process but what was planned.
//!
//! `CORONER_REPETITIONS=10000` runs as many; `CORONER_SEED=N` runs one.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use crate::common::{Store, has_flag, repetitions};

#[test]
fn no_order_of_calls_ends_a_healthy_process() {
    let seeds = match std::env::var("CORONER_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("CORONER_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..repetitions(4),
    };
    let wrong: Vec<String> = seeds.filter_map(|seed| check(seed).err()).collect();
    assert!(wrong.is_empty(), "{} runs are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(seed: u64) -> Result<(), String> {
    let store = Store::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_interleaving_program"));
    command.arg(store.path()).arg(seed.to_string()).stdin(Stdio::null());
    let output = command.output().expect("the program runs");
    let failed = |what: &str| Err(format!("seed {seed}: {what}: {}", describe(&output)));
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim() {
        "plan: exit" if output.status.success() => Ok(()),
        "plan: SIGSEGV" if output.status.signal() == Some(libc::SIGSEGV) => {
            if seed.is_multiple_of(2) {
                return Ok(());
            }
            store.next_launch();
            let crashes = store.delivered().iter().filter(|report| !has_flag(report, "not_fatal")).count();
            if crashes == 1 { Ok(()) } else { failed(&format!("{crashes} reports of the crash")) }
        }
        plan => failed(&format!("{plan:?} was planned")),
    }
}

fn describe(output: &Output) -> String {
    format!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}
