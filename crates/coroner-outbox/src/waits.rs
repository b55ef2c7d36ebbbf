//! How long to wait before a server is asked again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// No wait is longer than this, whatever a server or a clock says.
pub const MAX_WAIT: Duration = Duration::from_hours(24);

/// How long to wait after `tries` tries have failed before: `first`, doubling with the first `doublings` of them.
pub fn backoff(first: Duration, doublings: u32, tries: u32) -> Duration {
    let most = doublings.saturating_sub(1).min(16);
    first.saturating_mul(1 << tries.min(most)).min(MAX_WAIT)
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date. A day at most.
pub fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        let wait = seconds.min(MAX_WAIT.as_secs_f64()).ceil();
        return (seconds.is_finite() && seconds >= 0.0).then(|| Duration::from_secs_f64(wait));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let date = u64::try_from(date.as_second()).ok()?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Some(Duration::from_secs(date.saturating_sub(now)).min(MAX_WAIT))
}
