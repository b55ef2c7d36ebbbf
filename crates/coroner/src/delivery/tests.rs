//! Delivery of made-up runs. Real crashes are in `tests/next_launch.rs`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use coroner_report::run_state::{ExitKind, Limits as StateLimits, RunState, Scalar};
use coroner_report::wire::{
    Crash, Encoder, FILE_PREFIX, FORMAT_VERSION, Header, Monitor, Os, SectionKind, Signal, seal_header,
};
use std::sync::atomic::AtomicU64;

use super::*;
use crate::last_run::Outcome;

/// The bytes of a report file: a header and a crash, and reserved zeros.
fn report_file(run: Id, event: u8) -> Vec<u8> {
    let mut file = FILE_PREFIX.to_vec();
    let mut section = |kind, encode: &dyn Fn(&mut Encoder<'_>)| {
        let mut payload = vec![0; 4096];
        let mut encoder = Encoder::new(&mut payload);
        encode(&mut encoder);
        let length = encoder.position();
        payload.truncate(length);
        file.extend_from_slice(&seal_header(kind, &payload).unwrap());
        file.extend_from_slice(&payload);
    };
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: run.0,
        event_id: [event; 16],
        pid: 1,
        ppid: 0,
        arch: coroner_machine::registers::Arch::X86_64,
        os: Os::NATIVE,
        page_size: 4096,
        pointer_auth_mask: 0,
        sdk_version: b"0",
        process_start_ns: 1,
        process_name: b"app",
    };
    section(SectionKind::HEADER, &|encoder| header.encode(encoder));
    let signal = Some(Signal { number: 11, ..Signal::default() });
    let crash = Crash { time_ns: 5, since_install_ns: 3_000_000, monitor: Monitor::SIGNAL, signal, ..Crash::default() };
    section(SectionKind::CRASH, &|encoder| crash.encode(encoder));
    file.resize(file.len() + 1000, 0);
    file
}

/// The bytes of a run state file of a run that ended in this way.
fn state_file(run: Id, exit: ExitKind) -> Vec<u8> {
    let limits = StateLimits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, run.0).unwrap();
    state.set_scalar(Scalar::EXIT, exit.0.into());
    state.to_bytes()
}

/// A sink that gives the answers that it is told to give, and counts.
struct Scripted {
    name: &'static str,
    answers: Mutex<VecDeque<Delivery>>,
    asked: AtomicUsize,
}

impl Scripted {
    fn new(name: &'static str, answers: impl IntoIterator<Item = Delivery>) -> Arc<Self> {
        Arc::new(Self { name, answers: Mutex::new(answers.into_iter().collect()), asked: AtomicUsize::new(0) })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Sink for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn deliver(&self, submission: &Submission<'_>) -> Delivery {
        assert!(submission.report.run.is_some(), "the run state is stitched in");
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answers.lock().unwrap().pop_front().expect("a sink that breaks")
    }
}

fn retry() -> Delivery {
    Delivery::Retry { after: Duration::ZERO, reason: "not now".into() }
}

fn rejected() -> Delivery {
    Delivery::Rejected { reason: "never".into() }
}

/// A store in which runs can be laid, and launches made.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn run_path(&self, run: u8) -> PathBuf {
        self.store().join("runs").join(Id([run; 16]).to_string())
    }

    /// A run that ended, with one report file for each event.
    fn lay(&self, run: u8, exit: ExitKind, events: &[u8]) {
        let id = Id([run; 16]);
        let reports: Vec<Vec<u8>> = events.iter().map(|event| report_file(id, *event)).collect();
        self.lay_files(run, &state_file(id, exit), &reports);
    }

    fn lay_files(&self, run: u8, state: &[u8], reports: &[Vec<u8>]) {
        Store::open(&self.store()).unwrap();
        let path = self.run_path(run);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("lock"), b"").unwrap();
        std::fs::write(path.join("state"), state).unwrap();
        if reports.is_empty() {
            std::fs::write(path.join("report"), [0; 1000]).unwrap();
        }
        for (index, report) in reports.iter().enumerate() {
            let name = if index == 0 { "report".to_owned() } else { format!("report-{}", index + 1) };
            std::fs::write(path.join(name), report).unwrap();
        }
    }

    fn launch(&self, sinks: &[&Arc<Scripted>], config: impl FnOnce(Config) -> Config) -> Arc<Deliverer> {
        let sinks = sinks.iter().map(|sink| Arc::clone(*sink) as Arc<dyn Sink>).collect();
        let config = config(Config::new("app").symbolicate(false));
        Arc::new(Deliverer::new(Store::open(&self.store()).unwrap(), Id([0xee; 16]), sinks, config))
    }

    fn is_there(&self, run: u8) -> bool {
        self.run_path(run).exists()
    }

    fn why_broken(&self, run: u8) -> Option<String> {
        let list = Store::open(&self.store()).unwrap().list().unwrap();
        list.into_iter().find(|stored| stored.id == Id([run; 16]))?.broken
    }
}

const WAIT: Duration = Duration::from_secs(20);

#[test]
fn a_report_goes_to_every_sink_once_and_the_run_is_removed() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let (one, two) = (Scripted::new("one", [Delivery::Delivered]), Scripted::new("two", [Delivery::Delivered]));
    let launch = bench.launch(&[&one, &two], |config| config);
    assert!(launch.flush(WAIT));
    assert_eq!((one.asked(), two.asked()), (1, 1));
    assert!(!bench.is_there(1));
    let last = launch.last_run();
    assert_eq!((last.outcome, last.event_id), (Outcome::Crashed, Some(Id([0xa1; 16]))));
    assert_eq!(last.ran_for, Some(Duration::from_millis(3)));
}

#[test]
fn only_the_sink_that_could_not_take_it_is_asked_again() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let good = Scripted::new("good", [Delivery::Delivered]);
    let slow = Scripted::new("slow", [retry(), retry(), Delivery::Delivered]);
    let never = Scripted::new("never", [rejected()]);
    for (launch, expected) in [(1, false), (2, false), (3, true)] {
        assert_eq!(bench.launch(&[&good, &slow, &never], |config| config).flush(WAIT), expected, "launch {launch}");
        assert_eq!((good.asked(), slow.asked(), never.asked()), (1, launch, 1));
        assert_eq!(bench.is_there(1), !expected);
    }
}

#[test]
fn a_sink_that_wants_to_wait_is_not_asked_before() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let later = Scripted::new("later", [Delivery::Retry { after: Duration::from_mins(15), reason: "429".into() }]);
    let launch = bench.launch(&[&later], |config| config);
    assert!(!launch.flush(WAIT));
    assert!(!launch.flush(WAIT));
    assert_eq!(later.asked(), 1);
    assert!(bench.is_there(1));
}

#[test]
fn processing_that_never_comes_back_is_tried_three_times_and_then_the_run_is_kept_as_it_was() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    for launch in 1..=3 {
        // The sink has no answers: it panics, as a crash would end the process.
        let breaks = Scripted::new("breaks", []);
        assert!(!bench.launch(&[&breaks], |config| config).flush(WAIT));
        assert_eq!(breaks.asked(), 1, "launch {launch}");
        assert!(bench.is_there(1));
    }
    let works = Scripted::new("works", [Delivery::Delivered]);
    assert!(bench.launch(&[&works], |config| config).flush(WAIT), "nothing is left to deliver");
    assert_eq!(works.asked(), 0);
    assert!(!bench.is_there(1));
    let why = bench.why_broken(1).expect("it is set aside");
    assert!(why.contains("3 times"), "{why}");
    let kept = bench.store().join("broken").join(Id([1; 16]).to_string()).join("report");
    assert_eq!(std::fs::read(kept).unwrap(), report_file(Id([1; 16]), 0xa1));
}

#[test]
fn what_a_sink_cannot_take_now_is_not_an_attempt() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let offline = Scripted::new("offline", std::iter::repeat_n(retry(), 10).chain([Delivery::Delivered]));
    for _ in 0..10 {
        assert!(!bench.launch(&[&offline], |config| config).flush(WAIT));
    }
    assert!(bench.launch(&[&offline], |config| config).flush(WAIT));
    assert_eq!(bench.why_broken(1), None);
}

#[test]
fn a_launch_that_ends_in_good_order_in_the_middle_is_not_an_attempt() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    for _ in 0..5 {
        let launch = bench.launch(&[], |config| config);
        let run = launch.store.take_ended(None).unwrap().runs.pop().unwrap();
        let _begun = launch.begin(run).unwrap();
        launch.end();
    }
    let works = Scripted::new("works", [Delivery::Delivered]);
    assert!(bench.launch(&[&works], |config| config).flush(WAIT));
    assert_eq!(works.asked(), 1);
}

#[test]
fn the_hook_changes_or_drops_reports() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    bench.lay(2, ExitKind::CRASHED, &[0xa2]);
    let sink = Scripted::new("sink", [Delivery::Delivered]);
    let keep = |report: Report| (report.header.event_id == Id([0xa2; 16])).then_some(report);
    assert!(bench.launch(&[&sink], |config| config.before_deliver(keep)).flush(WAIT));
    assert_eq!(sink.asked(), 1);
    assert!(!bench.is_there(1) && !bench.is_there(2));
}

#[test]
fn each_report_of_a_run_that_survived_a_crash_is_delivered() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1, 0xa2, 0xa3]);
    let sink = Scripted::new("sink", [Delivery::Delivered, retry(), Delivery::Delivered, Delivery::Delivered]);
    assert!(!bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 3);
    assert!(bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 4);
    assert!(!bench.is_there(1));
}

#[test]
fn a_file_that_is_no_report_is_set_aside_with_the_reason() {
    let bench = Bench::new();
    let state = state_file(Id([1; 16]), ExitKind::CRASHED);
    bench.lay_files(1, &state, &[b"\x7fELF and more".to_vec()]);
    let sink = Scripted::new("sink", []);
    bench.launch(&[&sink], |config| config).flush(WAIT);
    let why = bench.why_broken(1).expect("it is set aside");
    assert!(why.contains("not a Coroner report"), "{why}");
}

#[test]
fn a_torn_report_is_delivered_with_what_is_missing() {
    let bench = Bench::new();
    let whole = report_file(Id([1; 16]), 0xa1);
    let torn = whole[..whole.len() - 1000 - 4].to_vec();
    bench.lay_files(1, &state_file(Id([1; 16]), ExitKind::CRASHED), &[torn]);
    let sink = Scripted::new("sink", [Delivery::Delivered]);
    let problems = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&problems);
    let look = move |report: Report| {
        seen.store(report.problems.len(), Ordering::SeqCst);
        Some(report)
    };
    assert!(bench.launch(&[&sink], |config| config.before_deliver(look)).flush(WAIT));
    assert_eq!(sink.asked(), 1);
    assert!(problems.load(Ordering::SeqCst) > 0);
}

#[test]
fn how_runs_without_a_report_ended() {
    for (exit, outcome) in [
        (ExitKind::CLEAN, Outcome::CleanExit),
        (ExitKind::SIGTERM, Outcome::Terminated),
        (ExitKind::UNINSTALLED, Outcome::Uninstalled),
        (ExitKind::RUNNING, Outcome::Unknown),
        // The crash was noticed, but not even the first section was written.
        (ExitKind::CRASHED, Outcome::Crashed),
    ] {
        let bench = Bench::new();
        bench.lay(1, exit, &[]);
        let sink = Scripted::new("sink", []);
        let launch = bench.launch(&[&sink], |config| config);
        assert!(launch.flush(WAIT));
        assert_eq!(launch.last_run().outcome, outcome);
        assert!(!bench.is_there(1));
        // The next launch has nothing new to look at, and remembers.
        assert_eq!(bench.launch(&[&sink], |config| config).last_run().outcome, outcome);
    }
    let bench = Bench::new();
    assert_eq!(bench.launch(&[], |config| config).last_run().outcome, Outcome::FirstLaunch);
}

#[test]
fn an_install_that_failed_half_way_is_no_run() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CLEAN, &[]);
    let sink = Scripted::new("sink", []);
    bench.launch(&[&sink], |config| config).flush(WAIT);
    Store::open(&bench.store()).unwrap();
    std::fs::create_dir(bench.run_path(2)).unwrap();
    std::fs::write(bench.run_path(2).join("lock"), b"").unwrap();
    std::fs::write(bench.run_path(2).join("report"), b"").unwrap();
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    std::fs::File::open(bench.run_path(2)).unwrap().set_modified(hour_ago).unwrap();
    let launch = bench.launch(&[&sink], |config| config);
    assert!(launch.flush(WAIT));
    assert_eq!(launch.last_run().outcome, Outcome::CleanExit);
    assert!(!bench.is_there(2));
}

#[test]
fn the_app_is_told_of_a_crash_once() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let sink = Scripted::new("sink", [retry(), Delivery::Delivered]);
    let told = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let counted = Arc::clone(&told);
        let count = move |last: &LastRun| {
            assert_eq!(last.event_id, Some(Id([0xa1; 16])));
            counted.fetch_add(1, Ordering::SeqCst);
        };
        bench.launch(&[&sink], |config| config.on_crashed_last_run(count)).flush(WAIT);
    }
    assert_eq!((told.load(Ordering::SeqCst), sink.asked()), (1, 2));
}

#[test]
fn without_sinks_reports_stay() {
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    bench.lay(2, ExitKind::CLEAN, &[]);
    for _ in 0..5 {
        bench.launch(&[], |config| config).flush(WAIT);
        assert!(bench.is_there(1) && !bench.is_there(2));
    }
    assert_eq!(bench.why_broken(1), None);
}

#[test]
fn a_run_whose_progress_cannot_be_written_waits_untouched() {
    // Root may write anywhere, so it is not a permission but a directory that stands in the way.
    let bench = Bench::new();
    bench.lay(1, ExitKind::CRASHED, &[0xa1]);
    let blocked: &Path = &bench.run_path(1).join("progress.json");
    std::fs::create_dir(blocked).unwrap();
    let sink = Scripted::new("sink", [Delivery::Delivered]);
    assert!(bench.launch(&[&sink], |config| config).flush(WAIT), "what can't be taken isn't pending");
    assert_eq!(sink.asked(), 0);
    assert!(bench.is_there(1));
    std::fs::remove_dir(blocked).unwrap();
    assert!(bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 1);
}
