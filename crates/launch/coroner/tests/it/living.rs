//! Reports of a process that goes on, in real processes: it delivers them itself.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use coroner::{Config, Delivery, FolderSink, HangWatch, Limits, Sink, SinkAnswer, Submission};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";

// ──── the app ────

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\napp: {line}").unwrap();
}

/// Waits for a word of the test.
fn wait() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Says what it is given.
struct Says {
    /// Ends the process by this signal before it answers.
    dies: Option<i32>,
    /// Asks to be asked again once.
    retries: bool,
}

impl Sink for Says {
    fn name(&self) -> &'static str {
        "says"
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let report = submission.report;
        let crash = report.crash.as_ref().unwrap();
        let left_out = report.run.as_ref().and_then(|run| run.contexts.get("coroner_store"));
        let hang = crash.hang.as_ref().map(|hang| hang.duration_ns.is_some());
        let request = report.run.as_ref().and_then(|run| run.tags.get("request"));
        let request = request.map_or_else(String::new, |request| format!(" in request {request}"));
        let message = report.exceptions.first().and_then(|first| first.message.clone()).unwrap_or_default();
        say(&format!(
            "got {} by {} tries {} hang over {hang:?} flags {:?} left {} of [{message}]{request}",
            report.header.event_id,
            std::process::id(),
            submission.tries,
            crash.flags,
            left_out.map(|value| value.to_json().to_string()).unwrap_or_default()
        ));
        if let Some(signal) = self.dies {
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), signal) };
            loop {
                std::thread::park();
            }
        }
        match submission.tries {
            0 if self.retries => SinkAnswer::Retry { after: Duration::from_secs(1), reason: "once more".into() },
            _ => SinkAnswer::Delivered,
        }
    }

    fn reports_left_out(&self, reports: u64) {
        say(&format!("left out {reports}"));
    }
}

fn error(number: u32) -> bool {
    coroner::report_error(&std::io::Error::other(format!("error {number}")))
}

/// Whether a thread of that name is there.
fn has_thread(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // The kernel keeps 15 bytes of it.
    tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm"))).any(|comm| comm.trim() == &name[..15])
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    let reports = Path::new(&store).join("reports");
    let says = Says { dies: (act == "dies").then_some(libc::SIGKILL), retries: act == "retries" };
    let config = Config::new("living").store_dir(&store).limits(Limits::new().reports_per_hour(2));
    let config = config.delivery(Delivery::new().symbolicate(false));
    let config = config.hang_threshold((act == "hangs").then_some(Duration::from_millis(100)));
    coroner::install(config.sink(FolderSink::new(reports)).sink(says)).unwrap();
    match act.as_str() {
        "looks" => {
            coroner::installed().unwrap().flush(Duration::from_secs(30));
        }
        "errs" => {
            assert!(!has_thread("coroner-delivery"), "nothing is to be delivered");
            assert!(error(1) && error(2) && !error(3), "two an hour");
            say("reported");
            wait();
            while has_thread("coroner-delivery") {
                std::thread::yield_now();
            }
            say("no thread");
            wait();
        }
        "serves" | "serves and dies" => {
            let begin =
                |request: &str| coroner::configure_scope(|scope| scope.set_tag("request", request).unwrap()).unwrap();
            begin("1");
            assert!(error(1));
            begin("2");
            assert!(std::thread::spawn(|| panic!("of a thread")).join().is_err());
            begin("3");
            if act == "serves and dies" {
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            wait();
        }
        "dies" | "retries" => {
            assert!(error(1));
            wait();
        }
        "thread panics" => {
            let _ = std::thread::spawn(|| panic!("of a thread")).join();
            wait();
        }
        "hangs" => {
            let watch = HangWatch::new();
            watch.beat();
            let run = coroner::installed().unwrap().store_dir().join("runs");
            let run = run.join(coroner::installed().unwrap().run_id().to_string());
            while !std::fs::read_dir(&run).unwrap().flatten().any(|file| file.file_name() == "report-9") {
                std::thread::yield_now();
            }
            watch.idle();
            wait();
        }
        "forks" => {
            // SAFETY: the child reports and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let reported = error(1);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!reported)) };
            }
            let mut status = 0;
            // SAFETY: waits for our child; `status` lives here.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child reported");
        }
        "is a daemon" => {
            // SAFETY: the child goes on in a copy of this thread.
            if unsafe { libc::fork() } == 0 {
                coroner::after_fork().unwrap();
                assert!(error(1));
                wait();
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: the parent is done.
            unsafe { libc::_exit(0) };
        }
        other => panic!("the app can't {other}"),
    }
}

// ──── the tests ────

struct App {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl App {
    fn start(store: &Path, act: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "living::app", "--nocapture", "--quiet", "--test-threads=1"]);
        command.env(STORE, store).env(ACT, act).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next line that it says; `None` at its end.
    fn says(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(printed) = line.trim_end().strip_prefix("app: ") {
                return Some(printed.to_owned());
            }
            line.clear();
        }
        None
    }

    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "go on").unwrap();
    }

    /// Everything that it says until its end.
    fn rest(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let printed = std::iter::from_fn(|| self.says()).collect();
        self.child.wait().unwrap();
        printed
    }
}

fn store() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    (folder, store)
}

/// The reports of the folder sink.
fn reports(store: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(store.join("reports")).into_iter().flatten().flatten().map(|file| file.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

/// Returns the lines that the next launch prints about its deliveries.
fn next_launch(store: &Path) -> Vec<String> {
    App::start(store, "looks").rest()
}

/// Waits until no report of a process that goes on waits in a run: one is removed after the last
/// sink's answer.
fn wait_until_removed(store: &Path) {
    let waits = || {
        let runs = std::fs::read_dir(store.join("runs")).unwrap().flatten();
        runs.into_iter().any(|run| run.path().join("report-9").exists())
    };
    while waits() {
        std::thread::yield_now();
    }
}

fn event_id(printed: &str) -> &str {
    printed.strip_prefix("got ").unwrap().split(' ').next().unwrap()
}

#[test]
fn handled_errors_are_delivered_by_the_process_itself_and_omissions_are_recorded() {
    let (_folder, store) = store();
    let mut app = App::start(&store, "errs");
    assert_eq!(app.says().as_deref(), Some("reported"));
    let by = format!("by {} tries 0 hang over None flags [NotFatal] left ", app.child.id());
    for number in [1, 2] {
        let printed = app.says().unwrap();
        assert!(printed.contains(&by) && printed.contains(&format!("of [error {number}]")), "{printed}");
        assert!(printed.contains(r#"{"left_out_reports":1}"#), "{printed}");
    }
    assert_eq!(app.says().as_deref(), Some("left out 1"));
    app.go_on();
    assert_eq!(app.says().as_deref(), Some("no thread"));
    assert_eq!(reports(&store).len(), 2);
    assert_eq!(app.rest(), Vec::<String>::new());
    assert_eq!(next_launch(&store), Vec::<String>::new(), "once");
    assert_eq!(reports(&store).len(), 2);
}

#[test]
fn an_error_has_the_scope_of_the_moment_it_is_reported() {
    for act in ["serves", "serves and dies"] {
        let (_folder, store) = store();
        let mut app = App::start(&store, act);
        let printed = match act {
            "serves" => vec![app.says().unwrap(), app.says().unwrap()],
            _ => {
                assert_eq!(app.rest(), Vec::<String>::new());
                next_launch(&store)
            }
        };
        let ends = |end: &str| printed.iter().filter(|line| line.ends_with(end)).count();
        assert_eq!(ends("of [error 1] in request 1"), 1, "{act}: {printed:?}");
        assert_eq!(ends("of [of a thread] in request 2"), 1, "{act}: {printed:?}");
    }
}

#[test]
fn a_process_killed_while_it_delivers_its_own_reports_loses_nothing() {
    let (_folder, store) = store();
    let printed = App::start(&store, "dies").says().unwrap();
    // The folder has it already, and is not asked again; the other sink never answered.
    assert_eq!(reports(&store).len(), 1);
    let again = next_launch(&store);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(event_id(&again[0]), event_id(&printed));
    assert_eq!(reports(&store).len(), 1);
    assert_eq!(next_launch(&store), Vec::<String>::new());
}

#[test]
fn a_deferred_report_is_retried_by_the_same_process() {
    let (_folder, store) = store();
    let mut app = App::start(&store, "retries");
    let (first, second) = (app.says().unwrap(), app.says().unwrap());
    assert!(second.contains("tries 1") && event_id(&first) == event_id(&second), "{second}");
    assert!(second.contains(&format!("by {}", app.child.id())), "{second}");
}

#[test]
fn a_sinks_answer_is_known_at_the_next_launch() {
    let (_folder, store) = store();
    let mut app = App::start(&store, "retries");
    let first = app.says().unwrap();
    let live =
        || std::fs::read_dir(store.join("runs")).unwrap().flatten().any(|run| run.path().join("live.json").exists());
    while !live() {
        std::thread::yield_now();
    }
    app.child.kill().unwrap();
    let mut again = app.rest();
    again.extend(next_launch(&store));
    // Not before its time, and then as the second try.
    while again.is_empty() {
        again.extend(next_launch(&store));
    }
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].contains("tries 1") && event_id(&again[0]) == event_id(&first), "{again:?}");
}

#[test]
fn a_panic_that_ends_a_thread_and_an_ended_hang_are_delivered_too() {
    for (act, what) in [("thread panics", "of [of a thread]"), ("hangs", "hang over Some(true) flags [NotFatal]")] {
        let (_folder, store) = store();
        let mut app = App::start(&store, act);
        let printed = app.says().unwrap();
        assert!(printed.contains(what) && printed.contains(&format!("by {}", app.child.id())), "{printed}");
        wait_until_removed(&store);
        assert_eq!(app.rest(), Vec::<String>::new());
        assert_eq!(next_launch(&store), Vec::<String>::new());
    }
}

#[test]
fn a_forked_child_leaves_its_reports_to_the_next_launch_and_a_daemon_does_not() {
    let (_folder, store) = store();
    assert_eq!(App::start(&store, "forks").rest(), Vec::<String>::new());
    assert_eq!(next_launch(&store).len(), 1);
    let (_folder, store) = self::store();
    let mut app = App::start(&store, "is a daemon");
    let printed = app.says().unwrap();
    assert!(printed.contains("of [error 1]") && !printed.contains(&format!("by {} ", app.child.id())), "{printed}");
    wait_until_removed(&store);
    assert_eq!(app.rest(), Vec::<String>::new());
    assert_eq!(next_launch(&store), Vec::<String>::new());
}
