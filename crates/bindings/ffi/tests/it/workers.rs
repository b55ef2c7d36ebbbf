//! Masters and their workers: each crash has its own report.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
