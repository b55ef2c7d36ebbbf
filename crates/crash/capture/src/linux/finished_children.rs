//! Children that finished a report while this process lives, for a thread that delivers it.

use coroner_process::process;
use coroner_process::signals::{bit, blocked};
use coroner_process::syscall::{Errno, syscall};
use coroner_process::threads::{monotonic_now, process_id};

use crate::installed::{self, Installed};
use crate::report_lock::REPORT_LOCK;

/// Duration of the first wait, in nanoseconds; each later one takes twice as long.
const MIN_WAIT_NS: u64 = 10_000_000_000;
/// Maximum duration of one wait, in nanoseconds.
const MAX_WAIT_NS: u64 = 3_600_000_000_000;
/// Number of waits in a row that end at once, after which waiting is impossible.
const MAX_FAILURES: u32 = 16;

fn current() -> Option<&'static Installed> {
    installed::get().filter(|installed| installed.is_own_process(process_id()))
}

/// Returns how many children of this process have finished a report. `None` in a process that has
/// reserved none for them: it hasn't forked, or is a child itself.
pub fn finished() -> Option<u32> {
    current()?.children.finished()
}

/// Whether this process has children. `true` if a system call filter may not allow the question.
pub fn has_children() -> bool {
    const FLAGS: i32 = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: no memory is touched; no child is waited for.
    let asked = || unsafe { syscall!(libc::SYS_waitid, libc::P_ALL, 0, 0_usize, FLAGS, 0_usize) };
    process::has_seccomp_filter() || asked() != Err(Errno(libc::ECHILD))
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// This number of children has finished a report.
    Finished(u32),
    /// The process has no children any more, or Coroner is uninstalled.
    Over,
    /// The system can't wait.
    Impossible,
}

/// Waits until the number of children that finished a report is not `seen`.
pub fn wait(seen: u32) -> Waited {
    let (mut failures, mut limit) = (0, MIN_WAIT_NS);
    while failures < MAX_FAILURES {
        let Some(installed) = current() else { return Waited::Over };
        let children = &installed.children;
        match children.finished() {
            None => return Waited::Over,
            Some(now) if now != seen => return Waited::Finished(now),
            Some(_) => {}
        }
        let began = monotonic_now();
        children.wait(seen, limit);
        let waited = monotonic_now().saturating_sub(began);
        failures = if waited < 1_000_000 { failures + 1 } else { 0 };
        if waited >= limit {
            if !has_children() {
                return Waited::Over;
            }
            limit = limit.saturating_mul(2).min(MAX_WAIT_NS);
        }
    }
    Waited::Impossible
}

/// Whether the calling thread may start another one: not while it handles a crash, in which the
/// app's handler may fork.
pub fn may_start_thread() -> bool {
    let Some(installed) = installed::get() else { return false };
    let crashes = (1..32).filter(|signal| installed.options.signals.contains(*signal)).map(bit);
    let is_in_handler =
        installed.platform.running_handlers.is_any() || blocked() & crashes.fold(0, |all, bit| all | bit) != 0;
    !is_in_handler && !REPORT_LOCK.is_busy(process_id())
}
