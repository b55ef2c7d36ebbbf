//! Counts sessions as a server does, over runs that crash, are killed, have errors or exit.
//!
//! Every fifth run is killed between a request and its answer. A server's counters add an update
//! each time they receive it.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use coroner_tests::server::{Reply, Server};
use serde_json::Value;

use super::{Bench, Row, output};

/// Number of runs, in the short form and with `--long`.
const RUNS: [usize; 2] = [100, 500];

/// A server's counters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    begun: usize,
    crashed: usize,
    abnormal: usize,
    /// Crash events, each counted once.
    events: usize,
}

/// Counts runs of each kind, on either side.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let server = Server::start(|_, _| Reply::ok())?;
    let store = bench.folder("sessions")?;
    let start = |words: &[&str]| {
        let mut command = bench.program("sentry_app");
        command.arg(&store).arg(server.dsn()).args(["no-symbols", "retry=1", "attempts=1000"]).args(words);
        command
    };
    let mut expected = Counts::default();
    for number in 0..RUNS[usize::from(bench.long)] {
        expected.begun += 1;
        match number % 5 {
            0 => {
                start(&["fault=null-store"]).output()?;
                expected.crashed += 1;
                expected.events += 1;
            }
            1 => {
                start(&["kill"]).output()?;
                expected.abnormal += 1;
            }
            2 => drop(start(&["errors=2"]).output()?),
            3 => drop(start(&["flush=5"]).output()?),
            _ => {
                server.answer(|_, _| Reply::Late(Duration::from_mins(1)));
                let arrived = server.accepted_count();
                kill_when(start(&["flush=60"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?, || {
                    server.accepted_count() > arrived
                })?;
                server.answer(|_, _| Reply::ok());
                expected.abnormal += 1;
            }
        }
    }
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        expected.begun += 1;
        if output(&mut start(&["flush=20"]))?.contains("flushed: true") {
            break;
        }
        ensure!(Instant::now() < deadline, "the outbox is not empty after a minute");
    }
    let counted = counts(&server);
    // For runs killed before the answer, the client can't know whether the server received the
    // update.
    let unknown: u64 = server.items("client_report").iter().map(unanswered_sessions).sum();
    let missing = |of: fn(&Counts) -> usize| of(&expected).saturating_sub(of(&counted));
    let missing = missing(|counts| counts.begun) + missing(|counts| counts.crashed) + missing(|counts| counts.abnormal);
    let more = counted.begun > expected.begun
        || counted.crashed > expected.crashed
        || counted.abnormal > expected.abnormal
        || counted.events != expected.events;
    let mut problems = Vec::new();
    // A run that ends between recording its update and sending the first byte loses the update: at
    // most a start and an end. None may be counted twice.
    if more || missing > expected.begun / 100 || missing as u64 > 2 * unknown {
        problems.push(format!("the server counts {counted:?} of {expected:?}, {unknown} updates have no answer"));
    }
    Ok(vec![Row::new(
        "sessions",
        format!("{} runs, {missing} missing, {unknown} updates without an answer: {counted:?}", expected.begun),
        problems,
    )])
}

/// Kills a process after an event.
fn kill_when(mut child: Child, happened: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !happened() {
        if Instant::now() > deadline || child.try_wait()?.is_some() {
            let _ = child.kill();
            bail!("nothing was sent");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn counts(server: &Server) -> Counts {
    let updates = server.items("session");
    let count = |is: &dyn Fn(&Value) -> bool| updates.iter().filter(|update| is(update)).count();
    Counts {
        begun: count(&|update| update["init"] == true),
        crashed: count(&|update| update["status"] == "crashed"),
        abnormal: count(&|update| update["status"] == "abnormal"),
        events: server.events().len(),
    }
}

fn unanswered_sessions(report: &Value) -> u64 {
    let lost = report["discarded_events"].as_array().into_iter().flatten();
    let lost = lost.filter(|count| count["category"] == "session" && count["reason"] == "network_error");
    lost.filter_map(|count| count["quantity"].as_u64()).sum()
}
