//! Rate limits in the headers of servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_sentry::rate_limits::RateLimits;

const NOW: SystemTime = UNIX_EPOCH;

fn after(status: u16, limits: Option<&str>, retry: Option<&str>) -> RateLimits {
    let mut all = RateLimits::default();
    all.update("error", status, limits, retry, NOW);
    all
}

fn wait(limits: &RateLimits, category: &str) -> Option<u64> {
    limits.wait(category, NOW).map(|wait| wait.as_secs())
}

#[test]
fn a_limit_applies_to_its_categories_or_to_all() {
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
fn a_429_uses_retry_after_or_the_default() {
    assert_eq!(wait(&after(429, None, Some("120")), "error"), Some(120));
    assert_eq!(wait(&after(429, None, Some("Thu, 01 Jan 1970 00:02:00 GMT")), "error"), Some(120));
    assert_eq!(wait(&after(429, None, Some("soon")), "error"), Some(60));
    assert_eq!(wait(&after(429, None, None), "error"), Some(60));
    assert_eq!(wait(&after(429, Some("60:transaction"), None), "error"), Some(60), "a 429 is a 429");
}

#[test]
fn the_longer_of_two_limits_applies() {
    let mut limits = after(200, Some("100:error"), None);
    limits.update("error", 200, Some("10:error"), None, NOW);
    assert_eq!(wait(&limits, "error"), Some(100));
    assert_eq!(limits.wait("error", NOW + Duration::from_secs(100)), None);
    let kept = serde_json::to_string(&limits).unwrap();
    assert_eq!(serde_json::from_str::<RateLimits>(&kept).unwrap(), limits);
    // A clock set back does not make a limit of years.
    assert_eq!(after(200, Some("100:error"), None).wait("error", NOW), Some(Duration::from_secs(100)));
    let mut future = RateLimits::default();
    future.update("error", 200, Some("100:error"), None, NOW + Duration::from_hours(10_000));
    assert_eq!(future.wait("error", NOW), None);
}

#[test]
fn an_unavailable_server_is_left_alone_for_the_time_it_asks_for() {
    for status in [408, 425, 500, 502, 503, 504, 520] {
        for category in ["error", "session", "feedback", "attachment"] {
            assert_eq!(wait(&after(status, None, Some("120")), category), Some(120), "{status}");
            assert_eq!(wait(&after(status, None, None), category), None, "{status}");
        }
    }
    // These are not about the time.
    for status in [200, 400, 413, 511] {
        assert_eq!(wait(&after(status, None, Some("120")), "error"), None, "{status}");
    }
}

#[test]
fn feedback_has_its_own_limit() {
    let limits = after(200, Some("3600:feedback:organization"), None);
    assert_eq!((wait(&limits, "feedback"), wait(&limits, "error")), (Some(3600), None));
    let mut limits = RateLimits::default();
    limits.update("feedback", 429, Some("3600:feedback:organization"), None, NOW);
    assert_eq!((wait(&limits, "feedback"), wait(&limits, "error")), (Some(3600), None));
    assert_eq!(wait(&after(429, Some("3600:feedback"), None), "error"), Some(60), "a 429 is a 429");
}
