use super::*;

const LOG: &str = "<5>[    0.000000] Linux version 6.1.0\n\
    <4>[  100.500000] Memory cgroup out of memory: Killed process 77 (paint) total-vm:1kB, anon-rss:2kB, file-rss:0kB\n\
    <6>[  101.000000] oom_reaper: reaped process 77 (paint), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\n\
    [  200.250000] Out of memory: Killed process 78 (a) (b) total-vm:1kB, anon-rss:2kB\n\
    <4>[  300.000000] somebody wrote: Killed process 79 (paint) total-vm:1kB\n";

#[test]
fn victims_are_found_by_time_and_process_id() {
    let pids = |start| victims_in(LOG, start).victims.iter().map(|victim| victim.pid).collect::<Vec<_>>();
    assert_eq!(pids(500_000), [77, 78], "the last line is not the kernel's");
    assert_eq!(pids(100_600_000), [78], "an earlier process with the same id counts");
    assert!(pids(300_000_000).is_empty());
    let found = victims_in(LOG, 500_000);
    assert!(found.is_whole);
    assert!(found.victims[0].line.starts_with("Memory cgroup out of memory: Killed process 77 (paint)"));
    assert!(found.victims[0].is_of("paint") && !found.victims[0].is_of("paintbrush"));
    assert_eq!(found.victims[1].name, "a) (b");
}

#[test]
fn an_overwritten_log_does_not_cover_the_time_before() {
    let rest = LOG.split_once('\n').unwrap().1;
    assert!(!victims_in(rest, 50_000_000).is_whole);
    assert!(victims_in(rest, 150_000_000).is_whole);
    assert!(!victims_in("", 150_000_000).is_whole);
    assert!(!victims_in("no times\n", 150_000_000).is_whole);
}

#[test]
fn the_kernel_truncates_a_long_name() {
    let log = "<4>[  2.0] Out of memory: Killed process 5 (a-program-with-) total-vm:1kB\n";
    assert!(victims_in(log, 1_000_000).victims[0].is_of("a-program-with-a-long-name"));
}
