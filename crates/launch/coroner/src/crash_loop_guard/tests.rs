use super::*;
use crate::last_run::PastCrash;
use crate::outcome::Outcome;

fn last_run(ran_for_ms: &[Option<u64>]) -> LastRun {
    let crashes = ran_for_ms.iter().map(|ran_for_ms| PastCrash { ran_for_ms: *ran_for_ms, signature: None }).collect();
    LastRun { outcome: Outcome::Crashed, crashes, ..LastRun::FIRST_LAUNCH }
}

#[test]
fn it_is_due_after_early_crashes_in_a_row() {
    let guard = StartupGuard::default();
    assert!(!guard.is_due(&LastRun::FIRST_LAUNCH) && !guard.is_due(&last_run(&[Some(1), Some(2)])));
    assert!(guard.is_due(&last_run(&[Some(1), None, Some(10_000), Some(99_999)])));
    assert!(!guard.is_due(&last_run(&[Some(1), Some(60_000), Some(1), Some(1)])), "one ran longer");
    let strict = StartupGuard::default().crashes(0).within(Duration::from_millis(100));
    assert!(
        strict.is_due(&last_run(&[Some(100)]))
            && !strict.is_due(&last_run(&[Some(101)]))
            && !strict.is_due(&last_run(&[]))
    );
}
