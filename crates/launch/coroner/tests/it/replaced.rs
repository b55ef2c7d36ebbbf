//! A program or library that is replaced while it runs, as in every deploy and package upgrade, and
//! that then crashes: its frames have the names of the version that ran, and the report records the
//! replacement. The next launch is the new version.
//!
//! The app is this test program, copied, started again with `CORONER_TEST_STORE` set. Its new
//! version is a copy with other function names at the same addresses, so frames that are named
//! after it get wrong names.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use coroner::Config;
use coroner::Report;
use coroner_report::model::Frame;
use coroner_report::text::TextOptions;

const STORE: &str = "CORONER_TEST_STORE";
/// The app's act: `crash` or `deliver`.
const ACT: &str = "CORONER_TEST_ACT";
/// The change to the app's or the library's file: `rename`, `unlink` or `nothing`.
const HOW: &str = "CORONER_TEST_HOW";
const LIBRARY: &str = "CORONER_TEST_LIBRARY";

/// Part of all function names of the version that crashes, and of the one that replaces it.
const OLD: &[u8] = b"in_the_first_version";
const NEW: &[u8] = b"in_the_other_version";

const SOURCE: &str = "
__attribute__((noinline)) static void hidden_in_the_first_version(int *at) { *at = 1; __asm__ volatile(\"\"); }
__attribute__((noinline)) void shown_in_the_first_version(int *at) { hidden_in_the_first_version(at); __asm__ volatile(\"\"); }
";

#[inline(never)]
fn crashes_in_the_first_version() {
    let names = coroner::Backtrace::current().names();
    let mut live = names.frames().iter().filter_map(|frame| frame.function.as_deref());
    assert!(live.any(|name| name.contains("crashes_in_the_first_version")), "{names:?}");
    // SAFETY: none; the crash is what is wanted.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

/// Crashes in a function that the C library calls: one whose name is exported, so that it is known
/// without libc's debug files.
fn crashes_below_the_c_library() {
    unsafe extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
        crashes_in_the_first_version();
        0
    }
    let item = 0_u8;
    let at = (&raw const item).cast();
    // SAFETY: one item of one byte.
    black_box(unsafe { libc::bsearch(at, at, 1, 1, Some(compare)) });
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let deliver = std::env::var(ACT).as_deref() == Ok("deliver");
    let config = Config::new("com.example.replaced").store_dir(store);
    let coroner = coroner::install(config).unwrap();
    if deliver {
        assert!(coroner.flush(Duration::from_mins(1)));
        return;
    }
    let library = std::env::var_os(LIBRARY).map(PathBuf::from);
    // SAFETY: the library's function has that type.
    let crash = library.as_ref().map(|path| unsafe {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let symbol = libc::dlsym(handle, c"shown_in_the_first_version".as_ptr());
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int)>(symbol)
    });
    let file = library.unwrap_or_else(|| std::env::current_exe().unwrap());
    match std::env::var(HOW).as_deref() {
        Ok("rename") => std::fs::rename(new_version(&file), &file).unwrap(),
        Ok("unlink") => std::fs::remove_file(&file).unwrap(),
        _ => {}
    }
    match crash {
        // SAFETY: none, as above.
        Some(crash) => unsafe { crash(std::ptr::null_mut()) },
        None => crashes_below_the_c_library(),
    }
}

fn new_version(file: &Path) -> PathBuf {
    file.with_extension("new")
}

/// Makes a file's new version beside it: other names, and another build id. Without ids neither has
/// one.
fn make_new_version(file: &Path, ids: bool) {
    let mut bytes = std::fs::read(file).unwrap();
    if let Some(at) = memchr::memmem::find(&bytes, b"\x14\0\0\0\x03\0\0\0GNU\0") {
        if !ids {
            // A note of a kind that nobody knows.
            bytes[at + 4] = 0x7f;
            std::fs::write(file, &bytes).unwrap();
        }
        bytes[at + 12] ^= 0xff;
    }
    let places: Vec<usize> = memchr::memmem::find_iter(&bytes, OLD).collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + NEW.len()].copy_from_slice(NEW);
    }
    let new = new_version(file);
    std::fs::write(&new, bytes).unwrap();
    std::fs::set_permissions(&new, std::fs::metadata(file).unwrap().permissions()).unwrap();
}

struct Case {
    folder: tempfile::TempDir,
    library: bool,
    how: &'static str,
}

impl Case {
    fn run(&self, act: &str) -> ExitStatus {
        let store = self.folder.path().join("store");
        let mut command = Command::new(self.program());
        command.args(["replaced::app", "--exact", "--test-threads=1"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.env(STORE, store).env(ACT, act).env(HOW, self.how);
        if self.library {
            command.env(LIBRARY, self.file());
        }
        run_when_written(&mut command)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("app")
    }

    /// Returns the file that is replaced.
    fn file(&self) -> PathBuf {
        if self.library { self.folder.path().join("libversion.so") } else { self.program() }
    }

    fn report(&self) -> Report {
        let reports = self.folder.path().join("store/reports");
        let files = std::fs::read_dir(reports).unwrap().map(|entry| entry.unwrap().path());
        let json: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        let [json] = &json[..] else { panic!("one report and not {json:?}") };
        Report::from_json(&std::fs::read_to_string(json).unwrap()).unwrap()
    }
}

/// Another test's child may have been forked while the copy was open for writing, and not have gone
/// on to its own program yet: until then the copy can't be executed.
fn run_when_written(command: &mut Command) -> ExitStatus {
    loop {
        match command.status() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            status => return status.unwrap(),
        }
    }
}

/// The report of a process that crashed after `how` had happened to its file, written by a launch
/// of the new version.
fn report(library: bool, how: &'static str, ids: bool) -> (Report, Case) {
    let case = Case { folder: tempfile::tempdir().unwrap(), library, how };
    std::fs::copy(std::env::current_exe().unwrap(), case.program()).unwrap();
    if library {
        let source = case.folder.path().join("version.c");
        std::fs::write(&source, SOURCE).unwrap();
        let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
        let mut words = words.split_whitespace();
        let mut compiler = Command::new(words.next().unwrap());
        compiler
            .args(words)
            .args(["-O1", "-fPIC", "-shared", "-Wl,--build-id=sha1", "-o"])
            .arg(case.file())
            .arg(source);
        assert!(compiler.status().unwrap().success());
    }
    make_new_version(&case.file(), ids);
    let ended = case.run("crash");
    assert_eq!(ended.signal(), Some(libc::SIGSEGV), "{ended:?}");
    let new = new_version(&case.file());
    if new.exists() {
        std::fs::rename(new, case.file()).unwrap();
    }
    let ended = case.run("deliver");
    assert!(ended.success(), "{ended:?}");
    (case.report(), case)
}

/// The names of the crashed thread's frames in the file that was replaced, or in another one.
fn names(report: &Report, case: &Case, its_own: bool) -> Vec<String> {
    let file = case.file();
    let of_file = |frame: &&Frame| (frame.module.as_deref() == file.to_str()) == its_own;
    let name = |frame: &Frame| frame.function.clone().unwrap_or_else(|| "?".to_owned());
    report.crashed_thread().unwrap().frames.iter().filter(of_file).map(name).collect()
}

fn is_replaced(report: &Report, case: &Case) -> bool {
    report.images.iter().any(|image| image.replaced && Some(image.path.as_str()) == case.file().to_str())
}

#[test]
fn a_replaced_programs_frames_have_the_old_programs_names() {
    for (how, ids) in [("rename", true), ("rename", false), ("unlink", true), ("unlink", false)] {
        let (report, case) = report(false, how, ids);
        let what = format!("{how}, ids {ids}: {}", report.to_text(&TextOptions::default()));
        assert!(report.complete && is_replaced(&report, &case), "{what}");
        assert_eq!(report.images.iter().filter(|image| image.replaced).count(), 1, "{what}");
        let names = names(&report, &case, true);
        assert!(names[0].contains("crashes_in_the_first_version"), "{what}");
        assert!(names.iter().all(|name| name != "?" && !name.contains("other_version")), "{what}");
        let crashed = report.crashed_thread().unwrap();
        assert!(crashed.frames[0].named_in_process && crashed.frames[0].line.is_none(), "{what}");
        let text = report.to_text(&TextOptions::default());
        assert!(text.contains("replaced or deleted while the process ran: "), "{what}");
        assert!(text.contains("crashes_in_the_first_version + "), "{what}");
    }
}

#[test]
fn a_replaced_librarys_frames_have_the_old_librarys_names() {
    for (how, ids) in [("rename", true), ("rename", false), ("unlink", false)] {
        let (report, case) = report(true, how, ids);
        let what = format!("{how}, ids {ids}: {}", report.to_text(&TextOptions::default()));
        assert!(report.complete && is_replaced(&report, &case), "{what}");
        assert_eq!(report.images.iter().filter(|image| image.replaced).count(), 1, "{what}");
        let names = names(&report, &case, true);
        assert_eq!(names.len(), 2, "{what}");
        // What is not exported is known to who may open what is mapped.
        let may_open = std::fs::read_dir("/proc/self/map_files")
            .is_ok_and(|mut entries| entries.any(|entry| std::fs::File::open(entry.unwrap().path()).is_ok()));
        let hidden = if may_open { "hidden_in_the_first_version" } else { "?" };
        assert_eq!(names, [hidden, "shown_in_the_first_version"], "{what}");
        assert!(report.crashed_thread().unwrap().frames[1].named_in_process, "{what}");
    }
}

#[test]
fn a_file_changed_after_the_crash_names_no_frames() {
    for ids in [true, false] {
        let (report, case) = report(false, "nothing", ids);
        let what = format!("ids {ids}: {}", report.to_text(&TextOptions::default()));
        assert!(report.complete && !is_replaced(&report, &case), "{what}");
        assert!(names(&report, &case, true).iter().all(|name| name == "?"), "{what}");
        // The C library is what it was.
        assert!(names(&report, &case, false).iter().any(|name| name.contains("bsearch")), "{what}");
    }
}
