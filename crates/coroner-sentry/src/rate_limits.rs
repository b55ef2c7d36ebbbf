//! Rate limits: until when a server wants no more of what (develop.sentry.dev, *Rate Limiting*).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// How long nothing is sent after a 429 that does not say.
const DEFAULT: Duration = Duration::from_mins(1);
/// A limit is believed for a day at most, so that a clock that was wrong, or a server that was, holds nothing back for years.
const LONGEST: Duration = Duration::from_hours(24);
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
            let wait = Duration::from_secs_f64(wait.min(LONGEST.as_secs_f64()).ceil());
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
        let until = seconds(now).saturating_add(wait.min(LONGEST).as_secs());
        let entry = self.until.entry(category.to_owned()).or_default();
        *entry = (*entry).max(until);
    }

    /// How long nothing of that category may be sent; `None` if it may.
    pub fn wait(&self, category: &str, now: SystemTime) -> Option<Duration> {
        // Client reports are never limited, but for what stops everything.
        let names = [ALL, category];
        let until = names.iter().filter_map(|name| self.until.get(*name)).max()?;
        let left = until.checked_sub(seconds(now)).filter(|left| *left > 0)?;
        Some(Duration::from_secs(left)).filter(|left| *left <= LONGEST)
    }

    /// Forgets all: they are another server's.
    pub fn clear(&mut self) {
        self.until.clear();
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return (seconds.is_finite() && seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(86_400.0).ceil()));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let date = u64::try_from(date.as_second()).ok()?;
    Some(Duration::from_secs(date.saturating_sub(seconds(now))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = UNIX_EPOCH;

    fn after(status: u16, limits: Option<&str>, retry: Option<&str>) -> RateLimits {
        let mut all = RateLimits::default();
        all.update(status, limits, retry, NOW);
        all
    }

    fn wait(limits: &RateLimits, category: &str) -> Option<u64> {
        limits.wait(category, NOW).map(|wait| wait.as_secs())
    }

    #[test]
    fn categories_and_all() {
        let limits = after(200, Some("60:error;session:organization:quota , 2700:transaction:key"), None);
        assert_eq!(
            (wait(&limits, "error"), wait(&limits, "session"), wait(&limits, "attachment")),
            (Some(60), Some(60), None)
        );
        // Bugsink's, on every 200 and over quota.
        assert_eq!(wait(&after(200, Some("86400:transaction;span:organization"), None), "error"), None);
        let limits = after(429, Some("60::key, 86400:transaction;span:organization"), None);
        assert_eq!((wait(&limits, "error"), wait(&limits, "session")), (Some(60), Some(60)));
        for odd in ["", ":::", "abc:error", "-5:error", "NaN:error", "60:unheard_of", "🙂"] {
            assert_eq!(wait(&after(200, Some(odd), None), "error"), None, "{odd}");
        }
        assert_eq!(wait(&after(200, Some("1e99:error"), None), "error"), Some(86_400));
    }

    #[test]
    fn retry_after_and_nothing() {
        assert_eq!(wait(&after(429, None, Some("120")), "error"), Some(120));
        assert_eq!(wait(&after(429, None, Some("Thu, 01 Jan 1970 00:02:00 GMT")), "error"), Some(120));
        assert_eq!(wait(&after(429, None, Some("soon")), "error"), Some(60));
        assert_eq!(wait(&after(429, None, None), "error"), Some(60));
        assert_eq!(wait(&after(503, None, Some("120")), "error"), None);
        assert_eq!(wait(&after(429, Some("60:transaction"), None), "error"), Some(60), "a 429 is a 429");
    }

    #[test]
    fn the_longer_one_stands_until_it_is_over() {
        let mut limits = after(200, Some("100:error"), None);
        limits.update(200, Some("10:error"), None, NOW);
        assert_eq!(wait(&limits, "error"), Some(100));
        assert_eq!(limits.wait("error", NOW + Duration::from_secs(100)), None);
        let kept = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<RateLimits>(&kept).unwrap(), limits);
        // A clock set back does not make a limit of years.
        assert_eq!(after(200, Some("100:error"), None).wait("error", NOW), Some(Duration::from_secs(100)));
        let mut future = RateLimits::default();
        future.update(200, Some("100:error"), None, NOW + Duration::from_hours(10_000));
        assert_eq!(future.wait("error", NOW), None);
    }
}
