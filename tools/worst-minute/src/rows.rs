//! The matrix.

use std::fmt;

use super::End;
use super::environment::Environment;
use super::neighbour::Neighbour;

/// A row's expectation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    /// This exit, one complete report of that signal, and the outcome "crashed" at the next launch.
    Crash {
        /// The process's exit, the same as without Coroner.
        ends: End,
        /// The report's signal.
        signal: i32,
    },
    /// Like `Crash`, after reports of non-fatal faults.
    ///
    /// These precede the point at which the handler is known to handle them.
    LastCrash {
        /// The process's exit.
        ends: End,
        /// The last report's signal.
        signal: i32,
    },
    /// This exit, and the outcome "crashed" at the next launch, which finds only the crash record.
    Recorded(End),
    /// This exit, no report, and this outcome at the next launch.
    Unreported(End, &'static str),
    /// A clean exit, no crash report, and the outcome "clean" at the next launch.
    NoCrash,
}

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Crash { ends, signal } => {
                write!(
                    out,
                    "{ends:?}, one complete report of signal {signal}, and a next launch that reports the crash"
                )
            }
            Expected::LastCrash { ends, signal } => {
                write!(
                    out,
                    "{ends:?}, a complete last report of signal {signal}, and a next launch that reports the crash"
                )
            }
            Expected::Recorded(ends) => write!(out, "{ends:?}, and a next launch that reports the crash"),
            Expected::Unreported(ends, words) => write!(out, "{ends:?}, no report, and {words:?} at the next launch"),
            Expected::NoCrash => write!(out, "exit 0, no crash report, and a clean outcome at the next launch"),
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub name: &'static str,
    /// A fault of `coroner-faults`, or one of the neighbour's scripts.
    ///
    /// Conditions of `crash_program` may follow a fault.
    pub fault: &'static [&'static str],
    pub environment: Environment,
    pub neighbour: Neighbour,
    pub expected: Expected,
}

const SEGV: Expected = Expected::Crash { ends: End::Signal(libc::SIGSEGV), signal: libc::SIGSEGV };
const NO_ROOM: Expected = Expected::Unreported(End::Signal(libc::SIGSEGV), "first launch");
const ABRT: Expected = Expected::Crash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGABRT };
/// The exit of a PID namespace's first process, which its own signals can't kill.
///
/// It is the status that a shell reports for a child killed by the signal.
const SEGV_AS_EXIT: Expected = Expected::Crash { ends: End::Exit(128 + libc::SIGSEGV), signal: libc::SIGSEGV };
const ABRT_AS_EXIT: Expected = Expected::Crash { ends: End::Exit(128 + libc::SIGABRT), signal: libc::SIGABRT };

const LAST_ABRT: Expected = Expected::LastCrash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGABRT };
const LAST_FPE: Expected = Expected::LastCrash { ends: End::Signal(libc::SIGFPE), signal: libc::SIGFPE };
/// The exit if a handler that is called first ends the process.
///
/// The report is that of the fault that the handler was called for.
const SEGV_AS_ABORT: Expected = Expected::Crash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGSEGV };
const SEGV_AS_EXIT_42: Expected = Expected::Crash { ends: End::Exit(42), signal: libc::SIGSEGV };

const fn alone(
    name: &'static str,
    fault: &'static [&'static str],
    environment: Environment,
    expected: Expected,
) -> Row {
    Row { name, fault, environment, neighbour: Neighbour::None, expected }
}

const fn beside(neighbour: Neighbour, name: &'static str, fault: &'static [&'static str], expected: Expected) -> Row {
    Row { name, fault, environment: Environment::Plain, neighbour, expected }
}

/// All rows.
pub(super) const ROWS: &[Row] = &[
    alone("plain", &["null-store"], Environment::Plain, SEGV),
    alone("quick-exit", &["quick-exit"], Environment::Plain, Expected::NoCrash),
    alone("handled-errors-go-unnoticed", &["handled-errors"], Environment::Plain, Expected::NoCrash),
    alone("handled-errors-unprivileged", &["handled-errors"], Environment::Unprivileged, Expected::NoCrash),
    alone(
        "handled-errors-in-pid-1",
        &["handled-errors", "c-dispositions"],
        Environment::FirstProcess,
        Expected::NoCrash,
    ),
    alone("handled-errors-without-proc", &["handled-errors"], Environment::NoProc, Expected::NoCrash),
    alone("handled-errors-read-only-root", &["handled-errors"], Environment::ReadOnlyRoot, Expected::NoCrash),
    alone("handled-errors-small-disk", &["handled-errors"], Environment::SmallDisk, Expected::NoCrash),
    alone("handled-errors-no-queue", &["handled-errors"], Environment::NoPendingSignals, Expected::NoCrash),
    alone("handled-errors-jit-faults", &["handled-errors", "jit-faults"], Environment::Plain, Expected::NoCrash),
    alone(
        "handled-errors-crash-handler",
        &["handled-errors", "crash-handler-after"],
        Environment::Plain,
        Expected::NoCrash,
    ),
    alone("handled-errors-breakpad", &["handled-errors", "breakpad-before"], Environment::Plain, Expected::NoCrash),
    alone("live-backtraces-go-unnoticed", &["live-backtraces"], Environment::Plain, Expected::NoCrash),
    alone("live-backtraces-unprivileged", &["live-backtraces"], Environment::Unprivileged, Expected::NoCrash),
    alone(
        "live-backtraces-in-pid-1",
        &["live-backtraces", "c-dispositions"],
        Environment::FirstProcess,
        Expected::NoCrash,
    ),
    alone("pid-1", &["null-store", "c-dispositions"], Environment::FirstProcess, SEGV_AS_EXIT),
    alone("pid-1-abort", &["abort", "c-dispositions"], Environment::FirstProcess, ABRT_AS_EXIT),
    // The kernel does not end a namespace's first process by an unhandled signal
    // (pid_namespaces(7)).
    alone("pid-1-terminate", &["terminate", "c-dispositions"], Environment::FirstProcess, Expected::NoCrash),
    alone("no-proc", &["null-store"], Environment::NoProc, SEGV),
    alone("no-proc-abort", &["abort"], Environment::NoProc, ABRT),
    alone("read-only-root", &["null-store"], Environment::ReadOnlyRoot, SEGV),
    alone("small-disk", &["null-store"], Environment::SmallDisk, SEGV),
    alone("small-disk-full-at-crash", &["null-store", "full-disk"], Environment::SmallDisk, SEGV),
    alone("full-disk-at-launch", &["null-store", "room-again"], Environment::FullDisk, SEGV),
    // Without room for a report, none is written (docs/limits.md).
    alone("full-disk-to-the-end", &["null-store"], Environment::FullDisk, NO_ROOM),
    alone("tiny-disk", &["null-store"], Environment::TinyDisk, SEGV),
    alone("no-inodes-at-crash", &["null-store", "no-inodes"], Environment::FewInodes, SEGV),
    alone("few-descriptors", &["null-store"], Environment::FewDescriptors, SEGV),
    alone("6-descriptors", &["null-store", "6-descriptors"], Environment::Plain, SEGV),
    alone("6-descriptors-abort", &["abort", "6-descriptors"], Environment::Plain, ABRT),
    // With this limit not even a run's files can be created (docs/limits.md).
    alone("5-descriptors", &["null-store", "5-descriptors"], Environment::Plain, NO_ROOM),
    alone(
        "4-descriptors",
        &["null-store", "4-descriptors"],
        Environment::Plain,
        Expected::Unreported(End::Exit(101), "first launch"),
    ),
    alone("uninstalled-meanwhile", &["null-store", "uninstalled-meanwhile"], Environment::Plain, SEGV),
    alone("uninstalled-meanwhile-abort", &["abort", "uninstalled-meanwhile"], Environment::Plain, ABRT),
    alone(
        "reinstalled-often-and-uninstalled-meanwhile",
        &["null-store", "reinstalled-often", "uninstalled-meanwhile"],
        Environment::Plain,
        SEGV,
    ),
    alone("no-pending-signals", &["null-store"], Environment::NoPendingSignals, SEGV),
    alone("unprivileged-user", &["null-store"], Environment::Unprivileged, SEGV),
    alone("unprivileged-user-overflow", &["stack-overflow-pthread"], Environment::Unprivileged, SEGV),
    alone("system-service-fails", &["null-store"], Environment::SystemServiceFails, SEGV),
    alone("system-service-kills", &["null-store"], Environment::SystemServiceKills, SEGV),
    alone("system-service-kills-abort", &["abort"], Environment::SystemServiceKills, ABRT),
    alone("chromium-renderer", &["null-store", "renderer-filter"], Environment::Plain, SEGV),
    alone("chromium-renderer-abort", &["abort", "renderer-filter"], Environment::Plain, ABRT),
    alone("chromium-renderer-overflow", &["stack-overflow-pthread", "renderer-filter"], Environment::Plain, SEGV),
    alone("chromium-renderer-ends", &["exit", "renderer-filter"], Environment::Plain, Expected::NoCrash),
    alone("chromium-renderer-forbidden-call", &["exit", "renderer-filter", "forbidden-call"], Environment::Plain, SEGV),
    // Programs that handle faults, a thousand times each.
    alone("broker-then-crash", &["null-store", "seccomp-broker"], Environment::Plain, SEGV),
    alone("broker-first-then-crash", &["null-store", "seccomp-broker", "chain-first"], Environment::Plain, SEGV),
    alone("broker", &["exit", "seccomp-broker"], Environment::Plain, Expected::NoCrash),
    alone("repaired-then-abort", &["abort", "repaired-faults"], Environment::Plain, LAST_ABRT),
    alone("left-then-abort", &["abort", "left-faults"], Environment::Plain, LAST_ABRT),
    alone("repaired-then-fpe", &["raise-fpe", "repaired-faults"], Environment::Plain, LAST_FPE),
    alone("left-then-fpe", &["raise-fpe", "left-faults"], Environment::Plain, LAST_FPE),
    alone("jit-faults", &["exit", "jit-faults"], Environment::Plain, Expected::NoCrash),
    alone("jit-faults-then-crash", &["null-store", "jit-faults"], Environment::Plain, SEGV),
    alone("jit-crash-aborts", &["null-store", "jit-crash-aborts"], Environment::Plain, SEGV_AS_ABORT),
    alone("jit-crash-exits", &["null-store", "jit-crash-exits"], Environment::Plain, SEGV_AS_EXIT_42),
    alone(
        "jit-crash-ends-at-once",
        &["null-store", "jit-crash-ends-at-once"],
        Environment::Plain,
        Expected::Recorded(End::Exit(42)),
    ),
    alone("handler-exits", &["null-store", "handler-exits"], Environment::Plain, SEGV_AS_EXIT_42),
    alone("handler-exits-first", &["null-store", "handler-exits", "chain-first"], Environment::Plain, SEGV_AS_EXIT_42),
    // Handlers installed later, as by redis and other reporters.
    alone(
        "handler-after",
        &["null-store", "handler-after"],
        Environment::Plain,
        Expected::Unreported(End::Signal(libc::SIGSEGV), "signal 11 is now handled by "),
    ),
    alone(
        "handler-after-reinstalled",
        &["null-store", "handler-after", "reinstall-handlers"],
        Environment::Plain,
        SEGV,
    ),
    alone("crash-handler-before", &["null-store", "crash-handler-before"], Environment::Plain, SEGV),
    alone("crash-handler-after", &["null-store", "crash-handler-after"], Environment::Plain, SEGV),
    alone("crash-handler-before-abort", &["abort", "crash-handler-before"], Environment::Plain, ABRT),
    alone("crash-handler-after-abort", &["abort", "crash-handler-after"], Environment::Plain, ABRT),
    alone("breakpad-before", &["null-store", "breakpad-before"], Environment::Plain, SEGV),
    alone("breakpad-after", &["null-store", "breakpad-after"], Environment::Plain, SEGV),
    alone("breakpad-before-abort", &["abort", "breakpad-before"], Environment::Plain, ABRT),
    alone("breakpad-after-abort", &["abort", "breakpad-after"], Environment::Plain, ABRT),
    beside(Neighbour::C, "c-host", &["crash"], SEGV),
    beside(
        Neighbour::C,
        "c-host-unloads",
        &["unload"],
        Expected::Unreported(End::Signal(libc::SIGTERM), "was terminated (SIGTERM)"),
    ),
    beside(Neighbour::C, "c-host-handled-errors", &["errors"], Expected::NoCrash),
    // AddressSanitizer prints its report and exits.
    beside(
        Neighbour::AddressSanitizer,
        "address-sanitizer",
        &["crash"],
        Expected::Crash { ends: End::Exit(1), signal: libc::SIGSEGV },
    ),
    beside(
        Neighbour::AddressSanitizer,
        "address-sanitizer-first",
        &["first", "crash"],
        Expected::Crash { ends: End::Exit(1), signal: libc::SIGSEGV },
    ),
    beside(Neighbour::AddressSanitizer, "address-sanitizer-handled-errors", &["errors"], Expected::NoCrash),
    beside(
        Neighbour::ExclusiveAddressSanitizer,
        "address-sanitizer-exclusive",
        &["crash"],
        Expected::Crash { ends: End::Exit(1), signal: libc::SIGSEGV },
    ),
    // Go prints that the fault was in C code, and exits.
    beside(Neighbour::Go, "go", &["crash"], Expected::Crash { ends: End::Exit(2), signal: libc::SIGSEGV }),
    beside(Neighbour::Go, "go-nil-pointers", &["nil-pointers", "end"], Expected::NoCrash),
    // The exit is not detected (docs/limits.md).
    beside(
        Neighbour::Go,
        "go-ends-unmarked",
        &[],
        Expected::Unreported(End::Exit(0), "the last run ended without a trace"),
    ),
    beside(Neighbour::Go, "go-handled-errors", &["errors", "end"], Expected::NoCrash),
    beside(
        Neighbour::Go,
        "go-nil-pointers-then-crash",
        &["nil-pointers", "crash"],
        Expected::Crash { ends: End::Exit(2), signal: libc::SIGSEGV },
    ),
    beside(Neighbour::Python, "python", &["crash"], SEGV),
    beside(Neighbour::Python, "python-faulthandler", &["faulthandler", "crash"], SEGV),
    beside(Neighbour::Python, "python-faulthandler-first", &["faulthandler", "first", "crash"], SEGV),
    beside(Neighbour::Python, "python-ends", &[], Expected::NoCrash),
    beside(Neighbour::Python, "python-handled-errors", &["errors"], Expected::NoCrash),
    beside(Neighbour::Wasmtime, "wasmtime-before", &["trap-before", "trap"], Expected::NoCrash),
    beside(Neighbour::Wasmtime, "wasmtime-before-then-crash", &["trap-before", "trap", "crash"], SEGV),
    beside(Neighbour::Wasmtime, "wasmtime-after", &["trap"], Expected::NoCrash),
    beside(Neighbour::Wasmtime, "wasmtime-after-then-crash", &["trap", "crash"], SEGV),
    beside(Neighbour::Node, "node", &["crash"], SEGV),
    beside(Neighbour::Node, "node-wasm-traps", &["traps"], Expected::NoCrash),
    beside(Neighbour::Node, "node-wasm-traps-then-crash", &["traps", "crash"], SEGV),
    beside(Neighbour::Node, "node-handled-errors", &["errors"], Expected::NoCrash),
    // HotSpot writes its own report and aborts.
    beside(
        Neighbour::Java,
        "java",
        &["crash"],
        Expected::Crash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGSEGV },
    ),
    beside(Neighbour::Java, "java-null-pointers", &["null-pointers"], Expected::NoCrash),
    beside(
        Neighbour::Java,
        "java-null-pointers-then-crash",
        &["null-pointers", "crash"],
        Expected::Crash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGSEGV },
    ),
    beside(Neighbour::Java, "java-stack-overflow-caught", &["overflow"], Expected::NoCrash),
    // Native code of an app's library touches its thread's guard pages, which HotSpot then opens.
    beside(Neighbour::Java, "java-stack-guard", &["guard"], Expected::NoCrash),
    beside(
        Neighbour::Java,
        "java-stack-guard-then-crash",
        &["guard", "crash"],
        Expected::Crash { ends: End::Signal(libc::SIGABRT), signal: libc::SIGSEGV },
    ),
    beside(Neighbour::Java, "java-handled-errors", &["errors"], Expected::NoCrash),
    beside(Neighbour::DotNet, "dotnet", &["crash"], SEGV),
    beside(Neighbour::DotNet, "dotnet-null-references", &["null-references"], Expected::NoCrash),
    beside(Neighbour::DotNet, "dotnet-null-references-then-crash", &["null-references", "crash"], SEGV),
    beside(Neighbour::DotNet, "dotnet-handled-errors", &["null-references", "errors"], Expected::NoCrash),
    // Mono describes the crash and aborts.
    beside(Neighbour::Mono, "mono", &["crash"], SEGV_AS_ABORT),
    beside(Neighbour::Mono, "mono-null-references", &["null-references"], Expected::NoCrash),
    beside(Neighbour::Mono, "mono-null-references-then-crash", &["null-references", "crash"], SEGV_AS_ABORT),
    beside(Neighbour::Mono, "mono-handled-errors", &["null-references", "errors"], Expected::NoCrash),
    // Its faults are handled; signals that it blocks while handling one stay blocked, regardless of
    // the stack of Coroner's handler.
    beside(Neighbour::Collector, "collector-then-fpe", &[], LAST_FPE),
    // Ruby describes the crash and aborts.
    beside(Neighbour::Ruby, "ruby", &["install", "crash"], SEGV_AS_ABORT),
    beside(Neighbour::Ruby, "ruby-kills-itself", &["install", "kill"], SEGV_AS_ABORT),
    beside(Neighbour::Ruby, "ruby-ends", &["install", "exceptions"], Expected::NoCrash),
    beside(Neighbour::Ruby, "ruby-handled-errors", &["install", "errors"], Expected::NoCrash),
    beside(Neighbour::RubyPreloaded, "ruby-preloaded", &["crash"], SEGV_AS_ABORT),
    beside(Neighbour::RubyPreloaded, "ruby-preloaded-kills-itself", &["kill"], SEGV_AS_ABORT),
    beside(Neighbour::RubyPreloaded, "ruby-preloaded-ends", &["exceptions"], Expected::NoCrash),
    beside(Neighbour::Redis, "redis", &[], Expected::Unreported(End::Signal(libc::SIGSEGV), " 11 are now handled by ")),
    beside(Neighbour::RedisReinstalled, "redis-reinstalled", &[], SEGV),
    // The script compares the reports with the crashes of the workers; the master ends cleanly.
    // nginx ignores SIGSYS, which the next launch adds.
    beside(Neighbour::Nginx, "nginx-workers", &[], Expected::Unreported(End::Exit(0), "the last run exited normally")),
    beside(Neighbour::PhpFpm, "php-fpm-workers", &[], Expected::NoCrash),
];
