use coroner_report::model::{Breadcrumb, Lifecycle};
use coroner_report::wire::Monitor;

use super::*;

fn run() -> RunFacts {
    let mut run = RunFacts { run_id: Id([0xab; 16]), ..RunFacts::default() };
    run.app.release = Some("app@1".into());
    run.app.installed = Some(Timestamp(5));
    run.os.version = Some("15".into());
    run.device.boot_time = Some(Timestamp(1_000_000_000_000));
    run
}

#[test]
fn every_other_explanation_rules_out_a_watchdog() {
    let now = Conditions::from_run(&run());
    assert!(is_watchdog(&run(), &now));
    let mut clock_was_set = run();
    clock_was_set.device.boot_time = Some(Timestamp(1_001_000_000_000));
    assert!(is_watchdog(&clock_was_set, &now));

    let other = |change: &dyn Fn(&mut RunFacts)| {
        let mut run = run();
        change(&mut run);
        is_watchdog(&run, &now)
    };
    assert!(!other(&|run| run.app.release = Some("app@0".into())), "an update ends an app");
    assert!(!other(&|run| run.os.version = Some("14".into())), "so does one of the system");
    assert!(!other(&|run| run.device.boot_time = Some(Timestamp(5))), "and a restart");
    assert!(!other(&|run| run.device.boot_time = None));
    assert!(!other(&|run| run.lifecycle.debugged = true));
    assert!(!other(&|run| run.lifecycle.foreground = Foreground::BACKGROUND));
    assert!(!other(&|run| run.lifecycle.crashed_by = Some(Monitor::SIGNAL)));
    for exit in [ExitKind::CLEAN, ExitKind::SIGTERM, ExitKind::UNINSTALLED, ExitKind::CRASHED] {
        assert!(!other(&|run| run.lifecycle.exit = exit));
    }
}

#[test]
fn the_event_has_its_own_id_and_the_last_known_time() {
    let mut run = run();
    assert_eq!(event_id(&run).to_string(), "54545454545444549454545454545454");
    assert_eq!(last_sign(&run), Timestamp(5));
    run.breadcrumbs = vec![Breadcrumb { time: Timestamp(9), ..Breadcrumb::default() }];
    assert_eq!(last_sign(&run), Timestamp(9));
    run.lifecycle = Lifecycle { last_alive: Some(Timestamp(7)), ..Lifecycle::default() };
    assert_eq!(last_sign(&run), Timestamp(9));
}
