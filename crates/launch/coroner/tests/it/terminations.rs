//! Why runs ended that left no word of it: for each reason the real thing, and what only looks like
//! it.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`],
//! which does what `CORONER_TEST_ACT` says. Out of memory is real, in a memory cgroup: where this
//! process can't create one, those tests print a line and pass.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coroner::{Breadcrumb, Config, Delivery};
use serde_json::Value;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
const MIB: usize = 1 << 20;
/// Memory limit of a test's cgroup.
const LIMIT: usize = 128 * MIB;

// ──── the app ────

/// Says `word` to the test and goes on when it answers.
fn meet(word: &str) {
    println!("\napp: {word}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Uses so much memory, for good.
fn eat(bytes: usize) {
    let mut memory = Vec::<u8>::with_capacity(bytes);
    // SAFETY: the vector has room for as many bytes; each page is written.
    (0..bytes).step_by(4096).for_each(|at| unsafe { memory.as_mut_ptr().add(at).write_volatile(1) });
    std::mem::forget(memory);
}

/// Leaves a breadcrumb, with which Coroner reads the evidence again, at most once a second.
fn leave_breadcrumb() {
    std::thread::sleep(Duration::from_millis(1050));
    coroner::add_breadcrumb(&Breadcrumb::new("here"));
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    if act == "eat" {
        // No app, but another process of its cgroup.
        eat(2 * LIMIT);
        return;
    }
    // SAFETY: the default action runs no code.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    if act == "handles" {
        extern "C" fn say(_: libc::c_int) {
            let word = b"\napp: asked\n";
            // SAFETY: the kernel reads as many bytes.
            unsafe { libc::write(1, word.as_ptr().cast(), word.len()) };
        }
        // SAFETY: the handler makes one system call.
        unsafe { libc::signal(libc::SIGTERM, say as extern "C" fn(libc::c_int) as usize) };
    }
    let delivery = Delivery::new().symbolicate(false);
    let coroner = coroner::install(Config::new("terminations").store_dir(store).delivery(delivery)).unwrap();
    match act.as_str() {
        "deliver" => {
            coroner.flush(Duration::from_secs(20));
            let last = coroner.last_run();
            println!("\napp: {}", serde_json::to_string(&last).unwrap());
            println!("\napp: {last}");
        }
        "exits-at-once" | "forks-and-exits-at-once" => {
            let forks = act.starts_with("forks");
            // SAFETY: the child does nothing but end, as does this process, unless it waits to be
            // killed.
            unsafe {
                if !forks || libc::fork() == 0 {
                    libc::_exit(3);
                }
                libc::wait(std::ptr::null_mut());
            }
            meet("installed");
        }
        "wait" | "handles" => meet("installed"),
        "wait-with-breadcrumb" => {
            leave_breadcrumb();
            meet("read");
        }
        "out-of-memory" => {
            eat(LIMIT / 10 * 6);
            leave_breadcrumb();
            eat(LIMIT);
        }
        "large" => {
            eat(LIMIT / 10 * 6);
            leave_breadcrumb();
            meet("read");
        }
        "spins" => {
            let limit = libc::rlimit { rlim_cur: 2, rlim_max: 2 };
            // SAFETY: reads one limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) }, 0);
            loop {
                coroner::add_breadcrumb(&Breadcrumb::new("round"));
                let until = Instant::now() + Duration::from_millis(20);
                while Instant::now() < until {}
            }
        }
        other => panic!("the app can't {other}"),
    }
}

// ──── the tests ────

struct App {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl App {
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

    fn kill(&self, signal: i32) {
        // SAFETY: a signal to our own child, which is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// The signal of which it ends.
    fn end(mut self) -> Option<i32> {
        while self.says().is_some() {}
        self.child.wait().unwrap().signal()
    }
}

struct Bench {
    folder: tempfile::TempDir,
}

/// The last run's termination, as a launch reports it.
#[derive(Debug)]
struct Found {
    outcome: String,
    reason: Value,
    certainty: Value,
    evidence: String,
    text: String,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, act: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "terminations::app", "--nocapture", "--quiet", "--test-threads=1"]);
        command.env(STORE, self.folder.path().join("store")).env(ACT, act);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn start(mut command: Command) -> App {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        App { child, output }
    }

    fn found(&self) -> Found {
        self.found_by(self.command("deliver"))
    }

    /// Finds the termination as a user who may not read the kernel's log.
    fn found_without_log(&self) -> Found {
        let mut command = self.command("deliver");
        const CAP_SYS_ADMIN: libc::c_ulong = 21;
        const CAP_SYSLOG: libc::c_ulong = 34;
        // SAFETY: system calls alone, between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
                libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYSLOG, 0, 0, 0);
                Ok(())
            });
        }
        self.found_by(command)
    }

    #[allow(clippy::unused_self)] // As the other questions.
    fn found_by(&self, command: Command) -> Found {
        let mut app = Self::start(command);
        let last: Value = serde_json::from_str(&app.says().expect("it says how the last run ended")).unwrap();
        let text = app.says().unwrap();
        assert_eq!(app.end(), None);
        let found = &last["termination"];
        let evidence = found["evidence"].as_array().map_or(&[][..], Vec::as_slice);
        Found {
            outcome: last["outcome"].as_str().unwrap().to_owned(),
            reason: found["reason"].clone(),
            certainty: found["certainty"].clone(),
            evidence: evidence.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "),
            text,
        }
    }
}

/// A memory cgroup with a limit, removed at the end.
struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// `None` where there is no memory controller that this process may use.
    fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("coroner-test-{}-{number}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v2 = !v1.join("memory.limit_in_bytes").exists();
        let root = if is_v2 { Path::new("/sys/fs/cgroup") } else { v1 };
        if is_v2 {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        let made = Self { path: root.join(name), is_v2 };
        let limit = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let is_made =
            std::fs::create_dir(&made.path).is_ok() && std::fs::write(made.path.join(limit), LIMIT.to_string()).is_ok();
        if !is_made {
            println!("no memory cgroup can be made here");
            return None;
        }
        if is_v2 {
            let _ = std::fs::write(made.path.join("memory.swap.max"), "0");
        } else {
            let _ = std::fs::write(made.path.join("memory.memsw.limit_in_bytes"), LIMIT.to_string());
        }
        Some(made)
    }

    /// The command's process will be in it.
    fn holding(&self, mut command: Command) -> Command {
        let procs = std::fs::File::options().write(true).open(self.path.join("cgroup.procs")).unwrap();
        // SAFETY: a write to an open file, between fork and exec.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
        command
    }

    fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(self.path.join(file)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Whether this process may read the kernel's log, and the log's process ids are its own.
fn has_log() -> bool {
    // SAFETY: asks for a size alone.
    let size = unsafe { libc::syscall(libc::SYS_syslog, 10, std::ptr::null_mut::<u8>(), 0) };
    let mut byte = [0_u8; 4096];
    // SAFETY: the kernel writes at most that many bytes.
    let read = unsafe { libc::syscall(libc::SYS_syslog, 3, byte.as_mut_ptr(), byte.len()) };
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    size > 0 && read > 0 && namespace.as_os_str() == "pid:[4026531836]"
}

#[test]
fn a_process_that_the_kernel_kills_for_lack_of_memory() {
    for with_log in [true, false] {
        let Some(cgroup) = Cgroup::new() else { return };
        let bench = Bench::new();
        let killed = Bench::start(cgroup.holding(bench.command("out-of-memory"))).end();
        assert_eq!((killed, cgroup.kills()), (Some(libc::SIGKILL), 1));
        // A launch in the same cgroup sees its counter; of another cgroup it would be the
        // machine's.
        let found = if with_log { bench.found() } else { bench.found_without_log() };
        assert_eq!((found.outcome.as_str(), &found.reason), ("out_of_memory", &"out_of_memory".into()), "{found:?}");
        let certainty = if with_log && has_log() { "certain" } else { "likely" };
        assert_eq!(found.certainty, certainty, "{found:?}");
        assert!(found.text.contains("killed because memory ran out"), "{found:?}");
        assert!(found.evidence.contains("MiB of its cgroup's 128.0 MiB"), "{found:?}");
    }
}

#[test]
fn its_cgroups_counter_is_evidence_too() {
    let Some(cgroup) = Cgroup::new() else { return };
    let bench = Bench::new();
    assert_eq!(Bench::start(cgroup.holding(bench.command("out-of-memory"))).end(), Some(libc::SIGKILL));
    let mut command = cgroup.holding(bench.command("deliver"));
    // SAFETY: as in `found_without_log`.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, 21, 0, 0, 0);
            libc::prctl(libc::PR_CAPBSET_DROP, 34, 0, 0, 0);
            Ok(())
        });
    }
    let found = bench.found_by(command);
    assert_eq!((found.outcome.as_str(), &found.certainty), ("out_of_memory", &"likely".into()), "{found:?}");
    assert!(found.evidence.contains("1 process in its cgroup"), "{found:?}");
}

#[test]
fn a_kill_by_a_user_is_not_reported_as_out_of_memory() {
    let Some(cgroup) = Cgroup::new() else { return };
    for act in ["wait-with-breadcrumb", "large"] {
        let bench = Bench::new();
        let mut app = Bench::start(cgroup.holding(bench.command(act)));
        assert_eq!(app.says().as_deref(), Some("read"));
        app.kill(libc::SIGKILL);
        assert_eq!(app.end(), Some(libc::SIGKILL));
        let found = bench.found_by(cgroup.holding(bench.command("deliver")));
        assert_eq!((found.outcome.as_str(), &found.reason), ("unknown", &"unknown".into()), "{found:?}");
        assert!(found.evidence.contains("killed to free memory"), "the excluded reason is missing: {found:?}");
    }
    assert_eq!(cgroup.kills(), 0);
}

#[test]
fn another_process_of_the_cgroup_was_the_victim() {
    for with_log in [true, false] {
        let Some(cgroup) = Cgroup::new() else { return };
        let bench = Bench::new();
        let mut app = Bench::start(cgroup.holding(bench.command("wait-with-breadcrumb")));
        assert_eq!(app.says().as_deref(), Some("read"));
        assert_eq!(Bench::start(cgroup.holding(bench.command("eat"))).end(), Some(libc::SIGKILL));
        assert_eq!(cgroup.kills(), 1);
        app.kill(libc::SIGKILL);
        assert_eq!(app.end(), Some(libc::SIGKILL));
        let found = if with_log { bench.found() } else { bench.found_without_log() };
        assert_eq!(found.outcome, "unknown", "{found:?}");
        if with_log && has_log() {
            assert_eq!(found.reason, "unknown", "{found:?}");
            assert!(found.evidence.contains("but not this one"), "{found:?}");
        } else {
            assert_eq!((&found.reason, &found.certainty), (&"out_of_memory".into(), &"possible".into()), "{found:?}");
        }
    }
}

/// A run of another boot: in a mount namespace where another file is the machine's boot id.
#[test]
fn a_reboot_explains_the_end() {
    let bench = Bench::new();
    let other = bench.folder.path().join("boot_id");
    std::fs::write(&other, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let wait = |with_other: bool| {
        let mut command = bench.command("wait");
        if with_other {
            let source = std::ffi::CString::new(other.to_str().unwrap()).unwrap();
            // SAFETY: system calls alone, between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    let target = c"/proc/sys/kernel/random/boot_id".as_ptr();
                    let none = std::ptr::null();
                    let is_done = libc::unshare(libc::CLONE_NEWNS) == 0
                        && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                        && libc::mount(source.as_ptr(), target, none, libc::MS_BIND, none.cast()) == 0;
                    if is_done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                });
            }
        }
        let Ok(mut child) = command.spawn() else {
            println!("no mount namespace can be made here");
            return None;
        };
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut app = App { child, output };
        assert_eq!(app.says().as_deref(), Some("installed"));
        app.kill(libc::SIGKILL);
        assert_eq!(app.end(), Some(libc::SIGKILL));
        Some(bench.found())
    };
    let Some(found) = wait(true) else { return };
    assert_eq!((found.outcome.as_str(), &found.certainty), ("system_restart", &"likely".into()), "{found:?}");
    assert!(found.evidence.contains("0123456789abcdef0123456789abcdef"), "{found:?}");
    // The same without the other boot id.
    let found = wait(false).unwrap();
    assert_eq!((found.outcome.as_str(), &found.reason), ("unknown", &"unknown".into()), "{found:?}");
}

#[test]
fn an_exit_without_handlers_leaves_a_trace() {
    let bench = Bench::new();
    assert_eq!(Bench::start(bench.command("exits-at-once")).end(), None);
    assert_eq!(bench.found().outcome, "clean_exit");
    // A child that ends so says nothing of its parent, which is killed.
    let mut app = Bench::start(bench.command("forks-and-exits-at-once"));
    assert_eq!(app.says().as_deref(), Some("installed"));
    app.kill(libc::SIGKILL);
    assert_eq!(app.end(), Some(libc::SIGKILL));
    assert_eq!(bench.found().outcome, "unknown");
}

#[test]
fn a_cpu_time_limit_explains_the_end() {
    let bench = Bench::new();
    assert_eq!(Bench::start(bench.command("spins")).end(), Some(libc::SIGKILL));
    let found = bench.found();
    assert_eq!((found.outcome.as_str(), &found.certainty), ("cpu_limit", &"likely".into()), "{found:?}");
    // One that is killed early has used little of it.
    let app = Bench::start(bench.command("spins"));
    std::thread::sleep(Duration::from_millis(500));
    app.kill(libc::SIGKILL);
    assert_eq!(app.end(), Some(libc::SIGKILL));
    assert_eq!(bench.found().outcome, "unknown");
}

#[test]
fn the_signals_sender_is_reported() {
    let bench = Bench::new();
    let mut app = Bench::start(bench.command("wait"));
    assert_eq!(app.says().as_deref(), Some("installed"));
    app.kill(libc::SIGINT);
    assert_eq!(app.end(), Some(libc::SIGINT));
    let found = bench.found();
    assert_eq!((found.outcome.as_str(), &found.reason), ("ended_by_signal", &"signal".into()), "{found:?}");
    let sender = format!("SIGINT was sent by process {} (", std::process::id());
    assert!(found.evidence.contains(&sender), "{found:?}");

    // It deals with SIGTERM, and is killed after a while, as services and containers are.
    let mut app = Bench::start(bench.command("handles"));
    assert_eq!(app.says().as_deref(), Some("installed"));
    app.kill(libc::SIGTERM);
    // Coroner's handler comes first.
    assert_eq!(app.says().as_deref(), Some("asked"));
    app.kill(libc::SIGKILL);
    assert_eq!(app.end(), Some(libc::SIGKILL));
    let found = bench.found();
    assert_eq!((found.outcome.as_str(), &found.reason), ("terminated", &"stop_timeout".into()), "{found:?}");
}
