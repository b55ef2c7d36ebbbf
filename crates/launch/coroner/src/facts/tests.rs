use std::sync::atomic::AtomicU64;

use coroner_report::RunFacts;
use coroner_report::run_state::{ProcessIdentity, RunState};

use super::*;

#[test]
fn the_facts_of_this_process_are_in_its_run_state() {
    let limits = Limits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::of_this_process()).unwrap();
    // SAFETY: the words live as long as the test.
    let state: RunState<'static> = unsafe { std::mem::transmute(state) };
    let (program, limits) = (&b"/bin/app"[..], Default::default());
    let run = Run { id: [1; 16], pid: 1, state, limits, previous: None, program, pid_namespace: 7 };
    write(&run, &App { id: "app", version: Some("1.2"), environment: Some("test"), ..App::default() });

    let facts = RunFacts::read(&state.to_bytes()).unwrap();
    assert_eq!(facts.app.process_name.as_deref(), Some("app"));
    assert_eq!(facts.app.id.as_deref(), Some("app"));
    assert_eq!(facts.app.release.as_deref(), Some("app@1.2"));
    assert_eq!(facts.app.environment.as_deref(), Some("test"));
    assert_eq!(facts.app.pid, Some(std::process::id()));
    assert!(facts.device.processor_count.is_some_and(|count| count > 0));
    assert!(facts.os.kernel_version.is_some());
    assert!(facts.app.runtime_name.is_some());
    assert!(facts.problems.is_empty(), "{:?}", facts.problems);
}
