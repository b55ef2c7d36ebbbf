//! Kills while the report is written.
//!
//! A separate program with one test: the child announces its crash with a store before the faulting
//! instruction. Beside other tests it lost its processor between the two for longer than the delay
//! of the kill, which then came before the crash.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[path = "it/common.rs"]
mod common;

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Store, line, printed_number, repetitions, spawn, sweep, wait};
use coroner_tests::{descriptors, session};

#[test]
fn a_process_killed_during_its_crash_has_crashed() {
    let count = repetitions(20);
    let mut lost = Vec::new();
    for (number, delay) in sweep(count, 100, 2000).enumerate() {
        let signal = if number % 2 == 0 { libc::SIGTERM } else { libc::SIGINT };
        let store = Store::new();
        std::fs::create_dir_all(store.path()).expect("the store's folder");
        let word = descriptors::shared_word(&session::crash_word(&store.path()));
        let (mut child, mut output) = spawn(Some(&store.path()), "crash-and-be-killed");
        let thread = printed_number(&line(&mut output), "thread");
        let begun = Instant::now();
        while word.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not crash");
            std::hint::spin_loop();
        }
        let until = session::now() + delay * 1000;
        while session::now() < until {
            std::hint::spin_loop();
        }
        // SAFETY: sends a signal to the child, which has not been waited for yet.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let Some(status) = wait(&mut child) else {
            lost.push(format!("signal {signal} after {delay} µs: it hangs"));
            continue;
        };
        let mut rest = String::new();
        let _ = output.read_to_string(&mut rest);
        assert!([libc::SIGSEGV, signal].contains(&status.signal().unwrap_or(0)), "it ended with {status}: {rest}");
        let outcome = store.next_launch();
        let delivered = store.delivered();
        let is_reported = delivered.iter().any(|report| {
            let crash = &report["crash"];
            let of_signal = &crash["signal"];
            of_signal["number"] == libc::SIGSEGV
                && of_signal["code"] == 1
                && crash["address"] == "0x0"
                && crash["tid"] == thread
        });
        if outcome != "the last run crashed" || !is_reported {
            lost.push(format!("signal {signal} after {delay} µs: {outcome}, {} reports", delivered.len()));
        }
    }
    assert!(lost.is_empty(), "{} of {count} are lost:\n  {}", lost.len(), lost.join("\n  "));
}
