//! Child processes with a time limit, because a test under an emulator may hang forever.

use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The time limit of every child process.
///
/// None needs as much, not even a cold build on a busy machine (over 20 minutes were observed).
const MAX_TIME: Duration = Duration::from_mins(45);

/// Runs a command to its end, within [`MAX_TIME`].
///
/// # Errors
/// An error if the process can't be started, or timed out; then it and its descendants were killed.
pub fn status(command: &mut Command) -> io::Result<ExitStatus> {
    within(MAX_TIME, command)
}

fn within(longest: Duration, command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if began.elapsed() > longest {
            // Kill the outermost first, which would otherwise restart the others.
            let below = below(child.id());
            child.kill()?;
            for pid in below {
                // SAFETY: sends a signal. If the id belongs to another process by now, it was a
                // child's a moment ago; ids are not reused that fast.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            child.wait()?;
            let message = format!("it took longer than {} minutes and was killed", longest.as_secs() / 60);
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(100));
    }
}

/// Returns a process's descendants.
fn below(pid: u32) -> Vec<i32> {
    let mut all: Vec<(i32, i32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // proc(5): `pid (name) state ppid …`, and the name may contain anything.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        all.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![pid as i32];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_command_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sh -c 'echo $$ > {0}.new; mv {0}.new {0}; sleep 1000' & wait", file.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let error = within(Duration::from_secs(2), &mut command).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let began = Instant::now();
        // SAFETY: signal 0 only checks whether the process exists.
        while unsafe { libc::kill(pid, 0) } == 0 && !is_zombie(pid) {
            assert!(began.elapsed() < Duration::from_secs(30), "{pid} lives");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            within(MAX_TIME, Command::new("sh").args(["-c", "exit 3"])).is_ok_and(|status| status.code() == Some(3))
        );
    }

    fn is_zombie(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
