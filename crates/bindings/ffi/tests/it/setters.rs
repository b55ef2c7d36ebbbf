//! The effect of a C program's settings on its reports.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common;

struct Bench {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = common::c_program("setters.c", &[], folder.path());
        Self { folder, program }
    }

    /// Runs it and returns its exit status as in a shell: 139 means killed by SIGSEGV.
    fn run(&self, act: &str) -> i32 {
        // No core file.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; \"$@\"; exit $?", "sh"]).arg(&self.program);
        command.args(["store", "delivered"].map(|name| self.folder.path().join(name))).arg(act);
        command.status().unwrap().code().unwrap()
    }

    /// Returns the reports in the sink's folder.
    fn reports(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.folder.path().join("delivered")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }

    /// Returns the only report of a run with this exit status, delivered by a launch with an act.
    fn report(&self, act: &str, status: i32, launch: &str) -> Value {
        assert_eq!(self.run(act), status, "{act}");
        assert_eq!(self.run(launch), 0);
        let [report]: [Value; 1] = self.reports().try_into().unwrap();
        report
    }
}

const SEGV: i32 = 128 + libc::SIGSEGV;

#[test]
fn settings_made_before_and_after_install_are_in_the_report() {
    let report = Bench::new().report("crash", SEGV, "");
    let run = &report["run"];
    let app = &run["app"];
    assert_eq!((&app["version"], &app["release"]), (&"1.0".into(), &"setters@1.0-rc".into()));
    assert_eq!((&app["environment"], &app["dist"]), (&"beta".into(), &"arm".into()));
    assert_eq!(run["tags"], serde_json::json!({ "order": "[Filtered]", "from": "https://[Filtered]@example.com/" }));
    assert_eq!(run["user"]["id"], "u-1");
    assert_eq!(run["lifecycle"]["foreground"], "foreground", "{}", run["lifecycle"]);
    let stack_size = |report: &Value| report["stack_memory"].to_string().len();
    let little = stack_size(&report);

    let report = Bench::new().report("changed", SEGV, "");
    let run = &report["run"];
    assert_eq!((&run["release"], &run["environment"]), (&"setters@2.0".into(), &"production".into()));
    assert!(run["user"]["id"].is_null(), "{}", run["user"]);

    let report = Bench::new().report("all-stacks", SEGV, "open");
    assert!(stack_size(&report) > little, "{little}, {}", stack_size(&report));
    // The delivering launch decides which strings are hidden.
    assert_eq!(report["run"]["tags"]["from"], "https://user:word@example.com/");
    assert_eq!(report["run"]["tags"]["order"], "[Filtered]");
}

#[test]
fn without_sinks_reports_stay_in_the_store() {
    let bench = Bench::new();
    assert_eq!(bench.run("crash"), SEGV);
    assert_eq!(bench.run("kept"), 0);
    assert_eq!(bench.reports(), [Value::Null; 0]);
    assert!(!bench.folder.path().join("store/reports").exists());
    assert_eq!(bench.run(""), 0);
    assert_eq!(bench.reports().len(), 1);
}

#[test]
fn the_hourly_limit_applies() {
    let report = Bench::new().report("handled", 0, "");
    assert_eq!(report["exceptions"][0]["type_name"], "shop::Closed");
}

#[test]
fn an_ignored_signal_is_passed_to_the_app() {
    let bench = Bench::new();
    assert_eq!(bench.run("ignored"), 7);
    assert_eq!(bench.run(""), 0);
    assert_eq!(bench.reports(), [Value::Null; 0]);
}

#[test]
fn a_childs_crash_is_reported_if_configured() {
    Bench::new().report("fork", 0, "");
    let bench = Bench::new();
    assert_eq!(bench.run("fork-unreported"), 0);
    assert_eq!(bench.run(""), 0);
    assert_eq!(bench.reports(), [Value::Null; 0]);
}

#[test]
fn exit_info_without_a_run_or_a_trace_is_not_reported() {
    let bench = Bench::new();
    assert_eq!(bench.run("info"), 0);
    assert_eq!(bench.reports(), [Value::Null; 0]);
}
