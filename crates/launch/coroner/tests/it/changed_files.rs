//! Files of the store that somebody else cuts, punches or fills the disk of: the app continues.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use coroner::Config;
use coroner_test_support::isolated;

const STORE: &str = "CORONER_TEST_STORE";

/// Not a test: the app, when the variable is set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let coroner = coroner::install(Config::new("com.example.changed").store_dir(store));
    println!("\napp: installed {}", coroner.is_ok());
}

fn run(store: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "changed_files::app", "--nocapture", "--test-threads", "1"]).env(STORE, store);
    command.output().unwrap()
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
            assert!(run(&store).status.success());
            make_sparse(&store.join("clean").join(name), folder.path());
            let output = run(&store);
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("app: installed true"), "{name}: {output:?}");
            // SAFETY: the string ends in NUL and outlives the call.
            unsafe { libc::umount2(c_string(folder.path()).as_ptr(), libc::MNT_DETACH) };
        }
    });
}
