extern crate std;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::string::{String, ToString};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::{Hold, begin, forbids_locks};

/// Held by tests that start a process and by tests in which closing a pipe must give up ownership:
/// until its `exec`, a forked child keeps its parent's pipes open.
static CHILDREN: Mutex<()> = Mutex::new(());

fn without_forked_children() -> MutexGuard<'static, ()> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder() -> (tempfile::TempDir, CString) {
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
    (folder, path)
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().to_string()).collect()
}

#[test]
fn app_groups_of_ios_forbid_locks() {
    assert!(forbids_locks(b"/private/var/mobile/Containers/Shared/AppGroup/0F3A/coroner"));
    assert!(!forbids_locks(b"/Users/ada/Library/Group Containers/group.com.example.paint/coroner"));
    assert!(!forbids_locks(b"/var/mobile/Containers/Data/Application/0F3A/Library/coroner"));
    assert!(!forbids_locks(b""));
}

/// The first owner keeps all others out until its pipe is closed; dead pipes are removed.
#[test]
fn the_owner_keeps_the_directory_until_it_releases_it() {
    let _alone = without_forked_children();
    let (folder, path) = folder();
    let first = begin(&path).unwrap();
    assert!(Hold::try_take(&path).unwrap().is_none());
    assert_eq!(names(folder.path()), ["held-0"], "who withdraws leaves nothing");
    drop(first);
    let second = Hold::try_take(&path).unwrap().expect("nobody has it");
    assert_eq!(names(folder.path()).len(), 1, "the first one's pipe is gone");
    assert!(Hold::try_take(&path).unwrap().is_none());
    drop(second);
    assert!(Hold::try_take(&path).unwrap().is_some());
}

/// A killed process owns nothing. Its pipe's name would win over all others if it were alive.
#[test]
fn a_dead_process_holds_nothing() {
    let _alone = without_forked_children();
    let (folder, path) = folder();
    let pipe = folder.path().join("held-1");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opened for reading and writing, which doesn't wait for another process.
    let mut child = Command::new("sh");
    let script = "exec 3<>\"$1\"; echo open; exec sleep 1000";
    let mut child = child.args(["-c", script, "sh"]).arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(Hold::try_take(&path).unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Hold::try_take(&path).unwrap().is_some());
}

/// A pipe whose creator died before it counted is removed once nobody can be about to name it.
#[test]
fn files_of_a_dead_process_are_removed() {
    let _alone = without_forked_children();
    let (folder, path) = folder();
    for (name, time) in [(".held-old", "-d2 hours ago"), (".held-new", "-dnow")] {
        let pipe = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(Command::new("touch").arg(time).arg(&pipe).status().unwrap().success());
    }
    let _hold = Hold::try_take(&path).unwrap().expect("nobody has it");
    let names = names(folder.path());
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().any(|name| name == ".held-new"), "{names:?}");
}

/// A file that isn't a pipe has no owner, and if no pipe can be created, nobody gets ownership.
#[test]
fn a_file_in_the_locks_place_is_not_an_owner() {
    let (folder, path) = folder();
    std::fs::write(folder.path().join("held-0"), "").unwrap();
    assert!(Hold::try_take(&path).unwrap().is_some());
    assert!(Hold::try_take(c"/nowhere/at/all").is_err());
}

/// Many candidates at once, repeatedly: there are never two owners.
#[test]
fn only_one_of_many_threads_becomes_the_owner() {
    const THREADS: usize = 8;
    let (_folder, path) = folder();
    let (inside, taken, together) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let begin = Barrier::new(THREADS);
    for _ in 0..30 {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    begin.wait();
                    let hold = Hold::try_take(&path).unwrap();
                    if hold.is_some() {
                        together.fetch_add(inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                        taken.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
    assert!(taken.load(Ordering::SeqCst) > 0, "nobody had it, ever");
    assert_eq!(together.load(Ordering::SeqCst), 0, "two had it");
}
