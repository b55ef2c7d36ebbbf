//! Threads in the protocol's form.

use std::collections::{BTreeMap, HashMap, HashSet};

use coroner_report::model::{Report, Thread as ReportThread};
use serde::{Deserialize, Serialize};

use super::stacktrace::{Stacks, Stacktrace};

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The system's thread id.
    pub id: u64,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the thread crashed.
    #[serde(default)]
    pub crashed: bool,
    /// Whether the event is about this thread.
    #[serde(default)]
    pub current: bool,
    /// Whether this is the process's main thread.
    #[serde(default)]
    pub main: bool,
    /// Thread state: `running`, `blocked`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Locks that the thread holds or waits for, by address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_locks: BTreeMap<String, HeldLock>,
    /// The thread's stack. If an exception refers to the thread, the stack is in the exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<Stacktrace>,
}

/// A lock that a thread holds or waits for (the protocol's `LockReason`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// 1: held; 2: waiting, no thread holds it; 8: waiting until another thread releases it.
    #[serde(rename = "type")]
    pub reason: u8,
    /// The lock's address.
    pub address: String,
    /// The library that provides the lock, such as `glibc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_name: Option<String>,
    /// Lock type, such as `mutex`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// For a lock that a thread waits for: the thread that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
}

/// Values of [`HeldLock::reason`].
const LOCKED: u8 = 1;
const WAITING: u8 = 2;
const BLOCKED: u8 = 8;

/// Returns each thread's locks. A thread can wait for a lock that it holds itself.
fn held_locks(report: &Report) -> HashMap<u64, BTreeMap<String, HeldLock>> {
    let mut locks: HashMap<u64, BTreeMap<String, HeldLock>> = HashMap::new();
    let waits = report.explanation.iter().flat_map(|explanation| &explanation.waits);
    for wait in waits {
        let class_name = serde_json::to_value(wait.kind).ok().and_then(|name| name.as_str().map(ToOwned::to_owned));
        let blocked = HeldLock {
            reason: if wait.owner.is_some() || wait.kind.is_lock() { BLOCKED } else { WAITING },
            address: wait.address.to_string(),
            package_name: wait.library.clone(),
            class_name,
            thread_id: wait.owner,
        };
        if let Some(owner) = wait.owner_in_report().filter(|_| wait.kind.is_lock()) {
            let held = HeldLock { reason: LOCKED, thread_id: None, ..blocked.clone() };
            locks.entry(owner).or_default().entry(blocked.address.clone()).or_insert(held);
        }
        locks.entry(wait.tid).or_default().insert(blocked.address.clone(), blocked);
    }
    locks
}

pub(super) fn from_report(report: &Report, stacks: &Stacks<'_>) -> Vec<Thread> {
    // An uncaught exception has the stack of its throw; the thread's own stack then shows where the
    // process terminated.
    let thrown = report.exceptions.first().is_some_and(|exception| !exception.frames.is_empty());
    let differs = |thread: &ReportThread| !report.exceptions.iter().take(1).any(|first| thread.has_frames_of(first));
    let reported = report.crashed_thread().map(|thread| thread.tid);
    let reported = report.crash.as_ref().map(|crash| crash.tid).or(reported);
    let mut seen = HashSet::new();
    let mut locks = held_locks(report);
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
            held_locks: locks.remove(&thread.tid).unwrap_or_default(),
            stacktrace: if is_reported && !(thrown && differs(thread)) { None } else { stacks.thread(thread) },
        }
    });
    threads.collect()
}
