//! The thread whose stack says the run's id, on Apple's systems: what is read from its stack, and
//! who does not see it.

use coroner::backtrace::{Backtrace, CaptureOptions};
use coroner::{Config, Delivery, HandledException, Language, Report};
use coroner_process::threads::{Facts, RunState, ThreadList, activity, facts};
use coroner_test_support::isolated;

/// The frame pointer of a thread, by `thread_get_state`: `x86_THREAD_STATE64` and
/// `ARM_THREAD_STATE64` of <mach/thread_status.h>.
fn frame_pointer(port: u32) -> Option<u64> {
    const FLAVOR: i32 = if cfg!(target_arch = "x86_64") { 4 } else { 6 };
    const WORDS: usize = if cfg!(target_arch = "x86_64") { 21 } else { 34 };
    const FRAME_POINTER: usize = if cfg!(target_arch = "x86_64") { 6 } else { 29 };
    let (mut state, mut count) = ([0_u64; WORDS], WORDS as u32 * 2);
    // SAFETY: the kernel writes at most `count` words of 32 bits.
    let got = unsafe { mach2::thread_act::thread_get_state(port, FLAVOR, state.as_mut_ptr().cast(), &raw mut count) };
    (got == 0).then_some(state[FRAME_POINTER])
}

/// The thread and its return addresses by its frame records, which is how MetricKit walks, if it is
/// there and waits: nothing of it changes then.
fn waiting_thread() -> Option<(Facts, Vec<u64>)> {
    let list = ThreadList::take().unwrap();
    let is_it = |port: &&u32| {
        activity(**port)
            .is_some_and(|now| now.name.as_bytes() == b"coroner.run_id" && now.state == Some(RunState::Waiting))
    };
    let port = *list.ports().iter().find(is_it)?;
    let mut record = frame_pointer(port)?;
    let mut addresses = Vec::new();
    while record != 0 && addresses.len() < 200 {
        // SAFETY: frame records of a thread that waits: {the caller's, return address}, up to 0.
        let [caller, address] = unsafe { (record as *const [u64; 2]).read() };
        addresses.push(address);
        record = caller;
    }
    Some((facts(port)?, addresses))
}

fn wait_for_thread() -> (Facts, Vec<u64>) {
    for _ in 0..10_000 {
        if let Some(found) = waiting_thread() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("no such thread waits");
}

/// Returns MetricKit's payload for such a stack, without a process id.
fn payload(addresses: &[u64]) -> String {
    let frame = |address: u64, callers: String| {
        let callers = if callers.is_empty() { callers } else { format!(",\"subFrames\":[{callers}]") };
        format!("{{\"address\":{address}{callers}}}")
    };
    let stack = addresses.iter().rev().fold(String::new(), |callers, address| frame(*address, callers));
    format!(
        r#"{{"timeStampEnd":"2025-01-02 03:04:05","crashDiagnostics":[{{"callStackTree":{{"callStacks":[
        {{"threadAttributed":true,"callStackRootFrames":[{{"address":4096}}]}},
        {{"callStackRootFrames":[{stack}]}}]}},"diagnosticMetaData":{{"signal":9}}}}]}}"#
    )
}

#[test]
fn the_id_threads_stack_contains_the_id_and_is_not_reported() {
    isolated(concat!(module_path!(), "::the_id_threads_stack_contains_the_id_and_is_not_reported"), || {
        let store = tempfile::tempdir().unwrap();
        let config = || Config::new("run-id-test").store_dir(store.path()).delivery(Delivery::new().at_install(false));
        let coroner = coroner::install(config()).unwrap();
        assert!(waiting_thread().is_none(), "it was not asked for");
        coroner.uninstall();

        let coroner = coroner::install(config().run_id_thread(true)).unwrap();
        let (facts, addresses) = wait_for_thread();
        let reports = coroner::metric_kit_reports(payload(&addresses).as_bytes()).unwrap();
        let [report] = &reports[..] else { panic!("{} reports of {addresses:x?}", reports.len()) };
        assert_eq!(report.run_id, Some(coroner.run_id()));

        assert!(Backtrace::of_thread(facts.tid, &CaptureOptions::default()).is_err());
        let all = Backtrace::of_all_threads(&CaptureOptions::default());
        assert!(!all.is_empty() && all.iter().all(|(thread, _)| *thread != facts.tid));
        let (language, kind, message) = (Language::CPP, "shop::ClosedError", "the shop is closed");
        assert!(coroner::report_exception(&HandledException::new(language, kind, message)));
        let runs = std::fs::read_dir(store.path().join("runs")).unwrap();
        let path = runs.map(|run| run.unwrap().path().join("report-9")).find(|path| path.is_file()).expect("a report");
        let report = Report::read_file(path).unwrap();
        assert!(report.threads.len() > 1, "{}", report.threads.len());
        assert!(report.threads.iter().all(|thread| thread.tid != facts.tid));

        coroner.uninstall();
        assert!(waiting_thread().is_none(), "it has ended");
        let coroner = coroner::install(config().run_id_thread(true)).unwrap();
        let reports = coroner::metric_kit_reports(payload(&wait_for_thread().1).as_bytes()).unwrap();
        assert_eq!(reports.first().and_then(|report| report.run_id), Some(coroner.run_id()), "another run");
    });
}
