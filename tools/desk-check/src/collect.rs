//! Runs `coroner collect` as this machine's core_pattern handler on programs without Coroner.
//!
//! `kernel.core_pattern` is shared by all containers and namespaces of a machine, so this part runs
//! only on request, one at a time, and a shell restores the pattern whatever happens to this
//! program.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Desk, Row};
use toolbox::tools;

const PART: &str = "collect";
const PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Time limit of a report.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Other projects' programs, each with the arguments that crash it, and the signal.
const PROGRAMS: [(&str, &[&str], &str); 4] = [
    ("bash", &["-c", "kill -SEGV $$"], "SIGSEGV"),
    ("python3", &["-c", "import ctypes; ctypes.string_at(0)"], "SIGSEGV"),
    ("sqlite3", &[":memory:", ".shell kill -ABRT $PPID"], "SIGABRT"),
    ("perl", &["-e", "kill 'BUS', $$; sleep 1"], "SIGBUS"),
];

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !desk.change_core_pattern {
        eprintln!(
            "collect: skipped: it changes the machine's `kernel.core_pattern`; ask for it with --change-core-pattern"
        );
        return Ok(Vec::new());
    }
    let _one = lock()?;
    // The kernel's paths are short, and its user must have access to this one.
    let folder = tempfile::Builder::new().prefix("coroner-").permissions(permissions()).tempdir_in("/run")?;
    let command = folder.path().join("coroner");
    std::fs::copy(&desk.coroner, &command).context("copying the command")?;
    let mut rows = Vec::new();
    let store = folder.path().join("pipe");
    let pattern = format!("|{} collect %P %u %g %t %d --store {}", command.display(), store.display());
    ensure!(pattern.len() < 128, "the kernel accepts no pattern of {} bytes", pattern.len());
    rows.extend(deaths("pipe", &pattern, &command, &store)?);
    // Use the socket, if the kernel supports it.
    let (store, socket) = (folder.path().join("socket"), folder.path().join("s"));
    let mut listener = Command::new(&command)
        .args(["collect", "--listen"])
        .arg(&socket)
        .arg("--store")
        .arg(&store)
        .stdin(Stdio::null())
        .spawn()
        .context("running coroner")?;
    let began = Instant::now();
    while !socket.exists() && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let found = deaths("socket", &format!("@@{}", socket.display()), &command, &store);
    let _ = listener.kill();
    let _ = listener.wait();
    rows.extend(found?);
    Ok(rows)
}

fn permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}

/// Locks out other processes that change the pattern.
fn lock() -> anyhow::Result<File> {
    let file =
        File::create("/run/lock/coroner-core-pattern").or_else(|_| File::create("/tmp/coroner-core-pattern.lock"))?;
    file.lock().context("waiting for others that change kernel.core_pattern")?;
    Ok(file)
}

/// The changed pattern, which is restored when this is dropped.
struct Changed(Child);

impl Changed {
    /// `None` if the kernel rejects the pattern.
    fn to(pattern: &str) -> anyhow::Result<Option<Changed>> {
        let before = std::fs::read_to_string(PATTERN).context(PATTERN)?;
        // The shell restores the pattern when its input ends: when this program requests it or
        // ends.
        let script = r#"trap '' INT TERM HUP; printf '%s' "$2" > "$1" || exit 1; echo changed; read -r end; printf '%s' "$3" > "$1""#;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", PATTERN, pattern, before.trim_end()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("running sh")?;
        let mut printed = [0; 8];
        let out = child.stdout.as_mut().context("its output")?;
        if std::io::Read::read_exact(out, &mut printed).is_err() {
            child.wait()?;
            return Ok(None);
        }
        Ok(Some(Changed(child)))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"end\n");
        }
        let _ = self.0.wait();
    }
}

fn deaths(way: &str, pattern: &str, command: &Path, store: &Path) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let Some(changed) = Changed::to(pattern)? else {
        eprintln!("collect: skipped: this kernel doesn't accept `{pattern}`");
        return Ok(rows);
    };
    let mut dead = Vec::new();
    for (program, arguments, signal) in PROGRAMS {
        if !tools::on_path(program) {
            continue;
        }
        let began = Instant::now();
        let child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("running {program}"))?;
        let pid = child.id();
        let status = { child }.wait()?;
        dead.push((program, signal, pid, status, began.elapsed()));
    }
    // With a pipe the kernel does not wait for its reader.
    let began = Instant::now();
    while reports(store).len() < dead.len() && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(changed);
    let reports = reports(store);
    for (program, signal, pid, status, took) in dead {
        let report = reports.iter().find(|(_, report)| report["header"]["pid"] == pid);
        let (is_right, seen) = match report {
            None => (false, format!("no report: {status}")),
            Some((path, report)) => {
                let output = Command::new(command).arg("show").arg(path).env_remove("DEBUGINFOD_URLS").output()?;
                let text = String::from_utf8_lossy(&output.stdout);
                let name = report["crash"]["signal"]["name"].as_str().unwrap_or("?");
                let frames = report["threads"][0]["frames"].as_array().map_or(0, Vec::len);
                let right = name == signal && frames > 3 && output.status.success();
                (
                    right,
                    format!(
                        "{name}, {frames} frames, {:.2} s: {}",
                        took.as_secs_f64(),
                        text.lines().next().unwrap_or("")
                    ),
                )
            }
        };
        let seen: String = seen.chars().take(140).collect();
        rows.push(Row::new(PART, &format!("{program} dies, {way}"), format!("a report of {signal}"), seen, is_right));
    }
    let current = std::fs::read_to_string(PATTERN).context(PATTERN)?;
    rows.push(Row::new(PART, "the pattern is restored", "yes", current.trim(), current.trim() != pattern));
    Ok(rows)
}

/// Returns the reports of all users.
fn reports(store: &Path) -> Vec<(PathBuf, Value)> {
    let below =
        |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let files = below(store.to_owned()).flat_map(|user| below(user.join("reports")));
    let read = |path: PathBuf| Some((path.clone(), serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?));
    files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).filter_map(read).collect()
}
