//! Computes how long to wait before contacting a server again.

use std::time::{Duration, SystemTime};

/// Maximum wait, whatever a server or a clock says.
pub const MAX_WAIT: Duration = Duration::from_hours(24);

/// Returns the wait after `tries` earlier failed attempts: `first`, doubled for each of the first
/// `doublings` attempts.
pub fn backoff(first: Duration, doublings: u32, tries: u32) -> Duration {
    let most = doublings.saturating_sub(1).min(16);
    first.saturating_mul(1 << tries.min(most)).min(MAX_WAIT)
}

/// Parses `Retry-After` (RFC 9110, 10.2.3), a number of seconds or a date. The result is at most a
/// day.
pub fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        let wait = seconds.min(MAX_WAIT.as_secs_f64()).ceil();
        return (seconds.is_finite() && seconds >= 0.0).then(|| Duration::from_secs_f64(wait));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default().min(MAX_WAIT))
}
