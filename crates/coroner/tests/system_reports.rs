//! Real processes that end, and what becomes of what the system says of their ends at a later launch.
//!
//! The app is this test program itself, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner::{Config, ExitInfo, ForeignException, ForeignFrame, Language, ManagedException, Report};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
/// What the system says: a line for each process, `pid reason milliseconds trace`.
const SAID: &str = "CORONER_TEST_SAID";

const ANR: &str = include_str!("../../coroner-tombstone/tests/files/anr.txt");
const TOMBSTONE: &str = include_str!("../../coroner-tombstone/tests/files/android-14.txt");
const LOW_MEMORY: i32 = 3;
const NATIVE_CRASH: i32 = 5;
const NOT_RESPONDING: i32 = 6;

fn said() -> Vec<ExitInfo> {
    let text = std::env::var(SAID).unwrap_or_default();
    let info = |line: &str| {
        let words: Vec<&str> = line.split('|').collect();
        ExitInfo {
            pid: words[0].parse().unwrap(),
            reason: words[1].parse().unwrap(),
            timestamp_ms: words[2].parse().unwrap(),
            importance: 100,
            description: "said by the test".to_owned(),
            trace: if words[3].is_empty() { Vec::new() } else { std::fs::read(words[3]).unwrap() },
            ..ExitInfo::default()
        }
    };
    text.lines().map(info).collect()
}

/// Not a test: the app.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let mut config = Config::new("system-test").version("1.0").store_dir(store).symbolicate(false);
    let act = std::env::var(ACT).unwrap();
    if act != "late" {
        config = said().into_iter().fold(config, Config::system_report);
    }
    let coroner = coroner::install(config).unwrap();
    coroner::set_tag("kind", "test").unwrap();
    match act.as_str() {
        // SAFETY: ends this process.
        "killed" => unsafe { assert_eq!(libc::kill(libc::getpid(), libc::SIGKILL), 0) },
        "crash" => std::process::abort(),
        "java" => {
            let stack_trace = "com.example.Closed: no\n\tat com.example.Shop.open(Shop.java:12)\nCaused by: x.Y\n\tat x.Z.z(Z.java:1)\n";
            let exception = ManagedException { kind: "com.example.Closed", message: "no", stack_trace };
            assert!(coroner::report_uncaught_exception(&exception));
            // SAFETY: ends this process, as Android's handler does.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "javascript" | "php-ends" => {
            let frame =
                |function, line| ForeignFrame { function, file: Some("cart.js"), line, column: Some(7), in_app: true };
            let (parked, fatal) = (std::thread::spawn(std::thread::park), act == "php-ends");
            let reported = coroner::report_foreign_exception(&ForeignException {
                language: if fatal { Language::PHP } else { Language::JAVASCRIPT },
                kind: "TypeError",
                message: "cart is undefined",
                frames: &[frame("total\n(\"cart\")", Some(41)), frame("", None)],
                all_threads: fatal,
                fatal,
            });
            assert!(reported && !parked.is_finished());
            std::process::exit(if fatal { 7 } else { 0 });
        }
        _ => {
            println!("\napp: {:?} {}", coroner.last_run().outcome, coroner.last_run().event_id.is_some());
            if act == "late" {
                coroner.add_system_reports(said().into_iter().map(Into::into).collect()).unwrap();
            }
            assert!(coroner.flush(Duration::from_secs(30)));
        }
    }
}

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn start(&self, act: &str, said: &str) -> (u32, Option<i32>, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "app", "--nocapture", "--quiet", "--test-threads=1"]);
        command.env(STORE, self.0.path().join("store")).env(ACT, act).env(SAID, said).stderr(Stdio::null());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("app: ")).unwrap_or_default().to_owned();
        (pid, output.status.signal(), line)
    }

    fn deliver(&self, said: &str) -> String {
        let (_, signal, line) = self.start("deliver", said);
        assert_eq!(signal, None);
        line
    }

    /// What the system says of a process that has just ended.
    fn say(&self, pid: u32, reason: i32, trace: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let path = if trace.is_empty() { PathBuf::new() } else { self.0.path().join(format!("trace-{pid}")) };
        if !trace.is_empty() {
            std::fs::write(&path, trace.replace("4100", &pid.to_string())).unwrap();
        }
        format!("{pid}|{reason}|{now}|{}", path.display())
    }

    fn reports(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.0.path().join("store/reports")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        json.map(|path| {
            let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            // The file beside it says the same.
            let mut raw = Report::read_file(path.with_extension("coroner")).unwrap();
            coroner::complete_report(&mut raw);
            let again: Value = serde_json::from_str(&raw.to_json()).unwrap();
            assert_eq!(again["threads"].as_array().map(Vec::len), json["threads"].as_array().map(Vec::len));
            assert_eq!(again["exceptions"], json["exceptions"]);
            json
        })
        .collect()
    }
}

#[test]
fn an_end_without_a_trace_has_the_outcome_that_the_system_says() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("killed", "");
    assert_eq!(signal, Some(libc::SIGKILL));
    let said = bench.say(pid, LOW_MEMORY, "");
    assert_eq!(bench.deliver(&said), "OutOfMemory false");
    assert!(bench.reports().is_empty());
    // The same history is no news.
    assert_eq!(bench.deliver(&said), "CleanExit false");
}

#[test]
fn of_an_anr_there_is_one_report_of_a_hang_with_the_threads_of_the_trace() {
    let bench = Bench::new();
    let (pid, ..) = bench.start("killed", "");
    assert_eq!(bench.deliver(&bench.say(pid, NOT_RESPONDING, ANR)), "Hung true");
    let reports = bench.reports();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    assert_eq!(report["crash"]["monitor"], "hang");
    assert_eq!(report["threads"][0]["frames"][0]["function"], "com.example.shop.Cart.total");
    // What the run knew of itself is there, too.
    assert_eq!(report["run"]["tags"]["kind"], "test");
    assert_eq!(report["run"]["app"]["version"], "1.0");
    let system = &report["run"]["contexts"]["system_report"];
    assert_eq!((&system["reason"], &system["description"]), (&"ANR".into(), &"said by the test".into()));
}

#[test]
fn a_crash_with_a_report_and_a_tombstone_is_one_report() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("crash", "");
    assert_eq!(signal, Some(libc::SIGABRT));
    assert_eq!(bench.deliver(&bench.say(pid, NATIVE_CRASH, TOMBSTONE)), "Crashed true");
    let reports = bench.reports();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    // Its own stack, and what debuggerd says beside it.
    assert_eq!(report["crash"]["signal"]["name"], "SIGABRT");
    assert_eq!(report["header"]["pid"], pid);
    let annotations = report["annotations"].to_string();
    assert!(annotations.contains("[MTE]: Use After Free"), "{annotations}");
    assert_eq!(report["run"]["contexts"]["system_report"]["reason"], "CRASH_NATIVE");
}

#[test]
fn a_crash_before_the_install_becomes_a_report_once() {
    for act in ["deliver", "late"] {
        let bench = Bench::new();
        // No run of the store had this process id.
        let said = bench.say(4_194_000, NATIVE_CRASH, TOMBSTONE);
        for _ in 0..3 {
            let (_, signal, _) = bench.start(act, &said);
            assert_eq!(signal, None);
        }
        let reports = bench.reports();
        let [report] = &reports[..] else { panic!("{act}: {} reports", reports.len()) };
        assert_eq!(report["crash"]["signal"]["code_name"], "SEGV_MTESERR");
        assert_eq!(report["threads"][0]["frames"][2]["function"], "pay_now");
    }
}

#[test]
fn an_uncaught_exception_of_java_is_a_report_with_its_frames_and_the_native_threads() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("java", "");
    assert_eq!(signal, Some(libc::SIGKILL));
    // REASON_CRASH: the same death.
    assert_eq!(bench.deliver(&bench.say(pid, 4, "")), "Crashed true");
    let reports = bench.reports();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    let exceptions = report["exceptions"].as_array().unwrap();
    let types: Vec<_> = exceptions.iter().map(|exception| exception["type_name"].as_str().unwrap()).collect();
    assert_eq!(types, ["com.example.Closed", "x.Y"]);
    let frame = &exceptions[0]["frames"][0];
    assert_eq!(
        (&frame["function"], &frame["file"], &frame["line"]),
        (&"com.example.Shop.open".into(), &"Shop.java".into(), &12.into())
    );
    assert_eq!(exceptions[0]["language"], "java");
    assert!(report["threads"][0]["frames"].as_array().unwrap().len() > 1);
}

#[test]
fn an_exception_of_another_runtime_has_its_frames_and_ends_the_process_or_not() {
    for (act, outcome, all_threads) in [("javascript", "CleanExit", false), ("php-ends", "Crashed", true)] {
        let bench = Bench::new();
        bench.start(act, "");
        assert_eq!(bench.deliver("").split(' ').next(), Some(outcome), "{act}");
        let reports = bench.reports();
        let [report] = &reports[..] else { panic!("{act}: {} reports", reports.len()) };
        let thrown = &report["exceptions"][0];
        assert_eq!(
            (&thrown["language"], &thrown["type_name"]),
            (&act.trim_end_matches("-ends").into(), &"TypeError".into())
        );
        assert!(thrown["user_info"].is_null(), "{thrown}");
        let frames = thrown["frames"].as_array().unwrap();
        let key = |key: &str| frames.iter().map(|frame| frame[key].clone()).collect::<Vec<_>>();
        assert_eq!(key("function"), ["total\n(\"cart\")".into(), serde_json::Value::Null]);
        assert_eq!((key("line"), key("column")), (vec![41.into(), serde_json::Value::Null], vec![7.into(), 7.into()]));
        assert_eq!(key("in_app"), [true, true]);
        let threads = report["threads"].as_array().unwrap();
        assert_eq!(threads.len() > 1, all_threads, "{act}: {} threads", threads.len());
        assert!(threads[0]["frames"].as_array().unwrap().len() > 1, "the native stack");
    }
}
