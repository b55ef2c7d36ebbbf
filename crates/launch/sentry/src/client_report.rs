//! Client reports: how much of what kind was not sent, and why, so that a server's figures are true (develop.sentry.dev, *Client
//! Reports*).

use std::collections::BTreeMap;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, Item, item_type};
use crate::event::time_text;

/// Why something was not sent, in the protocol's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It was by chance not among the sampled.
    SampleRate,
    /// The app's `before_send` dropped it.
    BeforeSend,
    /// The outbox was full or it was too old.
    CacheOverflow,
    /// There were too many in too short a time.
    QueueOverflow,
    /// The network failed when it was on its way, and it must not come twice.
    NetworkError,
    /// The server refused it.
    SendError,
    /// The server takes no more of its kind for now.
    RatelimitBackoff,
    /// A mistake of Coroner's own.
    InternalSdkError,
}

/// Counts of what was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Discarded {
    counts: BTreeMap<Reason, BTreeMap<String, u64>>,
}

impl Discarded {
    /// Counts one thing.
    pub fn count(&mut self, reason: Reason, category: &str) {
        self.count_many(reason, category, 1);
    }

    /// Counts as many.
    pub fn count_many(&mut self, reason: Reason, category: &str, many: u64) {
        // Client reports themselves are not counted.
        if category != "internal" {
            let count = self.counts.entry(reason).or_default().entry(category.to_owned()).or_default();
            *count = count.saturating_add(many);
        }
    }

    /// Counts every item of an envelope.
    pub fn count_envelope(&mut self, reason: Reason, envelope: &Envelope) {
        envelope.items.iter().for_each(|item| self.count(reason, item.category()));
    }

    /// Counts what another has counted.
    pub fn add(&mut self, other: &Discarded) {
        for (reason, categories) in &other.counts {
            for (category, count) in categories {
                self.count_many(*reason, category, *count);
            }
        }
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Takes away what has been reported.
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

    /// The item that reports them.
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
