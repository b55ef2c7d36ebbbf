//! Masters and their workers: each crash has its own report.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::c_program;

/// A folder with a master's program and its store.
struct Master {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Master {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = c_program("workers.c", &[], folder.path());
        Self { folder, program }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Returns the command that runs it, as the first process of a pid namespace if that is wanted.
    fn command(&self, is_first_process: bool, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]);
        if is_first_process {
            command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        }
        command.arg(&self.program).arg(self.store()).args(arguments);
        command
    }

    /// Delivers what is in the store. Returns whether the last run counts as crashed.
    fn next_launch(&self) -> bool {
        let ended = self.command(false, &[]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        ended.stdout == b"1\n"
    }

    /// Returns the delivered reports of the master's crashes and of its children's.
    fn reports(&self) -> (Vec<Value>, Vec<Value>) {
        reports(&self.store()).into_iter().partition(|report| !is_of_child(report))
    }
}

/// Returns the delivered reports.
fn reports(store: &Path) -> Vec<Value> {
    let Ok(entries) = std::fs::read_dir(store.join("reports")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

fn is_of_child(report: &Value) -> bool {
    report["crash"]["flags"].as_array().is_some_and(|flags| flags.contains(&"fork_child".into()))
}

fn is_whole(report: &Value) -> bool {
    report["complete"] == true && report["crash"]["signal"]["number"] == libc::SIGSEGV
}

/// Returns `true`, after a message, if the test needs root and doesn't have it.
fn is_skipped() -> bool {
    // SAFETY: returns a number.
    let is_skipped = unsafe { libc::getuid() } != 0;
    if is_skipped {
        println!("skipped: not root");
    }
    is_skipped
}

#[test]
fn a_child_with_its_parents_process_id_has_its_own_report() {
    if is_skipped() {
        return;
    }
    for how in ["crashes", "lives"] {
        let master = Master::new();
        let Output { stderr, .. } = master.command(true, &["namespace", how]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&stderr), "1 1", "{how}: the process IDs");
        assert_eq!(master.next_launch(), how == "crashes", "{how}: the master's end");
        let (own, of_children) = master.reports();
        assert_eq!((own.len(), of_children.len()), (usize::from(how == "crashes"), 1), "{how}");
        assert!(own.iter().chain(&of_children).all(is_whole), "{how}: {own:?} {of_children:?}");
    }
}

impl Master {
    /// Starts the master and waits until its workers have died. It lives until its input ends.
    fn start(&self, how: &str, workers: usize) -> Running<'_> {
        let mut command = self.command(false, &["workers", how, &workers.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "died\n", "{how}");
        Running { master: self, process }
    }
}

/// A master whose workers have died.
struct Running<'a> {
    master: &'a Master,
    process: Child,
}

impl Running<'_> {
    /// Waits until that many reports are delivered, while the master lives.
    fn delivers(&self, how: &str, count: usize) {
        let began = Instant::now();
        while reports(&self.master.store()).len() < count {
            let found = reports(&self.master.store()).len();
            assert!(began.elapsed() < LIMIT, "{how}: {found} of {count} reports while the master lives");
            sleep(Duration::from_millis(20));
        }
    }

    /// Ends the master's input; it exits normally.
    fn ends(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

const LIMIT: Duration = Duration::from_mins(1);

/// Returns `true` if a worker's mount namespace can be unshared here.
fn has_mount_namespaces() -> bool {
    Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success())
}

#[test]
fn each_worker_has_a_report_while_its_master_lives() {
    let mut ways = vec!["nothing", "file size", "descriptors", "file size, clone"];
    if !is_skipped() {
        ways.extend(["user", "chroot", "user, together", "user, daemon"]);
        ways.extend(has_mount_namespaces().then_some("mount"));
    }
    for how in ways {
        let (master, workers) = (Master::new(), 5);
        let running = master.start(how, workers);
        running.delivers(how, workers);
        running.ends();
        assert!(!master.next_launch(), "{how}: the master has not crashed");
        let (own, of_children) = master.reports();
        assert_eq!((own.len(), of_children.len()), (0, workers), "{how}");
        assert!(of_children.iter().all(is_whole), "{how}: {of_children:?}");
        let pids: BTreeSet<_> = of_children.iter().map(|report| report["header"]["pid"].to_string()).collect();
        assert_eq!(pids.len(), workers, "{how}: a report for each");
    }
}

#[test]
fn another_launch_delivers_the_reports_of_a_living_masters_workers() {
    if is_skipped() {
        return;
    }
    let master = Master::new();
    for how in ["user, alone", "chroot, alone"] {
        let _ = std::fs::remove_dir_all(master.store());
        let running = master.start(how, 3);
        assert_eq!(reports(&master.store()).len(), 0, "{how}: nobody delivers");
        master.next_launch();
        assert_eq!(reports(&master.store()).len(), 3, "{how}");
        running.ends();
    }
}

/// The number of reserved reports, and the spare report.
const MOST: usize = 33;

#[test]
fn workers_beyond_the_reserved_reports_are_counted() {
    if is_skipped() {
        return;
    }
    let master = Master::new();
    let running = master.start("user, alone, together", MOST + 7);
    let left_out = || coroner::Store::open_existing(&master.store()).unwrap().children_left_out();
    assert_eq!(left_out(), 7);
    master.next_launch();
    // The spare report belongs to the master's run, which has not ended.
    assert_eq!(reports(&master.store()).len(), MOST - 1);
    running.ends();
    master.next_launch();
    assert_eq!((reports(&master.store()).len(), left_out()), (MOST, 0));
}
