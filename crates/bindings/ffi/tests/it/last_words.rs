//! C programs that add data to their crash report, and exits that belong to others.
//!
//! The data is registered memory, a crash callback, and output before an abort.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use coroner_report::Report;
use serde_json::Value;

use crate::common;

/// `CORONER_OUTCOME_…` of the header.
const CLEAN_EXIT: i32 = 1;

struct Bench {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Bench {
    fn new(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = common::c_program("last_words.c", arguments, folder.path());
        Self { folder, program }
    }

    /// Returns a command with stdout and stderr in files, and no core file.
    fn command(&self, act: &str) -> Command {
        let file = |name: &str| File::options().create(true).append(true).open(self.folder.path().join(name)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]).arg(&self.program).arg(self.folder.path().join("store"));
        command.arg(act).stdout(file("out.txt")).stderr(file("err.txt"));
        command
    }

    fn run(&self, act: &str) -> ExitStatus {
        self.command(act).status().unwrap()
    }

    /// Returns the last run's outcome, as reported by a launch.
    fn outcome(&self) -> i32 {
        let output = self.command("").stdout(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().strip_prefix("outcome ").unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }

    /// Returns the only delivered report, and its attachments.
    fn delivered(&self) -> (Value, Vec<(String, Vec<u8>)>) {
        self.outcome();
        let mut report = Value::Null;
        let mut attachments = Vec::new();
        for entry in std::fs::read_dir(self.folder.path().join("store/reports")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let bytes = std::fs::read(&path).unwrap();
            if name.ends_with(".json") {
                report = serde_json::from_slice(&bytes).unwrap();
            } else if let Some((_, name)) = name.split_once(".attachment-") {
                attachments.push((name.to_owned(), bytes));
            }
        }
        attachments.sort();
        (report, attachments)
    }

    /// Returns the report in the store, before it is delivered.
    fn raw(&self) -> Report {
        let runs = std::fs::read_dir(self.folder.path().join("store/runs")).unwrap();
        let reports = runs.filter_map(|run| Report::read_file(run.unwrap().path().join("report")).ok());
        reports.into_iter().find(|report| report.crash.is_some()).expect("a report")
    }
}

#[test]
fn registered_memory_and_a_callback_are_attached() {
    let bench = Bench::new(&[]);
    assert_eq!(bench.run("memory").signal(), Some(libc::SIGSEGV));
    let (report, attachments) = bench.delivered();
    let mut lines = b"first line\nlast line\n".to_vec();
    lines.resize(64, 0);
    let found = |wanted: &str| attachments.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| bytes.as_slice());
    assert_eq!(found("lines.txt"), Some(lines.as_slice()));
    assert_eq!(found("replaced"), Some(&b"line"[..]));
    assert_eq!(found("crash_callback"), Some(&b"level 3"[..]));
    assert_eq!(found("gone"), None);
    // Nothing was printed.
    assert_eq!((found("stderr"), attachments.len()), (None, 3), "{attachments:?}");
    assert_eq!(report["complete"], true);
}

#[test]
fn an_assertion_message_is_in_the_report_of_static_programs_too() {
    for arguments in [&[][..], &["-static"], &["-static-pie"]] {
        let bench = Bench::new(arguments);
        assert_eq!(bench.run("asserts").signal(), Some(libc::SIGABRT));
        let (report, _) = bench.delivered();
        let message = report["annotations"][0]["text"].as_str().unwrap_or_default();
        assert!(
            message.contains("Assertion `count == 17' failed."),
            "{arguments:?}: {message:?}, {}",
            report["annotations"]
        );
    }
}

#[test]
fn the_end_of_stderr_is_attached_and_contains_the_reason() {
    let bench = Bench::new(&[]);
    // The process appends to the file, and is not the first.
    std::fs::write(bench.folder.path().join("out.txt"), "of an earlier process\n").unwrap();
    assert_eq!(bench.run("says").signal(), Some(libc::SIGABRT));
    assert_eq!(bench.raw().last_message_on_stderr().unwrap(), "Assertion failed: pages > 0 (book.c: print: 12)");
    let (_, attachments) = bench.delivered();
    let found = |wanted: &str| attachments.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| bytes.as_slice());
    assert_eq!(found("stdout"), Some(&b"to stdout\n"[..]));
    let kept = found("stderr").unwrap();
    assert_eq!(kept.len(), 60 << 10);
    let all = std::fs::read(bench.folder.path().join("err.txt")).unwrap();
    assert!(all.len() > kept.len() && all.ends_with(kept));

    // Unless the app disables it, or stderr is another file; and earlier output is not the reason.
    let bench = Bench::new(&[]);
    assert_eq!(bench.run("says-unkept").signal(), Some(libc::SIGABRT));
    assert!(bench.raw().app_memory.is_empty());
    let bench = Bench::new(&[]);
    let piped = bench.command("says").stderr(Stdio::piped()).output().unwrap();
    assert_eq!(piped.status.signal(), Some(libc::SIGABRT));
    assert_eq!(bench.raw().app_memory.iter().map(|memory| memory.name.as_str()).collect::<Vec<_>>(), ["stdout"]);
    let bench = Bench::new(&[]);
    assert_eq!(bench.run("said-before").signal(), Some(libc::SIGABRT));
    assert_eq!(bench.raw().last_message_on_stderr(), None);
}

#[test]
fn the_exit_of_a_vfork_child_is_not_the_parents() {
    let bench = Bench::new(&[]);
    assert_eq!(bench.run("vfork").signal(), Some(libc::SIGKILL));
    assert_ne!(bench.outcome(), CLEAN_EXIT);
    // The same call in the process itself does count.
    let bench = Bench::new(&[]);
    assert_eq!(bench.run("_exit").code(), Some(0));
    assert_eq!(bench.outcome(), CLEAN_EXIT);
}

#[test]
fn a_sigabrt_from_another_process_is_not_a_call_of_abort() {
    let bench = Bench::new(&[]);
    let mut child = bench.command("waits").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // SAFETY: sends a signal to this process's child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGABRT) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGABRT));
    let (report, _) = bench.delivered();
    assert_eq!(report["explanation"]["kind"], "sent_signal", "{}", report["explanation"]);
    let headline = report["explanation"]["headline"].as_str().unwrap();
    assert!(headline.contains(&format!("SIGABRT, sent by process {}", std::process::id())), "{headline}");
}
