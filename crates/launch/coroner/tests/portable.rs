//! The features of Coroner on systems where it catches no faults: Windows, FreeBSD, 32-bit Linux.
//! Uses real processes: this program starts itself.
//!
//! `cargo test -p coroner --no-default-features --features json,panics --test portable --target
//! i686-unknown-linux-musl`. It runs no tests on other systems.

#[cfg(supported)]
fn main() {}

#[cfg(not(supported))]
fn main() -> std::process::ExitCode {
    match std::env::var(portable::ACT) {
        Ok(act) => portable::app(&act),
        Err(_) => portable::tests(),
    }
}

#[cfg(not(supported))]
mod portable {
    use std::io::Write;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, ExitCode, Output, Stdio};
    use std::time::Duration;

    use coroner::backtrace::{CaptureOptions, thread_id};
    use coroner::{
        Backtrace, Breadcrumb, Config, FolderSink, ForeignException, ForeignFrame, Language, Outcome, Sink, SinkAnswer,
        Store, Submission,
    };
    use serde_json::Value;

    /// The app's act.
    pub(super) const ACT: &str = "PORTABLE_ACT";
    /// Variable with the path of the app's store.
    const STORE: &str = "PORTABLE_STORE";
    /// A folder in which the stores stay, for who looks at them from another system.
    const KEEP: &str = "PORTABLE_KEEP";
    /// Set where Wine is in Windows' place: it calls no TLS callback of a program that ends, as
    /// Windows does, so that an end by `exit` is not noticed.
    const WINE: &str = "PORTABLE_WINE";
    /// Longer than any delivery takes.
    const LONG: Duration = Duration::from_mins(2);

    // ──── the app ────

    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}");
        let _ = out.flush();
    }

    /// Waits for a word of the test, or its end.
    fn wait() {
        let _ = std::io::stdin().read_line(&mut String::new());
    }

    /// Ends the process before it has answered.
    #[derive(Debug)]
    struct Dies;

    impl Sink for Dies {
        fn name(&self) -> &str {
            "dies"
        }

        fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
            std::process::abort();
        }
    }

    #[inline(never)]
    fn paint(canvas: Option<u32>) -> u32 {
        canvas.expect("there is no canvas")
    }

    #[inline(never)]
    fn save() -> bool {
        coroner::report_error(&std::io::Error::other("the disk is full"))
    }

    extern "C" fn refuses() {
        panic!("no way out");
    }

    pub(super) fn app(act: &str) -> ExitCode {
        let store = PathBuf::from(std::env::var_os(STORE).expect("a store"));
        let mut config = Config::new("portable").version("1.2.3").store_dir(&store);
        config = match act {
            "die delivering" => config.sink(Dies).sink(FolderSink::new(store.join("reports"))),
            _ => config,
        };
        let coroner = coroner::install(config).expect("it can be installed");
        say(&format!("run {}", coroner.run_id()));
        say(&format!("last {:?}", coroner.last_run().outcome));
        assert!(coroner.limits().no_faults && coroner.limits().sentences().count() == 1);
        coroner::set_tag("channel", "beta").expect("a tag");
        coroner::add_breadcrumb(&Breadcrumb::new("opens a picture").category("paint"));
        match act {
            "return" => {}
            "exit" => std::process::exit(0),
            "marked" => {
                coroner.mark_clean_exit();
                std::process::exit(0);
            }
            "status" => std::process::exit(3),
            "panic" => drop(paint(None)),
            "thread" => {
                let painter = std::thread::Builder::new().name("painter".into()).spawn(|| paint(None));
                painter.expect("a thread").join().expect_err("it panics");
                assert!(coroner.flush(LONG), "it is delivered");
            }
            "caught" => drop(catch_unwind(|| paint(None)).expect_err("it panics")),
            "raised again" => {
                let payload = catch_unwind(|| paint(None)).expect_err("it panics");
                std::panic::resume_unwind(payload);
            }
            "cannot unwind" => refuses(),
            "abort" => std::process::abort(),
            "lives" => {
                say("ready");
                wait();
            }
            "error" => {
                assert!(save());
                assert!(coroner.flush(LONG), "it is delivered");
            }
            "errors" => {
                let reported = (0..20).filter(|_| save()).count();
                say(&format!("reported {reported}"));
                std::process::abort();
            }
            "foreign" => {
                let frames = [ForeignFrame::new("total").file("cart.js").line(41)];
                let thrown = ForeignException::new(Language::JAVASCRIPT, "TypeError", "cart is undefined", &frames);
                assert!(coroner::report_foreign_exception(&thrown.all_threads(true)));
                assert!(coroner.flush(LONG), "it is delivered");
            }
            "die delivering" => {
                coroner.flush(LONG);
                say("survived");
            }
            "uninstall" => {
                coroner.uninstall();
                assert!(coroner::installed().is_none() && !save());
                let again = coroner::install(Config::new("portable").store_dir(&store)).expect("once more");
                assert!(again.flush(LONG));
            }
            "rest" => rest(),
            "deliver" => assert!(coroner.flush(LONG), "all is delivered"),
            other => unreachable!("{other}"),
        }
        ExitCode::SUCCESS
    }

    /// Features that this system lacks are reported as missing and do nothing.
    fn rest() {
        assert!(!coroner::ignore_next_signal(11));
        assert!(coroner::attach_current_thread().is_err());
        assert!(matches!(coroner::after_fork(), Ok(false)));
        static LOG: [u8; 16] = [0; 16];
        drop(coroner::register_memory("log.txt", LOG.as_ptr(), LOG.len()).expect("it is taken and not read"));
        let rule = coroner::UnwindRule::frame_record(coroner::UnwindRule::FRAME_POINTER, 0).expect("a rule");
        drop(coroner::register_unwind_range(0x1000..0x2000, rule).expect("it is taken and not read"));
        coroner::HangWatch::new().beat();
        assert!(Backtrace::current().addresses().is_empty());
        assert!(Backtrace::of_thread(thread_id() + 1, &CaptureOptions::default()).is_err());
        assert!(Backtrace::of_all_threads(&CaptureOptions::default()).is_empty());
        assert!(catch_unwind(AssertUnwindSafe(|| coroner::install(Config::new("other")).is_err())).expect("no panic"));
    }

    // ──── the tests ────

    /// A store of a test's own.
    struct Launches {
        store: PathBuf,
        _folder: Option<tempfile::TempDir>,
    }

    impl Launches {
        fn new(name: &str) -> Self {
            if let Some(keep) = std::env::var_os(KEEP) {
                return Self { store: Path::new(&keep).join(name), _folder: None };
            }
            let folder = tempfile::tempdir().expect("a directory");
            Self { store: folder.path().join("store"), _folder: Some(folder) }
        }

        fn command(&self, act: &str) -> Command {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command.env(ACT, act).env(STORE, &self.store).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped());
            command
        }

        fn run(&self, act: &str) -> Output {
            let output = self.command(act).output().expect("the app starts");
            println!("   {act}: {}", output.status);
            output
        }

        /// Runs the app to a good end. What it says of the last run.
        fn run_well(&self, act: &str) -> String {
            let output = self.run(act);
            assert!(output.status.success(), "{act}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
            last(&output)
        }

        fn start(&self, act: &str) -> Child {
            let mut child = self.command(act).spawn().expect("the app starts");
            let mut printed = String::new();
            let out = child.stdout.take().expect("its output");
            let mut lines = std::io::BufReader::new(out);
            while printed.trim_end() != "ready" {
                printed.clear();
                assert!(std::io::BufRead::read_line(&mut lines, &mut printed).expect("a line") > 0, "it ended");
            }
            child
        }

        /// The reports that were delivered to the default folder.
        fn reports(&self) -> Vec<Value> {
            let files = std::fs::read_dir(self.store.join("reports")).into_iter().flatten().flatten();
            let files = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
            files.map(|file| serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON")).collect()
        }

        fn report(&self) -> Value {
            let mut reports = self.reports();
            assert_eq!(reports.len(), 1, "{reports:#?}");
            reports.remove(0)
        }

        /// Runs in the store, beside the one that ended last.
        fn runs(&self) -> usize {
            Store::open(&self.store).and_then(|store| store.list()).expect("a store").len()
        }
    }

    fn last(output: &Output) -> String {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.lines().find_map(|line| line.strip_prefix("last ")).unwrap_or_default().to_owned()
    }

    fn name(outcome: Outcome) -> String {
        format!("{outcome:?}")
    }

    fn functions(exception: &Value) -> Vec<String> {
        let text = |value: &Value| value["function"].as_str().unwrap_or_default().to_owned();
        let frames = exception["frames"].as_array().expect("frames");
        let all = frames.iter().flat_map(|frame| {
            let inlined = frame["inlined"].as_array().into_iter().flatten().map(text);
            inlined.chain([text(frame)]).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// A report's exception is of that type, and its stack leads from the app's function to its
    /// beginning.
    fn check(report: &Value, kind: &str, message: &str, through: &str) {
        assert_eq!(report["complete"], true, "{report:#}");
        let exception = &report["exceptions"][0];
        assert_eq!(exception["type_name"], kind, "{report:#}");
        assert_eq!(exception["message"], message, "{report:#}");
        let functions = functions(exception);
        let at = |name: &str| functions.iter().position(|function| function.ends_with(name));
        // A thread begins in a closure of the app's, in either mangling.
        let outer = at("app").or_else(|| at("app::{{closure}}")).or_else(|| at("app::{closure#0}"));
        assert!(at(through).is_some() && at(through) < outer, "{functions:#?}");
        assert!(
            !functions.iter().any(|name| name.contains("system::portable") || name.contains("report_error")),
            "{functions:#?}"
        );
        let frames = exception["frames"].as_array().expect("frames");
        let named = frames.iter().find(|frame| frame["function"].as_str().is_some_and(|name| name.ends_with(through)));
        let named = named.expect("the function's frame");
        assert!(named["file"].as_str().is_some_and(|file| file.ends_with("portable.rs")), "{named}");
        assert!(named["line"].as_u64().is_some_and(|line| line > 60), "{named}");
        assert_eq!(report["header"]["os"], if cfg!(windows) { "windows" } else { std::env::consts::OS });
        let run = &report["run"];
        assert_eq!(run["tags"]["channel"], "beta", "{run:#}");
        assert_eq!(run["breadcrumbs"][0]["message"], "opens a picture", "{run:#}");
        assert_eq!(run["app"]["release"], "portable@1.2.3", "{run:#}");
        let system = run["os"]["name"].as_str().unwrap_or_default();
        assert_eq!(
            system,
            if cfg!(windows) {
                "Windows"
            } else if cfg!(target_os = "linux") {
                "Linux"
            } else {
                system
            }
        );
        assert!(run["device"]["arch"].is_string(), "{run:#}");
    }

    fn flags(report: &Value) -> Vec<&str> {
        report["crash"]["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    fn ends() {
        let launches = Launches::new("ends");
        assert_eq!(launches.run_well("return"), name(Outcome::FirstLaunch));
        let exit = if std::env::var_os(WINE).is_some() { Outcome::Unknown } else { Outcome::CleanExit };
        assert_eq!(launches.run_well("exit"), name(Outcome::CleanExit));
        assert_eq!(launches.run_well("marked"), name(exit));
        let output = launches.run("status");
        assert_eq!((output.status.code(), last(&output)), (Some(3), name(Outcome::CleanExit)));
        assert_eq!(launches.run_well("deliver"), name(exit));
        assert!(!launches.run("abort").status.success());
        assert_eq!(launches.run_well("deliver"), name(Outcome::Unknown));
        let mut child = launches.start("lives");
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        assert_eq!(launches.run_well("deliver"), name(Outcome::Unknown));
        assert_eq!(launches.run_well("rest"), name(Outcome::CleanExit));
        assert!(launches.reports().is_empty());
        // No launch leaves more behind than its own run.
        assert!(launches.runs() <= 2, "{} runs", launches.runs());
    }

    fn panic_of_main() {
        let launches = Launches::new("panic");
        assert_eq!(launches.run("panic").status.code(), Some(101));
        assert_eq!(launches.run_well("deliver"), name(Outcome::Crashed));
        let report = launches.report();
        check(&report, "panic", "there is no canvas", "::paint");
        assert!(flags(&report).is_empty(), "{report:#}");
        assert!(
            report["exceptions"][0]["location"].as_str().is_some_and(|at| at.contains("portable.rs:")),
            "{report:#}"
        );
        assert_eq!(report["threads"][0]["name"], "main");
        assert_eq!(launches.run_well("deliver"), name(Outcome::CleanExit));
        assert_eq!(launches.reports().len(), 1, "it is delivered once");
    }

    /// For who reads it on another system.
    fn a_run_that_waits() {
        let launches = Launches::new("waits");
        assert_eq!(launches.run("panic").status.code(), Some(101));
        let runs = Store::open_existing(&launches.store).and_then(|store| store.list()).expect("a store");
        let raw = coroner::RawRun::read(&runs[0].path).expect("its files");
        let report = raw.parse().expect("reports").remove(0);
        assert_eq!(report.crash.and_then(|crash| crash.message).as_deref(), Some("there is no canvas"));
    }

    fn panics_that_are_survived() {
        let launches = Launches::new("survived");
        launches.run_well("caught");
        assert_eq!(launches.run_well("thread"), name(Outcome::CleanExit));
        let report = launches.report();
        check(&report, "panic that ended its thread", "there is no canvas", "::paint");
        assert_eq!(flags(&report), ["not_fatal"]);
        assert_eq!(report["threads"][0]["name"], "painter");
        assert_eq!(launches.run_well("deliver"), name(Outcome::CleanExit));
        assert_eq!(launches.reports().len(), 1, "one that is caught is a breadcrumb");
    }

    fn panics_that_end_the_process_elsewhere() {
        let launches = Launches::new("elsewhere");
        assert!(!launches.run("cannot unwind").status.success());
        assert_eq!(launches.run_well("deliver"), name(Outcome::Crashed));
        check(&launches.report(), "panic in a function that cannot unwind", "no way out", "::refuses");
    }

    fn a_panic_that_is_raised_again() {
        let launches = Launches::new("again");
        assert_eq!(launches.run("raised again").status.code(), Some(101));
        assert_eq!(launches.run_well("deliver"), name(Outcome::Crashed));
        check(&launches.report(), "panic", "there is no canvas", "::paint");
    }

    fn errors() {
        let launches = Launches::new("errors");
        launches.run_well("error");
        let report = launches.report();
        check(&report, std::any::type_name::<std::io::Error>(), "the disk is full", "::save");
        assert_eq!(flags(&report), ["not_fatal"]);
        launches.run_well("foreign");
        let foreign = launches.reports().into_iter().find(|report| report["exceptions"][0]["type_name"] == "TypeError");
        let foreign = foreign.expect("its report");
        assert_eq!(foreign["exceptions"][0]["frames"][0]["function"], "total", "{foreign:#}");
        // Those that nobody came to deliver.
        let launches = Launches::new("limits");
        let output = launches.run("errors");
        assert!(String::from_utf8_lossy(&output.stdout).contains("reported 16"), "{output:?}");
        assert_eq!(launches.run_well("deliver"), name(Outcome::Unknown));
        assert_eq!(launches.reports().len(), 16);
    }

    fn two_processes_of_one_store() {
        let launches = Launches::new("two");
        let mut living = launches.start("lives");
        assert_eq!(launches.run("panic").status.code(), Some(101));
        launches.run_well("deliver");
        assert_eq!(launches.reports().len(), 1);
        // Its run was not taken: what it says later counts.
        drop(living.stdin.take());
        assert!(living.wait().expect("it ends").success());
        assert_eq!(launches.run_well("deliver"), name(Outcome::CleanExit));
        let mut killed = launches.start("lives");
        launches.run_well("deliver");
        killed.kill().expect("it is killed");
        killed.wait().expect("it ends");
        launches.run_well("uninstall");
        launches.run_well("deliver");
        assert_eq!(launches.reports().len(), 1);
        assert!(launches.runs() <= 2, "{} runs", launches.runs());
    }

    fn a_kill_during_delivery() {
        let launches = Launches::new("delivery");
        assert_eq!(launches.run("panic").status.code(), Some(101));
        let output = launches.run("die delivering");
        assert!(
            !output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("survived"),
            "{output:?}"
        );
        launches.run_well("deliver");
        let reports = launches.reports();
        let of_panic = reports.iter().filter(|report| report["exceptions"][0]["message"] == "there is no canvas");
        assert_eq!(of_panic.count(), 1, "{reports:#?}");
    }

    pub(super) fn tests() -> ExitCode {
        let tests: [(&str, fn()); 9] = [
            ("ends", ends),
            ("a panic of main", panic_of_main),
            ("a run that waits", a_run_that_waits),
            ("panics that are survived", panics_that_are_survived),
            ("panics that end the process elsewhere", panics_that_end_the_process_elsewhere),
            ("a panic that is raised again", a_panic_that_is_raised_again),
            ("errors", errors),
            ("two processes of one store", two_processes_of_one_store),
            ("a kill during delivery", a_kill_during_delivery),
        ];
        let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
        let mut failed = 0;
        for (name, test) in
            tests.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| name.contains(&**only)))
        {
            println!("{name}");
            if catch_unwind(test).is_err() {
                println!("FAILED {name}");
                failed += 1;
            }
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
