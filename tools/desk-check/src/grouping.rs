//! Scores groups of crashes with known causes.
//!
//! Pairs with the same cause should be in one group, pairs with different causes in two. Causes
//! that were held back while the rules were written also have a separate score.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::{Desk, Row, crashes};

const PART: &str = "grouping";
const WANTED: f64 = 0.97;
/// Number of causes in a short run, each in two builds.
const FEW: usize = 2;

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    let began = Instant::now();
    let programs = crashes::build(desk)?;
    let mut deaths = crashes::deaths(&programs);
    if desk.short {
        // Causes of the first two builds each.
        deaths = (0..FEW * 2)
            .filter_map(|number| deaths.get(number % FEW + number / FEW * deaths.len() / programs.len()).cloned())
            .collect();
    }
    let next = AtomicUsize::new(0);
    let silent = Mutex::new(Vec::new());
    let cause_of = Mutex::new(HashMap::new());
    // Each worker has its own store, to match reports with crashes.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let work = |number: usize| -> anyhow::Result<()> {
        let store = desk.path(&format!("crashes-{number}"));
        let mut known = BTreeSet::new();
        while began.elapsed() < desk.time {
            let Some((program, cause, way)) = deaths.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let mut command = desk.command(&["run", "--store"]);
            command.arg(&store).arg("--").arg(program).args([cause, way.as_str()]);
            // SAFETY: `setrlimit` is async-signal-safe, and is the only call between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    // A program that doesn't crash would not end.
                    let limit = libc::rlimit { rlim_cur: 60, rlim_max: 60 };
                    libc::setrlimit(libc::RLIMIT_CPU, &raw const limit);
                    Ok(())
                })
            };
            let output = command.output().context("running coroner")?;
            let new: Vec<String> = stored(&store).into_iter().filter(|id| known.insert(id.clone())).collect();
            if new.is_empty() {
                let what = format!("{cause} of {}: {}", program.display(), output.status);
                silent.lock().unwrap_or_else(PoisonError::into_inner).push(what);
            }
            let mut cause_of = cause_of.lock().unwrap_or_else(PoisonError::into_inner);
            cause_of.extend(new.into_iter().map(|id| (id, *cause)));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..workers).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Ok(())))
    })?;
    let cause_of: HashMap<String, &str> = cause_of.into_inner().unwrap_or_else(PoisonError::into_inner);
    let silent: Vec<String> = silent.into_inner().unwrap_or_else(PoisonError::into_inner);
    let all = desk.path("crashes");
    std::fs::create_dir_all(&all)?;
    for number in 0..workers {
        for file in std::fs::read_dir(desk.path(&format!("crashes-{number}/reports"))).into_iter().flatten() {
            let path = file?.path();
            std::fs::rename(&path, all.join(path.file_name().context("a file without a name")?))?;
        }
    }
    let groups: Value = serde_json::from_str(&desk.run(&["group", "crashes", "--format", "json"])?)?;
    let mut group_of: HashMap<&str, usize> = HashMap::new();
    for (number, group) in groups.as_array().context("groups")?.iter().enumerate() {
        let reports = group["reports"].as_array().context("reports of a group")?;
        group_of.extend(reports.iter().filter_map(|report| Some((id_of(report)?, number))));
    }
    let shown = shown(&all, &cause_of)?;
    let mut labelled: Vec<Labelled<'_>> = Vec::new();
    for (id, cause) in &cause_of {
        let group = group_of.get(id.as_str()).copied();
        labelled.push(Labelled { cause, group, is_shown: shown.contains(id.as_str()) });
    }
    let of = |is_one: &dyn Fn(&Labelled<'_>) -> bool| -> Vec<Labelled<'_>> {
        labelled.iter().filter(|one| is_one(one)).copied().collect()
    };
    let in_stack = of(&|one| one.is_shown);
    let held_back = of(&|one| one.is_shown && crashes::is_held_back(one.cause));
    let wrong = mistakes(&in_stack);
    if !wrong.is_empty() {
        eprintln!("grouping: {}", wrong.join("\ngrouping: "));
    }
    let hidden: BTreeSet<&str> = labelled.iter().filter(|one| !one.is_shown).map(|one| one.cause).collect();
    eprintln!("grouping: not in all of their stacks: {hidden:?}");
    let causes: BTreeSet<&str> = cause_of.values().copied().collect();
    let what = format!("{} crashes of {} causes, {} builds: F1", in_stack.len(), causes.len(), programs.len());
    let (score, seen) = score(&in_stack);
    let (score_back, seen_back) = self::score(&held_back);
    let (_, seen_all) = self::score(&labelled);
    let what_back = format!("{} of those, of causes that no rule was made with: F1", held_back.len());
    let what_all = format!("with {} whose stacks do not have the cause: F1", labelled.len() - in_stack.len());
    let first = silent.first().cloned().unwrap_or_else(|| "none".to_owned());
    let mut rows = vec![Row::new(PART, &what, format!("at least {WANTED}"), seen, score >= WANTED)];
    if !held_back.is_empty() {
        rows.push(Row::new(PART, &what_back, format!("at least {WANTED}"), seen_back, score_back >= WANTED));
    }
    rows.push(Row::new(PART, &what_all, "not judged", seen_all, true));
    rows.push(Row::new(PART, "crashes without a report", "none", first, silent.is_empty()));
    Ok(rows)
}

/// A crash with a known cause.
#[derive(Clone, Copy)]
struct Labelled<'l> {
    cause: &'l str,
    group: Option<usize>,
    /// Whether a function of the cause is on the stack.
    ///
    /// It is missing if the compiler merged the common instructions of two causes and named them
    /// after one of them or none, or if all calls leading to it were jumps: such a stack doesn't
    /// show the cause.
    is_shown: bool,
}

/// Returns the crashes that have a function of their cause on the crashed thread's stack.
fn shown<'c>(folder: &Path, cause_of: &'c HashMap<String, &str>) -> anyhow::Result<HashSet<&'c str>> {
    let mut shown = HashSet::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
        let Some((id, cause)) =
            cause_of.get_key_value(id).filter(|_| path.extension().is_some_and(|kind| kind == "json"))
        else {
            continue;
        };
        let report: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let threads = report["threads"].as_array().into_iter().flatten();
        let frames =
            threads.filter(|thread| thread["crashed"] == true).filter_map(|thread| thread["frames"].as_array());
        let mut calls =
            frames.flatten().flat_map(|frame| frame["inlined"].as_array().into_iter().flatten().chain([frame]));
        if calls.any(|call| call["function"].as_str().is_some_and(|function| crashes::is_of(cause, function))) {
            shown.insert(id.as_str());
        }
    }
    Ok(shown)
}

/// Returns the harmonic mean of precision and recall over all pairs, and a description.
fn score(labelled: &[Labelled<'_>]) -> (f64, String) {
    let (mut both, mut by_group, mut by_cause) = (0_u32, 0_u32, 0_u32);
    for (place, one) in labelled.iter().enumerate() {
        for other in &labelled[place + 1..] {
            let (is_cause, is_group) = (one.cause == other.cause, one.group.is_some() && one.group == other.group);
            by_cause += u32::from(is_cause);
            by_group += u32::from(is_group);
            both += u32::from(is_cause && is_group);
        }
    }
    let share = |of: u32| if of == 0 { 0.0 } else { f64::from(both) / f64::from(of) };
    let (precision, recall) = (share(by_group), share(by_cause));
    let score = if both == 0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) };
    (score, format!("{score:.3} (precision {precision:.3}, recall {recall:.3})"))
}

/// Returns the causes that share a group, and those spread over several.
fn mistakes(labelled: &[Labelled<'_>]) -> Vec<String> {
    let mut groups: BTreeMap<&str, BTreeSet<Option<usize>>> = BTreeMap::new();
    let mut causes: BTreeMap<Option<usize>, BTreeSet<&str>> = BTreeMap::new();
    for Labelled { cause, group, .. } in labelled {
        groups.entry(cause).or_default().insert(*group);
        causes.entry(*group).or_default().insert(cause);
    }
    let split = groups.iter().filter(|(_, groups)| groups.len() > 1);
    let split = split.map(|(cause, groups)| format!("{cause} is in {} groups", groups.len()));
    let joined = causes.values().filter(|causes| causes.len() > 1).map(|causes| format!("one group has {causes:?}"));
    split.chain(joined).collect()
}

/// Returns the event ids in the names of a store's reports.
fn stored(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("reports")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| Some(name.strip_suffix(".json")?.rsplit_once('-')?.1.to_owned())).collect()
}

fn id_of(report: &Value) -> Option<&str> {
    report.as_str().or_else(|| report["event_id"].as_str())
}
