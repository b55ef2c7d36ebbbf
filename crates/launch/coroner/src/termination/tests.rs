use coroner_process::vitals::{MemoryCgroup, Vitals as Read};
use coroner_report::model::{ProcessIdentity, Timestamp, Vitals};

use super::*;

const CGROUP: u64 = 4711;
const MIB: u64 = 1 << 20;

/// A run that used 200 of its cgroup's 256 MiB at the last reading, with no kills before.
fn run() -> RunFacts {
    let mut run = RunFacts::default();
    run.app.installed = Some(Timestamp(1000));
    run.app.process_name = Some("paint".to_owned());
    run.app.build_id = Some("ab".to_owned());
    run.os.boot_id = Some("11".to_owned());
    run.device.memory_size = Some(8192 * MIB);
    run.lifecycle.memory_used = Some(200 * MIB);
    run.process = Some(ProcessIdentity { pid: 77, start: 5000, pid_namespace: 0xEFFF_FFFC, ..Default::default() });
    run.vitals = Some(Vitals {
        read: Timestamp(2000),
        machine_oom_kills: Some(3),
        cgroup: Some(CGROUP),
        cgroup_oom_kills: Some(0),
        cgroup_memory_limit: Some(256 * MIB),
        cpu_used_ms: Some(1000),
        ..Vitals::default()
    });
    run
}

/// A machine with these numbers of killed processes, on the machine and in the cgroup.
fn now(machine: u64, cgroup: u64) -> Now {
    let found = MemoryCgroup { id: CGROUP, oom_kills: Some(cgroup), ..MemoryCgroup::default() };
    let vitals = Read { machine_oom_kills: Some(machine), cgroup: Some(found), ..Read::default() };
    Now { boot_id: Some("11".to_owned()), build_id: Some("ab".to_owned()), vitals, kernel_log: || None }
}

fn found(run: &RunFacts, now: &Now) -> (TerminationReason, TerminationCertainty) {
    let found = explain(run, now);
    (found.reason, found.certainty)
}

const UNKNOWN: (TerminationReason, TerminationCertainty) = (TerminationReason::Unknown, TerminationCertainty::Possible);

#[test]
fn unchanged_counters_exclude_out_of_memory() {
    for now in [now(3, 0), now(4, 0)] {
        assert_eq!(found(&run(), &now), UNKNOWN);
        assert_eq!(explain(&run(), &now).evidence.len(), 1);
    }
    // A counter at 0 is sufficient without an earlier reading.
    let mut run = run();
    run.vitals = None;
    assert_eq!(explain(&run, &now(0, 0)).evidence.len(), 1);
}

#[test]
fn a_changed_counter_and_a_large_process_are_likely_out_of_memory() {
    assert_eq!(found(&run(), &now(4, 1)), (TerminationReason::OutOfMemory, TerminationCertainty::Likely));
    assert_eq!(outcome(&explain(&run(), &now(4, 1))), Some(Outcome::OutOfMemory));
}

#[test]
fn another_process_of_the_cgroup_may_have_been_the_victim() {
    let mut run = run();
    run.lifecycle.memory_used = Some(20 * MIB);
    assert_eq!(found(&run, &now(4, 1)), (TerminationReason::OutOfMemory, TerminationCertainty::Possible));
    assert_eq!(outcome(&explain(&run, &now(4, 1))), None, "the outcome stays unknown");
    // An earlier run's reading does not show how large this run was.
    run.lifecycle.memory_used = Some(200 * MIB);
    run.vitals.as_mut().unwrap().read = Timestamp(500);
    assert_eq!(found(&run, &now(4, 1)).1, TerminationCertainty::Possible);
}

#[test]
fn a_recreated_cgroup_is_another_one() {
    let mut now = now(4, 0);
    now.vitals.cgroup.as_mut().unwrap().id += 1;
    assert_eq!(
        found(&run(), &now),
        (TerminationReason::OutOfMemory, TerminationCertainty::Likely),
        "by the machine's counter"
    );
    now.vitals.machine_oom_kills = Some(3);
    assert_eq!(found(&run(), &now), UNKNOWN);
}

#[test]
fn without_an_earlier_reading_out_of_memory_is_only_possible() {
    let mut run = run();
    run.vitals = None;
    assert_eq!(found(&run, &now(4, 1)), (TerminationReason::OutOfMemory, TerminationCertainty::Possible));
}

#[test]
fn the_kernels_log_proves_or_excludes_out_of_memory() {
    let victim =
        || Some("<6>[ 1.0] boot\n<4>[ 60.0] Out of memory: Killed process 77 (paint) total-vm:1kB\n".to_owned());
    let other =
        || Some("<6>[ 1.0] boot\n<4>[ 60.0] Out of memory: Killed process 78 (paint) total-vm:1kB\n".to_owned());
    let earlier =
        || Some("<6>[ 1.0] boot\n<4>[ 20.0] Out of memory: Killed process 77 (paint) total-vm:1kB\n".to_owned());
    let renamed =
        || Some("<6>[ 1.0] boot\n<4>[ 60.0] Out of memory: Killed process 77 (other) total-vm:1kB\n".to_owned());
    let with = |kernel_log| found(&run(), &Now { kernel_log, ..now(4, 1) });
    assert_eq!(with(victim), (TerminationReason::OutOfMemory, TerminationCertainty::Certain));
    assert_eq!(with(renamed), (TerminationReason::OutOfMemory, TerminationCertainty::Likely));
    assert_eq!((with(other), with(earlier)), (UNKNOWN, UNKNOWN));
    // Process ids of a container are not those in the log.
    let mut run = run();
    run.process.as_mut().unwrap().pid_namespace = 4_026_532_000;
    run.lifecycle.memory_used = Some(MIB);
    assert_eq!(found(&run, &Now { kernel_log: victim, ..now(4, 1) }).1, TerminationCertainty::Possible);
}

#[test]
fn another_boot_id_is_a_system_restart() {
    let other = Now { boot_id: Some("22".to_owned()), ..now(3, 0) };
    assert_eq!(found(&run(), &other), (TerminationReason::SystemRestart, TerminationCertainty::Likely));
    let unknown = Now { boot_id: None, ..now(3, 0) };
    assert_eq!(found(&run(), &unknown), UNKNOWN);
}

#[test]
fn cpu_time_a_debugger_and_an_update_are_detected() {
    let mut used = run();
    used.vitals.as_mut().unwrap().cpu_limit_s = Some(1);
    assert_eq!(found(&used, &now(3, 0)), (TerminationReason::CpuLimit, TerminationCertainty::Likely));
    used.vitals.as_mut().unwrap().cpu_limit_s = Some(2);
    assert_eq!(found(&used, &now(3, 0)), UNKNOWN, "half of its time");
    let evidence = explain(&used, &now(3, 0)).evidence;
    assert!(evidence.iter().any(|sentence| sentence.contains("the kernel kills it at 2 s")), "{evidence:?}");
    let mut debugged = run();
    debugged.lifecycle.debugged = true;
    assert_eq!(found(&debugged, &now(3, 0)), (TerminationReason::Debugger, TerminationCertainty::Likely));
    let replaced = Now { build_id: Some("cd".to_owned()), ..now(3, 0) };
    let update = explain(&run(), &replaced);
    assert_eq!((update.reason, update.certainty), (TerminationReason::AppUpdate, TerminationCertainty::Possible));
    assert_eq!(outcome(&update), None);
}

#[test]
fn a_signals_sender_and_a_handler_that_did_not_exit_are_evidence() {
    let mut run = run();
    assert_eq!(from_signal(&run), None);
    run.lifecycle.exit = ExitKind::SIGTERM;
    run.lifecycle.exit_signal = Some(libc::SIGTERM);
    run.lifecycle.exit_sender = Some(1);
    run.lifecycle.exit_sender_name = Some("systemd".to_owned());
    let asked = from_signal(&run).unwrap();
    assert_eq!(asked.evidence, ["SIGTERM was sent by process 1 (systemd)"]);
    assert_eq!((asked.reason, asked.certainty), (TerminationReason::Signal, TerminationCertainty::Certain));
    run.lifecycle.exit_handled = true;
    assert_eq!(from_signal(&run).unwrap().reason, TerminationReason::StopTimeout);
}
