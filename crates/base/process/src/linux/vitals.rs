//! Measurements of a healthy process that can explain its end afterwards.
//!
//! Memory of the process and its cgroup, out-of-memory kills so far, pressure, processor time and
//! its limit, a debugger. Async-signal-safe: small files in `/proc` and the cgroup's directory,
//! read onto the stack.
//!
//! Only the difference of a counter is meaningful: counters are read while the process runs, and
//! again by a later launch.

use core::ffi::CStr;

use super::proc_files::{decimal, read_file};
use super::syscall::syscall;
use super::tracer;
use crate::files::{Descriptor, File, open, status};
use crate::path::PathOf;

/// Measurements of the process. See the module. Each is `None` if the system doesn't report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Bytes of physical memory that the process uses (`VmRSS` in proc_pid_status(5)).
    pub memory_used: Option<u64>,
    /// Result of [`debugged`].
    pub debugged: Option<bool>,
    /// `/proc/self/oom_score_adj`: from −1,000 (never chosen) to 1,000 (always chosen).
    pub oom_score_adj: Option<i16>,
    /// Memory pressure, in hundredths of a percent.
    ///
    /// The share of the last ten seconds in which some task waited for memory: `avg10` in the
    /// cgroup's `memory.pressure`, else in `/proc/pressure/memory`.
    pub memory_pressure: Option<u16>,
    /// Processes that the kernel has killed since boot because memory ran out.
    ///
    /// `oom_kill` in `/proc/vmstat`.
    pub machine_oom_kills: Option<u64>,
    /// Processor time that the process has used, in milliseconds.
    pub cpu_used_ms: Option<u64>,
    /// Hard limit of the processor time in seconds, at which the kernel kills the process.
    ///
    /// `RLIMIT_CPU`; `None` also for no limit.
    pub cpu_limit_s: Option<u64>,
    /// The process's memory cgroup.
    pub cgroup: Option<MemoryCgroup>,
}

/// The memory cgroup of a process, version 1 or 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCgroup {
    /// Inode of the cgroup's directory: a cgroup recreated under the same path has another.
    pub id: u64,
    /// Processes in or below the cgroup that were killed because memory ran out.
    ///
    /// `oom_kill` in `memory.events`, in version 1 in `memory.oom_control`.
    pub oom_kills: Option<u64>,
    /// Memory limit in bytes: `memory.max`, `memory.limit_in_bytes`; `None` also for no limit.
    pub limit: Option<u64>,
    /// Maximum memory used so far, in bytes: `memory.peak`, `memory.max_usage_in_bytes`.
    pub peak: Option<u64>,
    /// Number of times that the limit was reached: `max` in `memory.events`, `memory.failcnt`.
    pub limit_hits: Option<u64>,
    /// Number of processes in the cgroup, up to some hundred.
    pub processes: Option<u32>,
}

/// Whether a debugger traces the calling process (`TracerPid` in proc_pid_status(5)).
///
/// `None` if the system doesn't report it, or if it may be Coroner's own helper ([`tracer`]), which
/// reads one of its threads.
pub fn debugged() -> Option<bool> {
    let helpers = tracer::ended_helpers();
    is_debugged(read_into(Descriptor::WORKING_DIRECTORY, c"/proc/self/status", &mut [0; 2048]), helpers)
}

/// Evaluates `status`, which was read when `helpers` had exited.
fn is_debugged(status: &[u8], helpers: u32) -> Option<bool> {
    let is_traced = value(status, b"TracerPid:")?.trim_ascii() != b"0";
    (!is_traced || tracer::begun_helpers() == helpers).then_some(is_traced)
}

impl Vitals {
    /// Reads the current measurements of the calling process.
    pub fn read() -> Vitals {
        let mut text = [0; 2048];
        let helpers = tracer::ended_helpers();
        let status = read_into(Descriptor::WORKING_DIRECTORY, c"/proc/self/status", &mut text);
        let kibibytes = |line: &[u8]| decimal(line.trim_ascii().strip_suffix(b" kB")?)?.checked_mul(1024);
        let memory_used = value(status, b"VmRSS:").and_then(kibibytes);
        let debugged = is_debugged(status, helpers);
        let directory = CgroupDirectory::of_this_process();
        Vitals {
            memory_used,
            debugged,
            oom_score_adj: signed(read_into(Descriptor::WORKING_DIRECTORY, c"/proc/self/oom_score_adj", &mut [0; 32])),
            memory_pressure: directory.as_ref().and_then(CgroupDirectory::pressure).or_else(|| {
                pressure(read_into(Descriptor::WORKING_DIRECTORY, c"/proc/pressure/memory", &mut [0; 256]))
            }),
            machine_oom_kills: machine_oom_kills(),
            cpu_used_ms: cpu_used_ms(),
            cpu_limit_s: cpu_limit_s(),
            cgroup: directory.as_ref().map(CgroupDirectory::read),
        }
    }
}

/// Reads [`Vitals::machine_oom_kills`].
pub fn machine_oom_kills() -> Option<u64> {
    let file = open(Descriptor::WORKING_DIRECTORY, c"/proc/vmstat", libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let (mut text, mut kept, mut found) = ([0; 1024], 0_usize, None);
    while let Some(rest) = text.get_mut(kept..).filter(|rest| !rest.is_empty() && found.is_none()) {
        // SAFETY: the kernel writes at most `rest.len()` bytes into it. Async-signal-safe: one
        // system call.
        let Ok(count) = (unsafe { syscall!(libc::SYS_read, file.number(), rest.as_mut_ptr(), rest.len()) }) else {
            break;
        };
        if count == 0 {
            break;
        }
        let filled = kept.saturating_add(count);
        let whole = text.get(..filled).unwrap_or_default();
        // The last line continues in the next piece.
        let end = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end.saturating_add(1));
        found = counter(whole.get(..end).unwrap_or_default(), b"oom_kill");
        text.copy_within(end..filled, 0);
        kept = filled.saturating_sub(end);
    }
    found
}

/// The open directory of a memory cgroup.
struct CgroupDirectory {
    file: File,
    is_v2: bool,
}

impl CgroupDirectory {
    /// Opens the directory of the calling process's cgroup.
    ///
    /// `None` if there is no memory controller, or its files are not mounted in the usual place.
    fn of_this_process() -> Option<CgroupDirectory> {
        let mut text = [0; 1024];
        let groups = read_into(Descriptor::WORKING_DIRECTORY, c"/proc/self/cgroup", &mut text);
        if let Some(path) = memory_path(groups, false) {
            return Self::open(b"/sys/fs/cgroup/memory", path, false);
        }
        let path = memory_path(groups, true)?;
        Self::open(b"/sys/fs/cgroup", path, true)
    }

    fn open(mount: &[u8], path: &[u8], is_v2: bool) -> Option<CgroupDirectory> {
        const MAX_PATH: usize = 512;
        if mount.len().saturating_add(path.len()) >= MAX_PATH {
            return None;
        }
        let path = PathOf::<MAX_PATH>::new().push(mount).push(path);
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let file = open(Descriptor::WORKING_DIRECTORY, path.as_c_str(), flags, 0).ok()?;
        Some(CgroupDirectory { file, is_v2 })
    }

    fn read(&self) -> MemoryCgroup {
        let [events, max, peak] = match self.is_v2 {
            true => [c"memory.events", c"memory.max", c"memory.peak"],
            false => [c"memory.oom_control", c"memory.limit_in_bytes", c"memory.max_usage_in_bytes"],
        };
        /// More memory than any machine has: version 1 reports such a number if there is no limit.
        const NO_LIMIT: u64 = 1 << 60;
        let mut text = [0; 256];
        let number = |name| decimal(read_into(&self.file, name, &mut [0; 32]).trim_ascii());
        let events = read_into(&self.file, events, &mut text);
        let hits = if self.is_v2 { counter(events, b"max") } else { number(c"memory.failcnt") };
        MemoryCgroup {
            id: status(&self.file).map_or(0, |status| status.st_ino as u64),
            oom_kills: counter(events, b"oom_kill"),
            limit: number(max).filter(|limit| *limit < NO_LIMIT),
            peak: number(peak),
            limit_hits: hits,
            processes: self.processes(),
        }
    }

    fn processes(&self) -> Option<u32> {
        let mut text = [0; 1024];
        let list = read_into(&self.file, c"cgroup.procs", &mut text);
        (!list.is_empty()).then(|| list.iter().filter(|byte| **byte == b'\n').count() as u32)
    }

    fn pressure(&self) -> Option<u16> {
        pressure(read_into(&self.file, c"memory.pressure", &mut [0; 256]))
    }
}

/// Returns the start of a file below `directory`; empty if it can't be read.
fn read_into<'t>(directory: &Descriptor, path: &CStr, into: &'t mut [u8]) -> &'t [u8] {
    let length = read_file(directory, path, into).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

/// Returns the text after `key` in the line that begins with it.
fn value<'t>(text: &'t [u8], key: &[u8]) -> Option<&'t [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))
}

/// Returns the number after a name and a space.
fn counter(text: &[u8], name: &[u8]) -> Option<u64> {
    text.split(|byte| *byte == b'\n').find_map(|line| decimal(line.strip_prefix(name)?.strip_prefix(b" ")?))
}

fn signed(text: &[u8]) -> Option<i16> {
    let text = text.trim_ascii();
    match text.strip_prefix(b"-") {
        Some(digits) => i16::try_from(decimal(digits)?).ok()?.checked_neg(),
        None => i16::try_from(decimal(text)?).ok(),
    }
}

/// Parses `some avg10=1.25 avg60=…`, in hundredths.
fn pressure(text: &[u8]) -> Option<u16> {
    let text = value(text, b"some avg10=")?;
    let end = text.iter().position(|byte| *byte == b' ')?;
    let mut parts = text.get(..end)?.split(|byte| *byte == b'.');
    let whole = decimal(parts.next()?)?.checked_mul(100)?;
    u16::try_from(whole.checked_add(parts.next().and_then(decimal)?.min(99))?).ok()
}

/// Returns the memory cgroup's path in `/proc/PID/cgroup` (cgroups(7)).
///
/// The path is that of the memory controller of version 1, or of version 2, relative to the mount's
/// root. Empty for the root itself. `None` if it is outside of what this process sees.
fn memory_path(groups: &[u8], is_v2: bool) -> Option<&[u8]> {
    let found = groups.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match is_v2 {
            true => number == b"0" && controllers.is_empty(),
            false => controllers.split(|byte| *byte == b',').any(|controller| controller == b"memory"),
        };
        is_it.then_some(path)
    })?;
    let is_outside = found.starts_with(b"/..");
    (!is_outside).then(|| found.strip_suffix(b"/").unwrap_or(found))
}

fn cpu_used_ms() -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `struct timespec`. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }.ok()?;
    (time.tv_sec as u64).checked_mul(1000)?.checked_add(time.tv_nsec as u64 / 1_000_000)
}

fn cpu_limit_s() -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let none = core::ptr::null::<libc::rlimit64>();
    // SAFETY: asks for a limit of the calling process; the kernel writes one structure.
    // Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_CPU, none, &raw mut limit) }.ok()?;
    (limit.rlim_max != libc::RLIM64_INFINITY).then_some(limit.rlim_max)
}

#[cfg(test)]
mod tests;
