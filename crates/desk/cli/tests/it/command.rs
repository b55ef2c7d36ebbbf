//! The `coroner` command as a user types it.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_coroner")), arguments)
    }

    fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("CORONER_STORE", self.store()).current_dir(self.folder.path());
        // Don't query a server.
        command.env_remove("DEBUGINFOD_URLS");
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(&self.command(arguments).output().unwrap())
    }
}

#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

#[test]
fn the_demo_report_can_be_listed_shown_and_filtered() {
    let bench = Bench::new();
    let demo = bench.run(&["demo"]);
    assert_eq!(demo.code, 0, "{demo:?}");
    assert!(demo.out.contains("killed by signal 11 (SIGSEGV)"), "{}", demo.out);
    assert!(demo.out.contains("The app's last run crashed"), "{}", demo.out);
    let (callee, caller) = (demo.out.find("null_store").unwrap(), demo.out.find("chain_c").unwrap());
    assert!(callee < caller && demo.out.contains("Stored "), "{}", demo.out);
    assert!(!demo.out.contains('\x1b'), "a pipe gets no colour");

    let list = bench.run(&["list", "--format", "json"]).json();
    let reports = list.as_array().unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!((&reports[0]["app"], &reports[0]["state"]["is"]), (&"coroner-demo".into(), &"stored".into()));
    assert_eq!((&reports[0]["what"], &reports[0]["signal"]), (&"null pointer".into(), &"SIGSEGV".into()), "{list}");
    assert!(reports[0]["function"].as_str().unwrap().contains("store"), "{list}");
    let event = reports[0]["event_id"].as_str().unwrap().to_owned();

    let text = bench.run(&["list"]);
    assert!(text.out.contains(&event) && text.out.contains("coroner-demo"), "{text:?}");

    // By its event id's prefix, by either file, and with either answer.
    let json = bench.run(&["show", &event[..6], "--format", "json"]).json();
    assert_eq!(json["header"]["event_id"], event.as_str());
    assert_eq!(json["run"]["tags"]["fault"], "null-store");
    assert_eq!(json["run"]["breadcrumbs"].as_array().unwrap().len(), 2);
    assert_eq!(json["run"].get("problems"), None, "the run state is whole");
    let file = reports[0]["path"].as_str().unwrap();
    for path in [file.to_owned(), file.replace(".coroner", ".json")] {
        let shown = bench.run(&["show", &path]);
        assert!(shown.code == 0 && shown.out.contains("null_store"), "{shown:?}");
    }

    let crashed = bench.run(&["show", &event]);
    let all = bench.run(&["show", &event, "--thread", "all"]);
    assert!(!crashed.out.contains("\"network\"") && all.out.contains("\"network\""), "{}", all.out);
    // The JSON alone, as a program or a person passes it on.
    let stored = reports[0]["path"].as_str().unwrap().replace(".coroner", ".json");
    std::fs::copy(stored, bench.folder.path().join("alone.json")).unwrap();
    assert_eq!(bench.run(&["show", "alone.json", "--thread", "all"]).out, all.out);
    let first = bench.run(&["show", &event, "--thread", "1", "--format", "json"]).json();
    assert_eq!(first["threads"].as_array().unwrap().len(), 1);
    let none = bench.run(&["show", &event, "--thread", "99"]);
    assert!(none.code == 1 && none.err.contains("no thread 99"), "{none:?}");
}

#[test]
fn a_fault_in_a_child_process_is_shown() {
    let bench = Bench::new();
    let demo = bench.run(&["demo", "fork-child", "--store", "elsewhere"]);
    assert_eq!(demo.code, 0, "{demo:?}");
    assert!(demo.out.contains("exited with status 0") && demo.out.contains("Stored "), "{}", demo.out);
    assert!(bench.folder.path().join("elsewhere/reports").is_dir() && !bench.store().exists());
}

#[test]
fn errors_name_the_problem_the_place_and_the_next_step() {
    let bench = Bench::new();
    let folder = bench.folder.path();
    std::fs::write(folder.join("empty"), b"").unwrap();
    std::fs::write(folder.join("program"), b"\x7fELF\x02\x01\x01 and so on").unwrap();
    std::fs::write(folder.join("noise"), [0x9f; 5000]).unwrap();
    std::fs::write(folder.join("other.json"), "{\"event_id\": 1}").unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    for (arguments, code, result) in [
        (&["demo", "no-such-fault"][..], 2, "coroner demo --list"),
        (&["list"], 1, "no store at"),
        (&["list", "missing"], 1, "can't list `missing`"),
        (&["show", "missing"], 1, "no file `missing`"),
        (&["show", "abcdef"], 1, "no store at"),
        (&["show", "empty"], 1, "`empty`: the file is empty"),
        (&["show", "program"], 1, "ELF"),
        (&["show", "noise"], 1, "not a Coroner report"),
        (&["show", "other.json"], 1, "can't read `other.json` as a Coroner report in JSON"),
        (&["show", "folder"], 1, "is not a run directory"),
        (&["show", "folder"], 1, "use `coroner list folder`"),
        (&["show", "noise", "--symbols", "nowhere"], 1, "can't search `nowhere` for symbols"),
        (&["show", "empty", "--thread", "some"], 2, "expected a thread number"),
        (&["list", "--newest", "0"], 2, "--newest"),
        (&["list", "--tag", "=1"], 2, "missing key"),
        (&["sow"], 2, "unrecognized subcommand"),
        (&[], 2, "Usage"),
    ] {
        let failed = bench.run(arguments);
        assert_eq!(failed.code, code, "{arguments:?} {failed:?}");
        assert!(failed.err.contains(result), "{arguments:?} {failed:?}");
        assert!(failed.out.is_empty(), "{arguments:?} {failed:?}");
    }
}

#[test]
fn an_empty_store_lists_no_reports_and_an_inaccessible_one_fails() {
    let bench = Bench::new();
    std::fs::create_dir(bench.store()).unwrap();
    let list = bench.run(&["list"]);
    assert_eq!((list.code, list.out.as_str()), (0, ""), "{list:?}");
    assert!(list.err.contains("no reports in"), "{list:?}");
    assert_eq!(bench.run(&["list", "--format", "json"]).json(), serde_json::json!([]));

    let closed = bench.folder.path().join("closed");
    std::fs::create_dir_all(closed.join("store/runs")).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::set_permissions(bench.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Another user may not be able to reach the program by its path, for example in root's home
    // directory.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_coroner")).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
    for arguments in [&["list", "--store", "closed/store"][..], &["list", "closed/store"], &["show", "closed/report"]] {
        let mut command = bench.command_of(&path, arguments);
        // Permissions don't apply to root.
        if nix::unistd::geteuid().is_root() {
            command.uid(65534);
        }
        let result = CommandOutput::new(&command.output().unwrap());
        assert_eq!(result.code, 1, "{result:?}");
        assert!(
            result.err.contains("Permission denied") && !result.err.contains("no store at"),
            "{arguments:?} {result:?}"
        );
    }
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn help_has_examples_and_the_exit_status() {
    let bench = Bench::new();
    for command in ["demo", "list", "show", "doctor"] {
        let help = bench.run(&[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.out.contains("Examples:") && help.out.contains("Exit status:"), "{}", help.out);
    }
    assert!(bench.run(&["demo", "--list"]).out.contains("stack-overflow"));
    assert!(!bench.run(&["--help"]).out.contains("__demo-app"));
}

#[test]
fn doctor_accepts_this_system_and_rejects_a_limited_one() {
    let bench = Bench::new();
    let fit = bench.run(&["doctor", "--format", "json"]);
    assert_eq!(fit.code, 0, "{fit:?}");
    let findings = fit.json();
    let subjects: Vec<&str> =
        findings.as_array().unwrap().iter().map(|finding| finding["subject"].as_str().unwrap()).collect();
    for subject in ["guarded reads", "ptrace helper", "signal frame", "reserved file", "core dumps", "symbols"] {
        assert!(subjects.contains(&subject), "{subjects:?}");
    }
    assert!(std::fs::read_dir(bench.store()).unwrap().all(|entry| entry.unwrap().file_name() == "runs"), "no litter");
    // Coroner sizes its alternate stacks for the processor's frame.
    let frame = findings.as_array().unwrap().iter().find(|finding| finding["subject"] == "signal frame").unwrap();
    assert!(frame["grade"] == "works" || frame["grade"] == "note", "{frame}");

    // The note of an app's launch whose signals another handler has taken.
    let taken = "signal 11 is now handled by /usr/bin/redis-server";
    let noted = serde_json::json!({
        "outcome": "unknown", "run": null, "event_id": null, "began": null, "ran_for": null, "signals_taken": taken,
    });
    std::fs::write(bench.store().join("last_run-0123456789abcdef.json"), noted.to_string()).unwrap();
    assert!(bench.run(&["doctor"]).out.contains(taken));

    // An impossible store: a file has its name.
    std::fs::write(bench.folder.path().join("file"), b"").unwrap();
    let unfit = bench.run(&["doctor", "--store", "file"]);
    assert!(unfit.code == 1 && unfit.out.contains("FAIL") && unfit.out.contains("--store"), "{unfit:?}");

    let mut limited = bench.command(&["doctor"]);
    // SAFETY: `setrlimit` is async-signal-safe, and is the only call between fork and exec.
    unsafe {
        limited.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            Ok(())
        });
    }
    let limited = CommandOutput::new(&limited.output().unwrap());
    assert!(limited.out.contains("ulimit -f"), "{limited:?}");
}

#[test]
fn android_crash_reports_are_shown() {
    let bench = Bench::new();
    let files = [
        ("tombstone_00", include_str!("../../../../analysis/formats/tests/files/android-14.txt")),
        ("logcat.txt", include_str!("../../../../analysis/formats/tests/files/android-5.log")),
        ("anr_2022", include_str!("../../../../analysis/formats/tests/files/anr.txt")),
    ];
    for (name, content) in files {
        std::fs::write(bench.folder.path().join(name), content).unwrap();
    }
    let native = bench.run(&["show", "tombstone_00"]);
    assert_eq!(native.code, 0, "{native:?}");
    for part in
        ["SEGV_MTESERR", "shop::Cart::pay(int, (anonymous namespace)::Card const&) + 16", "[MTE]: Use After Free"]
    {
        assert!(native.out.contains(part), "{part}: {}", native.out);
    }
    assert_eq!(bench.run(&["show", "logcat.txt", "--format", "json"]).json()["crash"]["tid"], 1907);
    let hang = bench.run(&["show", "anr_2022", "--thread", "all"]).out;
    assert!(hang.contains("com.example.shop.Cart.total (Cart.java:41)"), "{hang}");
    assert!(hang.contains("held by thread 4123"), "{hang}");
    // Truncated before any content.
    let torn = &files[0].1[..200];
    std::fs::write(bench.folder.path().join("torn"), torn).unwrap();
    let refused = bench.run(&["show", "torn"]);
    assert!(refused.code != 0 && refused.err.contains("an Android tombstone (text)): at byte 200"), "{refused:?}");
}

#[test]
fn a_closed_or_full_standard_output_causes_no_panic() {
    let bench = Bench::new();
    assert_eq!(bench.run(&["demo"]).code, 0);
    let report = bench.run(&["list", "--format", "json"]).json()[0]["path"].as_str().unwrap().to_owned();
    let import = ["import", &report, &report, "--output", "imported"];
    let commands: [&[&str]; 14] = [
        &["list"],
        &["list", "--format", "json"],
        &["group"],
        &["group", "--format", "json"],
        &["top", "--format", "json"],
        &["show"],
        &["show", "--format", "json"],
        &["symbolicate", "--format", "json"],
        &["symbols", &report],
        &["convert", "--to", "sentry"],
        &["doctor"],
        &["doctor", "--format", "json"],
        &["completions", "bash"],
        &import,
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = CommandOutput::new(&bench.command(arguments).stdout(writer).output().unwrap());
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let full = CommandOutput::new(&bench.command(arguments).stdout(full).output().unwrap());
        for result in [&closed, &full] {
            assert!(!result.err.contains("panicked"), "{arguments:?} {result:?}");
        }
        // `symbols` fails for files that aren't symbol files.
        let expected = i32::from(arguments[0] == "symbols");
        assert_eq!(closed.code, expected, "{arguments:?} {closed:?}");
        assert_eq!(full.code, 1, "{arguments:?} {full:?}");
        assert!(
            expected == 1 || full.err.contains("can't write to standard output: No space left on device"),
            "{arguments:?} {full:?}"
        );
    }
    // Both files were imported anyway: they belong to one report.
    assert_eq!(std::fs::read_dir(bench.folder.path().join("imported")).unwrap().count(), 1);
}

#[test]
fn an_unreadable_report_makes_the_list_fail() {
    let bench = Bench::new();
    assert_eq!(bench.run(&["demo"]).code, 0);
    let folder = bench.store().join("reports");
    let folder = folder.to_str().unwrap();
    assert_eq!(bench.run(&["list", folder]).code, 0);
    let noise = bench.store().join("reports/noise.coroner");
    std::fs::write(&noise, [0x9f; 500]).unwrap();
    for command in ["list", "group", "top"] {
        for format in ["text", "json"] {
            let result = bench.run(&[command, folder, "--format", format]);
            // Readable reports are shown anyway.
            assert!(
                result.out.contains("null pointer") && result.err.contains("noise.coroner"),
                "{command} {result:?}"
            );
            assert!(result.code == 1 && result.err.contains("can't read 1 of 2 reports"), "{command} {result:?}");
        }
    }
    let alone = bench.folder.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    std::fs::rename(noise, alone.join("noise.coroner")).unwrap();
    let result = bench.run(&["list", "alone"]);
    assert!(result.code == 1 && result.err.contains("can't read the report"), "{result:?}");
    assert!(!result.err.contains("no reports"), "{result:?}");
}
