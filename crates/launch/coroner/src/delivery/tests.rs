//! Delivery of synthetic runs. For real crashes, see `tests/it/next_launch.rs`.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

use coroner_report::model::Value;
use coroner_report::run_state::{
    Breadcrumb, CrashRecord, ExitKind, Fact, Limits as StateLimits, ProcessIdentity, RunState, Scalar,
};
use coroner_report::wire::{
    Crash, Encoder, FILE_PREFIX, FORMAT_VERSION, Header, Monitor, Os, SectionKind, Signal, seal_header,
};

use super::preparation::STORE_CONTEXT;
use super::*;
use crate::config::{Delivery, Limits};
use crate::delivery_thread::DeliveryThread;
use crate::outcome::Outcome;
use crate::sink::{SinkAnswer, Submission};

/// Returns the bytes of a report file: a header and a crash, and reserved zeros.
fn report_file(run: Id, event: u8) -> Vec<u8> {
    report_file_at(run, event, (5, 0))
}

/// Like [`report_file`], with the time (nanoseconds since the Unix epoch) and thread of the crash.
fn report_file_at(run: Id, event: u8, (time_ns, tid): (u64, u64)) -> Vec<u8> {
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
        arch: Some(coroner_process::registers::Arch::X86_64),
        os: Os::NATIVE,
        page_size: 4096,
        pointer_auth_mask: 0,
        sdk_version: b"0",
        process_start_ns: 1,
        process_name: b"app",
    };
    section(SectionKind::HEADER, &|encoder| header.encode(encoder));
    let signal = Some(Signal { number: 11, ..Signal::default() });
    let crash =
        Crash { time_ns, tid, since_install_ns: 3_000_000, monitor: Monitor::SIGNAL, signal, ..Crash::default() };
    section(SectionKind::CRASH, &|encoder| crash.encode(encoder));
    file.resize(file.len() + 1000, 0);
    file
}

/// Returns the bytes of a run state file with this exit.
fn state_file(run: Id, exit: ExitKind) -> Vec<u8> {
    let limits = StateLimits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, run.0, &ProcessIdentity::default()).unwrap();
    state.set_scalar(Scalar::EXIT, exit.0.into());
    state.to_bytes()
}

/// The crash in [`crashed_state`].
const CRASH: CrashRecord = CrashRecord {
    monitor: Monitor::SIGNAL,
    signal: 11,
    code: 1,
    errno: 0,
    address: Some(0x10),
    tid: 78,
    time_ns: 5_000_000_000,
    pc: 0x4000,
    sp: 0x7000,
};

/// Returns the bytes of a run state file that records [`CRASH`], changed by `then`.
fn crashed_state(run: Id, then: impl FnOnce(&RunState<'_>, u64)) -> Vec<u8> {
    let limits = StateLimits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let process = ProcessIdentity { pid: 77, ..ProcessIdentity::default() };
    let state = RunState::create(&words, &limits, run.0, &process).unwrap();
    let mut buffer = [0; 512];
    state
        .set_facts_with(&mut buffer, |facts| {
            facts.text(Fact::APP_RELEASE, "app@1.0");
            facts.text(Fact::OS_NAME, "Linux");
            facts.uint(Fact::INSTALLED, 2_000_000_000);
        })
        .unwrap();
    state.breadcrumb(&Breadcrumb { message: "before", ..Breadcrumb::default() });
    let number = state.set_crash(&CRASH);
    then(&state, number);
    state.to_bytes()
}

/// A sink that returns prepared answers and counts the calls.
struct Scripted {
    name: &'static str,
    answers: Mutex<VecDeque<SinkAnswer>>,
    asked: AtomicUsize,
}

impl Scripted {
    fn new(name: &'static str, answers: impl IntoIterator<Item = SinkAnswer>) -> Arc<Self> {
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

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        assert!(submission.report.run.is_some(), "the report lacks the run state");
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answers.lock().unwrap().pop_front().expect("no answer left: the sink breaks")
    }
}

fn retry() -> SinkAnswer {
    SinkAnswer::Retry { after: Duration::ZERO, reason: "not now".into() }
}

fn rejected() -> SinkAnswer {
    SinkAnswer::Rejected { reason: "never".into() }
}

/// A launch whose delivery thread can be waited for.
struct Launch {
    deliverer: Arc<Deliverer>,
    thread: Arc<DeliveryThread>,
}

impl Launch {
    fn new(deliverer: Deliverer) -> Self {
        let deliverer = Arc::new(deliverer);
        let work: Arc<Deliverer> = Arc::clone(&deliverer);
        Self { thread: Arc::new(DeliveryThread::new(work, deliverer.waiters(), true)), deliverer }
    }

    fn flush(&self, timeout: Duration) -> bool {
        self.thread.flush(timeout)
    }
}

impl Deref for Launch {
    type Target = Deliverer;

    fn deref(&self) -> &Deliverer {
        &self.deliverer
    }
}

/// A store, with methods to add runs and start launches.
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

    /// Adds an ended run with one report file for each event.
    fn add_run(&self, run: u8, exit: ExitKind, events: &[u8]) {
        let id = Id([run; 16]);
        let reports: Vec<Vec<u8>> = events.iter().map(|event| report_file(id, *event)).collect();
        self.add_run_files(run, &state_file(id, exit), &reports);
    }

    fn add_run_files(&self, run: u8, state: &[u8], reports: &[Vec<u8>]) {
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

    fn launch(&self, sinks: &[&Arc<Scripted>], options: impl FnOnce(Delivery) -> Delivery) -> Launch {
        self.launch_keeping(sinks, Retention::default(), options)
    }

    fn launch_keeping(
        &self,
        sinks: &[&Arc<Scripted>],
        retention: Retention,
        options: impl FnOnce(Delivery) -> Delivery,
    ) -> Launch {
        let sinks = sinks.iter().map(|sink| Arc::clone(*sink) as Arc<dyn Sink>).collect();
        let config = Config::new("app").delivery(options(without_names())).limits(Limits::new().retention(retention));
        Launch::new(Deliverer::new(Store::open(&self.store()).unwrap(), Id([0xee; 16]), sinks, &config))
    }

    fn has_run(&self, run: u8) -> bool {
        self.run_path(run).exists()
    }

    fn broken_reason(&self, run: u8) -> Option<String> {
        let list = Store::open(&self.store()).unwrap().list().unwrap();
        list.into_iter().find(|stored| stored.id == Id([run; 16]))?.broken
    }
}

/// Ends a test that hangs; long enough for a busy machine.
const WAIT: Duration = Duration::from_mins(5);

/// Disables naming, because synthetic frames have no names.
fn without_names() -> Delivery {
    Delivery::new().symbolicate(false)
}

/// Returns a launch that writes to a folder.
fn folder_launch(bench: &Bench, folder: &Path) -> Launch {
    let sinks: Vec<Arc<dyn Sink>> = vec![Arc::new(crate::FolderSink::new(folder))];
    let config = Config::new("app").delivery(without_names());
    Launch::new(Deliverer::new(Store::open(&bench.store()).unwrap(), Id([0xee; 16]), sinks, &config))
}

/// Returns the event id that a run's second report gets if it contains none.
fn second_id(run: Id) -> Id {
    let mut id = run.0;
    id[15] ^= 1;
    Id(id)
}

/// Returns the event ids in the names of a folder's files.
fn event_ids(folder: &Path) -> Vec<Id> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let stems = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned));
    let mut ids: Vec<Id> = stems.map(|stem| stem.split_once('-').unwrap().1.parse().unwrap()).collect();
    ids.sort();
    ids
}

#[test]
fn a_report_goes_to_every_sink_once_and_the_run_is_removed() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let (one, two) = (Scripted::new("one", [SinkAnswer::Delivered]), Scripted::new("two", [SinkAnswer::Delivered]));
    let launch = bench.launch(&[&one, &two], |config| config);
    assert!(launch.flush(WAIT));
    assert_eq!((one.asked(), two.asked()), (1, 1));
    assert!(!bench.has_run(1));
    let last = launch.last_run();
    assert_eq!((last.outcome, last.event_id), (Outcome::Crashed, Some(Id([0xa1; 16]))));
    assert_eq!(last.ran_for, Some(Duration::from_millis(3)));
}

#[test]
fn only_a_sink_that_deferred_a_report_is_asked_again() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let good = Scripted::new("good", [SinkAnswer::Delivered]);
    let slow = Scripted::new("slow", [retry(), retry(), SinkAnswer::Delivered]);
    let never = Scripted::new("never", [rejected()]);
    for (launch, expected) in [(1, false), (2, false), (3, true)] {
        assert_eq!(bench.launch(&[&good, &slow, &never], |config| config).flush(WAIT), expected, "launch {launch}");
        assert_eq!((good.asked(), slow.asked(), never.asked()), (1, launch, 1));
        assert_eq!(bench.has_run(1), !expected);
    }
}

#[test]
fn a_sink_is_not_asked_before_the_time_that_it_named() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let later = Scripted::new("later", [SinkAnswer::Retry { after: Duration::from_mins(15), reason: "429".into() }]);
    let launch = bench.launch(&[&later], |config| config);
    assert!(!launch.flush(WAIT));
    assert!(!launch.flush(WAIT));
    assert_eq!(later.asked(), 1);
    assert!(bench.has_run(1));
}

#[test]
fn a_run_whose_processing_crashes_three_times_is_set_aside_unchanged() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    for launch in 1..=3 {
        // The sink has no answers left and panics. A crash would end the test's process.
        let breaks = Scripted::new("breaks", []);
        assert!(!bench.launch(&[&breaks], |config| config).flush(WAIT));
        assert_eq!(breaks.asked(), 1, "launch {launch}");
        assert!(bench.has_run(1));
    }
    let works = Scripted::new("works", [SinkAnswer::Delivered]);
    assert!(bench.launch(&[&works], |config| config).flush(WAIT), "something is left to deliver");
    assert_eq!(works.asked(), 0);
    assert!(!bench.has_run(1));
    let why = bench.broken_reason(1).expect("the run is not set aside");
    assert!(why.contains("3 times"), "{why}");
    let kept = bench.store().join("broken").join(Id([1; 16]).to_string()).join("report");
    assert_eq!(std::fs::read(kept).unwrap(), report_file(Id([1; 16]), 0xa1));
}

#[test]
fn a_deferred_delivery_is_not_counted_as_an_attempt() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let offline = Scripted::new("offline", std::iter::repeat_n(retry(), 10).chain([SinkAnswer::Delivered]));
    for _ in 0..10 {
        assert!(!bench.launch(&[&offline], |config| config).flush(WAIT));
    }
    assert!(bench.launch(&[&offline], |config| config).flush(WAIT));
    assert_eq!(bench.broken_reason(1), None);
}

/// Adds a run that crashed, or was killed, while its thread 78 processed run 1.
fn add_processing_run(bench: &Bench, run: u8, crash_tid: Option<u64>) {
    let limits = StateLimits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let words: &'static [AtomicU64] = words.leak();
    let state = RunState::create(words, &limits, [run; 16], &ProcessIdentity::default()).unwrap();
    let store = Store::open(&bench.store()).unwrap();
    let processor = Deliverer::new(store, Id([run; 16]), Vec::new(), &Config::new("app")).announcing(state);
    let mark = processor.runs.mark(Id([1; 16]));
    // The id of the test's own thread can't be predicted.
    state.set_scalar(Scalar::PROCESSING_THREAD, 78);
    if let Some(tid) = crash_tid {
        state.set_crash(&CrashRecord { tid, ..CRASH });
    }
    let bytes = state.to_bytes();
    drop(mark);
    assert_eq!(state.scalar(Scalar::PROCESSING_THREAD), 0, "the mark is not removed");
    bench.add_run_files(run, &bytes, &[]);
}

#[test]
fn only_a_crash_of_the_processing_thread_counts_against_the_run() {
    // Crashes of the processing thread, crashes of another thread in the meantime, and kills.
    for (tid, is_evidence) in [(Some(78), true), (Some(79), false), (None, false)] {
        let bench = Bench::new();
        bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
        for run in 2..=4 {
            add_processing_run(&bench, run, tid);
        }
        let sink = Scripted::new("sink", std::iter::repeat_n(SinkAnswer::Delivered, 4));
        assert!(bench.launch(&[&sink], |config| config).flush(WAIT));
        assert_eq!(bench.broken_reason(1).is_some_and(|why| why.contains("3 times")), is_evidence, "{tid:?}");
        let processors = if tid.is_some() { 3 } else { 0 };
        assert_eq!(sink.asked(), processors + usize::from(!is_evidence), "{tid:?}");
    }
}

#[test]
fn a_crash_during_processing_is_counted_once() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    add_processing_run(&bench, 2, Some(78));
    // Neither run is removed, so each launch examines the crashed one again.
    for _ in 0..5 {
        let offline = Scripted::new("offline", [retry(), retry()]);
        let launch = bench.launch(&[&offline], |config| config);
        launch.runs.count_processing_crashes(
            &launch.store().unprocessed(None).unwrap().runs,
            &ProcessIdentity::of_this_process(),
            None,
        );
    }
    let progress = std::fs::read_to_string(bench.run_path(1).join("progress.json")).unwrap();
    assert!(progress.contains("\"attempts\":1"), "{progress}");
}

#[test]
fn the_hook_changes_or_drops_reports() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    bench.add_run(2, ExitKind::CRASHED, &[0xa2]);
    let sink = Scripted::new("sink", [SinkAnswer::Delivered]);
    let keep = |report: Report| (report.header.event_id == Id([0xa2; 16])).then_some(report);
    assert!(bench.launch(&[&sink], |options| options.before_deliver(keep)).flush(WAIT));
    assert_eq!(sink.asked(), 1);
    assert!(!bench.has_run(1) && !bench.has_run(2));
}

#[test]
fn each_report_of_a_run_that_survived_a_crash_is_delivered() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1, 0xa2, 0xa3]);
    let sink = Scripted::new("sink", [SinkAnswer::Delivered, retry(), SinkAnswer::Delivered, SinkAnswer::Delivered]);
    assert!(!bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 3);
    assert!(bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 4);
    assert!(!bench.has_run(1));
}

#[test]
fn a_file_that_is_not_a_report_is_set_aside_with_the_reason() {
    let bench = Bench::new();
    let state = state_file(Id([1; 16]), ExitKind::CRASHED);
    bench.add_run_files(1, &state, &[b"\x7fELF and more".to_vec()]);
    let sink = Scripted::new("sink", []);
    bench.launch(&[&sink], |config| config).flush(WAIT);
    let why = bench.broken_reason(1).expect("the run is not set aside");
    assert!(why.contains("not a Coroner report"), "{why}");
}

#[test]
fn a_run_that_cannot_be_set_aside_does_not_block_others() {
    let bench = Bench::new();
    bench.add_run_files(1, &state_file(Id([1; 16]), ExitKind::CRASHED), &[b"\x7fELF and more".to_vec()]);
    bench.add_run(2, ExitKind::CRASHED, &[0xa2]);
    // Another entry already has the run's name.
    let taken = bench.store().join("broken").join(Id([1; 16]).to_string());
    std::fs::create_dir_all(taken.join("other")).unwrap();
    let sink = Scripted::new("sink", [SinkAnswer::Delivered]);
    assert!(!bench.launch(&[&sink], |config| config).flush(WAIT), "nothing is left to deliver");
    assert_eq!(sink.asked(), 1);
    assert!(bench.has_run(1) && !bench.has_run(2));
    std::fs::remove_dir_all(taken).unwrap();
    bench.launch(&[&sink], |config| config).flush(WAIT);
    assert!(bench.broken_reason(1).is_some() && !bench.has_run(1));
}

#[test]
fn a_torn_report_is_delivered_with_a_list_of_what_is_missing() {
    let bench = Bench::new();
    let whole = report_file(Id([1; 16]), 0xa1);
    let torn = whole[..whole.len() - 1000 - 4].to_vec();
    bench.add_run_files(1, &state_file(Id([1; 16]), ExitKind::CRASHED), &[torn]);
    let sink = Scripted::new("sink", [SinkAnswer::Delivered]);
    let problems = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&problems);
    let look = move |report: Report| {
        seen.store(report.problems.len(), Ordering::SeqCst);
        Some(report)
    };
    assert!(bench.launch(&[&sink], |options| options.before_deliver(look)).flush(WAIT));
    assert_eq!(sink.asked(), 1);
    assert!(problems.load(Ordering::SeqCst) > 0);
}

#[test]
fn the_outcome_of_runs_without_a_report_is_determined() {
    for (exit, outcome) in [
        (ExitKind::CLEAN, Outcome::CleanExit),
        (ExitKind::SIGTERM, Outcome::Terminated),
        (ExitKind::UNINSTALLED, Outcome::Uninstalled),
        (ExitKind::RUNNING, Outcome::Unknown),
        // The crash is recorded, but not even the first section was written.
        (ExitKind::CRASHED, Outcome::Crashed),
    ] {
        let bench = Bench::new();
        bench.add_run(1, exit, &[]);
        let sink = Scripted::new("sink", []);
        let launch = bench.launch(&[&sink], |config| config);
        assert!(launch.flush(WAIT));
        assert_eq!(launch.last_run().outcome, outcome);
        assert!(!bench.has_run(1));
        // The next launch finds no new run and returns the recorded outcome.
        assert_eq!(bench.launch(&[&sink], |config| config).last_run().outcome, outcome);
    }
    let bench = Bench::new();
    assert_eq!(bench.launch(&[], |config| config).last_run().outcome, Outcome::FirstLaunch);
}

#[test]
fn a_crash_recorded_only_in_the_run_state_is_reported() {
    let whole = report_file(Id([1; 16]), 0xa1);
    let cases: [(&str, Option<Vec<u8>>); 5] = [
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("reserved and never written", Some(vec![0; 1000])),
        ("cut in its first section", Some(whole[..40].to_vec())),
        ("the first page is lost", Some([&[0; 3], &whole[3..60]].concat())),
    ];
    for (case, report) in cases {
        let bench = Bench::new();
        let id = Id([1; 16]);
        bench.add_run_files(1, &crashed_state(id, |_, _| ()), &[]);
        std::fs::remove_file(bench.run_path(1).join("report")).unwrap();
        if let Some(report) = report {
            std::fs::write(bench.run_path(1).join("report"), report).unwrap();
        }
        let folder = bench.folder.path().join("reports");
        let launch = folder_launch(&bench, &folder);
        assert!(launch.flush(WAIT), "{case}");
        let last = launch.last_run();
        assert_eq!((last.outcome, last.event_id), (Outcome::Crashed, Some(id)), "{case}");
        assert_eq!(last.ran_for, Some(Duration::from_secs(3)), "{case}");
        assert!(!bench.has_run(1) && bench.broken_reason(1).is_none(), "{case}");
        let files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let file = files.iter().find(|path| path.extension().is_some_and(|extension| extension == "coroner"));
        let report = Report::read_file(file.unwrap_or_else(|| panic!("{case}: {files:?}"))).unwrap();
        assert_eq!((report.header.event_id, report.header.run_id, report.header.pid), (id, id, 77), "{case}");
        let crash = report.crash.as_ref().expect("there");
        let signal = crash.signal.as_ref().expect("there");
        assert_eq!((signal.name, signal.code_name, crash.tid), (Some("SIGSEGV"), Some("SEGV_MAPERR"), 78), "{case}");
        assert_eq!((crash.address.map(|address| address.0), crash.time.0), (Some(0x10), 5_000_000_000), "{case}");
        assert_eq!(report.crashed_thread().unwrap().frames[0].address.0, 0x4000, "{case}");
        let run = report.run.as_ref().expect("the report lacks the run state");
        assert_eq!((run.app.release.as_deref(), run.breadcrumbs.len()), (Some("app@1.0"), 1), "{case}");
        assert!(!report.complete, "{case}");
    }
}

#[test]
fn a_crash_record_with_a_report_does_not_create_another() {
    // One report has the record's time and thread; another was cut off before its kind.
    let id = Id([1; 16]);
    let of_record = report_file_at(id, 0xa1, (CRASH.time_ns, CRASH.tid));
    let cut = of_record[..of_record.len() - 1000 - 4].to_vec();
    for report in [of_record, cut] {
        let bench = Bench::new();
        bench.add_run_files(1, &crashed_state(id, |_, _| ()), &[report]);
        let sink = Scripted::new("sink", [SinkAnswer::Delivered]);
        let seen = Arc::new(AtomicUsize::new(0));
        let see = Arc::clone(&seen);
        let look = move |report: Report| {
            see.store(report.crash.as_ref().map_or(0, |crash| crash.tid) as usize, Ordering::SeqCst);
            Some(report)
        };
        let launch = bench.launch(&[&sink], |options| options.before_deliver(look));
        assert!(launch.flush(WAIT));
        assert_eq!((sink.asked(), seen.load(Ordering::SeqCst)), (1, 78));
        assert_eq!(launch.last_run().event_id, Some(Id([0xa1; 16])));
    }
    // The same thread crashed a moment before, was repaired and has a report; the last crash has
    // none.
    let bench = Bench::new();
    let repaired = report_file_at(id, 0xa1, (CRASH.time_ns - 1, CRASH.tid));
    bench.add_run_files(1, &crashed_state(id, |_, _| ()), &[repaired]);
    let sink = Scripted::new("sink", [SinkAnswer::Delivered, SinkAnswer::Delivered]);
    let launch = bench.launch(&[&sink], |config| config);
    assert!(launch.flush(WAIT));
    assert_eq!((sink.asked(), launch.last_run().event_id), (2, Some(second_id(id))));
}

#[test]
fn a_non_fatal_crash_is_not_the_outcome() {
    type Then = fn(&RunState<'_>, u64);
    let cases: [(Then, Outcome); 3] = [
        (|state, number| state.set_crash_not_fatal(number), Outcome::Unknown),
        (
            |state, number| {
                state.set_crash_not_fatal(number);
                state.set_scalar(Scalar::EXIT, ExitKind::SIGTERM.0.into());
            },
            Outcome::Terminated,
        ),
        // The app left the handler by a jump, and ended cleanly later.
        (|state, _| state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into()), Outcome::CleanExit),
    ];
    for (then, outcome) in cases {
        let bench = Bench::new();
        bench.add_run_files(1, &crashed_state(Id([1; 16]), then), &[]);
        let sink = Scripted::new("sink", []);
        let launch = bench.launch(&[&sink], |config| config);
        assert!(launch.flush(WAIT));
        assert_eq!((launch.last_run().outcome, sink.asked()), (outcome, 0));
    }
}

#[test]
fn an_incomplete_install_is_not_a_run() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CLEAN, &[]);
    let sink = Scripted::new("sink", []);
    bench.launch(&[&sink], |config| config).flush(WAIT);
    Store::open(&bench.store()).unwrap();
    std::fs::create_dir(bench.run_path(2)).unwrap();
    std::fs::write(bench.run_path(2).join("lock"), b"").unwrap();
    std::fs::write(bench.run_path(2).join("report"), b"").unwrap();
    make_directory_old(&bench, 2);
    let launch = bench.launch(&[&sink], |config| config);
    assert!(launch.flush(WAIT));
    assert_eq!(launch.last_run().outcome, Outcome::CleanExit);
    assert!(!bench.has_run(2));
}

#[test]
fn the_app_is_notified_of_a_crash_once() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let sink = Scripted::new("sink", [retry(), SinkAnswer::Delivered]);
    let notified = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let counted = Arc::clone(&notified);
        let count = move |last: &LastRun| {
            assert_eq!(last.event_id, Some(Id([0xa1; 16])));
            counted.fetch_add(1, Ordering::SeqCst);
        };
        bench.launch(&[&sink], |options| options.on_crashed_last_run(count)).flush(WAIT);
    }
    assert_eq!((notified.load(Ordering::SeqCst), sink.asked()), (1, 2));
}

#[test]
fn without_sinks_reports_stay_in_the_store() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    bench.add_run(2, ExitKind::CLEAN, &[]);
    for _ in 0..5 {
        bench.launch(&[], |config| config).flush(WAIT);
        assert!(bench.has_run(1) && !bench.has_run(2));
    }
    assert_eq!(bench.broken_reason(1), None);
}

#[test]
fn a_run_whose_progress_cannot_be_written_is_delivered_and_stays_if_needed() {
    // A directory takes the file's name. Permissions don't stop root, and a file system without
    // free inodes is hard to set up.
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    bench.add_run(2, ExitKind::CRASHED, &[0xa2]);
    let blocked = |run| bench.run_path(run).join(format!(".progress.json.{}.new", std::process::id()));
    for run in [1, 2] {
        std::fs::create_dir(blocked(run)).unwrap();
    }
    let sink = Scripted::new("sink", [retry(), SinkAnswer::Delivered, SinkAnswer::Delivered]);
    let launch = bench.launch(&[&sink], |config| config);
    assert!(!launch.flush(WAIT), "nothing is left to deliver");
    // The newest is asked for first.
    assert_eq!((sink.asked(), bench.has_run(1), bench.has_run(2)), (2, false, true));
    assert!(launch.flush(WAIT));
    assert_eq!((sink.asked(), bench.has_run(2)), (3, false));
}

#[test]
fn a_special_file_does_not_block_a_run_forever() {
    let bench = Bench::new();
    for (run, name) in [(1, "lock"), (2, "progress.json"), (3, "report")] {
        bench.add_run(run, ExitKind::CRASHED, &[0xa0 + run]);
        let path = bench.run_path(run).join(name);
        let _ = std::fs::remove_file(&path);
        if run == 1 {
            std::fs::create_dir_all(path.join("deep")).unwrap();
        } else {
            let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
            // SAFETY: the path ends in NUL.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }
    }
    let sink = Scripted::new("sink", [SinkAnswer::Delivered, SinkAnswer::Delivered]);
    assert!(bench.launch(&[&sink], |config| config).flush(WAIT));
    assert_eq!(sink.asked(), 2);
    assert!(bench.broken_reason(3).is_some_and(|why| why.contains("named pipe")));
    assert!((1..=3).all(|run| !bench.has_run(run)));
}

/// Makes a run's directory an hour old, because a younger one without a state may belong to an
/// install in progress.
fn make_directory_old(bench: &Bench, run: u8) {
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    for path in [bench.run_path(run).join("lock"), bench.run_path(run)] {
        std::fs::File::open(path).unwrap().set_modified(hour_ago).unwrap();
    }
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn a_report_without_a_run_state_is_delivered() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    std::fs::remove_file(bench.run_path(1).join("state")).unwrap();
    make_directory_old(&bench, 1);
    let folder = bench.folder.path().join("reports");
    let launch = folder_launch(&bench, &folder);
    assert!(launch.flush(WAIT));
    assert_eq!((launch.last_run().outcome, launch.last_run().event_id), (Outcome::Crashed, Some(Id([0xa1; 16]))));
    assert_eq!(event_ids(&folder), [Id([0xa1; 16])]);
    assert!(!bench.has_run(1));
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn reports_without_an_id_are_distinguished() {
    // Their headers are missing; one run doesn't even have a state.
    let headless = |run: u8| {
        let whole = report_file(Id([run; 16]), 0xa1);
        let header = coroner_report::wire::parse_header(&whole[FILE_PREFIX.len()..]).unwrap();
        let end = FILE_PREFIX.len() + coroner_report::wire::FRAME_HEADER_LEN + header.payload_len;
        [&FILE_PREFIX[..], &whole[end..]].concat()
    };
    let bench = Bench::new();
    bench.add_run_files(1, &state_file(Id([1; 16]), ExitKind::CRASHED), &[headless(1), headless(1)]);
    bench.add_run_files(2, &state_file(Id([2; 16]), ExitKind::CRASHED), &[headless(2)]);
    std::fs::remove_file(bench.run_path(2).join("state")).unwrap();
    make_directory_old(&bench, 2);
    let folder = bench.folder.path().join("reports");
    assert!(folder_launch(&bench, &folder).flush(WAIT));
    assert_eq!(event_ids(&folder), [second_id(Id([1; 16])), Id([1; 16]), Id([2; 16])]);
}

#[test]
fn runs_without_a_crash_do_not_evict_reports() {
    let bench = Bench::new();
    bench.add_run(1, ExitKind::CRASHED, &[0xa1]);
    let state = state_file(Id([2; 16]), ExitKind::CLEAN);
    for run in 2..=200 {
        bench.add_run_files(run, &state[..state.len() / 64], &[]);
    }
    let sink = Scripted::new("sink", [retry(), SinkAnswer::Delivered]);
    let retention = Retention { number: 1, runs: 1, ..Retention::default() };
    assert!(!bench.launch_keeping(&[&sink], retention, |options| options).flush(WAIT));
    assert!(bench.has_run(1) && !bench.has_run(2));
    assert!(bench.launch_keeping(&[&sink], retention, |options| options).flush(WAIT));
    assert_eq!(sink.asked(), 2);
}

#[test]
fn all_crashes_are_delivered_and_limits_apply_to_waiting_ones() {
    let bench = Bench::new();
    for run in 1..=50 {
        bench.add_run(run, ExitKind::CRASHED, &[run]);
    }
    let offline = Scripted::new("sink", std::iter::repeat_n(retry(), 50));
    let retention = Retention { number: 20, ..Retention::default() };
    assert!(!bench.launch_keeping(&[&offline], retention, |options| options).flush(WAIT));
    assert_eq!((offline.asked(), (1..=50).filter(|run| bench.has_run(*run)).count()), (50, 20));
    let online = Scripted::new("sink", std::iter::repeat_n(SinkAnswer::Delivered, 20));
    let evicted = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&evicted);
    let look = move |report: Report| {
        let context = report.run.as_ref().and_then(|run| run.contexts.get(STORE_CONTEXT).cloned());
        record.lock().unwrap().extend(context);
        Some(report)
    };
    assert!(bench.launch_keeping(&[&online], retention, |options| options.before_deliver(look)).flush(WAIT));
    assert_eq!(online.asked(), 20);
    // The first delivered report contains the number of removed ones.
    let count = Value::Map(vec![(Value::from("evicted_reports"), Value::Unsigned(30))]);
    assert_eq!(*evicted.lock().unwrap(), [count]);
}

/// Runs a first step with no time left; returns how many runs it reads.
fn count_runs_read_without_time(launch: &Deliverer) -> usize {
    use crate::store::raw_run::READ;
    let before = READ.get();
    launch.intake(Instant::now());
    READ.get() - before
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn the_first_step_reads_few_runs_regardless_of_their_number() {
    let bench = Bench::new();
    for run in 1..=60 {
        bench.add_run(run, ExitKind::CRASHED, &[run]);
    }
    let state = state_file(Id([61; 16]), ExitKind::CLEAN);
    for run in 61..=100 {
        bench.add_run_files(run, &state, &[]);
    }
    for run in 101..=140 {
        add_processing_run(&bench, run, Some(78));
    }
    let folder = bench.folder.path().join("folder");
    for stored in 1..=5 {
        let read = count_runs_read_without_time(&folder_launch(&bench, &folder));
        assert!(read <= 5, "{read} of 140 runs were read");
        assert_eq!(event_ids(&folder).len(), stored, "each launch must store one report");
    }
    // All are stored and wait.
    folder_launch(&bench, &folder).intake(Instant::now() + WAIT);
    let read = count_runs_read_without_time(&folder_launch(&bench, &folder));
    assert!(read <= 5, "{read} runs were read although nothing is left to store");
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn limits_hold_in_a_crash_loop_without_deliveries() {
    let retention = Retention { number: 10, ..Retention::default() };
    let bench = Bench::new();
    let folder = bench.folder.path().join("folder");
    let launch = |sinks: Vec<Arc<dyn Sink>>| {
        let config = Config::new("app").delivery(without_names()).limits(Limits::new().retention(retention));
        Deliverer::new(Store::open(&bench.store()).unwrap(), Id([0xee; 16]), sinks, &config)
    };
    let count = |runs: std::ops::RangeInclusive<u8>| runs.filter(|run| bench.has_run(*run)).count();
    for run in 1..=40 {
        bench.add_run(run, ExitKind::CRASHED, &[run]);
        let launch = launch(vec![Arc::new(crate::FolderSink::new(&folder).retention(retention))]);
        launch.intake(Instant::now());
        assert!(count(1..=40) <= 12 && event_ids(&folder).len() <= 10, "at launch {run}");
        assert_eq!(launch.store().evicted(), 0, "stored reports count as lost");
    }
    assert!(bench.has_run(40) && event_ids(&folder).contains(&Id([40; 16])), "the newest were removed");

    // One sink can't store reports early, so removed ones are lost and counted. Reports that the
    // other sink has stored are removed first.
    for run in 41..=80 {
        bench.add_run(run, ExitKind::CRASHED, &[run]);
        launch(vec![Scripted::new("sink", [])]).intake(Instant::now());
        assert!(count(1..=80) <= 12, "at launch {run}");
    }
    let lost = (41..=80).filter(|run| !bench.has_run(*run)).count();
    assert!(lost >= 28 && count(1..=40) == 0, "{lost} of 40");
    assert_eq!(launch(Vec::new()).store().evicted(), lost as u64);
}

/// A sink with sessions: it gets each run.
struct Sessions;

impl Sink for Sessions {
    fn name(&self) -> &'static str {
        "sessions"
    }

    fn follows_runs(&self) -> bool {
        true
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        SinkAnswer::Delivered
    }
}

#[test]
fn a_launch_reads_as_few_runs_if_a_hundred_wait_for_their_sessions() {
    use crate::store::raw_run::READ;
    for count in [1, 100] {
        let bench = Bench::new();
        for run in 1..=count {
            bench.add_run_files(run, &state_file(Id([run; 16]), ExitKind::CLEAN), &[]);
        }
        let config = Config::new("app").delivery(without_names());
        let sinks: Vec<Arc<dyn Sink>> = vec![Arc::new(Sessions)];
        let launch = Launch::new(Deliverer::new(Store::open(&bench.store()).unwrap(), Id([0xee; 16]), sinks, &config));
        let before = READ.get();
        assert!(launch.intake(Instant::now() + WAIT).left);
        // To find out how the last one ended.
        assert!(READ.get() - before <= 2, "{} runs were read of {count}", READ.get() - before);
        assert!(launch.flush(WAIT));
        assert!(!bench.has_run(1) && !bench.has_run(count));
    }
}
