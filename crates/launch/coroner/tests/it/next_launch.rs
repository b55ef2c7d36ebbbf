//! Real processes that end in every way, and what the next launch makes of it.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`],
//! on whose main thread or another it does what `CORONER_TEST_ACT` says.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coroner::{Config, Coroner, Delivery, Sink, SinkAnswer, Submission};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
/// Time limit for a delivery, also where it is emulated.
const WAIT: Duration = Duration::from_secs(if cfg!(target_vendor = "apple") { 120 } else { 30 });

/// Signal and code name of a store to a read-only page.
const PROTECTION: (i32, &str) =
    if cfg!(target_vendor = "apple") { (libc::SIGBUS, "SIGBUS") } else { (libc::SIGSEGV, "SIGSEGV") };
/// The largest page of all systems, or some pages.
const PAGE: usize = 1 << 14;

// ──── the app ────

static NULL: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());

#[inline(never)]
fn store_to_null() {
    // SAFETY: none; it is what the app is here for.
    unsafe { NULL.load(Ordering::Relaxed).write_volatile(1) };
}

/// The handler that [`chaining`] calls, and the signal that it had.
static FOUND: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static HANDLED: AtomicI32 = AtomicI32::new(0);

/// Behaves like the handler of signal-hook-registry, which tokio uses: calls the earlier handler if
/// there is one, and returns.
extern "C" fn chaining(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let found = FOUND.load(Ordering::Relaxed);
    if found != libc::SIG_DFL {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: Coroner's handler, with what the kernel gave to this one.
        unsafe { std::mem::transmute::<usize, Handler>(found)(signal, info, context) };
    }
    HANDLED.store(signal, Ordering::Relaxed);
}

/// Takes a signal for [`chaining`]; returns the handler that had it.
fn handle(signal: i32) -> usize {
    // SAFETY: all-zero is valid, and the handler is one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = chaining as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut found: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal, &raw const action, &raw mut found), 0);
        found.sa_sigaction
    }
}

/// Says `word` to the test and goes on when it answers.
fn meet(word: &str) {
    println!("\napp: {word}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A sink that ends the process while it has a report in its hands.
struct Ends(i32);

impl Sink for Ends {
    fn name(&self) -> &'static str {
        "ends"
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        println!("\napp: delivering");
        // SAFETY: ends this process; nothing comes back.
        unsafe { libc::kill(libc::getpid(), self.0) };
        loop {
            std::thread::park();
        }
    }
}

/// A sink that crashes by the report in its hands.
struct Crashes;

impl Sink for Crashes {
    fn name(&self) -> &'static str {
        "crashes"
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        store_to_null();
        SinkAnswer::Delivered
    }
}

/// A sink that takes so long, and says when it has done.
struct Takes(Duration);

impl Sink for Takes {
    fn name(&self) -> &'static str {
        "takes"
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        std::thread::sleep(self.0);
        println!("\napp: delivered");
        SinkAnswer::Delivered
    }
}

/// Duration of a delivery by [`Takes`]: longer than a process needs to start.
const TAKEN: Duration = Duration::from_secs(1);

/// A sink that takes its time.
struct Slow;

impl Sink for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        println!("\napp: delivering");
        std::thread::sleep(WAIT);
        SinkAnswer::Delivered
    }
}

/// A handler that repairs the fault: the store is made again.
extern "C" fn make_writable(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the page is the fault's own.
    unsafe { libc::mprotect((*info).si_addr(), PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    // Who runs the tests may ignore some of them (nohup), and children inherit that.
    for signal in
        [libc::SIGHUP, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGTERM, libc::SIGXFSZ]
    {
        // SAFETY: the default action runs no code.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let config = Config::new("next-launch-test").version("1.0").store_dir(store);
    // Names are looked up where a test asks for them; that takes a second each time.
    let no_names = || Delivery::new().symbolicate(false);
    let config = config.delivery(no_names());
    let install = |config: Config| -> Coroner { coroner::install(config).unwrap() };
    match act.as_str() {
        "crash" => {
            install(config.delivery(no_names().at_install(false)));
            coroner::set_tag("kind", "test").unwrap();
            store_to_null();
        }
        "lives-and-crashes" => {
            install(config.delivery(no_names().at_install(false)));
            let begun = Instant::now();
            meet("lives");
            println!("\napp: {}", begun.elapsed().as_nanos());
            store_to_null();
        }
        "waits-for-delivery-and-crashes" => {
            install(config.sink(Takes(TAKEN)));
            store_to_null();
        }
        "ran-for" => {
            let coroner = install(config);
            coroner.flush(WAIT);
            println!("\napp: {}", coroner.last_run().ran_for.map_or(0, |ran_for| ran_for.as_nanos()));
        }
        "exit" => drop(install(config)),
        "exits-at-once" => {
            install(config.delivery(Delivery::new()));
            // SAFETY: ends this process.
            unsafe { libc::exit(0) };
        }
        "exits-at-once-with-a-late-outbox" => {
            install(config.sink(LateOutbox));
            // SAFETY: ends this process.
            unsafe { libc::exit(0) };
        }
        "crashes-in-a-destructor" => {
            extern "C" fn destructor() {
                store_to_null();
            }
            // SAFETY: what is registered first is called last, after Coroner's own; then the
            // process ends.
            unsafe {
                libc::atexit(destructor);
                install(config);
                libc::exit(0);
            }
        }
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        "crashes-traced" => {
            install(config.delivery(no_names().at_install(false)));
            // SAFETY: the test, which started this process, traces this thread from here on.
            unsafe {
                assert_eq!(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0), 0);
                println!("\napp: {}", libc::gettid());
            }
            store_to_null();
        }
        "loses-its-state" => {
            let store = PathBuf::from(std::env::var_os(STORE).unwrap());
            let coroner = install(config);
            let state = store.join("runs").join(coroner.run_id().to_string()).join("state");
            let cut = || std::fs::File::options().write(true).open(&state).unwrap().set_len(0).unwrap();
            cut();
            coroner::set_tag("kind", "test").unwrap();
            cut();
            coroner::add_breadcrumb(&coroner::Breadcrumb::new("cut"));
            cut();
            coroner::set_user(Some(&coroner::User::new("4711"))).unwrap();
            let scope = coroner::scope().unwrap();
            cut();
            coroner.uninstall();
            cut();
            scope.set_tag("other", "after").unwrap();
            scope.count_error();
        }
        "two-runs" => {
            // Both begin within one tick of the kernel's clock, by which files are dated.
            let config = || Config::new("next-launch-test").store_dir(std::env::var_os(STORE).unwrap());
            install(config().delivery(Delivery::new().at_install(false))).uninstall();
            install(config().delivery(Delivery::new().at_install(false)));
            store_to_null();
        }
        "no-room" => {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: reads one limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            let error = coroner::install(config).unwrap_err().to_string();
            println!("\napp: {error}");
        }
        "uninstall" => install(config).uninstall(),
        "wait" => {
            install(config);
            meet("installed");
        }
        "reports-under-a-limit-of-file-sizes" => {
            install(config);
            for most in [0, 1000, 100_000, 400_000] {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: the kernel reads one limit.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
                let _ = coroner::report_error(&std::io::Error::other("it may be written, or not"));
            }
        }
        // Its own handlers, one from before the install and others that call what they found, as
        // runtimes' do.
        "own-handlers" => {
            let before = handle(libc::SIGHUP);
            assert_eq!(before, libc::SIG_DFL);
            install(config);
            let handler = chaining as *const () as usize;
            assert_eq!(handle(libc::SIGHUP), handler, "a signal with a handler is left alone");
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1] {
                let found = handle(signal);
                assert!(found != libc::SIG_DFL, "{signal} is noted");
                FOUND.store(found, Ordering::Relaxed);
                // SAFETY: the handler does nothing but call Coroner's.
                unsafe { libc::raise(signal) };
                assert_eq!(HANDLED.swap(0, Ordering::Relaxed), signal);
            }
        }
        "closes-descriptors" => {
            install(config);
            // As closefrom(3) does, which daemons call.
            for descriptor in 3..256 {
                // SAFETY: none; that it closes what is not its own is what the app is here for.
                unsafe { libc::close(descriptor) };
            }
            coroner::set_tag("kind", "closed").unwrap();
            meet("closed");
        }
        "executes" => {
            install(config);
            // Another program, which says the same and waits, too.
            let error = std::os::unix::process::CommandExt::exec(
                Command::new("sh").args(["-c", "echo 'app: executed'; read line"]),
            );
            panic!("{error}");
        }
        "executes-itself" => {
            install(config);
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(std::env::args_os().skip(1)).env(ACT, "deliver-without-names");
            panic!("{}", std::os::unix::process::CommandExt::exec(&mut again));
        }
        "uninstalls-and-waits" => {
            install(config).uninstall();
            meet("uninstalled");
        }
        "deliver" | "deliver-without-names" => {
            let coroner = install(config.delivery(Delivery::new().symbolicate(act == "deliver")));
            let delivered = coroner.flush(WAIT);
            let last = coroner.last_run();
            println!("\napp: {:?} {} {delivered}", last.outcome, last.event_id.map_or("-".into(), |id| id.to_string()));
        }
        "killed-delivering" => {
            install(config.sink(Ends(libc::SIGKILL))).flush(WAIT);
        }
        "crashes-delivering" => {
            install(config.sink(Crashes)).flush(WAIT);
        }
        "few-descriptors" => {
            let limit = libc::rlimit { rlim_cur: 48, rlim_max: 48 };
            // SAFETY: reads one limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            // A hundred reports, and each waits for the disk several times.
            println!("\napp: {}", install(config).flush(4 * WAIT));
        }
        "exits-delivering" => {
            install(config.sink(Slow));
            // The delivery thread says that it has begun; the process then ends in good order under
            // its hands.
            std::thread::sleep(Duration::from_millis(300));
        }
        "goes-on" => {
            // SAFETY: the handler touches nothing but the page of the fault, which is the app's
            // own.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = make_writable as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(PROTECTION.0, &raw const action, std::ptr::null_mut()), 0);
            }
            install(config);
            // SAFETY: a mapping of our own; the store faults once, and the handler lets it pass.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0);
                page.cast::<u32>().write_volatile(1);
            }
        }
        "fork-child-crashes" => {
            install(config);
            // SAFETY: the child does nothing but crash.
            let child = unsafe { libc::fork() };
            if child == 0 {
                store_to_null();
            }
            let mut status = 0;
            // SAFETY: waits for our child; `status` lives here.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert!(libc::WIFSIGNALED(status));
        }
        "fork-children-crash" => {
            install(config);
            for _ in 0..3 {
                // SAFETY: the child does nothing but crash; the parent waits for it.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        store_to_null();
                    }
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        #[cfg(not(target_vendor = "apple"))]
        "fork-child-goes-on" => {
            install(config.delivery(no_names().at_install(false)));
            coroner::set_tag("kind", "test").unwrap();
            let parent = std::process::id();
            // SAFETY: the child goes on in a copy of this thread.
            assert_eq!(unsafe { libc::daemon(1, 1) }, 0);
            // The parent ends at once, but maybe not before this.
            while std::fs::read(format!("/proc/{parent}/stat"))
                .is_ok_and(|stat| !stat.windows(4).any(|at| at == b") Z "))
            {
                std::thread::yield_now();
            }
            coroner::set_tag("process", "child").unwrap();
            assert!(!coroner::after_fork().unwrap(), "it has one");
            meet("goes on");
            store_to_null();
        }
        "fork-child-exits" => {
            install(config);
            // SAFETY: the child does nothing but end by way of the exit handlers.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for our child; `status` lives here.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            store_to_null();
        }
        other => panic!("the app can't {other}"),
    }
}

// ──── the tests ────

struct Bench {
    folder: tempfile::TempDir,
}

struct App {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl App {
    /// The next line that the app says to the test; `None` at its end.
    fn says(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(word) = line.trim_end().strip_prefix("app: ") {
                return Some(word.to_owned());
            }
            line.clear();
        }
        None
    }

    fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        while self.says().is_some() {}
        self.child.wait().unwrap()
    }
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn start(&self, act: &str) -> App {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "next_launch::app", "--nocapture", "--quiet", "--test-threads=1"]);
        command.env(STORE, self.store()).env(ACT, act).current_dir(self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        App { child, input, output }
    }

    fn run(&self, act: &str) -> ExitStatus {
        self.start(act).end()
    }

    fn crash(&self) {
        assert_eq!(self.run("crash").signal(), Some(libc::SIGSEGV));
    }

    /// A launch that delivers: how it found the last run, with its event id, and whether all was
    /// delivered.
    fn deliver(&self) -> (String, String, bool) {
        self.launch("deliver")
    }

    fn launch(&self, act: &str) -> (String, String, bool) {
        let mut app = self.start(act);
        let printed = app.says().expect("it says how the last run ended");
        assert!(app.end().success());
        let words: Vec<&str> = printed.split(' ').collect();
        (words[0].to_owned(), words[1].to_owned(), words[2] == "true")
    }

    fn outcome(&self) -> String {
        self.launch("deliver-without-names").0
    }

    fn reports(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.store().join("reports")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }

    fn runs(&self) -> usize {
        std::fs::read_dir(self.store().join("runs")).unwrap().count()
    }
}

fn functions(report: &Value) -> Vec<&str> {
    let threads = report["threads"].as_array().unwrap();
    let crashed = threads.iter().find(|thread| thread["crashed"] == true).unwrap();
    crashed["frames"].as_array().unwrap().iter().filter_map(|frame| frame["function"].as_str()).collect()
}

#[test]
fn a_crash_becomes_one_report_with_names_and_scope() {
    let bench = Bench::new();
    bench.crash();
    let (outcome, event, delivered) = bench.deliver();
    assert_eq!((outcome.as_str(), delivered), ("Crashed", true));
    let reports = bench.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["header"]["event_id"], event);
    assert_eq!(reports[0]["run"]["tags"]["kind"], "test");
    assert_eq!(reports[0]["run"]["app"]["release"], "next-launch-test@1.0");
    assert_eq!(functions(&reports[0])[..2], ["it::next_launch::store_to_null", "it::next_launch::app"]);
    let explanation = &reports[0]["explanation"];
    assert_eq!((&explanation["kind"], &explanation["certainty"]), (&"null_pointer".into(), &"certain".into()));
    for key in ["memory_used", "memory_available"] {
        let bytes = reports[0]["run"]["lifecycle"][key].as_u64();
        assert!(bytes.is_some_and(|bytes| bytes > 1 << 20), "{key}: {bytes:?}");
    }
    // Delivered once: later launches find nothing.
    assert_eq!(bench.outcome(), "CleanExit");
    assert_eq!((bench.reports().len(), bench.runs()), (1, 0));
}

/// Launches that end while they read names leave less for the next to do, so that the report goes
/// out.
#[test]
fn short_launches_deliver_a_report_with_fewer_names() {
    let delivered_after = |unfinished: u32| {
        let bench = Bench::new();
        bench.crash();
        let run = std::fs::read_dir(bench.store().join("runs")).unwrap().next().unwrap().unwrap().path();
        std::fs::write(run.join("progress.json"), format!("{{\"unnamed\": {unfinished}}}")).unwrap();
        assert!(bench.deliver().2);
        bench.reports().pop().unwrap()
    };
    let has_lines = |report: &Value| report["threads"][0]["frames"][0]["line"].is_number();
    let report = delivered_after(4);
    assert!(functions(&report)[0] == "it::next_launch::store_to_null" && has_lines(&report), "{report}");
    let report = delivered_after(5);
    assert!(functions(&report)[0] == "it::next_launch::store_to_null" && !has_lines(&report), "{report}");
    let report = delivered_after(10);
    let named_by_crash = cfg!(target_vendor = "apple");
    assert!(functions(&report).is_empty() != named_by_crash && !has_lines(&report), "{report}");
}

#[test]
fn the_next_launch_knows_how_the_last_run_ended() {
    let bench = Bench::new();
    assert_eq!(bench.outcome(), "FirstLaunch");
    assert_eq!(bench.outcome(), "CleanExit");
    let by_signal = [libc::SIGHUP, libc::SIGINT, libc::SIGALRM, libc::SIGXFSZ, libc::SIGUSR2]
        .map(|signal| (signal, "EndedBySignal"));
    for (signal, outcome) in [(libc::SIGTERM, "Terminated"), (libc::SIGKILL, "Unknown")].into_iter().chain(by_signal) {
        let mut app = bench.start("wait");
        assert_eq!(app.says().as_deref(), Some("installed"));
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(app.child.id() as i32, signal) };
        assert_eq!(app.end().signal(), Some(signal), "it ends as it would have");
        assert_eq!(bench.outcome(), outcome);
    }
    // A runtime's handler calls the earlier one, and the process continues: the run has not ended.
    assert!(bench.run("own-handlers").success());
    assert_eq!(bench.outcome(), "CleanExit");
    assert!(bench.run("uninstall").success());
    assert_eq!(bench.outcome(), "Uninstalled");
    assert_eq!(bench.reports().len(), 0);
}

#[test]
fn a_file_size_limit_does_not_kill_an_app_that_reports_an_error() {
    let bench = Bench::new();
    assert!(bench.run("reports-under-a-limit-of-file-sizes").success());
    assert_eq!(bench.outcome(), "CleanExit");
}

#[test]
fn a_runs_duration_excludes_the_wait_for_an_earlier_crash() {
    let bench = Bench::new();
    let ran_for = || {
        let mut app = bench.start("ran-for");
        let printed = app.says().expect("it says how long the last run lived");
        assert!(app.end().success());
        Duration::from_nanos(printed.parse().unwrap())
    };
    let begun = Instant::now();
    let mut app = bench.start("lives-and-crashes");
    assert_eq!(app.says().as_deref(), Some("lives"));
    app.input.take().unwrap().write_all(b"\n").unwrap();
    let lived = Duration::from_nanos(app.says().unwrap().parse().unwrap());
    assert_eq!(app.end().signal(), Some(libc::SIGSEGV));
    let most = begun.elapsed();
    let ran = ran_for();
    assert!(lived <= ran && ran <= most, "{ran:?}, and not from {lived:?} to {most:?}");

    bench.crash();
    let begun = Instant::now();
    let mut app = bench.start("waits-for-delivery-and-crashes");
    assert_eq!(app.says().as_deref(), Some("delivered"), "install waits");
    assert_eq!(app.end().signal(), Some(libc::SIGSEGV));
    let most = begun.elapsed().checked_sub(TAKEN).unwrap();
    let ran = ran_for();
    assert!(!ran.is_zero() && ran <= most, "{ran:?}, and not at most {most:?}");
}

#[test]
fn the_later_of_two_runs_that_began_at_once_is_the_last() {
    for _ in 0..6 {
        let bench = Bench::new();
        assert_eq!(bench.run("two-runs").signal(), Some(libc::SIGSEGV));
        assert_eq!(bench.outcome(), "Crashed");
    }
}

#[test]
fn a_failed_install_returns_the_reason_and_leaves_nothing() {
    let bench = Bench::new();
    assert!(bench.run("uninstall").success());
    let mut app = bench.start("no-room");
    let printed = app.says().expect("it says why");
    assert!(printed.starts_with("can't reserve space for a report: "), "{printed}");
    assert!(app.end().success(), "the app goes on without Coroner");
    assert_eq!(bench.runs(), 1, "the run before it");
    assert_eq!(bench.outcome(), "Uninstalled", "and that one is still the last");
}

#[test]
fn a_live_run_is_not_touched_by_another_process() {
    let bench = Bench::new();
    let mut living = bench.start("wait");
    assert_eq!(living.says().as_deref(), Some("installed"));
    bench.crash();
    assert_eq!(bench.outcome(), "Crashed");
    // The living one: that launch has left its files to the next.
    assert_eq!(bench.runs(), 1);
    writeln!(living.input.as_mut().unwrap(), "go on").unwrap();
    assert!(living.end().success());
    assert_eq!(bench.outcome(), "CleanExit");
    // Of two that ended by themselves one has left its files, and the other one is removed.
    assert_eq!((bench.reports().len(), bench.runs()), (1, 0));
}

/// The process has closed its lock's descriptor, so that the lock is free.
#[cfg(target_os = "linux")]
#[test]
fn a_run_is_live_even_if_its_app_has_closed_all_descriptors() {
    let bench = Bench::new();
    let mut living = bench.start("closes-descriptors");
    assert_eq!(living.says().as_deref(), Some("closed"));
    for _ in 0..2 {
        assert_ne!(bench.outcome(), "Unknown", "that of the living run");
        assert_eq!(bench.runs(), 1, "the living one");
    }
    living.child.kill().unwrap();
    assert_eq!(living.end().signal(), Some(libc::SIGKILL));
    // Beside the launch that has just ended, which is the last; both are done with.
    assert_eq!(bench.outcome(), "CleanExit");
    assert_eq!(bench.runs(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_has_ended_when_its_process_executes_another_program_or_uninstalls() {
    for (act, printed, outcome) in
        [("executes", "executed", "CleanExit"), ("uninstalls-and-waits", "uninstalled", "Uninstalled")]
    {
        let bench = Bench::new();
        let mut living = bench.start(act);
        assert_eq!(living.says().as_deref(), Some(printed));
        assert_eq!((bench.outcome().as_str(), bench.runs()), (outcome, 0));
        writeln!(living.input.as_mut().unwrap(), "go on").unwrap();
        assert!(living.end().success());
    }
}

/// Restarts itself, as servers do to load a new configuration or version.
#[cfg(target_os = "linux")]
#[test]
fn a_program_that_executes_itself_has_not_ended_abnormally() {
    let bench = Bench::new();
    assert_eq!(bench.launch("executes-itself").0, "CleanExit");
    assert_eq!(bench.runs(), 0);
}

/// The thread stands still for more than a second each time that it has asked for the date: as on a
/// disk that takes so long to give a page of the report, or where others have the processor.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_process_stopped_while_it_crashes_has_one_report() {
    /// Offsets in `struct user`, sys/user.h.
    const ORIG_RAX: usize = std::mem::offset_of!(libc::user_regs_struct, orig_rax);
    const RDI: usize = std::mem::offset_of!(libc::user_regs_struct, rdi);
    let bench = Bench::new();
    let mut app = bench.start("crashes-traced");
    let thread: i32 = app.says().unwrap().parse().unwrap();
    let mut stood = 0;
    loop {
        let mut status = 0;
        // SAFETY: `status` lives here; the thread is of our child.
        if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } != thread || !libc::WIFSTOPPED(status) {
            break;
        }
        let signal = libc::WSTOPSIG(status);
        // SAFETY: words of the stopped thread's registers; then it goes on.
        unsafe {
            if signal == libc::SIGTRAP {
                let call = libc::ptrace(libc::PTRACE_PEEKUSER, thread, ORIG_RAX, 0);
                let clock = libc::ptrace(libc::PTRACE_PEEKUSER, thread, RDI, 0);
                if (call, clock) == (libc::SYS_clock_gettime, libc::CLOCK_REALTIME.into()) {
                    stood += 1;
                    // Before and after the call: once is enough.
                    std::thread::sleep(Duration::from_millis(if stood % 2 == 0 { 1100 } else { 0 }));
                }
            }
            let deliver = if signal == libc::SIGTRAP { 0 } else { signal };
            libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, deliver);
        }
    }
    assert_eq!(app.end().signal(), Some(libc::SIGSEGV));
    assert!(stood >= 2, "the date is asked for by a system call");
    assert_eq!(bench.outcome(), "Crashed");
    assert_eq!(bench.reports().len(), 1);
}

#[test]
fn many_processes_at_once_deliver_each_report_once() {
    let bench = Bench::new();
    for _ in 0..4 {
        bench.crash();
    }
    let launches: Vec<App> = (0..6).map(|_| bench.start("deliver-without-names")).collect();
    for launch in launches {
        assert!(launch.end().success());
    }
    bench.outcome();
    let reports = bench.reports();
    let mut events: Vec<String> = reports.iter().map(|report| report["header"]["event_id"].to_string()).collect();
    events.sort();
    events.dedup();
    let of: Vec<_> = reports.iter().map(|report| [&report["header"], &report["crash"]]).collect();
    assert_eq!((reports.len(), events.len(), bench.runs()), (4, 4, 0), "{of:#?}");
}

#[test]
fn a_process_killed_repeatedly_during_delivery_loses_nothing() {
    let bench = Bench::new();
    bench.crash();
    for _ in 0..5 {
        assert_eq!(bench.run("killed-delivering").signal(), Some(libc::SIGKILL));
    }
    bench.outcome();
    assert_eq!(bench.reports().len(), 1);
    assert!(!bench.store().join("broken").exists());
}

#[test]
fn a_report_that_crashes_each_time_is_set_aside_and_does_not_stop_others() {
    let bench = Bench::new();
    bench.crash();
    for _ in 0..3 {
        assert_eq!(bench.run("crashes-delivering").signal(), Some(libc::SIGSEGV));
    }
    // The fourth launch does not process it any more. Those of the crashes that it made are reports
    // as any other.
    assert_eq!(bench.outcome(), "Crashed");
    assert_eq!(bench.reports().len(), 3);
    let broken: Vec<PathBuf> =
        std::fs::read_dir(bench.store().join("broken")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(broken.len(), 1);
    assert!(std::fs::read_to_string(broken[0].join("why.txt")).unwrap().contains("3 times"));
    assert!(std::fs::read(broken[0].join("report")).unwrap().starts_with(&[0xd9, 0xd9, 0xf7]));
}

#[cfg(target_os = "linux")]
#[test]
fn more_runs_than_descriptors_are_processed() {
    let bench = Bench::new();
    bench.crash();
    let runs = bench.store().join("runs");
    let run = std::fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    for number in 0..100_u32 {
        let copy = runs.join(format!("{number:032x}"));
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&run).unwrap() {
            let name = entry.unwrap().file_name();
            std::fs::copy(run.join(&name), copy.join(&name)).unwrap();
        }
    }
    let mut app = bench.start("few-descriptors");
    assert_eq!(app.says().as_deref(), Some("true"));
    assert!(app.end().success());
    assert_eq!((bench.runs(), bench.reports().len()), (0, 1));
}

#[test]
fn exits_during_delivery_do_not_count_as_crashes() {
    let bench = Bench::new();
    bench.crash();
    for _ in 0..5 {
        assert!(bench.run("exits-delivering").success());
    }
    bench.outcome();
    assert_eq!(bench.reports().len(), 1);
    assert!(!bench.store().join("broken").exists());
}

#[test]
fn a_fork_childs_crash_does_not_affect_the_parents_run() {
    let bench = Bench::new();
    assert!(bench.run("fork-child-crashes").success());
    let (outcome, _, delivered) = bench.deliver();
    assert_eq!((outcome.as_str(), delivered), ("CleanExit", true), "the child counted as a launch of the app");
    let reports = bench.reports();
    // There a child has none of the threads that write reports (docs/internals/darwin.md).
    if cfg!(target_vendor = "apple") {
        assert_eq!(reports.len(), 0);
        return;
    }
    assert_eq!(reports.len(), 1);
    assert_eq!(functions(&reports[0])[0], "it::next_launch::store_to_null");
    assert_eq!(reports[0]["crash"]["flags"][0], "fork_child");
}

#[test]
fn a_run_whose_children_crashed_is_kept_until_its_end_is_known() {
    let bench = Bench::new();
    assert_eq!(bench.run("fork-children-crash").signal(), Some(libc::SIGKILL));
    assert_eq!(bench.outcome(), "Unknown", "the runs of the children are newer, and no launches");
}

#[test]
fn a_process_that_survives_a_crash_has_a_report_and_its_own_outcome() {
    let bench = Bench::new();
    assert!(bench.run("goes-on").success());
    let (outcome, _, delivered) = bench.deliver();
    assert_eq!((outcome.as_str(), delivered), ("CleanExit", true));
    assert_eq!(bench.reports()[0]["crash"]["signal"]["name"], PROTECTION.1);
}

#[test]
fn a_fork_child_that_exits_does_not_end_its_parents_run() {
    let bench = Bench::new();
    assert_eq!(bench.run("fork-child-exits").signal(), Some(libc::SIGSEGV));
    let (outcome, _, delivered) = bench.deliver();
    assert_eq!((outcome.as_str(), delivered), ("Crashed", true));
    assert_eq!(bench.reports()[0]["run"]["lifecycle"]["exit"], "crashed");
}

#[test]
fn a_process_killed_at_any_moment_of_a_launch_loses_nothing_and_delivers_nothing_twice() {
    let bench = Bench::new();
    bench.crash();
    // From before install to after delivery, in steps of a few milliseconds.
    for delay in [0, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 400] {
        let mut app = bench.start("deliver-without-names");
        std::thread::sleep(Duration::from_millis(delay));
        // SAFETY: a signal to our own child, which is not waited for yet.
        unsafe { libc::kill(app.child.id() as i32, libc::SIGKILL) };
        let _ = app.says();
        app.end();
    }
    // Whatever it was, three kills in a row may have set it aside: it is then there, whole.
    bench.outcome();
    let broken = std::fs::read_dir(bench.store().join("broken")).map_or(0, Iterator::count);
    assert_eq!(bench.reports().len() + broken, 1);
    assert!(no_litter(&bench.store().join("reports")), "temporary files were left");
}

/// Whether a folder has reports in pairs and nothing else but what the next report will replace.
fn no_litter(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.iter().filter(|name| !name.starts_with('.')).count().is_multiple_of(2)
}

#[test]
fn a_clean_run_leaves_only_its_files_for_the_next_launch() {
    let bench = Bench::new();
    let names = || {
        let store = std::fs::read_dir(bench.store()).unwrap();
        let names = store.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // How the last run ended, in one file of always the same size.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("last_run-")).collect();
        names.sort();
        names
    };
    let lock = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(bench.store().join("clean/lock")).unwrap());
    assert!(bench.run("exit").success());
    let first = lock();
    for _ in 0..3 {
        assert_eq!(bench.outcome(), "CleanExit");
        assert_eq!((names(), bench.runs()), (vec!["clean".to_owned(), "runs".to_owned()], 0));
    }
    assert_eq!(lock(), first, "the files are the same");
    // One of that crash takes the files, and is a run like any other.
    bench.crash();
    assert_eq!((names(), bench.runs()), (vec!["runs".to_owned()], 1));
    let (outcome, _, delivered) = bench.deliver();
    assert_eq!((outcome.as_str(), delivered), ("Crashed", true));
    let reports = bench.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["run"]["tags"]["kind"], "test");
}

#[test]
fn clean_files_that_others_may_read_are_not_reused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    let plants: [fn(&Path, &Path); 5] = [
        |clean, kept| std::fs::hard_link(clean.join("report"), kept.join("report")).unwrap(),
        |clean, kept| std::fs::hard_link(clean.join("state"), kept.join("state")).unwrap(),
        |clean, _| std::fs::set_permissions(clean, std::fs::Permissions::from_mode(0o777)).unwrap(),
        |clean, kept| {
            std::fs::rename(clean, kept.join("clean")).unwrap();
            symlink(kept.join("clean"), clean).unwrap();
        },
        |clean, _| {
            let user = std::fs::metadata(clean).unwrap().uid();
            // Only root can change a file's owner.
            std::os::unix::fs::chown(clean.join("report"), Some(if user == 0 { 4711 } else { user }), None).unwrap();
            std::fs::set_permissions(clean.join("lock"), std::fs::Permissions::from_mode(0o666)).unwrap();
        },
    ];
    for (number, plant) in plants.iter().enumerate() {
        let bench = Bench::new();
        assert!(bench.run("exit").success());
        let (clean, kept) = (bench.store().join("clean"), bench.store().join("kept"));
        std::fs::create_dir(&kept).unwrap();
        let planted = std::fs::metadata(clean.join("report")).unwrap().ino();
        plant(&clean, &kept);
        bench.crash();
        let runs = std::fs::read_dir(bench.store().join("runs")).unwrap().map(|run| run.unwrap().path());
        let crashed: Vec<_> = runs.filter(|run| run.join("report").exists()).collect();
        let whole = |run: &&PathBuf| coroner::Report::read_file(run.join("report")).is_ok();
        let report = crashed.iter().find(whole).unwrap_or_else(|| panic!("form {number}: {crashed:?}"));
        let metadata = std::fs::metadata(report.join("report")).unwrap();
        assert_ne!(metadata.ino(), planted, "form {number}");
        assert_eq!((metadata.nlink(), metadata.mode() & 0o077), (1, 0), "form {number}");
        assert!(!clean.exists() || !clean.is_symlink(), "form {number}");
        assert!(bench.deliver().2);
        assert_eq!((bench.reports().len(), bench.runs()), (1, 0), "form {number}");
    }
}

#[test]
fn the_shortest_launch_stores_waiting_reports_and_names_are_added_later() {
    let bench = Bench::new();
    bench.crash();
    for _ in 0..20 {
        assert!(bench.run("exits-at-once").success());
        let reports = bench.reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0]["run"]["tags"]["kind"], "test");
    }
    assert!(bench.deliver().2);
    let reports = bench.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(functions(&reports[0])[..2], ["it::next_launch::store_to_null", "it::next_launch::app"]);
}

/// A sink with an outbox, whose thread never gets to deliver.
struct LateOutbox;

impl Sink for LateOutbox {
    fn name(&self) -> &'static str {
        "late outbox"
    }

    fn store_early(&self, submission: &Submission<'_>) -> bool {
        println!("\napp: offered after {} launches", submission.launches);
        submission.launches >= Submission::SHORT_LAUNCHES
    }

    fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
        SinkAnswer::Retry { after: Duration::from_hours(1), reason: "later".into() }
    }
}

#[test]
fn after_two_short_launches_a_report_is_offered_again_as_it_is() {
    let bench = Bench::new();
    bench.crash();
    let offers = |_| {
        let mut app = bench.start("exits-at-once-with-a-late-outbox");
        let said: Vec<_> = std::iter::from_fn(|| app.says()).filter(|said| said.starts_with("offered")).collect();
        assert!(app.child.wait().unwrap().success());
        said
    };
    let offered: Vec<Vec<String>> = (0..5).map(offers).collect();
    let expected: [&[&str]; 5] = [&["offered after 0 launches"], &[], &["offered after 2 launches"], &[], &[]];
    assert_eq!(offered, expected);
}

#[test]
fn short_launches_eventually_deliver_a_report() {
    let bench = Bench::new();
    bench.crash();
    let run = std::fs::read_dir(bench.store().join("runs")).unwrap().next().unwrap().unwrap().path();
    // So many that names are no longer looked for, which can take longer than a launch waits.
    std::fs::write(run.join("progress.json"), r#"{"stored_early": true, "cut_short": 39}"#).unwrap();
    let ends = |_| bench.run("exits-at-once").success() && !run.exists();
    assert!((0..100).any(ends), "after a hundred launches the run is still there");
    assert_eq!(bench.reports().len(), 1);
}

#[test]
fn a_crash_of_a_process_that_is_ending_is_reported() {
    let bench = Bench::new();
    assert_eq!(bench.run("crashes-in-a-destructor").signal(), Some(libc::SIGSEGV));
    assert_eq!(bench.outcome(), "Crashed");
    bench.deliver();
    assert_eq!(bench.reports().len(), 1);
}

#[test]
fn an_app_whose_run_state_was_truncated_continues() {
    assert!(Bench::new().run("loses-its-state").success());
}

#[cfg(not(target_vendor = "apple"))]
#[test]
fn a_child_that_continues_has_its_own_run() {
    let bench = Bench::new();
    let mut daemon = bench.start("fork-child-goes-on");
    assert_eq!(daemon.says().as_deref(), Some("goes on"));
    daemon.child.wait().unwrap();
    // The parent ended as it was to; the child lives.
    assert_eq!(bench.outcome(), "CleanExit");
    assert_eq!(bench.runs(), 1);
    drop(daemon.input.take());
    while daemon.says().is_some() {}
    // The end of its output is not quite the end of the process, which delivery may find alive.
    while bench.runs() > 0 {
        bench.deliver();
    }
    let reports = bench.reports();
    assert_eq!(reports.len(), 1);
    let tags = &reports[0]["run"]["tags"];
    assert_eq!((&tags["kind"], &tags["process"]), (&"test".into(), &"child".into()));
}
