use super::*;

fn crash(tid: u64) -> ConcurrentCrash {
    ConcurrentCrash { tid, after_ns: Some(150), ..EMPTY }
}

fn tids(table: &ConcurrentCrashes, own: u64) -> ([u64; CAPACITY], usize) {
    let mut copied = [EMPTY; CAPACITY];
    let count = table.copy(&mut copied, own, 100);
    assert!(copied.iter().take(count).all(|crash| crash.after_ns == Some(50)));
    (copied.map(|crash| crash.tid), count)
}

#[test]
fn a_late_crash_is_not_part_of_the_next_report() {
    let table = ConcurrentCrashes::new();
    assert!(table.add(&crash(1), 0));
    table.close();
    assert!(!table.add(&crash(2), 0), "the report has no room for it any more");
    table.reopen(1);
    assert!(!table.add(&crash(3), 0), "its claim failed before the release: it has to claim again");
    assert!(table.add(&crash(4), 1));
    let (found, count) = tids(&table, 0);
    assert_eq!((found.first(), count), (Some(&4), 1));
}

#[test]
fn the_owner_and_threads_stopped_on_entry_are_left_out() {
    let table = ConcurrentCrashes::new();
    assert!(table.add(&crash(1), 0));
    table.used.fetch_add(1, Ordering::Relaxed); // this one was stopped
    assert!(table.add(&crash(3), 0));
    assert_eq!((table.count(1), table.count(9), table.has(1), table.has(2)), (1, 2, true, false));
    assert_eq!(tids(&table, 1).0.first(), Some(&3));
}
