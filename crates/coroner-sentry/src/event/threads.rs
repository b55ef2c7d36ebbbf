//! Threads in the protocol's words.

use std::collections::HashSet;

use coroner_report::model::{Report, Thread as ReportThread};
use serde::{Deserialize, Serialize};

use super::stacktrace::{Stacks, Stacktrace};

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The system's number of it.
    pub id: u64,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it crashed.
    #[serde(default)]
    pub crashed: bool,
    /// Whether the event is about it.
    #[serde(default)]
    pub current: bool,
    /// Whether it is the process's first.
    #[serde(default)]
    pub main: bool,
    /// What it was doing: `running`, `blocked`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its stack. The thread that an exception names has it there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<Stacktrace>,
}

pub(super) fn of(report: &Report, stacks: &Stacks<'_>) -> Vec<Thread> {
    // An uncaught exception's stack is that of its throw; then the thread's own says where the process ended.
    let thrown = report.exceptions.first().is_some_and(|exception| !exception.frames.is_empty());
    let differs = |thread: &ReportThread| !report.exceptions.iter().take(1).any(|first| thread.has_frames_of(first));
    let reported = report.crashed_thread().map(|thread| thread.tid);
    let reported = report.crash.as_ref().map(|crash| crash.tid).or(reported);
    let mut seen = HashSet::new();
    let threads = report.threads.iter().filter(|thread| seen.insert(thread.tid));
    let threads = threads.map(|thread| {
        let is_reported = reported == Some(thread.tid);
        Thread {
            id: thread.tid,
            name: thread.name.clone().or_else(|| thread.queue.clone()).filter(|name| !name.is_empty()),
            crashed: thread.crashed,
            current: is_reported,
            main: thread.main,
            state: thread.state.and_then(|state| state.name()).map(ToOwned::to_owned),
            stacktrace: if is_reported && !(thrown && differs(thread)) { None } else { stacks.of_thread(thread) },
        }
    });
    threads.collect()
}
