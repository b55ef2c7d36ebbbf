//! Client reports: counts of discarded items by category and reason.
//!
//! They keep a server's statistics correct (develop.sentry.dev, *Client Reports*).

use std::collections::BTreeMap;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, Item, item_type};
use crate::event::time_text;

/// Why something was not sent, named as in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Dropped by sampling.
    SampleRate,
    /// Dropped by the app's `before_send`.
    BeforeSend,
    /// Removed because the outbox was full or the item was too old.
    CacheOverflow,
    /// Not created because the rate limit for reports was reached.
    QueueOverflow,
    /// Lost because the network failed during sending and the item must not be sent twice.
    NetworkError,
    /// Refused by the server.
    SendError,
    /// Dropped because the server limits its category.
    RatelimitBackoff,
    /// Dropped because of an error or limit inside Coroner.
    InternalSdkError,
}

/// Counts of discarded items by reason and category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Discarded {
    counts: BTreeMap<Reason, BTreeMap<String, u64>>,
}

impl Discarded {
    /// Counts one item.
    pub fn count(&mut self, reason: Reason, category: &str) {
        self.count_many(reason, category, 1);
    }

    /// Counts `many` items.
    pub fn count_many(&mut self, reason: Reason, category: &str, many: u64) {
        // Client reports: counts of discarded items by category and reason.
        //
        // They keep a server's statistics correct (develop.sentry.dev, *Client Reports*).
        if category != "internal" {
            let count = self.counts.entry(reason).or_default().entry(category.to_owned()).or_default();
            *count = count.saturating_add(many);
        }
    }

    /// Counts every item of an envelope.
    pub fn count_envelope(&mut self, reason: Reason, envelope: &Envelope) {
        envelope.items.iter().for_each(|item| self.count(reason, item.category()));
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Discarded) {
        for (reason, categories) in &other.counts {
            for (category, count) in categories {
                self.count_many(*reason, category, *count);
            }
        }
    }

    /// Returns `true` if all counts are zero.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Subtracts counts that have been reported.
    pub fn subtract(&mut self, reported: &Discarded) {
        for (reason, categories) in &reported.counts {
            if let Some(counts) = self.counts.get_mut(reason) {
                for (category, reported) in categories {
                    if let Some(count) = counts.get_mut(category) {
                        *count = count.saturating_sub(*reported);
                    }
                }
                counts.retain(|_, count| *count > 0);
            }
        }
        self.counts.retain(|_, counts| !counts.is_empty());
    }

    /// Returns the envelope item that reports these counts.
    pub fn item(&self, now: SystemTime) -> Item {
        let discarded: Vec<serde_json::Value> = self
            .counts
            .iter()
            .flat_map(|(reason, categories)| {
                categories.iter().map(move |(category, quantity)| {
                    serde_json::json!({ "reason": reason, "category": category, "quantity": quantity })
                })
            })
            .collect();
        let timestamp = time_text(Timestamp::from(now));
        Item::json(
            item_type::CLIENT_REPORT,
            &serde_json::json!({ "timestamp": timestamp, "discarded_events": discarded }),
        )
    }
}
