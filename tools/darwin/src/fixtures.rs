//! The programs in `fixtures/darwin`, with their expected output and exit.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::{
    Row,
    kit::{Arch, Kit, target_folder},
};

/// Time limit of a program.
const TIMEOUT: Duration = Duration::from_mins(3);

/// A program's expected exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Status(i32),
    /// A signal, by its Linux number, which the host's own process dies of.
    Signal(i32),
    /// The host refuses, with a message that contains this.
    Refused(&'static str),
}

/// darwin-host's exit status when it refuses.
const REFUSED: i32 = 118;
const SIGILL: i32 = 4;
const SIGTRAP: i32 = 5;
const SIGABRT: i32 = 6;
/// Linux's number; Darwin's is 10.
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGSEGV: i32 = 11;

/// Fixtures that other programs load.
pub(super) const LIBRARIES: [&str; 2] = ["library.c", "plugin.c"];

/// A program to run: its source, arguments, expected output and exit.
struct Case {
    source: &'static str,
    arguments: &'static [&'static str],
    says: &'static str,
    ending: Ending,
    /// Only on one architecture, if the other doesn't have the fault.
    only: Option<Arch>,
}

const fn case(source: &'static str, says: &'static str, ending: Ending) -> Case {
    Case { source, arguments: &[], says, ending, only: None }
}

/// A crash by `endings.c`.
const fn death(arguments: &'static [&'static str; 1], signal: i32) -> Case {
    Case { source: "endings.c", arguments, says: "", ending: Ending::Signal(signal), only: None }
}

/// A refusal by the host, by `unknown.c`.
const fn refusal(arguments: &'static [&'static str; 1], why: &'static str) -> Case {
    Case { source: "unknown.c", arguments, says: "", ending: Ending::Refused(why), only: None }
}

/// The cases. The exits are macOS's.
///
/// They depend on which exception a fault is, and which signal an unhandled exception becomes (for
/// sources see darwin-host's `signals::faults`).
const CASES: &[Case] = &[
    Case { source: "hello.c", arguments: &["you"], says: "hello you\n", ending: Ending::Status(3), only: None },
    case("std.rs", "std is right\n", Ending::Status(0)),
    case("memory.c", "memory and ports are right\n", Ending::Status(0)),
    case("threads.c", "threads are right\n", Ending::Status(0)),
    case("images.c", "images are right\n", Ending::Status(0)),
    case("signals.c", "signals are right\n", Ending::Signal(SIGABRT)),
    case("exceptions.c", "exceptions are right\n", Ending::Signal(SIGSEGV)),
    case("monitor.c", "the monitor is right\n", Ending::Signal(SIGSEGV)),
    refusal(&["import"], "_setutxent"),
    refusal(&["flavor"], "DEBUG_STATE64"),
    refusal(&["message"], "id 3402"),
    death(&["null-store"], SIGSEGV),
    death(&["bad-pointer"], SIGSEGV),
    death(&["non-canonical"], SIGSEGV),
    death(&["read-only"], SIGBUS),
    death(&["jump-null"], SIGSEGV),
    death(&["no-execute"], SIGBUS),
    // On x86_64 a general protection fault, which is EXC_BAD_ACCESS; on arm64 an undefined
    // instruction.
    Case { only: Some(Arch::X86_64), ..death(&["privileged"], SIGSEGV) },
    Case { only: Some(Arch::Arm64), ..death(&["privileged"], SIGILL) },
    death(&["undefined"], SIGILL),
    death(&["trap"], SIGTRAP),
    death(&["abort"], SIGABRT),
    // ux_exception recognizes the main thread's guard page; other threads' are just inaccessible
    // pages.
    death(&["overflow"], SIGSEGV),
    death(&["overflow-thread"], SIGBUS),
    // arm64 divides by zero without a fault.
    Case { only: Some(Arch::X86_64), ..death(&["divide"], SIGFPE) },
];

/// Runs a command with a deadline; returns standard output, standard error and the status.
fn output(command: &mut Command) -> anyhow::Result<(String, String, Option<ExitStatus>)> {
    let folder = target_folder();
    let files = [folder.join("stdout"), folder.join("stderr")];
    let mut child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&files[0])?)
        .stderr(fs::File::create(&files[1])?)
        .spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if began.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((read(&files[0])?, read(&files[1])?, status))
}

/// Compares a program's output and exit with the case.
fn judge(case: &Case, stdout: &str, stderr: &str, status: Option<ExitStatus>) -> Result<(), String> {
    let Some(status) = status else { return Err(format!("still running after {} s", TIMEOUT.as_secs())) };
    let right = match case.ending {
        Ending::Status(code) => status.code() == Some(code),
        Ending::Signal(signal) => status.signal() == Some(signal),
        Ending::Refused(why) => status.code() == Some(REFUSED) && stderr.contains(why),
    };
    let printed = if stdout.is_empty() { stderr.trim() } else { stdout.trim() };
    if !right {
        return Err(format!("unexpected exit: expected {:?}, got {status}; output: {printed}", case.ending));
    }
    if stdout == case.says {
        Ok(())
    } else {
        Err(format!("unexpected output: expected {:?}, got {stdout:?}", case.says))
    }
}

/// Builds and runs the fixtures of one architecture.
pub(super) fn run(kit: &Kit, only: Option<&str>) -> anyhow::Result<Vec<Row>> {
    let arch = kit.arch;
    let libraries = LIBRARIES.iter().map(|source| kit.build(source)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut built: Vec<(&str, PathBuf)> = Vec::new();
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|c| c.only.is_none_or(|a| a == arch)) {
        let program = [&[case.source], case.arguments].concat().join(" ");
        if only.is_some_and(|only| !program.contains(only)) {
            continue;
        }
        if built.iter().all(|(source, _)| *source != case.source) {
            built.push((case.source, kit.build(case.source)?));
        }
        let Some((_, path)) = built.iter().find(|(source, _)| *source == case.source) else { continue };
        rows.push(Row::new(program, arch, || {
            let mut command = kit.run(path);
            command.args(case.arguments);
            match case.source {
                "images.c" => command.args(&libraries),
                "monitor.c" => command.args(&libraries[1..]),
                _ => &mut command,
            };
            let (stdout, stderr, status) = output(&mut command)?;
            judge(case, &stdout, &stderr, status).map_err(anyhow::Error::msg)
        }));
    }
    Ok(rows)
}
