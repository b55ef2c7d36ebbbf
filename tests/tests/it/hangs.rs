//! Threads that do not answer: real processes that hang and continue or are killed, and the reports
//! at the next launch.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::time::Duration;

use coroner_tests::hang;
use serde_json::Value;

/// A threshold that a busy machine does not exceed, for threads that beat in time.
const LONG: &str = "1000";
/// A short threshold, for threads that stay silent until the hang is detected.
const SHORT: &str = "200";

struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn spawn(&self, threshold: &str, words: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hang_program"));
        command.arg(self.folder.path()).arg(threshold).args(words).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs the program to its end and returns its output.
    fn run(&self, threshold: &str, words: &[&str]) -> String {
        let output = self.spawn(threshold, words).wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the program until it prints that it hangs, and kills it.
    fn kill(&self, words: &[&str]) {
        let mut child = self.spawn(SHORT, words);
        let mut shown = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(shown.any(|line| line.unwrap() == "hangs"), "it ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Returns the reports that the folder sink wrote, in the order of the crashes.
    fn delivered(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(self.folder.path().join("reports")).into_iter().flatten().flatten();
        let json = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json"));
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
        let mut reports: Vec<Value> = json.map(read).collect();
        reports.sort_by_key(|report| report["crash"]["time"].as_str().unwrap().to_owned());
        reports
    }
}

fn hung_thread(report: &Value) -> &Value {
    let threads = report["threads"].as_array().unwrap();
    let of_hang: Vec<&Value> = threads.iter().filter(|thread| thread["tid"] == report["crash"]["tid"]).collect();
    let [thread] = of_hang.as_slice() else { panic!("the thread is there {} times", of_hang.len()) };
    thread
}

fn functions(thread: &Value) -> Vec<&str> {
    thread["frames"].as_array().unwrap().iter().filter_map(|frame| frame["function"].as_str()).collect()
}

fn is_nonfatal(report: &Value) -> bool {
    report["crash"]["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "not_fatal"))
}

#[test]
fn a_hang_that_ends_is_reported_with_its_stack_and_its_length() {
    let program = Program::new();
    program.run(SHORT, &["silent", "beat-for=100", "silent"]);
    let shown = program.run(LONG, &["flush"]);
    assert!(shown.contains("last run: CleanExit") && shown.contains("flushed: true"), "{shown}");
    let reports = program.delivered();
    assert_eq!(reports.len(), 2, "one of each hang");
    for (number, report) in reports.iter().enumerate() {
        assert_eq!((&report["complete"], &report["crash"]["monitor"]), (&true.into(), &"hang".into()));
        assert!(is_nonfatal(report));
        let hang = &report["crash"]["hang"];
        assert_eq!(hang["number"], number);
        let (lasted, all) = (hang["lasted_ns"].as_u64().unwrap(), hang["duration_ns"].as_u64().unwrap());
        assert!(lasted >= 200_000_000 && all >= lasted, "{hang}");
        let thread = hung_thread(report);
        assert!(functions(thread).iter().any(|name| name.contains("does_not_answer")), "{thread}");
        assert_eq!((&thread["crashed"], &thread["main"]), (&true.into(), &true.into()));
        let names = report["threads"].as_array().unwrap().iter().filter_map(|thread| thread["name"].as_str());
        assert!(
            !names.into_iter().any(|name| name.starts_with("coroner-watch")),
            "the thread that watches is not the app's"
        );
    }
}

#[test]
fn a_hang_ended_by_a_kill_is_fatal() {
    let program = Program::new();
    program.kill(&["silent", "forever"]);
    let shown = program.run(LONG, &["flush"]);
    let reports = program.delivered();
    let [ended, fatal] = reports.as_slice() else { panic!("{} reports", reports.len()) };
    assert!(is_nonfatal(ended) && !is_nonfatal(fatal));
    assert_eq!(fatal["crash"]["hang"].get("duration_ns"), None);
    let id = fatal["header"]["event_id"].as_str().unwrap();
    assert!(shown.contains(&format!("last run: Hung {id}")), "{shown}");
    assert!(functions(hung_thread(fatal)).iter().any(|name| name.contains("does_not_answer")));
    assert!(program.run(LONG, &["flush"]).contains("last run: CleanExit"));
    assert_eq!(program.delivered().len(), 2, "nothing is reported twice");
}

#[test]
fn a_kill_while_the_report_is_written_is_still_a_hang() {
    for _ in 0..5 {
        let program = Program::new();
        program.kill(&["noted"]);
        let shown = program.run(LONG, &["flush"]);
        assert!(shown.contains("last run: Hung"), "{shown}");
        assert!(program.delivered().len() <= 1);
    }
}

#[test]
fn a_hang_of_another_thread_is_reported() {
    let program = Program::new();
    program.run(SHORT, &["in-thread", "silent"]);
    program.run(LONG, &["flush"]);
    let reports = program.delivered();
    assert_eq!(reports.len(), 1);
    let thread = hung_thread(&reports[0]);
    assert_eq!((&thread["name"], &thread["main"]), (&"worker".into(), &false.into()));
    assert!(functions(thread).iter().any(|name| name.contains("does_not_answer")));
}

#[test]
fn threads_that_beat_are_idle_or_unwatched_do_not_hang() {
    let program = Program::new();
    program.run(LONG, &["idle-for=2500", "beat-for=2500", "idle-for=100"]);
    program.run(SHORT, &["uninstall", "silent-for=1000"]);
    program.run(LONG, &["flush"]);
    assert_eq!(program.delivered().len(), 0);
}

/// The process is stopped for longer than the threshold, during a silence that is shorter.
#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_process_that_is_stopped_does_not_hang() {
    let program = Program::new();
    let mut child = program.spawn("2000", &["stopped", "stopped"]);
    let pid = child.id() as i32;
    for _ in 0..2 {
        let mut status = 0;
        // SAFETY: waits for a child of this process; writes one int.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(waited == pid && libc::WIFSTOPPED(status), "it is to stop itself: {status:#x}");
        std::thread::sleep(Duration::from_secs(5));
        // SAFETY: sends a signal to that child.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
    assert!(child.wait().unwrap().success());
    program.run(LONG, &["flush"]);
    assert_eq!(program.delivered().len(), 0);
}

/// Simulates the run loop of an app: the main thread processes its queue, and never beats.
#[test]
#[cfg(target_os = "macos")]
fn the_main_thread_is_watched_by_its_queue() {
    let program = Program::new();
    program.run(LONG, &["main-queue-for=2500"]);
    // A main thread that never processes its queue is not watched.
    program.run(SHORT, &["idle-for=1000"]);
    program.run(SHORT, &["main-queue-for=300", "stuck"]);
    program.run(LONG, &["flush"]);
    let reports = program.delivered();
    let [report] = reports.as_slice() else { panic!("{} reports", reports.len()) };
    let thread = hung_thread(report);
    assert_eq!(thread["main"], true);
    assert!(functions(thread).iter().any(|name| name.contains("does_not_answer")), "{thread}");
    assert!(report["crash"]["hang"]["duration_ns"].as_u64().is_some());
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn under_a_debugger_nothing_hangs() {
    let program = Program::new();
    // Leaves time to seize the process before it falls silent.
    let mut child = program.spawn(SHORT, &["idle-for=1000", "silent-for=2000", "idle-for=1"]);
    // `PTRACE_SEIZE` of <linux/ptrace.h>, for which the libc crate has no name on Android.
    // SAFETY: seizes a child of this process; accesses no memory.
    let seized = unsafe { libc::ptrace(0x4206, child.id() as i32, 0, 0) };
    assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
    assert!(child.wait().unwrap().success());
    program.run(LONG, &["flush"]);
    assert_eq!(program.delivered().len(), 0);
}

#[test]
fn the_run_state_records_when_a_hang_began() {
    let program = Program::new();
    program.kill(&["forever"]);
    let run = std::fs::read_dir(program.folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let lifecycle = hang::facts(&run).unwrap().lifecycle;
    let report = &hang::reports(&run)[0];
    let (since, reported) = (lifecycle.hang_since.unwrap(), report.crash.as_ref().unwrap().time);
    assert!(since < reported && lifecycle.last_alive.is_some(), "{since} {reported}");
}

/// Returns the share of a report's profile that was spent in the named function with the thread in
/// the given state.
#[cfg(target_os = "linux")]
fn share(profile: &Value, function: &str, state: &str) -> f64 {
    let nodes = profile["nodes"].as_array().unwrap();
    let is_in = |end: &Value| {
        let mut place = end["node"].as_u64();
        while let Some(number) = place {
            let node = &nodes[number as usize];
            if node["frame"]["function"].as_str().is_some_and(|name| name.ends_with(function)) {
                return true;
            }
            place = node["parent"].as_u64();
        }
        false
    };
    let weight = |end: &Value| end["weight_ns"].as_u64().unwrap() as f64;
    let ends = profile["ends"].as_array().unwrap();
    let all: f64 = ends.iter().map(weight).sum();
    ends.iter().filter(|end| end["state"] == state && is_in(end)).map(weight).sum::<f64>() / all
}

#[cfg(target_os = "linux")]
fn only_profile(program: &Program) -> (Value, Value) {
    program.run(LONG, &["flush"]);
    let reports = program.delivered();
    let [report] = reports.as_slice() else { panic!("{} reports", reports.len()) };
    (report["profile"].clone(), report["explanation"].clone())
}

#[test]
#[cfg(target_os = "linux")]
fn a_hang_report_has_a_profile() {
    // Whether the thread was on a processor or waited for one depends on the load of this machine.
    let works = |profile: &Value| {
        share(profile, "hang_program::spins", "running") + share(profile, "hang_program::spins", "runnable")
    };
    let reads = |profile: &Value| share(profile, "hang_program::waits_in_read", "blocked");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let program = Program::new();
            program.run(SHORT, &["begins-hang", "works-for=2500", "ends-hang"]);
            let (profile, explanation) = only_profile(&program);
            assert!(works(&profile) > 0.9, "{profile}");
            let spent = explanation["spent"].as_str().unwrap();
            assert!(spent.contains(" % in hang_program::spins, "), "{spent}");
            assert!(explanation["headline"].as_str().unwrap().ends_with(spent), "{explanation}");
        });
        scope.spawn(|| {
            let program = Program::new();
            program.run(SHORT, &["begins-hang", "reads-for=2500", "ends-hang"]);
            let (profile, explanation) = only_profile(&program);
            assert!(reads(&profile) > 0.9, "{profile}");
            let spent = explanation["spent"].as_str().unwrap();
            assert!(spent.contains(" % in hang_program::waits_in_read, blocked in read"), "{spent}");
        });
        scope.spawn(|| {
            let program = Program::new();
            program.run(SHORT, &["begins-hang", "works-for=3000", "reads-for=1500", "ends-hang"]);
            let (profile, _) = only_profile(&program);
            // 3.0 of 4.5 seconds, of which the first 0.2 were not sampled yet.
            let (works, reads) = (works(&profile), reads(&profile));
            assert!((0.45..0.85).contains(&works) && (0.15..0.55).contains(&reads), "{works} {reads} {profile}");
        });
    });
}

/// Samples are in the file when the process is killed, without any action at its end.
#[test]
#[cfg(target_os = "linux")]
fn a_process_killed_in_a_hang_has_a_profile() {
    let program = Program::new();
    let mut child = program.spawn(SHORT, &["begins-hang", "works-for=600000"]);
    let runs = program.folder.path().join("runs");
    let has_profile = || {
        let run = std::fs::read_dir(&runs).ok().and_then(|mut runs| Some(runs.next()?.ok()?.path()));
        let reports = run.map_or_else(Vec::new, |run| hang::reports(&run));
        reports.iter().any(|report| report.profile.as_ref().is_some_and(|profile| profile.samples >= 3))
    };
    hang::wait_until("a profile", has_profile);
    child.kill().unwrap();
    child.wait().unwrap();
    let (profile, _) = only_profile(&program);
    let works = share(&profile, "hang_program::spins", "running") + share(&profile, "hang_program::spins", "runnable");
    assert!(works > 0.9 && profile["samples"].as_u64() >= Some(3), "{profile}");
    assert!(!is_nonfatal(&program.delivered()[0]) && program.delivered()[0]["complete"] == true);
}
