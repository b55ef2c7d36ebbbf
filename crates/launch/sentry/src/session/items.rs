//! Session updates as envelope items.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use sentry_types::protocol::v7::{SessionAggregateItem, SessionAggregates, SessionStatus};

use super::{SessionMode, SessionUpdate};
use crate::envelope::{Item, item_type};
use crate::rate_limits::seconds;

/// Returns the envelope items for a batch of updates.
pub fn items(batch: &[SessionUpdate], mode: SessionMode) -> Vec<Item> {
    match mode {
        SessionMode::Aggregated => aggregate(batch),
        _ => batch.iter().map(|update| Item::json(item_type::SESSION, update)).collect(),
    }
}

/// Returns one `sessions` item for each release and environment, with the counts of sessions that
/// started in the same minute.
fn aggregate(updates: &[SessionUpdate]) -> Vec<Item> {
    let mut items: BTreeMap<_, (SessionAggregates<'static>, BTreeMap<_, SessionAggregateItem>)> = BTreeMap::new();
    for update in updates {
        let attributes = &update.attributes;
        let (_, counts) = items.entry((&attributes.release, &attributes.environment)).or_insert_with(|| {
            (SessionAggregates { aggregates: Vec::new(), attributes: attributes.clone() }, BTreeMap::new())
        });
        let minute = seconds(update.started) / 60;
        let count = counts.entry((minute, &update.distinct_id)).or_insert_with(|| SessionAggregateItem {
            started: UNIX_EPOCH + Duration::from_secs(minute * 60),
            distinct_id: update.distinct_id.clone(),
            exited: 0,
            errored: 0,
            abnormal: 0,
            crashed: 0,
        });
        match (update.status, update.errors) {
            (SessionStatus::Crashed, _) => count.crashed += 1,
            (SessionStatus::Abnormal, _) => count.abnormal += 1,
            (_, 0) => count.exited += 1,
            _ => count.errored += 1,
        }
    }
    let item = |(mut item, counts): (SessionAggregates<'static>, BTreeMap<_, SessionAggregateItem>)| {
        item.aggregates = counts.into_values().collect();
        Item::json(item_type::SESSIONS, &item)
    };
    items.into_values().map(item).collect()
}
