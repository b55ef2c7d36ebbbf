//! Rate limits by category (develop.sentry.dev, *Rate Limiting*).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_outbox::{MAX_WAIT, parse_retry_after};
use serde::{Deserialize, Serialize};

/// The wait after a 429 that specifies no time.
const DEFAULT: Duration = Duration::from_mins(1);
/// Maximum duration of a limit: one day.
///
/// Otherwise a wrong clock or a faulty server could block delivery for years.
const MAX_TIME: Duration = MAX_WAIT;
/// The key for all categories.
const ALL: &str = "";
/// The categories of the items that Coroner sends. Limits of other categories are ignored.
const CATEGORIES: [&str; 6] = ["default", "error", "attachment", "feedback", "session", "internal"];

/// One server's rate limits by category, persisted across restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RateLimits {
    /// The end of each limit, in seconds since the Unix epoch.
    until: BTreeMap<String, u64>,
}

impl RateLimits {
    /// Updates the limits from the headers of the response to an envelope of `category`, whatever
    /// its status: `X-Sentry-Rate-Limits`, else `Retry-After` for a 429 or an unavailable server.
    pub fn update(
        &mut self,
        category: &str,
        status: u16,
        rate_limits: Option<&str>,
        retry_after: Option<&str>,
        now: SystemTime,
    ) {
        self.until.retain(|_, until| *until > seconds(now));
        let requested = retry_after.and_then(|text| parse_retry_after(text, now));
        match (rate_limits, status) {
            (Some(header), _) => self.parse(header, now),
            (None, 429) => self.limit(ALL, requested.unwrap_or(DEFAULT), now),
            // 511 comes from a network that requires a login (RFC 6585).
            (None, 408 | 425 | 500..=510 | 512..=599) => {
                requested.into_iter().for_each(|wait| self.limit(ALL, wait, now));
            }
            (None, _) => {}
        }
        // A 429 always stops what was sent, whatever its headers contain.
        if status == 429 && self.wait(category, now).is_none() {
            self.limit(ALL, DEFAULT, now);
        }
    }

    /// Parses `60:error;session:organization:quota_exceeded, 2700::key`.
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

    /// Adds a limit; the later end of two limits of a category applies.
    fn limit(&mut self, category: &str, wait: Duration, now: SystemTime) {
        let until = seconds(now).saturating_add(wait.min(MAX_TIME).as_secs());
        let entry = self.until.entry(category.to_owned()).or_default();
        *entry = (*entry).max(until);
    }

    /// Returns how long the category is still limited; `None` if it may be sent.
    pub fn wait(&self, category: &str, now: SystemTime) -> Option<Duration> {
        // Client reports are only limited by limits of all categories.
        let names = [ALL, category];
        let until = names.iter().filter_map(|name| self.until.get(*name)).max()?;
        let left = until.checked_sub(seconds(now)).filter(|left| *left > 0)?;
        Some(Duration::from_secs(left)).filter(|left| *left <= MAX_TIME)
    }

    /// Removes all limits, as when the server changes.
    pub fn clear(&mut self) {
        self.until.clear();
    }
}

/// Returns the seconds since the Unix epoch.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
