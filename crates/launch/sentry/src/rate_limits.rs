//! Rate limits: until when a server wants no more of what (develop.sentry.dev, *Rate Limiting*).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_outbox::{MAX_WAIT, parse_retry_after};
use serde::{Deserialize, Serialize};

/// How long nothing is sent after a 429 that does not say.
const DEFAULT: Duration = Duration::from_mins(1);
/// A limit is believed for a day at most, so that a clock that was wrong, or a server that was, holds nothing back for years.
const MAX_TIME: Duration = MAX_WAIT;
/// Stands for all categories.
const ALL: &str = "";
/// Categories of what Coroner sends. Others are for others.
const CATEGORIES: [&str; 5] = ["default", "error", "attachment", "session", "internal"];

/// Limits of one server, by category; kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RateLimits {
    /// Until when, seconds since the Unix epoch.
    until: BTreeMap<String, u64>,
}

impl RateLimits {
    /// Takes the headers of an answer, whatever its status: `X-Sentry-Rate-Limits`, or else `Retry-After`.
    pub fn update(&mut self, status: u16, rate_limits: Option<&str>, retry_after: Option<&str>, now: SystemTime) {
        self.until.retain(|_, until| *until > seconds(now));
        match (rate_limits, status) {
            (Some(header), _) => self.parse(header, now),
            (None, 429) => {
                let wait = retry_after.and_then(|text| parse_retry_after(text, now)).unwrap_or(DEFAULT);
                self.limit(ALL, wait, now);
            }
            (None, _) => {}
        }
        // A 429 says "not now" in any case.
        if status == 429 && self.wait("error", now).is_none() {
            self.limit(ALL, DEFAULT, now);
        }
    }

    /// `60:error;session:organization:quota_exceeded, 2700::key`.
    fn parse(&mut self, header: &str, now: SystemTime) {
        for limit in header.split(',') {
            let mut parts = limit.trim().split(':');
            let wait = parts.next().and_then(|seconds| seconds.trim().parse::<f64>().ok());
            let Some(wait) = wait.filter(|wait| wait.is_finite() && *wait >= 0.0) else { continue };
            let wait = Duration::from_secs_f64(wait.min(MAX_TIME.as_secs_f64()).ceil());
            let categories = parts.next().unwrap_or_default().trim();
            if categories.is_empty() {
                self.limit(ALL, wait, now);
            }
            for category in categories.split(';').map(str::trim).filter(|name| CATEGORIES.contains(name)) {
                self.limit(category, wait, now);
            }
        }
    }

    /// The longer of two limits stands.
    fn limit(&mut self, category: &str, wait: Duration, now: SystemTime) {
        let until = seconds(now).saturating_add(wait.min(MAX_TIME).as_secs());
        let entry = self.until.entry(category.to_owned()).or_default();
        *entry = (*entry).max(until);
    }

    /// How long nothing of that category may be sent; `None` if it may.
    pub fn wait(&self, category: &str, now: SystemTime) -> Option<Duration> {
        // Client reports are never limited, but for what stops everything.
        let names = [ALL, category];
        let until = names.iter().filter_map(|name| self.until.get(*name)).max()?;
        let left = until.checked_sub(seconds(now)).filter(|left| *left > 0)?;
        Some(Duration::from_secs(left)).filter(|left| *left <= MAX_TIME)
    }

    /// Forgets all: they are another server's.
    pub fn clear(&mut self) {
        self.until.clear();
    }
}

/// Since the Unix epoch.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
