//! Real processes that end, and what becomes of what the system says of their ends at a later
//! launch.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner::{
    Config, Delivery, ExitInfo, ForeignException, ForeignFrame, Language, ManagedException, Report, SystemReport,
};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
/// The system's records: a line for each process, `pid reason milliseconds trace`.
const SAID: &str = "CORONER_TEST_SAID";

const ANR: &str = include_str!("../../../../analysis/formats/tests/files/anr.txt");
const TOMBSTONE: &str = include_str!("../../../../analysis/formats/tests/files/android-14.txt");
const LOW_MEMORY: i32 = 3;
const NATIVE_CRASH: i32 = 5;
const NOT_RESPONDING: i32 = 6;
/// Maximum file size of the app, so that it has no room for a longer report.
const LARGEST_FILE: u64 = 1 << 20;

/// Or, instead of those lines, the path of a payload of MetricKit's.
const METRIC_KIT: &str = "metrickit:";

fn system_reports() -> Vec<SystemReport> {
    let text = std::env::var(SAID).unwrap_or_default();
    if let Some(path) = text.strip_prefix(METRIC_KIT) {
        return coroner::metric_kit_reports(&std::fs::read(path).unwrap()).unwrap();
    }
    exit_infos().into_iter().map(Into::into).collect()
}

fn exit_infos() -> Vec<ExitInfo> {
    let text = std::env::var(SAID).unwrap_or_default();
    let info = |line: &str| {
        let words: Vec<&str> = line.split('|').collect();
        let mut info = ExitInfo::default();
        (info.pid, info.reason) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        (info.timestamp_ms, info.importance) = (words[2].parse().unwrap(), 100);
        info.description = "said by the test".to_owned();
        info.trace = if words[3].is_empty() { Vec::new() } else { std::fs::read(words[3]).unwrap() };
        info
    };
    text.lines().map(info).collect()
}

/// Not a test: the app.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let mut config = Config::new("system-test").version("1.0").store_dir(store);
    let act = std::env::var(ACT).unwrap();
    config = config.delivery(Delivery::new().symbolicate(false).at_install(act != "no-room"));
    if act != "late" {
        config = system_reports().into_iter().fold(config, Config::system_report);
    }
    if act == "no-room" {
        let limit = libc::rlimit { rlim_cur: LARGEST_FILE, rlim_max: LARGEST_FILE };
        // SAFETY: sets this process's limit, and has writes fail at it.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
    }
    let coroner = coroner::install(config).unwrap();
    coroner::set_tag("kind", "test").unwrap();
    match act.as_str() {
        // SAFETY: ends this process.
        "killed" => unsafe { assert_eq!(libc::kill(libc::getpid(), libc::SIGKILL), 0) },
        "crash" => std::process::abort(),
        "no-room" => {}
        "java" => {
            let stack_trace = "com.example.Closed: no\n\tat com.example.Shop.open(Shop.java:12)\nCaused by: x.Y\n\tat x.Z.z(Z.java:1)\n";
            let exception = ManagedException::new("com.example.Closed", "no", stack_trace);
            assert!(coroner::report_uncaught_exception(&exception));
            // SAFETY: ends this process, as Android's handler does.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "javascript" | "php-ends" => {
            let frame = |function| ForeignFrame::new(function).file("cart.js").column(7).in_app(true);
            let frames = [frame("total\n(\"cart\")").line(41), frame("")];
            let (parked, fatal) = (std::thread::spawn(std::thread::park), act == "php-ends");
            let language = if fatal { Language::PHP } else { Language::JAVASCRIPT };
            let thrown = ForeignException::new(language, "TypeError", "cart is undefined", &frames);
            let reported = coroner::report_foreign_exception(&thrown.all_threads(fatal).fatal(fatal));
            assert!(reported && !parked.is_finished());
            std::process::exit(if fatal { 7 } else { 0 });
        }
        _ => {
            println!("\napp: {:?} {}", coroner.last_run().outcome, coroner.last_run().event_id.is_some());
            if act == "late" {
                coroner.add_system_reports(system_reports()).unwrap();
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

    fn start(&self, act: &str, printed: &str) -> (u32, Option<i32>, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "system_reports::app", "--nocapture", "--quiet", "--test-threads=1"]);
        command.env(STORE, self.0.path().join("store")).env(ACT, act).env(SAID, printed).stderr(Stdio::null());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("app: ")).unwrap_or_default().to_owned();
        (pid, output.status.signal(), line)
    }

    fn deliver(&self, printed: &str) -> String {
        let (_, signal, line) = self.start("deliver", printed);
        assert_eq!(signal, None);
        line
    }

    /// Returns the system's line about a process that has just ended.
    fn say(&self, pid: u32, reason: i32, trace: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let path = if trace.is_empty() { PathBuf::new() } else { self.0.path().join(format!("trace-{pid}")) };
        if !trace.is_empty() {
            std::fs::write(&path, trace.replace("4100", &pid.to_string())).unwrap();
        }
        format!("{pid}|{reason}|{now}|{}", path.display())
    }

    /// Creates MetricKit's payload for a process that has just crashed: a stack of `frames` frames,
    /// and one of another thread.
    fn metric_kit(&self, pid: u32, frames: u64) -> String {
        self.metric_kit_of(Some(pid), frames, None)
    }

    /// The same, with or without a process id, and with the thread that says the run's id.
    fn metric_kit_of(&self, pid: Option<u32>, frames: u64, run: Option<&str>) -> String {
        let frame = |index: u64, inner: Option<Value>| {
            let mut frame = serde_json::json!({
                "binaryUUID": "C42F630F-A71A-3EDC-9225-CF2C231A6669", "binaryName": "shop", "sampleCount": 1,
                "offsetIntoBinaryTextSegment": 0x4000 + index, "address": 0x1_0000_0000_u64 + 0x4000 + index,
            });
            if let Some(inner) = inner {
                frame["subFrames"] = Value::Array(vec![inner]);
            }
            frame
        };
        // As text: a value so deep is not to be dropped.
        let mut stack = frame(frames - 1, None).to_string();
        for index in (0..frames - 1).rev() {
            let outer = frame(index, None).to_string();
            stack = format!("{},\"subFrames\":[{stack}]}}", outer.strip_suffix('}').unwrap());
        }
        let other = frame(0x100, Some(frame(0x200, None)));
        let saying = run.map_or_else(String::new, |run| {
            let digits: Vec<u64> = run.chars().map(|digit| digit.to_digit(16).unwrap().into()).collect();
            let sum = digits.chunks(2).fold(0x5a_u8, |sum, pair| sum.rotate_left(3) ^ (pair[0] * 16 + pair[1]) as u8);
            let all = [0, 15, 0, 15].into_iter().chain(digits).chain([u64::from(sum >> 4), u64::from(sum & 15)]);
            // Below them the wait, above them where the thread begins.
            let places = [0x9_0000, 0x1000].into_iter().chain(all.map(|digit| 0x2009 + digit * 16)).chain([0x9_1000]);
            let places: Vec<u64> = places.collect();
            let stack = places.into_iter().rev().fold(None, |outer, place| Some(frame(place, outer))).unwrap();
            format!(r#"{{"threadAttributed":false,"callStackRootFrames":[{stack}]}},"#)
        });
        let said_pid = pid.map_or_else(String::new, |pid| format!(r#""pid":{pid},"#));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let now = coroner_report::model::Timestamp(now as u64).to_string();
        let time = now[..19].replace('T', " ");
        let json = format!(
            r#"{{"timeStampBegin":"{time}","timeStampEnd":"{time}","crashDiagnostics":[{{"version":"1.0.0",
            "callStackTree":{{"callStackPerThread":true,"callStacks":[{saying}
                {{"threadAttributed":false,"callStackRootFrames":[{other}]}},
                {{"threadAttributed":true,"callStackRootFrames":[{stack}]}}]}},
            "diagnosticMetaData":{{{said_pid}"exceptionType":1,"exceptionCode":2,"signal":9,"platformArchitecture":"arm64e",
                "terminationReason":"Namespace FRONTBOARD, Code 0x8badf00d","osVersion":"iPhone OS 18.0 (22A300)",
                "appVersion":"1.0"}}}}]}}"#
        );
        let path = self.0.path().join(format!("metrickit-{}", pid.unwrap_or(0)));
        std::fs::write(&path, json).unwrap();
        format!("{METRIC_KIT}{}", path.display())
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
fn an_end_without_a_trace_has_the_outcome_from_the_systems_records() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("killed", "");
    assert_eq!(signal, Some(libc::SIGKILL));
    let printed = bench.say(pid, LOW_MEMORY, "");
    assert_eq!(bench.deliver(&printed), "OutOfMemory false");
    assert!(bench.reports().is_empty());
    // The same history is not reported again.
    assert_eq!(bench.deliver(&printed), "CleanExit false");
}

#[test]
fn an_anr_has_one_hang_report_with_the_threads_of_the_trace() {
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
        let printed = bench.say(4_194_000, NATIVE_CRASH, TOMBSTONE);
        for _ in 0..3 {
            let (_, signal, _) = bench.start(act, &printed);
            assert_eq!(signal, None);
        }
        let reports = bench.reports();
        let [report] = &reports[..] else { panic!("{act}: {} reports", reports.len()) };
        assert_eq!(report["crash"]["signal"]["code_name"], "SEGV_MTESERR");
        assert_eq!(report["threads"][0]["frames"][2]["function"], "pay_now");
    }
}

/// A clock that was ten years ahead, and what the system says later of the same moment.
#[test]
fn a_death_with_a_future_or_equal_time_does_not_hide_others() {
    let bench = Bench::new();
    let [first, second, third] = [4_194_000, 4_194_001, 4_194_002].map(|pid| bench.say(pid, NATIVE_CRASH, TOMBSTONE));
    let at = |printed: &str, years: u128| {
        let mut parts: Vec<_> = printed.split('|').map(ToOwned::to_owned).collect();
        // All of the first one's time.
        let time: u128 = first.split('|').nth(2).unwrap().parse().unwrap();
        parts[2] = (time + years * 365 * 86_400_000).to_string();
        parts.join("|")
    };
    let printed = [at(&first, 10), at(&second, 0), at(&third, 0)];
    for launch in 1..=3 {
        for _ in 0..2 {
            let (_, signal, _) = bench.start("deliver", &printed[..launch].join("\n"));
            assert_eq!(signal, None);
        }
        assert_eq!(bench.reports().len(), launch);
    }
}

#[test]
fn a_report_that_cannot_be_stored_is_retried_at_the_next_launch() {
    let bench = Bench::new();
    let long = format!("{TOMBSTONE}{}", " \n".repeat(LARGEST_FILE as usize));
    let printed = [bench.say(4_194_000, NATIVE_CRASH, TOMBSTONE), bench.say(4_194_001, NATIVE_CRASH, &long)].join("\n");
    bench.start("no-room", &printed);
    let of = |report: &Value| report["header"]["pid"].as_u64().unwrap();
    bench.deliver("");
    assert_eq!(bench.reports().iter().map(of).collect::<Vec<_>>(), [4_194_000]);
    std::fs::remove_dir_all(bench.0.path().join("store/reports")).unwrap();
    bench.deliver(&printed);
    assert_eq!(bench.reports().iter().map(of).collect::<Vec<_>>(), [4_194_001]);
}

#[test]
fn an_uncaught_java_exception_has_its_frames_and_the_native_threads() {
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
fn another_runtimes_exception_has_its_frames_and_is_fatal_or_not() {
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

#[test]
fn a_kill_in_metric_kits_payload_is_reported_with_its_stacks() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("killed", "");
    assert_eq!(signal, Some(libc::SIGKILL));
    std::thread::sleep(Duration::from_secs(1));
    // Deeper than JSON usually is.
    assert_eq!(bench.deliver(&bench.metric_kit(pid, 600)), "Crashed true");
    let reports = bench.reports();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    let crash = &report["crash"];
    assert_eq!((&crash["mach"]["name"], &crash["signal"]["name"]), (&"EXC_BAD_ACCESS".into(), &"SIGKILL".into()));
    let threads = report["threads"].as_array().unwrap();
    let count = |thread: &Value| thread["frames"].as_array().unwrap().len();
    assert_eq!(threads.iter().map(count).collect::<Vec<_>>(), [2, 600]);
    assert_eq!((&threads[1]["crashed"], &crash["tid"]), (&true.into(), &threads[1]["tid"]));
    let frame = &threads[1]["frames"][599];
    assert_eq!((&frame["module"], &frame["module_offset"]), (&"shop".into(), &"0x4257".into()));
    assert_eq!(report["images"][0]["build_id"], "c42f630fa71a3edc9225cf2c231a6669");
    let printed = &report["run"]["contexts"]["system_report"];
    assert_eq!((&printed["source"], &printed["os_version"]), (&"MetricKit".into(), &"iPhone OS 18.0 (22A300)".into()));
    assert!(printed["termination_reason"].as_str().unwrap().contains("8badf00d"));
    // Of the run itself.
    assert_eq!(report["run"]["tags"]["kind"], "test");
}

/// MetricKit speaks when the app runs again: Coroner's own report may be delivered by then.
#[test]
fn metric_kit_adds_no_second_report_of_a_crash_that_coroner_reported() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("crash", "");
    assert_eq!(signal, Some(libc::SIGABRT));
    assert_eq!(bench.deliver(""), "Crashed true");
    assert_eq!(bench.reports().len(), 1);
    let (_, signal, _) = bench.start("late", &bench.metric_kit(pid, 3));
    assert_eq!(signal, None);
    bench.deliver("");
    let reports = bench.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["crash"]["signal"]["name"], "SIGABRT");
    // A process that Coroner knows nothing of; payloads have times of whole seconds.
    std::thread::sleep(Duration::from_millis(1100));
    let (_, signal, _) = bench.start("late", &bench.metric_kit(4_194_001, 3));
    assert_eq!(signal, None);
    bench.deliver("");
    assert_eq!(bench.reports().len(), 2);
}

/// The run's id goes before process id and time: there may be none, or they may be those of another
/// run.
#[test]
fn a_stack_with_a_runs_id_assigns_the_diagnostic_to_that_run() {
    let bench = Bench::new();
    let ids = || -> Vec<String> {
        let entries = std::fs::read_dir(bench.0.path().join("store/runs")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).collect()
    };
    let (_, signal, _) = bench.start("killed", "");
    assert_eq!(signal, Some(libc::SIGKILL));
    let first = ids();
    let [first] = &first[..] else { panic!("{first:?}") };
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(bench.deliver(&bench.metric_kit_of(None, 3, Some(first))), "Crashed true");
    let reports = bench.reports();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    assert_eq!(report["header"]["run_id"], first.as_str());
    assert_eq!(report["run"]["tags"]["kind"], "test");
    // The thread that says it is none of the app's.
    let threads = report["threads"].as_array().unwrap();
    assert_eq!(threads.iter().map(|thread| thread["frames"].as_array().unwrap().len()).collect::<Vec<_>>(), [2, 3]);
    // One that Coroner has reported and delivered; the process id is another's.
    let (_, signal, _) = bench.start("crash", "");
    assert_eq!(signal, Some(libc::SIGABRT));
    let second = ids();
    let [second] = &second[..] else { panic!("{second:?}") };
    bench.deliver("");
    assert_eq!(bench.reports().len(), 2);
    std::thread::sleep(Duration::from_millis(1100));
    bench.deliver(&bench.metric_kit_of(Some(4_194_002), 3, Some(second)));
    assert_eq!(bench.reports().len(), 2);
}

/// Hangs, processor time, writes and launches: each is a report, of no run, and no run's end is
/// another for them.
#[test]
fn a_survived_diagnostic_is_a_report_and_not_an_end() {
    let bench = Bench::new();
    let (pid, signal, _) = bench.start("deliver", "");
    assert_eq!(signal, None);
    std::thread::sleep(Duration::from_secs(1));
    let frame = |name: &str, samples: u64, address: u64, below: Value| {
        serde_json::json!({
            "binaryUUID": "C42F630F-A71A-3EDC-9225-CF2C231A6669", "binaryName": name, "sampleCount": samples,
            "offsetIntoBinaryTextSegment": address, "address": 0x1_0000_0000_u64 + address, "subFrames": below,
        })
    };
    let none = || Value::Array(Vec::new());
    let [leaf, rare] = [frame("shop", 7, 0x3000, none()), frame("shop", 2, 0x3100, none())];
    let tree = frame("shop", 9, 0x1000, Value::Array(vec![frame("shop", 9, 0x2000, Value::Array(vec![rare, leaf]))]));
    let stack = frame("shop", 1, 0x3000, Value::Array(vec![frame("shop", 1, 0x2000, none())]));
    let of = |per_thread: bool, root: &Value, meta: Value| {
        let stacks = serde_json::json!([{ "threadAttributed": true, "callStackRootFrames": [root] }]);
        let tree = serde_json::json!({ "callStackPerThread": per_thread, "callStacks": stacks });
        serde_json::json!([{ "version": "1.0.0", "callStackTree": tree, "diagnosticMetaData": meta }])
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let time = coroner_report::model::Timestamp(now as u64).to_string()[..19].replace('T', " ");
    let payload = serde_json::json!({
        "timeStampBegin": time, "timeStampEnd": time,
        "hangDiagnostics": of(false, &tree, serde_json::json!({ "hangDuration": "2.5 sec", "pid": pid })),
        "cpuExceptionDiagnostics": of(false, &tree, serde_json::json!({ "totalCPUTime": "90 sec", "totalSampledTime": "180 sec" })),
        "diskWriteExceptionDiagnostics": of(true, &stack, serde_json::json!({ "writesCaused": "1,073 MB" })),
        "appLaunchDiagnostics": of(false, &tree, serde_json::json!({ "launchDuration": "20 sec" })),
    });
    let path = bench.0.path().join("payload");
    std::fs::write(&path, payload.to_string()).unwrap();
    let printed = format!("{METRIC_KIT}{}", path.display());
    // The same records are passed at install and again at the next launch: the run is still one
    // that exited by itself.
    for _ in 0..2 {
        assert_eq!(bench.deliver(&printed), "CleanExit false");
        let mut seen: Vec<(String, Vec<String>)> = Vec::new();
        for report in bench.reports() {
            let flags = report["crash"]["flags"].as_array().unwrap();
            assert!(flags.contains(&"not_fatal".into()), "{flags:?}");
            let frames = report["threads"][0]["frames"].as_array().unwrap();
            let frames = frames.iter().map(|frame| frame["address"].as_str().unwrap().to_owned()).collect();
            let hang = report["crash"]["hang"]["duration_ns"].as_u64();
            let kind = report["exceptions"][0]["type_name"].as_str().map(ToOwned::to_owned);
            let message = report["exceptions"][0]["message"].as_str().unwrap_or_default();
            seen.push((format!("{} {message}", kind.unwrap_or_else(|| format!("hang {hang:?}"))), frames));
        }
        seen.sort();
        let innermost_first = ["0x100003000", "0x100002000", "0x100001000"].map(ToOwned::to_owned).to_vec();
        assert_eq!(
            seen,
            [
                ("MXAppLaunchDiagnostic the launch took 20 sec".to_owned(), innermost_first.clone()),
                ("MXCPUExceptionDiagnostic 90 sec of CPU time in 180 sec".to_owned(), innermost_first.clone()),
                (
                    "MXDiskWriteExceptionDiagnostic 1,073 MB were written to disk".to_owned(),
                    innermost_first[..2].to_vec()
                ),
                ("hang Some(2500000000) ".to_owned(), innermost_first),
            ]
        );
    }
}

#[test]
fn an_invalid_metric_kit_payload_is_rejected() {
    let refused = |json: &[u8]| coroner::metric_kit_reports(json).unwrap_err().to_string();
    assert!(refused(b"").contains("not the JSON of an MXDiagnosticPayload"));
    assert!(
        refused(br#"{"crashDiagnostics":[{"callStackTree":7}],"timeStampEnd":"2025-01-02 03:04:05"}"#)
            .contains("line 1")
    );
    assert!(refused(br#"{"crashDiagnostics":[{}],"timeStampEnd":"yesterday"}"#).contains("\"yesterday\""));
    assert!(refused("[".repeat(100_000).as_bytes()).contains("nesting depth"));
    assert!(coroner::metric_kit_reports(b"{}").unwrap().is_empty());
    // An `MXCrashDiagnostic` instead of the payload around it.
    let single = coroner::metric_kit_reports(br#"{"version":"1.0.0","callStackTree":{"callStacks":[]}}"#).unwrap_err();
    assert!(matches!(single, coroner::MetricKitError::SingleDiagnostic), "{single}");
    // One of another form takes no other with it. The exception stands under the key that MetricKit
    // gives it.
    let one_of_two = br#"{"timeStampEnd":"2025-01-02 03:04:05","crashDiagnostics":[{"callStackTree":7},{"diagnosticMetaData":{"pid":7,
        "exceptionCode":18446744073709551615,"objectiveCexceptionReason":{"composedMessage":"no page 7"}}}]}"#;
    let read = coroner::metric_kit_reports(one_of_two).unwrap();
    assert_eq!((read.len(), read[0].pid, read[0].details["exception_message"].as_str()), (1, 7, "no page 7"));
    // Before iOS 17 nothing says which process it was.
    let unknown = br#"{"crashDiagnostics":[{}],"timeStampEnd":"2025-01-02 03:04:05.00 +0900"}"#;
    assert!(coroner::metric_kit_reports(unknown).unwrap().is_empty());
}
