extern crate std;

use super::*;

const GROUPS: &[u8] = b"9:name=systemd:/\n4:cpu,memory:/docker/4c\n0::/user.slice/a.scope\n";

#[test]
fn the_memory_controller_is_found_by_its_name_or_as_version_2() {
    assert_eq!(memory_path(GROUPS, false), Some(&b"/docker/4c"[..]));
    assert_eq!(memory_path(GROUPS, true), Some(&b"/user.slice/a.scope"[..]));
    assert_eq!(memory_path(b"0::/\n", true), Some(&b""[..]));
    assert_eq!(memory_path(b"0::/\n", false), None);
    // Outside of what the process's cgroup namespace shows.
    assert_eq!(memory_path(b"0::/../../other\n", true), None);
    assert_eq!(memory_path(b"", true), None);
}

#[test]
fn numbers_of_the_kernels_files() {
    let events = b"low 0\nhigh 0\nmax 17\noom 2\noom_kill 3\noom_group_kill 4\n";
    assert_eq!((counter(events, b"oom_kill"), counter(events, b"max")), (Some(3), Some(17)));
    assert_eq!(counter(b"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", b"oom_kill"), Some(1));
    assert_eq!(counter(b"oom_kill_disable 0\n", b"oom_kill"), None);
    assert_eq!((signed(b"-998\n"), signed(b"200\n"), signed(b"")), (Some(-998), Some(200), None));
    let text = b"some avg10=12.34 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=0\n";
    assert_eq!(pressure(text), Some(1234));
    assert_eq!(pressure(b"some avg10=x\n"), None);
}

#[test]
fn this_process() {
    let vitals = Vitals::read();
    assert!(vitals.memory_used.is_some_and(|bytes| bytes > 100 << 10), "{vitals:?}");
    assert!(vitals.oom_score_adj.is_some() && vitals.cpu_used_ms.is_some(), "{vitals:?}");
    // Like `grep`, in a file that is longer than one read.
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let expected = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
    assert_eq!(vitals.machine_oom_kills, expected);
}
