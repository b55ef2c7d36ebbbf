//! Where Coroner can't be installed an app goes on as if it had none, whatever it says of itself, and ends as it would have:
//! `cargo test -p coroner --no-default-features --target i686-unknown-linux-gnu --test unsupported`. Empty on all other systems.
#![cfg(not(supported))]

use std::process::{Command, ExitStatus};

use coroner::backtrace::{CaptureOptions, thread_id};
use coroner::{
    Backtrace, Breadcrumb, Config, FolderSink, InstallError, ScopeError, Sink, SinkAnswer, Store, Submission,
};

/// How a child is to end, and where its store is.
const END: &str = "UNSUPPORTED_END";
const STORE: &str = "UNSUPPORTED_STORE";

/// A sink of the app's own.
#[derive(Debug)]
struct Unused;

impl Sink for Unused {
    fn name(&self) -> &str {
        "unused"
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        unreachable!("there is nothing to deliver")
    }
}

/// Calls of Coroner what an app would.
fn say_all() {
    assert_eq!(coroner::set_tag("channel", "beta"), Err(ScopeError::NotInstalled));
    coroner::add_breadcrumb(&Breadcrumb::new("opens a picture").category("paint"));
    coroner::count_error();
    assert!(!coroner::report_error(&std::io::Error::other("the disk is full")));
    assert!(!coroner::ignore_next_signal(11));
    assert!(coroner::attach_current_thread().is_err());
    assert!(matches!(coroner::after_fork(), Ok(false)));
    assert!(coroner::installed().is_none());
    static LOG: [u8; 16] = [0; 16];
    drop(coroner::register_memory("log.txt", LOG.as_ptr(), LOG.len()).expect("it is taken and not read"));
    let rule = coroner::UnwindRule::frame_record(coroner::UnwindRule::FRAME_POINTER, 0).expect("a rule");
    drop(coroner::register_unwind_range(0x1000..0x2000, rule).expect("it is taken and not read"));
    let watch = coroner::HangWatch::new();
    watch.beat();
    let backtrace = Backtrace::current();
    assert!(
        backtrace.addresses().is_empty() && backtrace.names().frames().is_empty() && backtrace.to_string().is_empty()
    );
    assert!(Backtrace::of_thread(thread_id() + 1, &CaptureOptions::default()).is_err());
    assert!(Backtrace::of_all_threads(&CaptureOptions::default()).is_empty());
}

/// Is run in a process of its own by the test below.
#[test]
fn child() {
    let (Ok(end), Ok(store)) = (std::env::var(END), std::env::var(STORE)) else { return };
    let folder = std::path::Path::new(&store).join("reports");
    let config = Config::new("unsupported").store_dir(store).sink(FolderSink::new(folder)).sink(Unused);
    let error = coroner::install(config).expect_err("it can't be installed here");
    assert!(matches!(error, InstallError::Unsupported), "{error:?}");
    assert_eq!(error.to_string(), "Coroner can't report crashes on this system");
    say_all();
    match &*end {
        "exit" => std::process::exit(3),
        // SAFETY: none; it crashes.
        "crash" => unsafe { std::ptr::null_mut::<u32>().write_volatile(1) },
        other => panic!("{other}"),
    }
}

fn launch(end: &str, store: &std::path::Path) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
    child.args(["--exact", "child"]).env(END, end).env(STORE, store);
    child.output().expect("the child starts").status
}

#[test]
fn an_app_goes_on_and_ends_as_without_coroner() {
    let store = tempfile::tempdir().expect("a directory");
    let path = store.path().join("store");
    assert_eq!(launch("exit", &path).code(), Some(3));
    let crashed = launch("crash", &path);
    #[cfg(unix)]
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&crashed), Some(11), "{crashed}");
    assert!(!crashed.success());
    assert!(!path.exists(), "an install that can't be leaves nothing on the disk");
    // What another machine left can be read.
    #[cfg(unix)]
    assert!(Store::open(&path).and_then(|store| store.list()).expect("a store").is_empty());
}
