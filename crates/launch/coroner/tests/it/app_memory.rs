//! Memory that an app registered, and what its crash callback writes, in real crashes.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`],
//! which does what `CORONER_TEST_ACT` says.

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use coroner::{Config, Delivery, Limits, register_memory, set_crash_callback};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
const DEADLINE: Duration = Duration::from_millis(1500);

// ──── the app ────

static LOG: [u8; 11] = *b"first\nlast\n";
const LARGE: usize = 100 << 10;

unsafe extern "C" fn writes(context: *mut c_void, into: *mut u8, room: usize) -> usize {
    assert_eq!(context as usize, 7);
    // SAFETY: there is room for as many bytes.
    unsafe { into.copy_from_nonoverlapping(b"level 3".as_ptr(), 7.min(room)) };
    7
}

unsafe extern "C" fn claims_too_much(_: *mut c_void, _: *mut u8, room: usize) -> usize {
    room * 2
}

unsafe extern "C" fn faults(_: *mut c_void, _: *mut u8, _: usize) -> usize {
    // SAFETY: none; it is what this is here for.
    unsafe { std::ptr::without_provenance::<usize>(16).read_volatile() }
}

unsafe extern "C" fn hangs(_: *mut c_void, _: *mut u8, _: usize) -> usize {
    loop {
        std::hint::spin_loop();
    }
}

/// Stops the process, as a debugger, a job control shell or a freezer may at any moment.
unsafe extern "C" fn stops(context: *mut c_void, into: *mut u8, room: usize) -> usize {
    // SAFETY: sends a signal to this very thread, which stops before the system call returns.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGSTOP) }, 0);
    // SAFETY: by the contract.
    unsafe { writes(context, into, room) }
}

/// Pages of memory; the last of them can't be read.
fn cut_memory(pages: usize) -> *const u8 {
    const PAGE: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, of which the last page loses its permissions.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        at.cast::<u8>().write_bytes(b'x', pages * PAGE);
        assert_eq!(libc::mprotect(at.byte_add((pages - 1) * PAGE), PAGE, libc::PROT_NONE), 0);
        at.cast()
    }
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    let delivery = Delivery::new().symbolicate(false).at_install(act == "deliver");
    let limits = Limits::new().deadline(DEADLINE);
    let config = Config::new("app-memory").store_dir(store).delivery(delivery).limits(limits);
    if act == "deliver" {
        assert!(coroner::install(config).unwrap().flush(Duration::from_secs(20)));
        return;
    }
    // Before the install, and after it.
    register_memory("log.txt", LOG.as_ptr(), LOG.len()).unwrap().keep();
    coroner::install(config).unwrap();
    let large = vec![b'y'; LARGE];
    register_memory("large", large.as_ptr(), large.len()).unwrap().keep();
    register_memory("cut", cut_memory(3).wrapping_add(100), 3 * 4096 - 100).unwrap().keep();
    register_memory("gone", std::ptr::without_provenance(4096), 100).unwrap().keep();
    drop(register_memory("dropped", LOG.as_ptr(), LOG.len()).unwrap());
    let context = std::ptr::without_provenance_mut(7);
    // SAFETY: what these functions do is what the app is here for.
    unsafe {
        match act.as_str() {
            "writes" => set_crash_callback(Some(writes), context),
            "claims" => set_crash_callback(Some(claims_too_much), context),
            "faults" => set_crash_callback(Some(faults), context),
            "stops" => set_crash_callback(Some(stops), context),
            "hangs" => set_crash_callback(Some(hangs), context),
            _ => {}
        }
        std::ptr::without_provenance_mut::<u32>(8).write_volatile(1);
    }
}

// ──── the tests ────

fn run(store: &Path, act: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "app_memory::app", "--nocapture", "--quiet", "--test-threads=1"]);
    command.env(STORE, store).env(ACT, act).stdout(Stdio::null()).stderr(Stdio::null());
    let mut app = command.spawn().unwrap();
    if act == "stops" {
        let (pid, mut status) = (app.id().cast_signed(), 0);
        // SAFETY: waits for a child, which stays one.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        std::thread::sleep(2 * DEADLINE);
        // SAFETY: sends a signal to a child.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    }
    app.wait().unwrap().signal()
}

/// The one report of a crash, and the attachments beside it by their names.
fn crash(act: &str) -> (Value, Vec<(String, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), act), Some(libc::SIGSEGV), "{act}: it dies of its own crash");
    assert_eq!(run(folder.path(), "deliver"), None);
    let mut report = Value::Null;
    let mut attachments = Vec::new();
    for entry in std::fs::read_dir(folder.path().join("reports")).unwrap() {
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
    // The end of the report was written; it contains the fault or the missed deadline.
    assert!(report["end"].is_object(), "{act}: {}", report["problems"]);
    let is_whole = !matches!(act, "faults" | "hangs");
    assert_eq!(report["complete"], is_whole, "{act}: {}", report["end"]);
    (report, attachments)
}

#[test]
fn registered_memory_and_callback_data_are_in_the_report() {
    let (report, attachments) = crash("writes");
    let found: Vec<_> = attachments.iter().map(|(name, bytes)| (name.as_str(), bytes.len())).collect();
    let whole = 60 << 10;
    assert_eq!(
        found,
        [
            ("crash_callback", 7),
            ("cut", 2 * 4096 - 100 - (2 * 4096 - 100) % 256),
            ("gone", 0),
            ("large", whole),
            ("log.txt", 11)
        ]
    );
    assert_eq!(attachments[0].1, b"level 3");
    assert_eq!(attachments[4].1, LOG);
    assert!(attachments[3].1.iter().all(|byte| *byte == b'y'));
    let large = report["app_memory"].as_array().unwrap().iter().find(|memory| memory["name"] == "large").unwrap();
    assert_eq!(large["size"], LARGE);
}

#[test]
fn time_in_which_the_process_is_stopped_does_not_count() {
    let (_, attachments) = crash("stops");
    assert_eq!(attachments[0], ("crash_callback".to_owned(), b"level 3".to_vec()));
}

#[test]
fn a_callback_that_faults_hangs_or_lies_loses_nothing_else() {
    for act in ["faults", "hangs", "claims", "none"] {
        let (report, attachments) = crash(act);
        let names: Vec<_> = attachments.iter().map(|(name, _)| name.as_str()).collect();
        let has_callback = act == "claims";
        assert_eq!(names.contains(&"crash_callback"), has_callback, "{act}: {names:?}");
        assert!(names.contains(&"log.txt"), "{act}");
        let faults = report["faults"].as_array().map_or(0, Vec::len);
        assert_eq!(faults, usize::from(act == "faults"), "{act}: {}", report["faults"]);
        if act == "faults" {
            assert_eq!(report["faults"][0]["section"], "app_memory");
        }
    }
}
