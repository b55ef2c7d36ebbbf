//! Groups of crashes whose causes are known: pairs of one cause that are in one group, and of different causes that are not.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::{Desk, Row, crashes};

const PART: &str = "grouping";
const WANTED: f64 = 0.97;

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    let began = Instant::now();
    let programs = crashes::build(desk)?;
    let store = desk.path("crashes");
    let mut cause_of: HashMap<String, &str> = HashMap::new();
    let mut known = BTreeSet::new();
    let mut silent = Vec::new();
    'all: for program in &programs {
        for cause in crashes::causes() {
            if began.elapsed() > desk.time {
                break 'all;
            }
            let mut command = desk.command(&["run", "--store"]);
            command.arg(&store).arg("--").arg(program).arg(cause);
            let output = command.output().context("running coroner")?;
            let new: Vec<String> = stored(&store).into_iter().filter(|id| known.insert(id.clone())).collect();
            if new.is_empty() {
                silent.push(format!("{cause} of {}: {}", program.display(), output.status));
            }
            cause_of.extend(new.into_iter().map(|id| (id, cause)));
        }
    }
    let groups: Value = serde_json::from_str(&desk.run(&["group", "crashes", "--format", "json"])?)?;
    let mut group_of: HashMap<&str, usize> = HashMap::new();
    for (number, group) in groups.as_array().context("groups")?.iter().enumerate() {
        let reports = group["reports"].as_array().context("reports of a group")?;
        group_of.extend(reports.iter().filter_map(|report| Some((id_of(report)?, number))));
    }
    let labelled: Vec<(&str, Option<usize>)> =
        cause_of.iter().map(|(id, cause)| (*cause, group_of.get(id.as_str()).copied())).collect();
    let (mut both, mut by_group, mut by_cause) = (0_u32, 0_u32, 0_u32);
    for (place, one) in labelled.iter().enumerate() {
        for other in &labelled[place + 1..] {
            let (is_cause, is_group) = (one.0 == other.0, one.1.is_some() && one.1 == other.1);
            by_cause += u32::from(is_cause);
            by_group += u32::from(is_group);
            both += u32::from(is_cause && is_group);
        }
    }
    let share = |of: u32| if of == 0 { 0.0 } else { f64::from(both) / f64::from(of) };
    let (precision, recall) = (share(by_group), share(by_cause));
    let score = if both == 0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) };
    let causes: BTreeSet<&str> = cause_of.values().copied().collect();
    let what = format!("{} crashes of {} causes in {} builds: F1", cause_of.len(), causes.len(), programs.len());
    let seen = format!("{score:.3} (precision {precision:.3}, recall {recall:.3})");
    let first = silent.first().cloned().unwrap_or_else(|| "none".to_owned());
    Ok(vec![
        Row::new(PART, &what, format!("at least {WANTED}"), seen, score >= WANTED),
        Row::new(PART, "crashes without a report", "none", first, silent.is_empty()),
    ])
}

/// The event ids in the names of a store's reports.
fn stored(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("reports")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| Some(name.strip_suffix(".json")?.rsplit_once('-')?.1.to_owned())).collect()
}

fn id_of(report: &Value) -> Option<&str> {
    report.as_str().or_else(|| report["event_id"].as_str())
}
