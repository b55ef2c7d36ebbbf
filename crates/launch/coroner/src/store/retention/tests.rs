use super::*;

fn items(list: &[(u64, u64)]) -> Vec<Kept<u64>> {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    list.iter()
        .map(|&(seconds, bytes)| Kept { item: seconds, worth: Worth::Report, since: at(seconds), bytes })
        .collect()
}

fn gone(limits: Retention, list: &[(u64, u64)], now: u64) -> Vec<u64> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
    limits.beyond(items(list), now).into_iter().map(|kept| kept.item).collect()
}

const ROOMY: Retention = Retention { number: 100, runs: 100, age: Duration::from_secs(1_000_000), bytes: 1_000_000 };

#[test]
fn the_oldest_are_removed_first_by_number() {
    assert_eq!(gone(Retention { number: 2, ..ROOMY }, &[(30, 1), (10, 1), (20, 1)], 40), [10]);
    assert_eq!(gone(Retention { number: 0, ..ROOMY }, &[(30, 1), (10, 1)], 40), [10, 30]);
}

#[test]
fn the_oldest_are_removed_first_by_size() {
    assert_eq!(gone(Retention { bytes: 100, ..ROOMY }, &[(1, 60), (2, 60), (3, 30)], 4), [1]);
    // An item that is too large by itself is removed, but only after everything older.
    assert_eq!(gone(Retention { bytes: 100, ..ROOMY }, &[(1, 10), (2, 500), (3, 30)], 4), [1, 2]);
}

#[test]
fn runs_without_a_report_are_removed_first_and_do_not_count_as_reports() {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let kept = |item, worth| Kept { item, worth, since: at(item), bytes: 10 };
    let items = || vec![kept(1, Worth::Report), kept(2, Worth::Partial), kept(3, Worth::Run), kept(4, Worth::Run)];
    let gone = |limits: Retention| {
        let goes = limits.beyond(items(), at(5));
        goes.into_iter().map(|kept| kept.item).collect::<Vec<u64>>()
    };
    assert_eq!(gone(Retention { number: 2, runs: 2, ..ROOMY }), [0_u64; 0]);
    assert_eq!(gone(Retention { number: 2, runs: 1, ..ROOMY }), [3]);
    assert_eq!(gone(Retention { number: 1, ..ROOMY }), [2]);
    assert_eq!(gone(Retention { bytes: 25, ..ROOMY }), [3, 4]);
    assert_eq!(gone(Retention { bytes: 15, ..ROOMY }), [3, 4, 2]);
}

#[test]
fn old_items_are_removed_and_a_clock_set_back_loses_nothing() {
    assert_eq!(gone(Retention { age: Duration::from_secs(50), ..ROOMY }, &[(10, 1), (60, 1)], 100), [10]);
    assert_eq!(gone(Retention { age: Duration::from_secs(50), ..ROOMY }, &[(10, 1), (60, 1)], 5), [0_u64; 0]);
}
