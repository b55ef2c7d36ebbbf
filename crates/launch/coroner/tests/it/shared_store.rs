//! An app and its extension, two programs by their identifiers, that give the same store: what each
//! finds at its launch, and what becomes of both their crashes.
//!
//! The programs are this test program, started again with `CORONER_TEST_STORE` set to run only
//! [`app`].

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use coroner::{Config, Delivery};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const APP: &str = "CORONER_TEST_APP";

const SHOP: &str = "com.example.shop";
const WIDGET: &str = "com.example.shop.widget";

/// Not a test: a program that says what it found, and then does as it reads.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let app = std::env::var(APP).unwrap();
    let was_called = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let noted = was_called.clone();
    let delivery = Delivery::new().symbolicate(false);
    let delivery = delivery.on_crashed_last_run(move |_| noted.store(true, std::sync::atomic::Ordering::SeqCst));
    let config = Config::new(app.as_str()).version("1.0").store_dir(store).delivery(delivery);
    let coroner = coroner::install(config).unwrap();
    coroner::set_tag("program", &app).unwrap();
    assert!(coroner.flush(Duration::from_secs(30)));
    let last = coroner.last_run();
    let was_called = was_called.load(std::sync::atomic::Ordering::SeqCst);
    println!("\napp: {:?} {} {was_called}", last.outcome, last.consecutive_crashes());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match line.trim() {
        "crash" => std::process::abort(),
        // SAFETY: ends this process.
        "killed" => unsafe { assert_eq!(libc::kill(libc::getpid(), libc::SIGKILL), 0) },
        _ => {}
    }
}

struct Program {
    child: Child,
    input: ChildStdin,
    says: BufReader<ChildStdout>,
    /// The outcome of the last run, crashes in a row, and whether the hook was called.
    found: String,
}

impl Program {
    fn start(app: &str, store: &Path) -> Self {
        let mut program = Self::begin(app, store);
        program.wait();
        program
    }

    fn begin(app: &str, store: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "shared_store::app", "--nocapture", "--quiet", "--test-threads=1"])
            .env(STORE, store)
            .env(APP, app);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, says) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, says, found: String::new() }
    }

    /// Waits until it has found what there is.
    fn wait(&mut self) {
        let lines = self.says.by_ref().lines();
        let found = lines.map(|line| line.unwrap()).find_map(|line| line.strip_prefix("app: ").map(str::to_owned));
        self.found = found.expect("it starts");
    }

    fn ends(mut self, how: &str) -> String {
        writeln!(self.input, "{how}").unwrap();
        drop(self.input);
        // So that it can write all that it has.
        std::io::copy(&mut self.says, &mut std::io::sink()).unwrap();
        self.child.wait().unwrap();
        self.found
    }
}

/// Returns the identifier and the tag of each report in the store, sorted.
fn reports(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("reports")).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let mut found: Vec<String> = json
        .map(|path| {
            let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let of = report["run"]["app"]["id"].as_str().unwrap().to_owned();
            assert_eq!(report["run"]["tags"]["program"], of.as_str());
            of
        })
        .collect();
    found.sort();
    found
}

/// Part of the path of an app group's folder on iOS.
const APP_GROUP: &str = "Containers/Shared/AppGroup/6E1F0F3A/coroner";

/// Calls `test` with a new store of each kind.
fn in_each_store(test: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    for store in ["coroner", APP_GROUP] {
        let store = folder.path().join(store);
        // The group's folder is the system's to make.
        std::fs::create_dir_all(store.parent().unwrap()).unwrap();
        test(&store);
    }
}

/// One process continues while the other crashes. The next launch delivers the report, and does not
/// count it as its own crash.
#[test]
fn one_programs_crash_is_delivered_by_the_other() {
    in_each_store(one_crashes_beside_the_other);
}

fn one_crashes_beside_the_other(store: &Path) {
    assert_eq!(Program::start(SHOP, store).ends("exit"), "FirstLaunch 0 false");
    let widget = Program::start(WIDGET, store);
    assert_eq!(widget.found, "FirstLaunch 0 false", "the app's clean end is none of the widget's");
    let shop = Program::start(SHOP, store);
    assert_eq!(shop.found, "CleanExit 0 false");
    widget.ends("crash");
    // The app still runs.
    assert_eq!(reports(store), [""; 0]);
    shop.ends("exit");
    assert_eq!(Program::start(SHOP, store).ends("exit"), "CleanExit 0 false");
    assert_eq!(reports(store), [WIDGET]);
    // The widget sees its crash too, although the app has delivered the report.
    assert_eq!(Program::start(WIDGET, store).ends("exit"), "Crashed 1 false");
    assert_eq!(Program::start(WIDGET, store).ends("exit"), "CleanExit 0 false");
    assert_eq!(reports(store), [WIDGET]);
}

/// Both crash at once, and both are launched at once.
#[test]
fn crashes_of_both_are_reported_once_each() {
    in_each_store(both_crash_and_are_launched_at_once);
}

fn both_crash_and_are_launched_at_once(store: &Path) {
    for round in 1..=3 {
        let both = [Program::start(SHOP, store), Program::start(WIDGET, store)];
        let _ = both.map(|program| program.ends("crash"));
        let mut both = [SHOP, WIDGET].map(|app| Program::begin(app, store));
        both.iter_mut().for_each(Program::wait);
        // What each finds depends on who was first: one that finds the other at its run says what
        // was known before.
        let _ = both.map(|program| program.ends("exit"));
        let all = reports(store);
        let count = |app: &str| all.iter().filter(|of| *of == app).count();
        assert_eq!((count(SHOP), count(WIDGET)), (round, round), "{all:?}");
    }
}

/// Only the app's own crashes count as crashes in a row.
#[test]
fn crashes_in_a_row_are_counted_per_program() {
    in_each_store(they_crash_in_a_row);
}

fn they_crash_in_a_row(store: &Path) {
    for row in 0..3 {
        let widget = Program::start(WIDGET, store).ends("crash");
        assert!(row == 0 || widget.starts_with(&format!("Crashed {row} ")), "{widget}");
        let shop = Program::start(SHOP, store).ends("exit");
        assert_eq!(shop, if row == 0 { "FirstLaunch 0 false" } else { "CleanExit 0 false" });
    }
}

/// Whoever looks while a process lives takes its run for a living one, and once it is killed for
/// one that has ended; and nobody who looks keeps it from being looked at again.
#[test]
fn a_run_is_live_until_its_process_is_killed() {
    in_each_store(|store| {
        let widget = Program::start(WIDGET, store);
        for _ in 0..3 {
            Program::start(SHOP, store).ends("exit");
            let (mut first, mut second) = (Program::begin(SHOP, store), Program::begin(SHOP, store));
            first.wait();
            second.wait();
            let _ = [first, second].map(|shop| shop.ends("exit"));
        }
        widget.ends("killed");
        // Who ended without a word is known as such, and not as one that was never there.
        assert_eq!(Program::start(WIDGET, store).ends("exit"), "Unknown 0 false");
        assert_eq!(reports(store), [""; 0]);
    });
}

/// iOS ends an app that is suspended with a lock on a file of an app group's.
#[cfg(target_os = "linux")]
#[test]
fn in_an_app_group_no_file_is_locked() {
    let locks_of = |program: &Program| {
        let (locks, pid) = (std::fs::read_to_string("/proc/locks").unwrap(), program.child.id().to_string());
        locks.lines().filter(|lock| lock.split_whitespace().nth(4) == Some(&pid)).count()
    };
    let folder = tempfile::tempdir().unwrap();
    let group = folder.path().join(APP_GROUP);
    std::fs::create_dir_all(group.parent().unwrap()).unwrap();
    for (store, locks) in [(folder.path().join("coroner"), 1), (group, 0)] {
        Program::start(WIDGET, &store).ends("crash");
        let shop = Program::start(SHOP, &store);
        assert_eq!(reports(&store), [WIDGET]);
        assert_eq!(locks_of(&shop), locks, "{}", store.display());
        shop.ends("exit");
    }
}
