//! Counts of discarded items and their reports.

use std::time::SystemTime;

use coroner_sentry::client_report::{Discarded, Reason};

#[test]
fn only_reported_counts_are_subtracted() {
    let mut discarded = Discarded::default();
    discarded.count(Reason::BeforeSend, "error");
    discarded.count(Reason::BeforeSend, "error");
    discarded.count(Reason::SendError, "attachment");
    discarded.count(Reason::SendError, "internal");
    let reported = discarded.clone();
    let json: serde_json::Value = serde_json::from_slice(&reported.item(SystemTime::UNIX_EPOCH).payload).unwrap();
    assert_eq!(
        json["discarded_events"],
        serde_json::json!([
            { "reason": "before_send", "category": "error", "quantity": 2 },
            { "reason": "send_error", "category": "attachment", "quantity": 1 },
        ])
    );
    discarded.count(Reason::BeforeSend, "error");
    discarded.subtract(&reported);
    let mut left = Discarded::default();
    left.count(Reason::BeforeSend, "error");
    assert_eq!(discarded, left);
}
