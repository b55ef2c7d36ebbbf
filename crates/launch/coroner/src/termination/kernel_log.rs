//! What the kernel's log says of processes that it killed for want of memory (`dmesg`), where it may be read: mostly by root alone
//! (`kernel.dmesg_restrict`).

use coroner_report::model::RunFacts;

/// `SYSLOG_ACTION_READ_ALL` and `SYSLOG_ACTION_SIZE_BUFFER` of syslog(2).
const READ_ALL: i32 = 3;
const SIZE_BUFFER: i32 = 10;
/// Longest log that is read, bytes.
const MAX: usize = 4 << 20;
/// The inode of the first pid namespace (`PROC_PID_INIT_INO` of include/linux/proc_ns.h): the log's process ids are those of it.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Microseconds of a tick of a process's start (`USER_HZ`).
const TICK: u64 = 10_000;

/// A process that the log says was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) pid: u32,
    /// What it says of it, without level and time.
    pub(super) line: String,
    name: String,
}

impl Victim {
    /// Whether it is of a program with that name, of which the kernel keeps 15 bytes.
    pub(super) fn is_of(&self, program: &str) -> bool {
        let bytes = program.as_bytes();
        self.name.as_bytes() == &bytes[..bytes.len().min(15)]
    }
}

/// Those of the time since a process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Victims {
    pub(super) victims: Vec<Victim>,
    /// The log goes back to that time.
    pub(super) is_whole: bool,
}

/// The victims since the start of the run's process; `None` if the log can't be read or says nothing of this run's process ids.
pub(super) fn victims(facts: &RunFacts, read: fn() -> Option<String>) -> Option<Victims> {
    let process = facts.process.as_ref()?;
    if process.pid_namespace != FIRST_PID_NAMESPACE || process.start == 0 {
        return None;
    }
    Some(victims_in(&read()?, process.start.saturating_mul(TICK)))
}

/// Those in a log since `start`, microseconds after boot. Its clock stands still while the machine sleeps, the other does not: what it says is
/// after `start` is so.
fn victims_in(log: &str, start: u64) -> Victims {
    let mut found = Victims::default();
    let mut is_first = true;
    for line in log.lines() {
        // `<4>[ 1234.567890] text`, and with `printk.time=0` no time.
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
        // A name may hold parentheses; what follows it begins so.
        let name = name.split_once(") total-vm").map_or(name, |(name, _)| name);
        if let Ok(pid) = pid.parse() {
            found.victims.push(Victim { pid, line: text.trim_end().to_owned(), name: name.to_owned() });
        }
    }
    found
}

/// Of seconds, such as `1234.567890`.
fn microseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let fraction =
        digits.map(|digit| char::from(digit).to_digit(10)).try_fold(0, |all, digit| Some(all * 10 + digit?))?;
    seconds.checked_mul(1_000_000)?.checked_add(fraction.into())
}

/// The log, as it is; `None` if this process may not read it.
pub(super) fn read() -> Option<String> {
    // SAFETY: without a buffer this only asks for the log's size.
    let size =
        usize::try_from(unsafe { libc::syscall(libc::SYS_syslog, SIZE_BUFFER, std::ptr::null_mut::<u8>(), 0) }).ok()?;
    let mut text = vec![0_u8; size.clamp(1, MAX)];
    // SAFETY: the kernel writes at most so many bytes into it.
    let length = unsafe { libc::syscall(libc::SYS_syslog, READ_ALL, text.as_mut_ptr(), text.len() as libc::c_int) };
    text.truncate(usize::try_from(length).ok().filter(|length| *length > 0)?);
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
