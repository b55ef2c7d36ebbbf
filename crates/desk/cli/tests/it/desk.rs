//! Reports without their programs, by either form, in changing folders, as text and as pages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

mod edges;

struct Bench {
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("CORONER_STORE", self.path("store")).current_dir(self.folder.path());
        command.env("HOME", self.folder.path()).env_remove("XDG_CACHE_HOME").env_remove("XDG_RUNTIME_DIR");
        command.env_remove("DEBUGINFOD_URLS").env_remove("COLUMNS").env_remove("SENTRY_DSN");
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        command_output(&self.command(Path::new(env!("CARGO_BIN_EXE_coroner")), arguments).output().unwrap())
    }

    /// Returns the JSON files of the store's reports.
    fn stored(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("store/reports")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        paths.sort();
        paths
    }
}

fn command_output(output: &Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Returns a small report.
fn report(number: u32, edit: impl FnOnce(&mut Value)) -> Value {
    let frame = |function: &str, address: u32| json!({"address": format!("{address:#x}"), "module": "/opt/paint/paint", "function": function, "module_offset": "0x10"});
    let mut report = json!({
        "header": {"event_id": format!("{:032x}", number + 1), "process_name": "paint", "os": "linux", "arch": "x86_64"},
        "crash": {"time": format!("2026-11-2{}T10:00:{:02}Z", number / 60 % 10, number % 60), "tid": 7,
            "signal": {"number": 11, "code": 1}},
        "threads": [{"tid": 7, "crashed": true, "frames": [
            frame(if number.is_multiple_of(2) { "paint::fill" } else { "paint::load" }, 0x1010), frame("paint::main", 0x1020)]}],
        "images": [{"path": "/opt/paint/paint", "is_main": true, "load_address": "0x1000", "size": 4096}],
        "run": {"app": {"name": "paint", "version": "1.2.3"}, "tags": {"country": if number < 3 { "at" } else { "de" }}},
    });
    edit(&mut report);
    report
}

/// Creates a folder with `reports` reports.
fn folder(bench: &Bench, reports: u32) -> PathBuf {
    let folder = bench.path("reports");
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..reports {
        std::fs::write(folder.join(format!("{number}.json")), report(number, |_| {}).to_string()).unwrap();
    }
    folder
}

#[test]
fn names_are_kept_after_the_program_is_gone() {
    let bench = Bench::new();
    let program = bench.path("program");
    crate::copy_of_the_command(&program);
    let demo = command_output(&bench.command(&program, &["demo", "abort"]).output().unwrap());
    assert_eq!(demo.code, 0, "{demo:?}");
    let id = bench.run(&["list", "--format", "json"]).json()[0]["event_id"].as_str().unwrap().to_owned();
    let json = bench.stored().remove(0);
    let before = bench.run(&["show", &id, "--unscrubbed"]).out;
    assert!(before.contains("signals.rs:"), "{before}");

    // A later build.
    std::fs::write(&program, b"another").unwrap();
    let raw = json.with_extension("coroner");
    let (json_path, raw_path) = (json.to_str().unwrap(), raw.to_str().unwrap());
    for arguments in [
        &["show", &id][..],
        &["show", &id[..8], "--unscrubbed"],
        &["show", json_path],
        &["show", raw_path, "--unscrubbed"],
    ] {
        let shown = bench.run(arguments);
        assert!(shown.code == 0 && shown.out.contains("signals.rs:"), "{arguments:?} {shown:?}");
    }
    // Without an argument it is the newest.
    assert_eq!(bench.run(&["show"]).out, bench.run(&["show", &id]).out);

    // The JSON alone is sufficient for every command.
    std::fs::remove_file(&raw).unwrap();
    assert_eq!(bench.run(&["list", "--format", "json"]).json()[0]["event_id"], id.as_str());
    assert!(bench.run(&["show", &id]).out.contains("signals.rs:"));
    let mailed = bench.path("from a customer.txt");
    std::fs::copy(&json, &mailed).unwrap();
    let mailed = mailed.to_str().unwrap();
    assert!(bench.run(&["show", mailed]).out.contains("signals.rs:"));
    assert!(bench.run(&["symbolicate", mailed]).out.contains("signals.rs:"));
    assert!(bench.run(&["convert", mailed, "--to", "sentry"]).out.contains("signals.rs"));
    let title = &bench.run(&["list", "--format", "json"]).json()[0]["function"];
    assert_eq!(title, "coroner_faults::signals::abort_here");
    check_that_found_names_are_kept_in_the_json(&bench, &program, &json);
}

#[test]
fn a_report_starts_with_its_explanation() {
    let bench = Bench::new();
    let program = bench.path("program");
    crate::copy_of_the_command(&program);
    let demo = command_output(&bench.command(&program, &["demo", "null-store"]).output().unwrap());
    assert!(demo.out.contains("\nNull pointer: write of 4 bytes ("), "{demo:?}");
    let shown = bench.run(&["show"]).out;
    let headline = shown.lines().next().unwrap_or_default();
    assert!(headline.starts_with("Null pointer: write of 4 bytes (") && headline.contains("memory.rs:"), "{shown}");
    assert!(shown.contains("\nWhy\n") && shown.contains("\nInstruction:   "), "{shown}");
    let json = bench.run(&["show", "--format", "json"]).json();
    let explanation = &json["explanation"];
    assert_eq!(explanation["headline"], headline);
    assert_eq!((&explanation["kind"], &explanation["certainty"]), (&json!("null_pointer"), &json!("certain")));
    assert_eq!((&explanation["access"]["kind"], &explanation["access"]["width"]), (&json!("write"), &json!(4)));
    assert_eq!(explanation["operand"]["value"], "0x0");
    // The output is still a report.
    let shown = bench.path("shown.json");
    std::fs::write(&shown, json.to_string()).unwrap();
    assert_eq!(bench.run(&["show", shown.to_str().unwrap()]).out.lines().next(), Some(headline));
    for format in ["html", "markdown"] {
        assert!(bench.run(&["show", "--format", format]).out.contains("Null pointer: write of 4 bytes"), "{format}");
    }

    // Without the program's file the result is the same: the report contains the executed code.
    std::fs::remove_file(&program).unwrap();
    let alone = bench.run(&["show", "--format", "json"]).json();
    assert_eq!(alone["explanation"]["kind"], "null_pointer");
    assert_eq!(alone["explanation"]["operand"], explanation["operand"]);
    let event = bench.run(&["convert", "--to", "sentry"]).json();
    assert_eq!(event["contexts"]["fault"]["register"], explanation["operand"]["register"]);
    check_that_a_store_is_listed(&bench);
}

/// Uses the JSON of a report of `program`, without other files of the report.
fn check_that_found_names_are_kept_in_the_json(bench: &Bench, program: &Path, json: &Path) {
    crate::copy_of_the_command(program);
    // As if from a machine without the debug information.
    let mut report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for frame in report["threads"][0]["frames"].as_array_mut().unwrap() {
        for name in ["function", "raw_function", "file", "line", "column", "inlined", "symbol_address"] {
            frame.as_object_mut().unwrap().remove(name);
        }
    }
    std::fs::write(json, report.to_string()).unwrap();
    let file = json.to_str().unwrap();
    assert!(bench.run(&["show", file]).out.contains("signals.rs:"));
    std::fs::remove_file(program).unwrap();
    let again = bench.run(&["show", file]).out;
    assert!(again.contains("signals.rs:"), "{again}");

    // Fields from a later version are preserved.
    report["later"] = json!(7);
    crate::copy_of_the_command(program);
    std::fs::write(json, report.to_string()).unwrap();
    assert!(bench.run(&["show", file]).out.contains("signals.rs:"));
    let kept: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(kept["later"], 7);
}

#[test]
fn runtime_frames_are_folded_and_lines_fit_the_terminal() {
    let bench = Bench::new();
    assert_eq!(bench.run(&["demo", "panic-abort"]).code, 0);
    let shown = bench.run(&["show"]).out;
    assert!(shown.contains("runtime functions") && !shown.contains("/rustc/"), "{shown}");
    let all = bench.run(&["show", "--all-frames"]).out;
    assert!(!all.contains("runtime functions") && all.lines().count() > shown.lines().count() + 8, "{all}");
    for columns in ["60", "100"] {
        let mut command = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["show", "--thread", "all"]);
        let narrow = command_output(&command.env("COLUMNS", columns).output().unwrap()).out;
        let widest = narrow.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns.parse().unwrap(), "{widest} {narrow}");
        assert!(narrow.contains("signals.rs:") || narrow.contains(".rs:"), "{narrow}");
    }
}

#[test]
fn list_ignores_files_that_are_not_reports() {
    let bench = Bench::new();
    let folder = folder(&bench, 120);
    std::fs::write(folder.join("settings.json"), "{}").unwrap();
    let list = |more: &[&str]| bench.run(&[&["list", "reports", "--format", "json"], more].concat()).json();
    let count = |more: &[&str]| list(more).as_array().unwrap().len();
    // Reports written less than a clock tick of the file system ago are not cached.
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(count(&[]), 120);
    let times: Vec<String> = list(&[]).as_array().unwrap().iter().map(|entry| entry["time"].to_string()).collect();
    assert!(times.is_sorted());
    assert!(bench.run(&["list", "reports"]).err.contains("settings.json"));
    // From the index, with the same content.
    let caches = bench.path(if cfg!(target_vendor = "apple") { "Library/Caches/coroner" } else { ".cache/coroner" });
    assert_eq!(std::fs::read_dir(&caches).unwrap().count(), 1);
    assert_eq!(list(&[]), list(&[]));
    // The current state: one gone, one changed, one new.
    std::fs::remove_file(folder.join("0.json")).unwrap();
    std::fs::write(
        folder.join("1.json"),
        report(1, |report| report["run"]["app"]["version"] = json!("2.0")).to_string(),
    )
    .unwrap();
    std::fs::write(folder.join("new.json"), report(999, |_| {}).to_string()).unwrap();
    assert_eq!((count(&[]), count(&["--release", "2.0"])), (120, 1));
    // A damaged index is recreated.
    let index = std::fs::read_dir(&caches).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&index).unwrap();
    std::fs::write(&index, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(count(&[]), 120);

    assert_eq!(count(&["--tag", "country=at"]), 2);
    assert_eq!(count(&["--tag", "country"]), 120);
    assert_eq!(count(&["--function", "fill"]), 59);
    assert_eq!((count(&["--signal", "segv"]), count(&["--signal", "SIGBUS"])), (120, 0));
    assert_eq!(count(&["--since", "2026-11-21"]), 61);
    assert_eq!(count(&["--until", "2026-11-21T00:00:00Z"]), 59);
    assert_eq!((count(&["--newest", "3"]), count(&["--since", "2026-12-01"])), (3, 0));
    assert_eq!(bench.run(&["list", "reports", "--since", "yesterday"]).code, 2);
    let none = bench.run(&["list", "reports", "--signal", "SIGBUS"]);
    assert!(none.err.contains("match the filter (120 in total)"), "{none:?}");
}

#[test]
fn file_names_are_sanitized_for_the_terminal() {
    let bench = Bench::new();
    let folder = folder(&bench, 2);
    std::fs::write(folder.join("\u{1b}[2Jcleared\u{7}.json"), "{").unwrap();
    let mut command = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["list", "reports"]);
    // As on a terminal: the entry is not removed after it was shown.
    let listed = command_output(&command.env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(listed.err.contains("cleared") && listed.code == 1, "{listed:?}");
    assert!(!listed.err.contains("\u{1b}[2J") && !listed.err.contains('\u{7}'), "{listed:?}");
}

#[test]
fn all_commands_agree_on_the_newest_report_within_a_second() {
    let bench = Bench::new();
    let reports = bench.path("store/reports");
    std::fs::create_dir_all(&reports).unwrap();
    for (id, millisecond) in [("1", 980), ("f", 180), ("8", 500)] {
        let id = id.repeat(32);
        let time = format!("2026-11-26T16:25:20.{millisecond}Z");
        let report = report(0, |report| {
            report["header"]["event_id"] = json!(id);
            report["crash"]["time"] = json!(time);
        });
        std::fs::write(reports.join(format!("20261126T162520Z-{id}.json")), report.to_string()).unwrap();
    }
    let listed = bench.run(&["list", "--newest", "1", "--format", "json"]).json()[0]["event_id"].clone();
    let shown = bench.run(&["show", "--format", "json"]).json()["header"]["event_id"].clone();
    assert_eq!((&listed, &shown), (&json!("1".repeat(32)), &json!("1".repeat(32))));
    let digit = bench.run(&["show", "8"]);
    assert!(digit.err.contains("give at least 2 digits"), "{digit:?}");
}

/// Names of functions and files are chosen by a report's author.
#[test]
fn names_in_a_report_cannot_imitate_its_structure() {
    let bench = Bench::new();
    let name = "inner\n\nReport:        000FORGED\nSignal: SIGKILL";
    let forged = report(0, |report| report["threads"][0]["frames"][0]["function"] = json!(name));
    std::fs::write(bench.path("forged.json"), forged.to_string()).unwrap();
    let shown = bench.run(&["show", "forged.json"]);
    assert!(shown.out.contains("000FORGED"), "{shown:?}");
    assert!(!shown.out.lines().any(|line| line.starts_with("Report:        000FORGED")), "{}", shown.out);
}

/// Formats for programs are written unchanged, except to a terminal.
#[test]
#[cfg(target_os = "linux")]
fn names_in_a_report_are_sanitized_for_the_terminal_in_every_format() {
    let bench = Bench::new();
    let (name, acts) = ("red\u{9b}31m\u{202e}", ['\u{9b}', '\u{202e}', '\u{1b}']);
    let evil = report(0, |report| report["threads"][0]["frames"][0]["function"] = json!(name));
    std::fs::write(bench.path("evil.json"), evil.to_string()).unwrap();
    for format in ["json", "html", "markdown", "otlp"] {
        let piped = bench.run(&["show", "evil.json", "--format", format]);
        // util-linux's script(1) gives the command a terminal.
        let coroner = format!("'{}' show evil.json --format {format} 2>/dev/null", env!("CARGO_BIN_EXE_coroner"));
        let on_terminal =
            command_output(&bench.command(Path::new("script"), &["-qc", &coroner, "/dev/null"]).output().unwrap());
        assert!(on_terminal.out.contains("31m") && !on_terminal.out.contains(acts), "{format}: {on_terminal:?}");
        if format == "json" {
            assert!(piped.out.contains('\u{9b}'), "{piped:?}");
            let function = |result: CommandOutput| result.json()["threads"][0]["frames"][0]["function"].clone();
            assert_eq!((function(on_terminal), function(piped)), (json!(name), json!(name)));
        }
    }
}

#[test]
fn top_prints_the_total_number_of_groups() {
    let bench = Bench::new();
    folder(&bench, 9);
    let top = bench.run(&["top", "reports", "--count", "1"]);
    assert!(top.out.contains("9 reports in 2 groups, 1 shown"), "{top:?}");
    assert_eq!(bench.run(&["top", "reports", "--count", "0"]).code, 2);
}

#[test]
fn list_tolerates_reports_that_are_removed_meanwhile() {
    let bench = Bench::new();
    let folder = folder(&bench, 400);
    let remover = std::thread::spawn(move || {
        for number in 0..400 {
            let _ = std::fs::remove_file(folder.join(format!("{number}.json")));
        }
    });
    while !remover.is_finished() {
        let list = bench.run(&["list", "reports"]);
        assert!(list.code == 0 && !list.err.contains("error"), "{list:?}");
    }
    remover.join().unwrap();
    let empty = bench.run(&["list", "reports"]);
    assert!(empty.code == 0 && empty.err.contains("no reports in"), "{empty:?}");
}

/// Uses a store with one report.
fn check_that_a_store_is_listed(bench: &Bench) {
    // A store from which an app removed its runs.
    std::fs::remove_dir_all(bench.path("store/runs")).unwrap();
    assert_eq!(bench.run(&["list", "store", "--format", "json"]).json().as_array().unwrap().len(), 1);
    // A folder of reports, given as a store.
    let folder = folder(bench, 3);
    let named = bench.run(&["list", "--store", folder.to_str().unwrap(), "--format", "json"]);
    assert_eq!(named.json().as_array().unwrap().len(), 3);
    let shown = bench.run(&["show", "--store", folder.to_str().unwrap()]);
    assert!(shown.out.contains("paint::fill"), "the newest: {shown:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn list_watch_prints_new_reports() {
    use std::io::{BufRead, BufReader, Read};
    let bench = Bench::new();
    let folder = folder(&bench, 2);
    let mut command =
        bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["list", "reports", "--watch", "--format", "json"]);
    // A shell's background commands ignore SIGINT, and so do their children.
    // SAFETY: one call, which is async-signal-safe.
    let interrupts = || unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    // SAFETY: as above: it is called between fork and exec.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, move || Ok(_ = interrupts())) };
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"))["event_id"].clone()
    };
    let id = |number: u32| json!(format!("{number:032x}"));
    assert_eq!([next(), next()], [id(1), id(2)]);
    // A report written in two steps appears when it is complete.
    let text = report(6, |_| {}).to_string();
    std::fs::write(folder.join("new.json"), &text[..text.len() / 2]).unwrap();
    std::fs::write(folder.join("newer.json"), report(8, |_| {}).to_string()).unwrap();
    assert_eq!(next(), id(9));
    std::fs::write(folder.join("new.json"), &text).unwrap();
    assert_eq!(next(), id(7));
    // Like Ctrl-C.
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(2));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest}");
}

#[test]
fn show_prints_an_opentelemetry_log_record() {
    let bench = Bench::new();
    std::fs::write(bench.path("one.json"), report(1, |_| {}).to_string()).unwrap();
    let shown = bench.run(&["show", "one.json", "--format", "otlp"]).json();
    let resource = &shown["resourceLogs"][0];
    let record = &resource["scopeLogs"][0]["logRecords"][0];
    assert_eq!((&record["eventName"], &record["severityText"]), (&json!("app.crash"), &json!("FATAL")), "{shown:#}");
    let attributes = record["attributes"].as_array().unwrap().iter();
    let of = |key: &str| attributes.clone().find(|pair| pair["key"] == key).map(|pair| &pair["value"]["stringValue"]);
    assert_eq!(of("log.record.uid"), Some(&json!(format!("{:032x}", 2))), "{record:#}");
}

#[test]
fn reports_with_the_same_cause_are_grouped() {
    let bench = Bench::new();
    folder(&bench, 40);
    let groups = bench.run(&["group", "reports", "--format", "json"]).json();
    let groups = groups.as_array().unwrap();
    assert_eq!(groups.len(), 2, "{groups:#?}");
    assert!(groups.iter().all(|group| group["count"] == 20 && group["releases"] == json!(["1.2.3"])));
    assert_eq!(groups[0]["reports"].as_array().unwrap().len(), 20);
    let top = bench.run(&["top", "reports", "--count", "1"]);
    assert!(top.out.contains("bad access | paint::") && top.out.contains("40 reports"), "{top:?}");
}

/// Removes what a machine without the program's symbols doesn't have.
fn without_names(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(without_names),
        Value::Object(fields) => {
            for name in ["function", "raw_function", "file", "line", "column", "inlined", "symbol_address"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(without_names);
        }
        _ => {}
    }
}

#[test]
fn a_report_without_names_joins_the_group_with_names() {
    let bench = Bench::new();
    let program = bench.path("program");
    crate::copy_of_the_command(&program);
    for _ in 0..2 {
        assert_eq!(command_output(&bench.command(&program, &["demo", "null-store"]).output().unwrap()).code, 0);
    }
    std::fs::write(&program, b"another").unwrap();
    let [named, bare] = &bench.stored()[..] else { panic!("two reports") };
    let mut report: Value = serde_json::from_slice(&std::fs::read(bare).unwrap()).unwrap();
    without_names(&mut report["threads"]);
    std::fs::create_dir(bench.path("reports")).unwrap();
    std::fs::write(bench.path("reports/bare.json"), report.to_string()).unwrap();
    std::fs::copy(named, bench.path("reports/named.json")).unwrap();
    let groups = |bench: &Bench| bench.run(&["group", "reports", "--like", "1", "--format", "json"]).json();
    // The second time from the index.
    for _ in 0..2 {
        let found = groups(&bench);
        assert_eq!((found.as_array().unwrap().len(), &found[0]["count"]), (1, &json!(2)), "{found:#}");
        assert!(found[0]["signature"].to_string().contains("null_store"), "{found:#}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    // The same offsets in another build are different code.
    let main = report["images"].as_array_mut().unwrap().iter_mut().find(|image| image["is_main"] == true).unwrap();
    main["build_id"] = json!("00112233445566778899aabbccddeeff00112233");
    std::fs::write(bench.path("reports/bare.json"), report.to_string()).unwrap();
    let found = groups(&bench);
    assert_eq!(found.as_array().unwrap().len(), 2, "{found:#}");
}

#[test]
fn a_page_is_complete_and_escapes_report_content() {
    const EVIL: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(2)> javascript:alert(3) </title></style>\
        \u{1b}[31m \u{9b}32m \u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\
        \u{2066}\u{2067}\u{2068}\u{2069}";
    let bench = Bench::new();
    let evil = report(1, |report| {
        report["header"]["process_name"] = json!(EVIL);
        report["crash"]["message"] = json!(EVIL);
        report["images"][0]["path"] = json!(EVIL);
        report["run"]["app"]["name"] = json!(EVIL);
        report["run"]["tags"][EVIL] = json!(EVIL);
        report["run"]["contexts"] = json!({EVIL: {"x": EVIL}});
        report["run"]["breadcrumbs"] = json!([{"time": "2026-11-20T09:00:00Z", "message": EVIL, "category": EVIL}]);
        report["annotations"] = json!([{"source": EVIL, "text": EVIL}]);
        report["exceptions"] =
            json!([{"type_name": EVIL, "message": EVIL, "frames": [{"function": EVIL, "file": EVIL, "line": 3}]}]);
        let frame = &mut report["threads"][0]["frames"][0];
        (frame["function"], frame["file"], frame["module"]) = (json!(EVIL), json!("/etc/passwd"), json!(EVIL));
        frame["line"] = json!(1);
        report["threads"][0]["name"] = json!(EVIL);
    });
    std::fs::write(bench.path("evil.json"), evil.to_string()).unwrap();
    let page = bench.run(&["show", "evil.json", "--html"]);
    assert_eq!(page.code, 0, "{page:?}");
    let html = page.out;
    assert!(html.contains("Content-Security-Policy") && html.contains("default-src 'none'"), "{html}");
    assert!(html.matches("&lt;script&gt;").count() > 10, "{html}");
    for forbidden in ["<script", "<img", "<iframe", "href=", "src=x on\"", "root:x:", "http://", "https://", " style="]
    {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(
        (html.matches("<title").count(), html.matches("</style>").count()),
        (2, 1),
        "the page's and the picture's"
    );
    // Neither a terminal nor a browser changes the order of the text around a name.
    let acts = |character: char| {
        character.is_control() && character != '\n' && character != '\t'
            || "\u{61c}\u{200e}\u{200f}".contains(character)
            || ('\u{202a}'..='\u{202e}').contains(&character)
            || ('\u{2066}'..='\u{2069}').contains(&character)
    };
    assert!(!html.contains(acts));
    for arguments in [
        &["show", "evil.json"][..],
        &["list", "."],
        &["top", "."],
        &["show", "evil.json", "--raw"],
        &["show", "evil.json", "--format", "markdown"],
        &["show", "evil.json", "--thread", "all"],
        &["symbolicate", "evil.json", "-o", "named.json"],
    ] {
        let result = bench.run(arguments);
        assert!(!result.out.contains(acts) && !result.err.contains(acts), "{arguments:?}: {result:?}");
    }
    // Markdown shows no element.
    let markdown = bench.run(&["show", "evil.json", "--format", "markdown"]).out;
    let outside: String = markdown.split("```").step_by(2).collect();
    assert!(outside.contains("&lt;script&gt;") && !outside.contains("<img"), "{markdown}");

    // As a file, and for a browser.
    assert_eq!(bench.run(&["show", "evil.json", "--html", "-o", "page.html"]).code, 0);
    assert_eq!(std::fs::read_to_string(bench.path("page.html")).unwrap(), html);
    let mut open = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["open", "evil.json"]);
    let opened = command_output(&open.env("BROWSER", "true").output().unwrap());
    assert_eq!((opened.code, std::fs::read_to_string(opened.out.trim()).unwrap()), (0, html), "{opened:?}");
    let mut open = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["open", "evil.json"]);
    let none = command_output(&open.env("BROWSER", "/no/such/browser").output().unwrap());
    assert!(none.code == 1 && none.err.contains("$BROWSER"), "{none:?}");
    let mut open = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["open", "evil.json"]);
    let failed = command_output(&open.env("BROWSER", "false").output().unwrap());
    assert!(failed.code == 1 && failed.err.contains("`false` failed: exit status: 1"), "{failed:?}");
    assert!(Path::new(failed.out.trim()).is_file(), "{failed:?}");
    // The folder is another user's, or was: others may replace what is in it.
    let pages = Path::new(failed.out.trim()).parent().unwrap();
    std::fs::set_permissions(pages, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut open = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["open", "evil.json"]);
    let elsewhere = command_output(&open.env("BROWSER", "true").env("TMPDIR", bench.folder.path()).output().unwrap());
    let (page, folder) = (Path::new(elsewhere.out.trim()), bench.folder.path());
    assert!(page.is_file() && !page.starts_with(pages) && page.starts_with(folder), "{elsewhere:?}");
}

#[test]
fn equal_stacks_are_merged_on_a_page() {
    let bench = Bench::new();
    let many = report(1, |report| {
        let wait =
            json!([{"address": "0x9", "function": "futex_wait"}, {"address": "0x1020", "function": "paint::work"}]);
        let waiting = |tid: u32| json!({"tid": tid, "frames": wait});
        report["threads"].as_array_mut().unwrap().extend((100..138).map(waiting));
    });
    std::fs::write(bench.path("many.json"), many.to_string()).unwrap();
    let html = bench.run(&["show", "many.json", "--html"]).out;
    assert!(html.contains("38 threads</b> with the same stack") && html.contains("38 in 1 stacks"), "{html}");
    assert_eq!(html.matches("futex_wait").count(), 2, "in its name and its title");
}

/// Tests a hang with a deadlock and a profile.
///
/// It is shown as text, as Markdown, and as pictures in a page with a strict policy.
#[test]
fn a_hang_shows_waits_and_profile() {
    let bench = Bench::new();
    let hang = report(1, |report| {
        // Like a glibc mutex: lock, count, owner, users, kind.
        let waits = |tid: u32, name: &str, owner: u32, address: &str| {
            let words: String =
                [2, 0, owner, 1, 0].iter().map(|word: &u32| format!("{:08x}", word.swap_bytes())).collect();
            let futex = json!({"address": address, "operation": 128, "expected": 2, "start": address, "bytes": words});
            let frames = json!([{"address": "0x10", "function": "___pthread_mutex_lock", "module": "/lib/libc.so.6"}]);
            json!({"tid": tid, "name": name, "crashed": tid == 1, "futex": futex, "frames": frames})
        };
        report["crash"]["monitor"] = json!("hang");
        report["crash"]["tid"] = json!(1);
        report["crash"].as_object_mut().unwrap().remove("signal");
        report["threads"] = json!([waits(1, "<b>ui", 2, "0x1000"), waits(2, "worker", 1, "0x2000")]);
        let node = |parent: Option<u32>, function: &str| json!({"parent": parent, "frame": {"address": "0x9", "function": function, "in_app": true}});
        report["profile"] = json!({
            "tid": 1, "samples": 20, "sampled_ns": 1_000_000_000,
            "nodes": [node(None, "app::main"), node(Some(0), "app::save<i>"), node(Some(0), "app::draw")],
            "ends": [
                {"node": 1, "state": "blocked", "syscall": 75, "samples": 15, "weight_ns": 750_000_000},
                {"node": 2, "state": "running", "samples": 5, "weight_ns": 250_000_000},
            ],
        });
    });
    std::fs::write(bench.path("hang.json"), hang.to_string()).unwrap();
    let result = "deadlock: thread 1 (<b>ui) waits for thread 2 (worker), which waits for thread 1 (<b>ui)";
    let spent = "75 % in app::save<i>, blocked in fdatasync; 25 % in app::draw, on a CPU";
    let text = bench.run(&["show", "hang.json"]).out;
    let first = text.lines().next().unwrap();
    assert!(first.contains(result) && first.ends_with(spent), "{first}");
    assert!(text.contains("thread 1 waits for a mutex (glibc) at 0x1000, held by thread 2"), "{text}");
    assert!(text.contains("  100.0 % app::main\n   75.0 %   app::save<i>, 75.0 % blocked in fdatasync\n"), "{text}");
    assert!(text.contains("   25.0 %   app::draw, 25.0 % on a CPU\n"), "{text}");
    let markdown = bench.run(&["show", "hang.json", "--format", "markdown"]).out;
    assert!(markdown.contains("**Waits:** thread 2 waits for a mutex (glibc) at 0x2000"), "{markdown}");
    let html = bench.run(&["show", "hang.json", "--html"]).out;
    assert_eq!(html.matches("<g class=\"locked\">").count(), 2, "an arrow each: {html}");
    assert!(html.contains("app::save&lt;i&gt;: 75.0 %, 75.0 % blocked in fdatasync"), "{html}");
    assert!(html.contains("width=\"900.0\"") && html.contains("width=\"300.0\""), "{html}");
    assert!(!html.contains("<b>ui") && !html.contains("<i>"), "{html}");
    let events = bench.run(&["show", "hang.json", "--format", "json"]).out;
    let json: Value = serde_json::from_str(&events).unwrap();
    assert_eq!(json["explanation"]["deadlocks"], json!([[1, 2]]));
    assert_eq!(json["explanation"]["spent"], spent);
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = bench.run(&["completions", shell]);
        assert!(
            script.code == 0 && script.out.contains("symbolicate") && !script.out.contains("__demo-app --"),
            "{shell}"
        );
    }
    assert!(bench.run(&["man"]).out.contains(".TH coroner"));
    assert_eq!(bench.run(&["man", "pages"]).code, 0);
    let page = std::fs::read_to_string(bench.path("pages/coroner-show.1")).unwrap();
    assert!(page.contains(".TH coroner-show") && page.contains("all\\-frames"), "{page}");
    assert!(!bench.path("pages/coroner-__demo-app.1").exists());
}

#[test]
fn invalid_values_are_invalid_usage() {
    let bench = Bench::new();
    let demo = bench.run(&["demo", "nosuch"]);
    assert!(demo.code == 2 && demo.err.contains("coroner demo --list"), "{demo:?}");
    let empty = bench.run(&["show"]);
    assert!(empty.code == 1 && empty.err.contains("no store at"), "{empty:?}");
}
