//! Session updates as envelope items.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{SessionAttributes, SessionMode, SessionUpdate};
use crate::envelope::{Item, item_type};

/// Returns the envelope items for a batch of updates.
pub fn items(batch: &[SessionUpdate], mode: SessionMode) -> Vec<Item> {
    match mode {
        SessionMode::Aggregated => aggregate(batch),
        _ => batch.iter().map(|update| Item::json(item_type::SESSION, update)).collect(),
    }
}

/// Counts of sessions that started in the same minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The minute in which the sessions started.
    pub started: String,
    /// The sessions' user or installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
    /// Sessions that exited normally without errors.
    #[serde(default)]
    pub exited: u64,
    /// Sessions that exited normally with errors.
    #[serde(default)]
    pub errored: u64,
    /// Sessions that crashed.
    #[serde(default)]
    pub crashed: u64,
    /// Sessions that terminated abnormally.
    #[serde(default)]
    pub abnormal: u64,
}

/// Returns one `sessions` item for each release and environment.
fn aggregate(updates: &[SessionUpdate]) -> Vec<Item> {
    let mut counts: BTreeMap<&SessionAttributes, BTreeMap<(String, Option<String>), Aggregate>> = BTreeMap::new();
    for update in updates {
        // Truncates `2026-11-21T01:02:03.4Z` to the minute.
        let minute = update.started.get(..16).unwrap_or(&update.started);
        let started = format!("{minute}:00Z");
        let key = (started.clone(), update.did.clone());
        let count = counts.entry(&update.attrs).or_default().entry(key).or_default();
        count.started = started;
        count.did.clone_from(&update.did);
        match (update.status.as_str(), update.errors) {
            ("crashed", _) => count.crashed += 1,
            ("abnormal", _) => count.abnormal += 1,
            (_, 0) => count.exited += 1,
            _ => count.errored += 1,
        }
    }
    let item = |(attrs, counts): (&SessionAttributes, BTreeMap<_, Aggregate>)| {
        let aggregates: Vec<Aggregate> = counts.into_values().collect();
        Item::json(item_type::SESSIONS, &serde_json::json!({ "aggregates": aggregates, "attrs": attrs }))
    };
    counts.into_iter().map(item).collect()
}
