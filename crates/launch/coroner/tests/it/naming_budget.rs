//! The cost of naming a report's frames at the launch after a crash: a program of 25 MB and more
//! stays within the app's budget. The report records what a smaller budget leaves out, and the
//! command adds it.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coroner::{Config, Delivery, NamingBudget, Report, SymbolSearch};
use coroner_report::text::TextOptions;

const STORE: &str = "CORONER_TEST_STORE";
/// The app's act: `crash`; `N KiB, ms: N` to deliver with this budget; or `nobody waits` to deliver
/// without waiting for it.
const ACT: &str = "CORONER_TEST_ACT";
const CONTEXT: &str = "coroner_naming";

/// The process's allocated bytes, and their maximum so far.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counted;

// SAFETY: the system's allocator does all; beside it only two words are changed.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

#[inline(never)]
fn stores_to_null() {
    // SAFETY: none; the crash is what is wanted.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

/// A line of `/proc/self/status` in KiB.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The priorities of the process's threads with this name.
fn priorities(name: &str) -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("stat"));
    let stats = threads.filter_map(|path| std::fs::read_to_string(path).ok());
    let of_name = stats.filter_map(|stat| {
        let (before, after) = stat.rsplit_once(')')?;
        // `nice` is the 19th field, the 17th behind the name.
        let nice = after.split_whitespace().nth(16)?.parse().ok()?;
        before.ends_with(name).then_some(nice)
    });
    of_name.collect()
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    let config = Config::new("com.example.budget").store_dir(store);
    if act == "crash" {
        coroner::install(config.delivery(Delivery::new().at_install(false))).unwrap();
        stores_to_null();
        return;
    }
    let mut delivery = Delivery::new();
    if let Some((kilobytes, milliseconds)) = act.split_once(" KiB, ms: ") {
        let time = Duration::from_millis(milliseconds.parse().unwrap());
        delivery = delivery
            .naming_budget(NamingBudget::default().memory(kilobytes.parse::<usize>().unwrap() << 10).time(time));
    }
    let (named, is_named) = std::sync::mpsc::channel();
    let delivery = delivery.before_deliver(move |report| {
        // On the thread that has named it. 15 is the name's length that the kernel keeps.
        let priorities = priorities("(coroner-deliver");
        println!("\napp: priority {priorities:?}");
        if !priorities.is_empty() {
            let _ = named.send(());
        }
        Some(report)
    });
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let coroner = coroner::install(config.delivery(delivery)).unwrap();
    if act == "nobody waits" {
        is_named.recv().unwrap();
        is_named.recv().unwrap();
    }
    assert!(coroner.flush(Duration::from_mins(10)));
    println!("\napp: memory {}", MOST.load(Ordering::Relaxed) - before);
    // SAFETY: the kernel writes to a value of this frame.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
    };
    println!("\napp: VmHWM {} RssAnon {} processor time {time} ms", status("VmHWM:"), status("RssAnon:"));
}

fn run(store: &Path, act: &str) -> (ExitStatus, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["naming_budget::app", "--exact", "--nocapture", "--test-threads=1"]).env(STORE, store).env(ACT, act);
    let ended = command.stdin(Stdio::null()).output().unwrap();
    (ended.status, String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Returns the report that the launch after a crash delivers, and the output of that launch.
fn delivered(act: &str) -> (Report, String) {
    let store = tempfile::tempdir().unwrap();
    let (ended, _) = run(store.path(), "crash");
    assert_eq!(ended.signal(), Some(libc::SIGSEGV), "{ended:?}");
    let (ended, printed) = run(store.path(), act);
    assert!(ended.success(), "{ended:?}: {printed}");
    let files = std::fs::read_dir(store.path().join("reports")).unwrap().map(|entry| entry.unwrap().path());
    let json: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    let [json] = &json[..] else { panic!("one report and not {json:?}") };
    (Report::from_json(&std::fs::read_to_string(json).unwrap()).unwrap(), printed)
}

/// The function and the line of the frame that crashed.
fn crashed_at(report: &Report) -> (Option<&str>, Option<u32>) {
    let frame = &report.crashed_thread().unwrap().frames[0];
    (frame.function.as_deref(), frame.line)
}

fn left_out(report: &Report) -> Option<String> {
    Some(report.run.as_ref()?.contexts.get(CONTEXT)?.to_json().to_string())
}

fn number(printed: &str, name: &str) -> u64 {
    let number = printed
        .lines()
        .find_map(|line| line.strip_prefix("app: ")?.strip_prefix(name))
        .unwrap_or_else(|| panic!("{printed}"));
    number.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_large_program_is_named_in_full_in_a_third_of_the_budget() {
    let size = std::fs::metadata(std::env::current_exe().unwrap()).unwrap().len();
    assert!(size > 25 << 20, "the program has {size} bytes only");
    assert_eq!(NamingBudget::default().memory, 32 << 20);
    // A third of the default, so that one that is not kept is seen; and all the time that a slow
    // machine takes.
    let (report, printed) = delivered("10240 KiB, ms: 600000");
    println!("{printed}");
    assert!(matches!(crashed_at(&report), (Some("it::naming_budget::stores_to_null"), Some(_))), "{report:?}");
    assert_eq!(left_out(&report), None);
    // Reading and writing the report has its share.
    let memory = number(&printed, "memory ");
    assert!(memory < 12 << 20, "naming took {memory} bytes");
}

#[test]
fn the_naming_thread_has_a_low_priority_after_the_newest_report() {
    let store = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        assert_eq!(run(store.path(), "crash").0.signal(), Some(libc::SIGSEGV));
    }
    let (ended, printed) = run(store.path(), "nobody waits");
    assert!(ended.success(), "{ended:?}: {printed}");
    let own = priorities("").into_iter().max().unwrap();
    let of_thread = printed.lines().filter(|line| line.starts_with("app: priority [") && !line.ends_with("[]"));
    let expected = [own, own.max(10)].map(|priority| format!("app: priority [{priority}]"));
    assert_eq!(of_thread.collect::<Vec<_>>(), expected, "{printed}");
}

#[test]
fn the_command_adds_names_that_the_budget_left_out() {
    for (act, want, named) in [("32768 KiB, ms: 0", "processor time", false), ("512 KiB, ms: 600000", "memory", true)] {
        let (mut report, printed) = delivered(act);
        println!("{act}: {printed}");
        let (function, line) = crashed_at(&report);
        assert_eq!((function.is_some(), line.is_some()), (named, named), "{act}: {report:?}");
        assert!(left_out(&report).is_some_and(|left_out| left_out.contains(want)), "{act}: {:?}", left_out(&report));
        assert!(report.complete && report.crashed_thread().unwrap().frames[0].address.0 > 0, "{act}");
        assert!(number(&printed, "memory ") < 35 << 20, "{printed}");
        let text = report.to_text(&TextOptions::default());
        assert!(text.contains(CONTEXT) && text.contains(want), "{text}");
        // As `coroner show` does.
        SymbolSearch::default().symbolicate(&mut report);
        assert!(
            matches!(crashed_at(&report), (Some("it::naming_budget::stores_to_null"), Some(_))),
            "{act}: {report:?}"
        );
        assert_eq!(left_out(&report), None, "{act}");
    }
}
