//! An app that sends its crashes to a server: `sentry_app STORE DSN [WORD…]`.
//!
//! Words:
//! * end: `fault=NAME`, `kill` (is killed), `exit=CODE`, `hang` (until it is killed), `stall` (a
//!   hang that ends)
//! * sending: `retry=MS`, `tries=NUMBER`, `timeout=MS`, `flush=SECONDS` (waits for delivery),
//!   `attempts=NUMBER`
//! * consent: `require-consent`, `consent=true`
//! * events: `drop` (sends none), `dump=DIRECTORY` (writes each event before it is sent),
//!   `attach=PATH`, `minidump`, `stack=BYTES` of stack memory, `no-symbols`, `aggregate`,
//!   `watchdog`, `version=TEXT`
//! * errors: `errors=NUMBER`, `handled` (reports an error), `linger=MS` (continues after it)
//! * `sleep=MS`; `watch=MS`: the hang threshold, with which `hang` waits until the hang is recorded
//!
//! It prints its results.

#[cfg(all(target_os = "linux", not(without_delivery)))]
use std::time::{Duration, Instant};

#[cfg(all(target_os = "linux", not(without_delivery)))]
use coroner::sentry::session::SessionMode;
#[cfg(all(target_os = "linux", not(without_delivery)))]
use coroner::{Breadcrumb, Config, Crashes, Delivery, SentrySink, User};
#[cfg(all(target_os = "linux", not(without_delivery)))]
use coroner_report::model::RunFacts;
#[cfg(all(target_os = "linux", not(without_delivery)))]
use coroner_tests::hang;

#[cfg(not(all(target_os = "linux", not(without_delivery))))]
fn main() {
    eprintln!("delivery is only tested on Linux");
    std::process::exit(2);
}

#[cfg(all(target_os = "linux", not(without_delivery)))]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let (store, dsn) = (arguments.next().expect("a store"), arguments.next().expect("a DSN"));
    let words: Vec<String> = arguments.collect();
    let value =
        |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).map(ToOwned::to_owned);
    let number = |key: &str| value(key).map(|text| text.parse::<u64>().expect("a number"));
    let has = |key: &str| words.iter().any(|word| word == key);

    let sink = SentrySink::new(&dsn).expect("a DSN").options(|options| {
        options.pause = Duration::ZERO;
        if let Some(ms) = number("retry") {
            options.retry_after = Duration::from_millis(ms);
        }
        if let Some(tries) = number("tries") {
            options.tries = tries as u32;
        }
        if let Some(ms) = number("timeout") {
            options.transport.timeout = Duration::from_millis(ms);
        }
        if has("aggregate") {
            options.sessions = SessionMode::Aggregated;
        }
        options.minidump = has("minidump");
        options.watchdog_terminations = has("watchdog");
        options.require_consent = has("require-consent");
        options.attachments = value("attach").into_iter().map(Into::into).collect();
        if has("drop") {
            options.before_send = Some(std::sync::Arc::new(|_| None));
        } else if let Some(directory) = value("dump") {
            options.before_send = Some(std::sync::Arc::new(move |event: coroner::sentry::event::Event| {
                let path = std::path::Path::new(&directory).join(format!("{}.json", event.event_id));
                std::fs::write(path, event.to_json()).expect("can't write the event");
                Some(event)
            }));
        }
    });
    if let Some(given) = value("consent") {
        sink.set_consent(given == "true").expect("can't record consent");
    }
    let begin = Instant::now();
    let version = value("version").unwrap_or_else(|| "1.2.3".to_owned());
    let config = Config::new("sentry-app").version(version).environment("test").dist("4").store_dir(&store);
    // A launch that is killed while processing a run counts as an attempt; after three attempts a
    // run is set aside.
    let delivery = Delivery::new().attempts(number("attempts").map_or(3, |attempts| attempts as u32));
    let config = config.delivery(delivery.symbolicate(!has("no-symbols")));
    let config = config.crashes(Crashes::new().stack_memory(number("stack").map_or(2048, |bytes| bytes as u32)));
    let threshold = number("watch").map(Duration::from_millis);
    let config = config.hang_threshold(threshold);
    let coroner = coroner::install(config.sink(sink)).expect("can't install Coroner");
    println!("installed after {} ms", begin.elapsed().as_millis());

    coroner::set_tag("weather", "rain").expect("a tag");
    coroner::set_user(Some(&User::new("4711").name("Ada"))).expect("a user");
    coroner::set_context("document", &serde_json::json!({"pages": 3, "of": {"kind": "letter"}})).expect("a context");
    coroner::set_extra("note", &serde_json::json!("shown")).expect("an extra");
    coroner::add_breadcrumb(&Breadcrumb::new("opened the document").category("ui").kind("navigation"));
    for _ in 0..number("errors").unwrap_or(0) {
        coroner::count_error();
    }
    if let Some(seconds) = number("flush") {
        println!("flushed: {}", coroner.flush(Duration::from_secs(seconds)));
    }
    if let Some(ms) = number("sleep") {
        std::thread::sleep(Duration::from_millis(ms));
    }
    if let Some(name) = value("fault") {
        coroner_faults::threads::park(2);
        (coroner_faults::find(&name).expect("a fault").run)();
    }
    if has("handled") {
        assert!(coroner::report_error(&std::io::Error::other("the paper ran out")), "the error was not reported");
    }
    if let Some(ms) = number("linger") {
        std::thread::sleep(Duration::from_millis(ms));
    }
    let run = std::path::Path::new(&store).join("runs").join(coroner.run_id().to_string());
    let watch = coroner::HangWatch::new();
    if threshold.is_some() && (has("hang") || has("stall")) {
        watch.beat();
        hang::wait_until("the hang is recorded", || !hang::reports(&run).is_empty());
    }
    if has("stall") {
        watch.idle();
        let ended = |facts: RunFacts| facts.lifecycle.hang_durations_ns.contains_key(&0);
        hang::wait_until("the hang's end is recorded", || hang::facts(&run).is_some_and(ended));
    }
    if has("hang") {
        println!("hangs");
        loop {
            std::thread::park();
        }
    }
    if has("kill") {
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    std::process::exit(number("exit").unwrap_or(0) as i32);
}
