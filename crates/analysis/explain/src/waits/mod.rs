//! The locks that threads wait for and their owners: a report's wait-for graph, and its cycles.

mod apple;
mod bionic;
mod futex;
mod glibc;
mod lock;
mod musl;

use std::collections::{HashMap, HashSet};

use coroner_report::Report;
use coroner_report::model::{Explanation, FutexWait, LockWait, OwnerIs, Thread, WaitKind};

/// Maximum length of a chain of threads in a sentence.
const MAX_CHAIN: usize = 6;
/// Maximum length of a thread's name in a sentence, in characters.
const MAX_NAME: usize = 40;

/// Adds the waits of a report's threads to its explanation.
pub(crate) fn add(report: &Report, explanation: &mut Explanation) {
    let waits = find_waits(report);
    let deadlocks = find_cycles(report, &waits);
    let reported = report.crash.as_ref().map(|crash| crash.tid).unwrap_or_default();
    let chain = describe_chain(report, &waits, reported);
    let is_locked = deadlocks.iter().any(|cycle| cycle.contains(&reported));
    explanation.waits_for = chain.map(|chain| if is_locked { format!("deadlock: {chain}") } else { chain });
    for cycle in deadlocks.iter().filter(|cycle| !cycle.contains(&reported)) {
        let chain = cycle.first().and_then(|first| describe_chain(report, &waits, *first));
        explanation.facts.extend(chain.map(|chain| format!("deadlock: {chain}")));
    }
    explanation.waits = waits;
    explanation.deadlocks = deadlocks;
}

/// Returns the threads' waits in the report's order.
fn find_waits(report: &Report) -> Vec<LockWait> {
    let tids: HashSet<u64> = report.threads.iter().map(|thread| thread.tid).collect();
    let is_whole = has_all_threads(report);
    let waiting = report.threads.iter().filter_map(|thread| Some((thread, thread.futex.as_ref()?)));
    let waits = waiting.map(|(thread, futex)| {
        let is_apple = apple::is_apple_report(report);
        let mut found =
            if is_apple { apple::identify(report, thread, futex) } else { lock::identify(report, thread, futex) };
        if found.owner == Some(thread.tid) && !is_apple && lock::is_process_shared(futex) {
            found.owner = None;
        }
        let owner_is = match found.owner {
            None => OwnerIs::Unknown,
            Some(owner) if tids.contains(&owner) => OwnerIs::InReport,
            Some(_) if !futex::is_private(futex) => OwnerIs::Elsewhere,
            Some(_) if is_whole => OwnerIs::Gone,
            Some(_) => OwnerIs::NotInReport,
        };
        LockWait {
            tid: thread.tid,
            kind: found.kind,
            library: found.library.map(ToOwned::to_owned),
            address: found.address,
            timed: futex.timed,
            owner: found.owner,
            owner_is,
        }
    });
    waits.collect()
}

/// Whether the report contains all threads of the process.
fn has_all_threads(report: &Report) -> bool {
    match &report.end {
        Some(end) => end.dropped.is_empty() && end.threads > 1 && end.threads == report.threads.len() as u64,
        // A report made from another process contains all threads, unless it is incomplete.
        None => report.complete,
    }
}

/// Returns the graph's cycles: in each a thread waits for the next, and the last for the first.
/// Waits that end by themselves are not part of cycles.
fn find_cycles(report: &Report, waits: &[LockWait]) -> Vec<Vec<u64>> {
    // A process-shared lock contains a tid that may be from another pid namespace. Apple's ids are
    // system-wide.
    let futexes: HashMap<u64, &FutexWait> =
        report.threads.iter().filter_map(|thread| Some((thread.tid, thread.futex.as_ref()?))).collect();
    let is_private = |wait: &&LockWait| {
        apple::is_apple_report(report)
            || !wait.kind.is_lock()
            || futexes.get(&wait.tid).is_none_or(|futex| !lock::is_process_shared(futex))
    };
    let lasting = waits.iter().filter(|wait| !wait.timed).filter(is_private);
    let edges: HashMap<u64, u64> = lasting.filter_map(|wait| Some((wait.tid, wait.owner_in_report()?))).collect();
    let reported = report.crash.as_ref().map(|crash| crash.tid);
    // Start with the thread that the report is about, if it is in a cycle.
    let starts = reported.into_iter().chain(report.threads.iter().map(|thread| thread.tid));
    let mut seen = HashSet::new();
    let mut cycles = Vec::new();
    for start in starts {
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(tid) = at.filter(|tid| seen.insert(*tid)) {
            path.push(tid);
            at = edges.get(&tid).copied();
        }
        // The path returned to one of its own threads: a new cycle.
        if let Some(from) = at.and_then(|tid| path.iter().position(|passed| *passed == tid)) {
            cycles.push(path.split_off(from));
        }
    }
    cycles
}

/// Returns, for example, `thread 3 waits for thread 7, which waits for thread 3`. `None` if the
/// thread doesn't wait for anything with a known owner.
fn describe_chain(report: &Report, waits: &[LockWait], tid: u64) -> Option<String> {
    let by_tid: HashMap<u64, &LockWait> = waits.iter().map(|wait| (wait.tid, wait)).collect();
    let mut wait = *by_tid.get(&tid)?;
    let mut text = thread_name(report, tid);
    let mut passed = HashSet::from([tid]);
    for link in 0.. {
        let owner = wait.owner?;
        if owner == wait.tid {
            text.push_str(&format!(" waits for {} that it already holds", wait.kind.words()));
            break;
        }
        text.push_str(match wait.kind {
            WaitKind::ThreadEnd => " is in pthread_join, waiting for ",
            _ => " waits for ",
        });
        text.push_str(&thread_name(report, owner));
        text.push_str(match wait.owner_is {
            OwnerIs::Gone if wait.kind.is_lock() => ", which exited without releasing the lock",
            OwnerIs::Gone => ", which has exited",
            OwnerIs::Elsewhere => ", which is not in this process",
            OwnerIs::NotInReport => ", which is not in the report",
            _ => "",
        });
        if wait.owner_is != OwnerIs::InReport || !passed.insert(owner) {
            break;
        }
        match by_tid.get(&owner) {
            _ if link + 1 == MAX_CHAIN => {
                text.push_str(", …");
                break;
            }
            Some(next) if next.owner.is_some() => wait = next,
            Some(next) if next.kind == WaitKind::ThreadEnd => {
                text.push_str(", which is in pthread_join");
                break;
            }
            Some(next) => {
                text.push_str(&format!(", which waits for {}", next.kind.words()));
                break;
            }
            None => {
                let thread = report.threads.iter().find(|thread| thread.tid == owner);
                let call = thread.and_then(|thread| thread.syscall_name);
                text.push_str(&call.map_or_else(String::new, |call| format!(", which is in {call}")));
                break;
            }
        }
        text.push_str(", which");
    }
    Some(text)
}

/// Returns, for example, `thread 4711 (worker)`.
fn thread_name(report: &Report, tid: u64) -> String {
    let thread = report.threads.iter().find(|thread| thread.tid == tid);
    let name = |thread: &Thread| thread.name.clone().filter(|name| !name.is_empty());
    match thread.and_then(name) {
        Some(name) => format!("thread {tid} ({})", name.chars().take(MAX_NAME).collect::<String>()),
        None => format!("thread {tid}"),
    }
}
