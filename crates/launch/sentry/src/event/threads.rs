//! Threads in the protocol's form.

use std::collections::{BTreeMap, HashMap, HashSet};

use coroner_report::model::{Report, Thread as ReportThread};
use sentry_types::protocol::v7::{Thread, ThreadId};

use super::Event;
use super::stacktrace::Stacks;
use crate::extensions::{HeldLock, ThreadExtensions};

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

/// Adds a report's threads. If an exception refers to a thread, its stack is in the exception.
pub(super) fn add(event: &mut Event, report: &Report, stacks: &Stacks<'_>) {
    // An uncaught exception has the stack of its throw; the thread's own stack then shows where the
    // process terminated.
    let thrown = report.exceptions.first().is_some_and(|exception| !exception.frames.is_empty());
    let differs = |thread: &ReportThread| !report.exceptions.iter().take(1).any(|first| thread.has_frames_of(first));
    let reported = report.crashed_thread().map(|thread| thread.tid);
    let reported = report.crash.as_ref().map(|crash| crash.tid).or(reported);
    let mut seen = HashSet::new();
    let mut locks = held_locks(report);
    let threads = report.threads.iter().filter(|thread| seen.insert(thread.tid));
    for thread in threads {
        let is_reported = reported == Some(thread.tid);
        let extensions = ThreadExtensions {
            main: thread.main,
            state: thread.state.and_then(|state| state.name()).map(ToOwned::to_owned),
            held_locks: locks.remove(&thread.tid).unwrap_or_default(),
        };
        event.extensions.threads.insert(thread.tid, extensions);
        event.threads.values.push(Thread {
            id: Some(ThreadId::Int(thread.tid)),
            name: thread.name.clone().or_else(|| thread.queue.clone()).filter(|name| !name.is_empty()),
            crashed: thread.crashed,
            current: is_reported,
            stacktrace: if is_reported && !(thrown && differs(thread)) { None } else { stacks.thread(thread) },
            raw_stacktrace: None,
        });
    }
}
