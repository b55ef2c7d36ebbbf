//! Reads the kernel's log of out-of-memory kills (`dmesg`).
//!
//! Usually only root can read it (`kernel.dmesg_restrict`).

use coroner_report::model::RunFacts;

/// `SYSLOG_ACTION_READ_ALL` and `SYSLOG_ACTION_SIZE_BUFFER` of syslog(2).
const READ_ALL: i32 = 3;
const SIZE_BUFFER: i32 = 10;
/// Maximum length of the log in bytes.
const MAX: usize = 4 << 20;
/// The inode of the first pid namespace (`PROC_PID_INIT_INO` of include/linux/proc_ns.h), to which
/// the log's process ids belong.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Microseconds per tick of a process's start time (`USER_HZ`).
const TICK: u64 = 10_000;

/// A process that was killed according to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) pid: u32,
    /// The log's message, without level and time.
    pub(super) line: String,
    name: String,
}

impl Victim {
    /// Whether the process belongs to a program with this name, of which the kernel keeps 15 bytes.
    pub(super) fn is_of(&self, program: &str) -> bool {
        let bytes = program.as_bytes();
        self.name.as_bytes() == &bytes[..bytes.len().min(15)]
    }
}

/// The victims since the start of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Victims {
    pub(super) victims: Vec<Victim>,
    /// Whether the log goes back to the process's start.
    pub(super) is_whole: bool,
}

/// Returns the victims since the start of the run's process; `None` if the log can't be read or
/// does not contain process ids of the run's namespace.
pub(super) fn victims(facts: &RunFacts, read: fn() -> Option<String>) -> Option<Victims> {
    let process = facts.process.as_ref()?;
    if process.pid_namespace != FIRST_PID_NAMESPACE || process.start == 0 {
        return None;
    }
    Some(victims_in(&read()?, process.start.saturating_mul(TICK)))
}

/// Returns the victims in a log since `start`, in microseconds after boot.
///
/// The log's clock stops while the machine sleeps, unlike the clock of `start`. So a message dated
/// after `start` was written after it.
fn victims_in(log: &str, start: u64) -> Victims {
    let mut found = Victims::default();
    let mut is_first = true;
    for line in log.lines() {
        // `<4>[ 1234.567890] text`, and without the time if `printk.time=0`.
        let line = line.split_once('>').filter(|(level, _)| level.starts_with('<')).map_or(line, |(_, rest)| rest);
        let Some((time, text)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) else { continue };
        let Some(time) = microseconds(time.split('T').next().unwrap_or_default().trim()) else { continue };
        if std::mem::take(&mut is_first) {
            found.is_whole = time <= start;
        }
        if time < start {
            continue;
        }
        // `Memory cgroup out of memory: Killed process 123 (name) total-vm:…`
        let Some((before, rest)) = text.split_once("Killed process ") else { continue };
        if !before.to_ascii_lowercase().contains("out of memory") {
            continue;
        }
        let Some((pid, name)) = rest.split_once(" (") else { continue };
        // The name may contain parentheses, so search for the beginning of the text after it.
        let name = name.split_once(") total-vm").map_or(name, |(name, _)| name);
        if let Ok(pid) = pid.parse() {
            found.victims.push(Victim { pid, line: text.trim_end().to_owned(), name: name.to_owned() });
        }
    }
    found
}

/// Converts seconds such as `1234.567890` to microseconds.
fn microseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let fraction =
        digits.map(|digit| char::from(digit).to_digit(10)).try_fold(0, |all, digit| Some(all * 10 + digit?))?;
    seconds.checked_mul(1_000_000)?.checked_add(fraction.into())
}

/// Reads the whole log; `None` if this process can't read it.
pub(super) fn read() -> Option<String> {
    // SAFETY: without a buffer, this only queries the log's size.
    let size =
        usize::try_from(unsafe { libc::syscall(libc::SYS_syslog, SIZE_BUFFER, std::ptr::null_mut::<u8>(), 0) }).ok()?;
    let mut text = vec![0_u8; size.clamp(1, MAX)];
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let length = unsafe { libc::syscall(libc::SYS_syslog, READ_ALL, text.as_mut_ptr(), text.len() as libc::c_int) };
    text.truncate(usize::try_from(length).ok().filter(|length| *length > 0)?);
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
