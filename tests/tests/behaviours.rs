//! The table of behaviours: each is a real process that crashes, once without Coroner and once with
//! it.
//!
//! `cargo test -p coroner-tests --test behaviours [-- [--exact] WORD…]` runs those whose names
//! contain a word, or equal one. Each prints a line, followed by its failures. With
//! `CORONER_TEST_EMULATED` every instruction is emulated: they run one by one, and chance events
//! are not waited for. A behaviour that this system can't show (no right to mount, no PID
//! namespace) is skipped with a line that states why.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};
use coroner_faults::{Ending, FAULTS, Fault};
use coroner_tests::conditions::{HANDLER_EXIT, POISONED_EXIT};
use coroner_tests::damaged::find_fault;
use coroner_tests::expect::{report_is_right, signal_and_registers_are_right};
use coroner_tests::process::{Ended, Run, report_files, reports};

/// The expected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
enum Expect {
    /// One report that matches the fault's entry, and an end as without Coroner.
    Report,
    /// No report, and an end as without Coroner.
    Nothing,
    /// One report of that signal, and the process continues to a clean exit.
    ReportAndSurvival,
    /// One report, in which other threads may be missing if it records why.
    ReportOfOne,
    /// One report that says how many threads it lacks.
    ThreadsLeftOut,
    /// One report with signal, registers and whatever else could be read, and an end as without
    /// Coroner.
    SignalAndRegisters,
    /// The last report is correct, after those of faults that the process survived, and the end is
    /// as without Coroner.
    LastReport,
    /// The next launch delivers a report of the crash, although only the crash record could be
    /// written.
    CrashRecord,
}

/// Without `/proc` a program on Android finds none of its other threads; every device has it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const WITHOUT_PROC: Expect = if cfg!(target_os = "android") { Expect::ReportOfOne } else { Expect::Report };

/// One case.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    name: &'static str,
    fault: &'static str,
    threads: usize,
    conditions: &'static [&'static str],
    expect: Expect,
    /// Requirements on the system.
    needs: Needs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
enum Needs {
    Nothing,
    /// A disk of a few megabytes, to be filled.
    SmallDisk,
    /// A separate PID namespace.
    Namespace,
    /// Memory that blocks its readers, including the kernel.
    BlockedPage,
    /// A real kernel: an emulator of user programs has its own threads and descriptors, and no
    /// ptrace.
    RealKernel,
}

const fn case(
    name: &'static str,
    fault: &'static str,
    conditions: &'static [&'static str],
    expect: Expect,
) -> Behaviour {
    Behaviour { name, fault, threads: 3, conditions, expect, needs: Needs::Nothing }
}

impl Behaviour {
    const fn with_threads(mut self, threads: usize) -> Behaviour {
        self.threads = threads;
        self
    }

    const fn needing(mut self, needs: Needs) -> Behaviour {
        self.needs = needs;
        self
    }
}

/// Returns the behaviours of every system, in addition to each fault of the table.
const BEHAVIOURS: &[Behaviour] = &[
    case("alone", "null-store", &[], Expect::Report).with_threads(0),
    case("100-threads", "null-store", &[], Expect::Report).with_threads(100),
    // Earlier handlers.
    case("exiting-handler-is-called", "null-store", &["exiting-handler"], Expect::Report),
    case("repairing-handler-after", "read-only-store", &["repairing-handler"], Expect::ReportAndSurvival),
    case("ignored-raise", "raise-fpe", &["fpe-ignored"], Expect::Nothing),
    case("ignored-fault", "null-store", &["segv-ignored"], Expect::Report),
    case("default-raise", "raise-fpe", &["c-dispositions"], Expect::Report),
    case("default-kill", "kill-segv", &["c-dispositions"], Expect::Report),
    case("default-breakpoint", "breakpoint", &["c-dispositions"], Expect::Report),
    case("default-overflow", "stack-overflow", &["c-dispositions"], Expect::Report),
    case("default-overflow-pthread", "stack-overflow-pthread", &["c-dispositions"], Expect::Report),
    case("uninstalled", "null-store", &["uninstalled"], Expect::Nothing),
    // Terminations that are not crashes.
    case("clean-exit", "exit", &[], Expect::Nothing),
    case("sigterm", "terminate", &[], Expect::Nothing),
    // Resources that are missing during the crash.
    case("poisoned-malloc", "null-store", &["poisoned-malloc"], Expect::Report),
    case("poisoned-malloc-abort", "abort", &["poisoned-malloc"], Expect::Report),
    case("poisoned-malloc-100-threads", "null-store", &["poisoned-malloc"], Expect::Report).with_threads(100),
];

/// Returns the behaviours of this system only.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OF_THIS_SYSTEM: &[Behaviour] = &[
    case("1000-threads", "null-store-thread", &[], Expect::Report).with_threads(1000),
    case("1000-threads-abort", "abort", &[], Expect::Report).with_threads(1000),
    case("repairing-handler-first", "read-only-store", &["repairing-handler", "chain-first"], Expect::Nothing),
    case("repeated-signals-first", "exit", &["repeated-signals", "chain-first"], Expect::Nothing),
    case("ignore-next-signal", "read-only-store", &["repairing-handler", "ignore-next-signal"], Expect::Nothing),
    case("chain-first-not-taken", "null-store", &["c-dispositions", "chain-first"], Expect::Report),
    case("handler-over-ours", "null-store", &["reinstalled"], Expect::Report),
    // Runtimes that handle faults: no report of these, and one of the crash after them.
    case("seccomp-broker", "exit", &["seccomp-broker"], Expect::Nothing).needing(Needs::RealKernel),
    case("seccomp-broker-then-crash", "null-store", &["seccomp-broker"], Expect::Report).needing(Needs::RealKernel),
    case("seccomp-broker-first-then-crash", "null-store", &["seccomp-broker", "chain-first"], Expect::Report)
        .needing(Needs::RealKernel),
    case("repaired-then-abort", "abort", &["repaired-faults"], Expect::LastReport),
    case("repaired-first-then-abort", "abort", &["repaired-faults", "chain-first"], Expect::Report),
    case("repaired-then-fpe", "raise-fpe", &["repaired-faults"], Expect::LastReport),
    case("left-then-abort", "abort", &["left-faults"], Expect::LastReport),
    case("left-first-then-abort", "abort", &["left-faults", "chain-first"], Expect::Report),
    case("left-then-fpe", "raise-fpe", &["left-faults"], Expect::LastReport),
    case("jit-faults", "exit", &["jit-faults"], Expect::Nothing),
    case("jit-faults-then-crash", "null-store", &["jit-faults"], Expect::Report),
    case("jit-faults-then-abort", "abort", &["jit-faults"], Expect::Report),
    case("jit-crash-aborts", "null-store", &["jit-crash-aborts"], Expect::CrashRecord),
    case("jit-crash-exits", "null-store", &["jit-crash-exits"], Expect::CrashRecord),
    case("jit-crash-ends-at-once", "null-store", &["jit-crash-ends-at-once"], Expect::CrashRecord),
    case("handler-exits", "null-store", &["handler-exits"], Expect::CrashRecord),
    case("handler-exits-first", "null-store", &["handler-exits", "chain-first"], Expect::Report),
    // Later handlers.
    case("handler-after-reinstalled", "null-store", &["handler-after", "reinstall-handlers"], Expect::Report),
    case("handler-over-ours-reinstalled", "null-store", &["reinstalled", "reinstall-handlers"], Expect::Report),
    case("handler-after", "null-store", &["handler-after"], Expect::Nothing),
    // Other reporters, each called as without Coroner.
    case("breakpad-before", "null-store", &["breakpad-before"], Expect::Report),
    case("breakpad-after", "null-store", &["breakpad-after"], Expect::Report),
    case("breakpad-before-first", "null-store", &["breakpad-before", "chain-first"], Expect::Report),
    case("breakpad-before-abort", "abort", &["breakpad-before"], Expect::Report),
    case("breakpad-after-abort", "abort", &["breakpad-after"], Expect::Report),
    // Children.
    case("silent-fork-child", "fork-child", &["silent-fork"], Expect::Nothing),
    // Resources that are missing during the crash.
    case("full-disk", "null-store", &["full-disk"], Expect::Report).needing(Needs::SmallDisk),
    case("full-disk-100-threads", "null-store", &["full-disk"], Expect::Report)
        .with_threads(100)
        .needing(Needs::SmallDisk),
    case("no-descriptors", "null-store", &["no-descriptors"], Expect::Report),
    case("no-address-space", "null-store", &["no-address-space"], Expect::Report),
    case("no-processes", "null-store", &["no-processes"], Expect::Report),
    case("no-file-size", "null-store", &["no-file-size"], Expect::Report),
    case("deaf-threads", "null-store", &["deaf-threads"], Expect::Report).needing(Needs::RealKernel),
    case("70-deaf-threads", "null-store", &["deaf-threads"], Expect::Report)
        .with_threads(70)
        .needing(Needs::RealKernel),
    case("9-descriptors", "null-store", &["9-descriptors"], Expect::Report).needing(Needs::RealKernel),
    case("kernel-thread", "null-store", &["kernel-thread"], Expect::Report).needing(Needs::RealKernel),
    // Alternate stacks that are hardly larger than what the kernel puts there.
    case("small-signal-stack", "null-store", &["small-signal-stack"], Expect::Report).needing(Needs::RealKernel),
    case("small-signal-stack-abort", "abort", &["small-signal-stack"], Expect::Report).needing(Needs::RealKernel),
    case("small-signal-stack-fpe", "divide-by-zero", &["c-dispositions", "small-signal-stack"], Expect::Report)
        .needing(Needs::RealKernel),
    case("deaf-threads-no-processes", "null-store", &["deaf-threads", "no-processes"], Expect::ReportOfOne)
        .needing(Needs::RealKernel),
    // An app that closes descriptors of others, and one that then opens files with their numbers.
    case("descriptors-closed", "null-store", &["descriptors-closed"], Expect::Report).needing(Needs::RealKernel),
    case("descriptors-closed-in-a-loop", "null-store", &["descriptors-closed-in-a-loop"], Expect::Report)
        .needing(Needs::RealKernel),
    case("descriptors-replaced", "null-store", &["descriptors-replaced"], Expect::Report).needing(Needs::RealKernel),
    case("descriptors-replaced-by-pipes", "null-store", &["descriptors-replaced-by-pipes"], Expect::Report)
        .needing(Needs::RealKernel),
    // Sandboxes that forbid timers, and an app that drops its privileges.
    case("timers-trapped", "null-store", &["timers-trapped"], Expect::Report).needing(Needs::RealKernel),
    case("timers-kill", "null-store", &["timers-kill"], Expect::Report).needing(Needs::RealKernel),
    case("timers-refused", "null-store", &["timers-refused"], Expect::Report).needing(Needs::RealKernel),
    case("threads-unlisted", "null-store", &["threads-unlisted"], Expect::ThreadsLeftOut).needing(Needs::RealKernel),
    case("dispositions-refused", "null-store", &["c-dispositions", "dispositions-refused"], Expect::Report)
        .with_threads(0)
        .needing(Needs::RealKernel),
    case("unprivileged", "null-store", &["unprivileged"], Expect::Report).needing(Needs::RealKernel),
    // A run state that is truncated by a cleanup program or a failing disk.
    case("state-cut", "null-store", &["state-cut"], Expect::SignalAndRegisters).needing(Needs::RealKernel),
    case("state-cut-abort", "abort", &["state-cut"], Expect::SignalAndRegisters).needing(Needs::RealKernel),
    case("state-cut-exit", "exit", &["state-cut"], Expect::Nothing).needing(Needs::RealKernel),
    case("store-removed", "null-store", &["store-removed"], Expect::Report).needing(Needs::RealKernel),
    case("nearly-all-refused", "null-store", &["c-dispositions", "nearly-all-refused"], Expect::SignalAndRegisters)
        .with_threads(0)
        .needing(Needs::RealKernel),
    // Memory that became unreadable.
    case("blocked-stack-page", "blocked-stack-page", &[], Expect::SignalAndRegisters).needing(Needs::BlockedPage),
    case("overwritten-got", "overwritten-got", &[], Expect::CrashRecord).needing(Needs::RealKernel),
    case("overwritten-relro", "overwritten-relro", &[], Expect::SignalAndRegisters).needing(Needs::RealKernel),
    case("overwritten-rodata", "overwritten-rodata", &[], Expect::CrashRecord).needing(Needs::RealKernel),
    case("overwritten-eh-frame", "overwritten-eh-frame", &[], Expect::SignalAndRegisters).needing(Needs::RealKernel),
    case("overwritten-dynamic", "overwritten-dynamic", &[], Expect::SignalAndRegisters).needing(Needs::RealKernel),
    // Only in glibc and musl is a library's handle its `struct link_map`.
    #[cfg(not(target_os = "android"))]
    case("cut-link-map", "cut-link-map", &[], Expect::Report).needing(Needs::RealKernel),
    case("overwritten-image", "overwritten-image", &[], Expect::CrashRecord).needing(Needs::RealKernel),
    // Coroner's memory is above the app's. Other threads' stacks would be in between, with guards
    // of their own.
    case("overrun", "overrun", &[], Expect::Report).needing(Needs::RealKernel).with_threads(0),
    // Faults that do not occur again, but kill the process nevertheless.
    case("passing-store", "passing-store", &["c-dispositions"], Expect::Report).needing(Needs::RealKernel),
    case("passing-store-of-rust", "passing-store", &[], Expect::Report).needing(Needs::RealKernel),
    case("passing-store-100-threads", "passing-store", &["c-dispositions"], Expect::Report)
        .needing(Needs::RealKernel)
        .with_threads(100),
    case("passing-bus", "passing-bus", &["c-dispositions"], Expect::Report).needing(Needs::RealKernel),
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    case("restartable-sequence", "restartable-sequence", &["c-dispositions"], Expect::Report)
        .needing(Needs::RealKernel),
    // Where only the instruction itself can kill the process, it does not: the process dies of its
    // next fault, which is reported.
    case("pid-1-passing-store", "passing-store-then-null", &["c-dispositions"], Expect::LastReport)
        .needing(Needs::Namespace),
    case("filtered-passing-store", "passing-store-then-null", &["c-dispositions", "queue-kills"], Expect::LastReport)
        .needing(Needs::RealKernel)
        .with_threads(0),
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    case(
        "filtered-restartable-sequence",
        "restartable-sequence-then-null",
        &["c-dispositions", "queue-kills"],
        Expect::LastReport,
    )
    .needing(Needs::RealKernel)
    .with_threads(0),
    // A filter that kills for a queued signal, which the app itself never sends.
    case("queue-kills", "null-store", &["c-dispositions", "queue-kills"], Expect::Report)
        .needing(Needs::RealKernel)
        .with_threads(0),
    case("queue-kills-abort", "abort", &["queue-kills"], Expect::Report).needing(Needs::RealKernel).with_threads(0),
    case("queue-kills-breakpoint", "breakpoint", &["queue-kills"], Expect::Report)
        .needing(Needs::RealKernel)
        .with_threads(0),
    // The first process of a container.
    case("no-proc", "null-store", &["c-dispositions", "no-proc"], WITHOUT_PROC).needing(Needs::Namespace),
    case("pid-1-null-store", "null-store", &["c-dispositions"], Expect::Report).needing(Needs::Namespace),
    case("pid-1-abort", "abort", &["c-dispositions"], Expect::Report).needing(Needs::Namespace),
    // Without Coroner bionic's own handler ends such a process with 0.
    #[cfg(not(target_os = "android"))]
    case("pid-1-breakpoint", "breakpoint", &["c-dispositions"], Expect::Report).needing(Needs::Namespace),
    case("pid-1-overflow", "stack-overflow-thread", &[], Expect::Report).needing(Needs::Namespace),
];

/// Returns the behaviours of this system only.
#[cfg(target_os = "macos")]
const OF_THIS_SYSTEM: &[Behaviour] = &[
    case("10-threads", "null-store", &[], Expect::Report).with_threads(10),
    case("200-threads", "null-store-thread", &[], Expect::Report).with_threads(200),
    case("200-threads-abort", "abort", &[], Expect::Report).with_threads(200),
    // Earlier owners of the task's exception port.
    case("accepting-port", "read-only-store", &["accepting-port"], Expect::ReportAndSurvival),
    case("accepting-port-with-state", "read-only-store", &["accepting-port-with-state"], Expect::ReportAndSurvival),
    case("refusing-port", "null-store", &["c-dispositions", "refusing-port"], Expect::Report),
    case("refusing-port-with-state", "null-store", &["c-dispositions", "refusing-port-with-state"], Expect::Report),
    // Actions and locks of other threads during the crash.
    case("loading-images", "null-store", &["c-dispositions", "loading-images"], Expect::Report),
    case("held-locks", "null-store", &["c-dispositions", "held-locks"], Expect::Report),
    case("held-locks-200-threads", "null-store", &["c-dispositions", "held-locks"], Expect::Report).with_threads(200),
    case("held-locks-abort", "abort", &["c-dispositions", "held-locks"], Expect::Report),
];

/// The reason that this system can't show a behaviour.
struct Skipped(String);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let given = |option: &str| std::env::args().any(|argument| argument == option);
    if given("--list") {
        return;
    }
    let is_wanted = |name: &str, word: &str| if given("--exact") { name == word } else { name.contains(word) };
    let every_fault = FAULTS.iter().map(|fault| {
        // There, a forked child has none of Coroner's threads, and inherits its parent's ports
        // (docs/internals/darwin.md).
        let is_fork_of_darwin = cfg!(target_vendor = "apple") && fault.name == "fork-child";
        let expect = if is_fork_of_darwin { Expect::Nothing } else { Expect::Report };
        let alone = case(fault.name, fault.name, &[], expect);
        // An emulator's own SIGSYS, for what the filter refused it, comes back as one that was
        // sent; and it creates no process that shares its handlers without being a thread.
        let is_of_kernel = matches!(fault.name, "bad-system-call" | "sighand-child");
        if is_of_kernel { alone.needing(Needs::RealKernel) } else { alone }
    });
    let all: Vec<Behaviour> = every_fault.chain(BEHAVIOURS.iter().chain(OF_THIS_SYSTEM).copied()).collect();
    let chosen: Vec<(usize, Behaviour)> = all
        .into_iter()
        .enumerate()
        .filter(|(_, behaviour)| words.is_empty() || words.iter().any(|word| is_wanted(behaviour.name, word)))
        .collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(4);
    let workers = if is_emulated() { 1 } else { processors };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((number, behaviour)) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let verdict = match run(behaviour) {
                        Ok(None) => "ok".to_owned(),
                        Ok(Some(Skipped(why))) => format!("skipped: {why}"),
                        Err(error) => {
                            failed.lock().expect("no thread panicked").push(behaviour.name);
                            format!("FAILED\n      {error:#}")
                        }
                    };
                    println!("{number:03} {:32} {verdict}", behaviour.name);
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("no thread panicked");
    failed.sort_unstable();
    println!(
        "\n{} behaviours, {} failed{}{}",
        chosen.len(),
        failed.len(),
        if failed.is_empty() { "" } else { ": " },
        failed.join(", ")
    );
    if !failed.is_empty() {
        std::process::exit(1);
    }
}

/// Whether this program runs in an emulator.
fn is_emulated() -> bool {
    std::env::var_os("CORONER_TEST_EMULATED").is_some()
}

/// Runs one behaviour; `Some` where the system can't show it.
fn run(behaviour: &Behaviour) -> anyhow::Result<Option<Skipped>> {
    let emulated = std::env::var_os("CORONER_TEST_RUNNER").is_some();
    if emulated && behaviour.needs != Needs::Nothing {
        return Ok(Some(Skipped("not under an emulator".to_owned())));
    }
    // qemu can't create the process that bionic's handler needs for debuggerd, so the handler calls
    // `exit(1)`. Image lists are not read by loads there, so JIT code is not recognized.
    let not_on_its_android = ["fork-child", "jit-faults", "breakpad-before-first", "-then-fpe"];
    let is_shown = |word: &&str| !behaviour.name.contains(word) && !behaviour.fault.contains(word);
    if emulated && cfg!(target_os = "android") && !not_on_its_android.iter().all(is_shown) {
        return Ok(Some(Skipped("not under an emulator".to_owned())));
    }
    // When a program opens /proc/self/maps, qemu writes its own version to a file, which raises
    // SIGXFSZ.
    if emulated && behaviour.conditions.contains(&"no-file-size") {
        return Ok(Some(Skipped("not under an emulator".to_owned())));
    }
    if behaviour.fault != "two-threads" {
        return run_once(behaviour, &mut 0);
    }
    // Two threads crash at the same moment. The second may be stopped before its fault, which is
    // likely on a busy machine. Every report has both threads; one must contain the second's fault.
    let mut seconds = 0;
    for times in 1..=200 {
        if let Some(skipped) = run_once(behaviour, &mut seconds)? {
            return Ok(Some(skipped));
        }
        // A run takes seconds under an emulator.
        if (seconds > 0 && times >= 6) || (is_emulated() && times >= 3) {
            return Ok(None);
        }
    }
    bail!("in 200 runs no concurrent crash was seen")
}

fn run_once(behaviour: &Behaviour, seconds: &mut usize) -> anyhow::Result<Option<Skipped>> {
    let folder = tempfile::tempdir()?;
    let disk = match behaviour.needs {
        Needs::SmallDisk => match SmallDisk::mount(folder.path().join("disk")) {
            Ok(disk) => Some(disk),
            Err(error) => return Ok(Some(Skipped(format!("no small disk: {error:#}")))),
        },
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Needs::BlockedPage if !coroner_tests::blocked_page::can_block() => {
            return Ok(Some(Skipped("no right to use userfaultfd".to_owned())));
        }
        Needs::Namespace if !may_unshare() => {
            return Ok(Some(Skipped("no right to create a PID namespace".to_owned())));
        }
        _ => None,
    };
    let store = disk.as_ref().map_or_else(|| folder.path().join("store"), |disk| disk.0.join("store"));
    let process = Run {
        program: Path::new(env!("CARGO_BIN_EXE_crash_program")),
        fault: behaviour.fault,
        threads: behaviour.threads,
        conditions: behaviour.conditions,
        first_process: behaviour.needs == Needs::Namespace,
    };
    // Without Coroner there is no store to fill and nothing to call.
    let only_with = [
        "full-disk",
        "ignore-next-signal",
        "chain-first",
        "silent-fork",
        "reinstall-handlers",
        "reinstalled",
        "descriptors-closed",
        "descriptors-closed-in-a-loop",
        "descriptors-replaced",
    ];
    let without: Vec<&str> =
        behaviour.conditions.iter().copied().filter(|condition| !only_with.contains(condition)).collect();
    let before = Run { conditions: &without, ..process.clone() }.run(None).context("without Coroner")?;
    let after = process.run(Some(&store)).context("with Coroner")?;
    *seconds += check(behaviour, &before, &after, &store).with_context(|| {
        format!("it ended with {} after {:?}; output: {:?}", after.status, after.time, after.output)
    })?;
    Ok(None)
}

/// Checks that the next launch delivers a report of the crash, even if only of the crash record.
/// Returns the number of reports.
fn next_launch_reports(behaviour: &Behaviour, store: &Path) -> anyhow::Result<usize> {
    let launch = Run {
        program: Path::new(env!("CARGO_BIN_EXE_crash_program")),
        fault: "deliver",
        threads: 0,
        conditions: &[],
        first_process: false,
    };
    let ended = launch.run(Some(store)).context("the next launch")?;
    ensure!(ended.output.contains("crashed"), "unexpected output of the next launch: {:?}", ended.output);
    let entries = std::fs::read_dir(store.join("reports")).context("the reports")?.flatten();
    let json: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    let [path] = &json[..] else { bail!("expected one report, got {}", json.len()) };
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let Some(Ending::Signal(number)) = find_fault(behaviour.fault).map(|fault| fault.ending) else {
        bail!("{} does not end with one signal", behaviour.fault)
    };
    // A process that ends with `_exit` leaves only the record.
    let is_whole = ["jit-crash-aborts", "jit-crash-exits", "handler-exits"];
    ensure!(
        !behaviour.conditions.iter().any(|condition| is_whole.contains(condition)) || report["complete"] == true,
        "the report is incomplete"
    );
    let signal = &report["crash"]["signal"]["number"];
    ensure!(*signal == number, "unexpected crash in the report: {}", report["crash"]);
    Ok(1)
}

/// Returns the app's own output. bionic's lines about a crash contain the thread's id.
fn app_output(ended: &Ended) -> &str {
    if cfg!(target_os = "android") { ended.output.split("libc: ").next().unwrap_or_default() } else { &ended.output }
}

fn check(behaviour: &Behaviour, before: &Ended, after: &Ended, store: &Path) -> anyhow::Result<usize> {
    ensure!(after.status.code() != Some(POISONED_EXIT), "the crash path allocated memory");
    let same = (before.status.code(), before.status.signal()) == (after.status.code(), after.status.signal());
    // The first process of a namespace can't be killed by a signal that it sends itself; what a
    // bare program does then (the C library's abort executes `hlt`) is accidental. With Coroner it
    // exits with a shell's status for the signal.
    let signal = find_fault(behaviour.fault).map(|fault| fault.ending);
    let same = same
        || (behaviour.needs == Needs::Namespace
            && matches!(signal, Some(Ending::Signal(number) | Ending::Either(number, _)) if after.status.code() == Some(128 + number)));
    // On some processors, unaligned accesses of the earlier handler (Rust's own) are faults then
    // too; with Coroner the process dies of the original fault.
    let same = same
        || (behaviour.fault == "alignment-check"
            && matches!(signal, Some(Ending::Either(_, number)) if after.status.signal() == Some(number)));
    ensure!(same, "without Coroner the process ends with {}", before.status);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    coroner_tests::descriptors::files_are_untouched(store)?;
    if behaviour.conditions.contains(&"descriptors-replaced-by-pipes") {
        ensure!(app_output(before) == app_output(after), "unexpected data in the app's pipes");
    }
    if behaviour.conditions.iter().any(|condition| condition.contains("-port")) {
        ensure!(after.output.starts_with("earlier port: exception 1 code "), "the earlier port received nothing");
        ensure!(
            app_output(before) == app_output(after),
            "without Coroner the earlier port receives {:?}",
            before.output
        );
    }
    if behaviour.conditions.contains(&"exiting-handler") {
        ensure!(after.status.code() == Some(HANDLER_EXIT), "the earlier handler did not end the process");
        ensure!(
            app_output(before) == app_output(after),
            "without Coroner the earlier handler receives {:?}",
            before.output
        );
    }
    if behaviour.conditions.iter().any(|condition| condition.contains("breakpad")) {
        ensure!(
            app_output(before) == app_output(after),
            "without Coroner the other reporter prints {:?}",
            before.output
        );
    }
    if behaviour.expect == Expect::CrashRecord {
        return next_launch_reports(behaviour, store);
    }
    let files = report_files(store)?;
    let found = reports(store)?;
    if matches!(behaviour.expect, Expect::Nothing) {
        ensure!(found.is_empty(), "unexpected reports: {files:?}");
        return Ok(0);
    }
    let found = match found.last() {
        Some(last) if behaviour.expect == Expect::LastReport => std::slice::from_ref(last),
        _ => &found[..],
    };
    let [report] = found else { bail!("expected one report, got {}: {files:?}", found.len()) };
    let fault: &Fault = find_fault(behaviour.fault).context("no such fault")?;
    if let Ending::Child(signal) = fault.ending {
        let expected = format!("child ended by signal {signal}");
        ensure!(after.output.contains(&expected), "the child did not end with signal {signal}");
    }
    match behaviour.expect {
        Expect::ReportAndSurvival => {
            ensure!(after.status.success(), "the process did not continue");
            report_is_right(report, fault, behaviour.threads)
        }
        Expect::CrashRecord => unreachable!("checked above"),
        Expect::SignalAndRegisters => signal_and_registers_are_right(report, fault),
        Expect::ThreadsLeftOut => {
            let end = report.end.as_ref().context("the report has no end record")?;
            let left_out: u64 = end.dropped.iter().map(|dropped| dropped.count).sum();
            ensure!(!report.complete && end.threads > behaviour.threads as u64, "{end:?}");
            ensure!(left_out > 0 && end.threads_captured + left_out == end.threads, "{end:?}");
            signal_and_registers_are_right(report, fault)
        }
        Expect::ReportOfOne => {
            report_is_right(report, fault, 0).or_else(|error| {
                let why = report.threads.iter().filter(|thread| thread.not_captured.is_some()).count();
                // The report records what it leaves out.
                if why == behaviour.threads { Ok(()) } else { Err(error) }
            })
        }
        // A forked child has no other threads.
        _ if matches!(fault.ending, Ending::Child(_)) => report_is_right(report, fault, 0),
        _ => report_is_right(report, fault, behaviour.threads),
    }?;
    Ok(report.crash.as_ref().map_or(0, |crash| crash.concurrent_crashes.len()))
}

/// A file system of a few megabytes, gone when dropped.
struct SmallDisk(PathBuf);

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl SmallDisk {
    fn mount(_: PathBuf) -> anyhow::Result<SmallDisk> {
        bail!("it is mounted on Linux only")
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl SmallDisk {
    fn mount(at: PathBuf) -> anyhow::Result<SmallDisk> {
        std::fs::create_dir(&at)?;
        let target = std::ffi::CString::new(at.as_os_str().as_encoded_bytes())?;
        // SAFETY: all strings end in NUL and outlive the call.
        let failed =
            unsafe { libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=4m".as_ptr().cast()) };
        ensure!(failed == 0, "{}", std::io::Error::last_os_error());
        Ok(SmallDisk(at))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Ok(target) = std::ffi::CString::new(self.0.as_os_str().as_encoded_bytes()) {
            // SAFETY: the string ends in NUL.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn may_unshare() -> bool {
    let command = std::process::Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    command.is_ok_and(|output| output.status.success())
}
