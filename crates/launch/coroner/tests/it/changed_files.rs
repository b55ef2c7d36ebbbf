//! Files of the store that somebody else cuts, punches or fills the disk of: the app continues.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use coroner::Config;
use coroner_report::RunFacts;
use coroner_test_support::isolated;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";

/// Not a test: the app, when the variable is set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE).map(PathBuf::from) else { return };
    let act = std::env::var(ACT).unwrap();
    let coroner = coroner::install(Config::new("com.example.changed").store_dir(&store));
    println!("\napp: installed {}", coroner.is_ok());
    match act.as_str() {
        "handles SIGBUS" => act_on(libc::SIGBUS, libc::SIG_DFL),
        "ignores SIGBUS" => act_on(libc::SIGBUS, libc::SIG_IGN),
        _ => {}
    }
    if !act.contains("SIGBUS") {
        return;
    }
    for end in ["continued", "killed"] {
        cut_files(&store.join("runs"));
        let records = move || {
            if act_blocks() {
                block_all();
            }
            for number in 0..200 {
                coroner::set_tag(&format!("key{}", number % 50), &format!("{end} {number}")).unwrap();
                coroner::add_breadcrumb(&coroner::Breadcrumb::new(end));
            }
        };
        std::thread::spawn(records).join().unwrap();
    }
    println!("\napp: recorded");
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn act_blocks() -> bool {
    std::env::var(ACT).is_ok_and(|act| act == "blocks SIGBUS")
}

fn block_all() {
    // SAFETY: a set of all signals, for this thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

fn act_on(signal: i32, action: libc::sighandler_t) {
    // SAFETY: no handler of this program.
    unsafe { libc::signal(signal, action) };
}

/// Cuts all files of the runs.
fn cut_files(runs: &Path) {
    for run in std::fs::read_dir(runs).unwrap() {
        for file in std::fs::read_dir(run.unwrap().path()).unwrap() {
            File::create(file.unwrap().path()).unwrap();
        }
    }
}

fn run(store: &Path, act: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "changed_files::app", "--nocapture", "--test-threads", "1"]);
    command.env(STORE, store).env(ACT, act).output().unwrap()
}

/// Tags and breadcrumbs neither end the app nor are they lost, if somebody cuts the run's files,
/// even twice, whatever the app does with SIGBUS.
#[test]
fn an_app_whose_files_were_cut_keeps_what_it_records() {
    for act in ["blocks SIGBUS", "handles SIGBUS", "ignores SIGBUS", "leaves SIGBUS"] {
        let folder = tempfile::tempdir().unwrap();
        let output = run(folder.path(), act);
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{act}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("app: recorded"), "{act}: {output:?}");
        let state = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
        let facts = RunFacts::read(&std::fs::read(state.join("state")).unwrap()).unwrap();
        assert_eq!(facts.tags["key49"], "killed 199", "{act}");
        assert_eq!(facts.tags["coroner.state_file"], "cut by another program, and written again", "{act}");
        let own = facts.tags.iter().filter(|(key, value)| key.starts_with("key") && value.starts_with("killed"));
        // Equal ones in a row are counted.
        let crumb = facts.breadcrumbs.last().map(|breadcrumb| (breadcrumb.message.as_deref(), breadcrumb.repetitions));
        assert_eq!((own.count(), crumb), (50, Some((Some("killed"), 199))), "{act}");
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts a small file system at the folder, seen only by this process and its children. Returns
/// `false` if this process may not.
fn mount(folder: &Path) -> bool {
    let target = c_string(folder);
    let none = std::ptr::null();
    // SAFETY: all strings end in NUL and outlive the calls.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
            && libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=6m".as_ptr().cast()) == 0
    }
}

/// Punches holes into all of a file, and then fills its disk.
fn make_sparse(file: &Path, folder: &Path) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    let length = file.metadata().unwrap().len() as libc::off_t;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is touched.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, length) }, 0);
    let mut fill = File::create(folder.join("fill")).unwrap();
    while fill.write(&[1; 4096]).is_ok() {}
}

#[test]
fn a_sparse_file_of_the_last_run_on_a_full_disk_does_not_end_an_install() {
    isolated(concat!(module_path!(), "::a_sparse_file_of_the_last_run_on_a_full_disk_does_not_end_an_install"), || {
        for name in ["state", "report"] {
            let folder = tempfile::tempdir().unwrap();
            if !mount(folder.path()) {
                println!("no file system can be mounted here");
                return;
            }
            let store = folder.path().join("store");
            assert!(run(&store, "exits").status.success());
            make_sparse(&store.join("clean").join(name), folder.path());
            let output = run(&store, "exits");
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("app: installed true"), "{name}: {output:?}");
            // SAFETY: the string ends in NUL and outlives the call.
            unsafe { libc::umount2(c_string(folder.path()).as_ptr(), libc::MNT_DETACH) };
        }
    });
}
