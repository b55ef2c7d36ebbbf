//! Values that explain a run's end without a trace, recorded in the run state.
//!
//! They are recorded while the app runs: memory and its limits, the number of out-of-memory kills,
//! CPU time, and whether a debugger is attached (`coroner_process::vitals`).
//!
//! To save system calls, an ordinary launch continues with the counters of the previous run, whose
//! files it reuses. The values are read by an install that creates the run's files, with
//! breadcrumbs (at most once per second), by the watchdog thread, and by the delivery thread.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(supported, not(target_vendor = "apple")))]
use coroner_process::vitals::Vitals;
use coroner_report::run_state::{RunState, Scalar};

/// Minimum time between two readings, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Minimum time between two readings near the CPU time limit, in nanoseconds.
const NEAR_INTERVAL_NS: u64 = 20_000_000;
/// Remaining CPU time that counts as near the limit, in hundredths of a second.
const NEAR_LIMIT: u64 = 200;

/// Time of the last reading, by any clock.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Starts without a reading: the previous run's values stay valid.
///
/// The first second of a run takes no reading.
pub(crate) fn begin() {
    LAST.store(crate::clock::now_ns(), Ordering::Relaxed);
}

/// Reads and records the values: memory, as the system counts it for its limits.
#[cfg(all(supported, target_vendor = "apple"))]
pub(crate) fn note(state: &RunState<'_>) {
    use coroner_process::memory_use::{available, used};
    state.set_scalar(Scalar::MEMORY_USED, used(coroner_process::stack::page_size() as u32).unwrap_or(0));
    state.set_scalar(Scalar::MEMORY_AVAILABLE, available().unwrap_or(0));
    state.set_scalar(Scalar::VITALS_READ, crate::clock::now_ns());
}

/// Reads and records the values: some small files of `/proc`, a tenth of a millisecond.
///
/// Doesn't allocate and never waits.
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) fn note(state: &RunState<'_>) {
    let vitals = Vitals::read();
    let cgroup = vitals.cgroup.unwrap_or_default();
    let count = |count: Option<u64>| count.map_or(0, |count| count.saturating_add(1));
    // In hundredths of a second.
    let used = vitals.cpu_used_ms.unwrap_or(0) / 10;
    let time = used.min(u64::from(u32::MAX)) | count(vitals.cpu_limit_s.filter(|limit| *limit < 1 << 31)) << 32;
    let score = vitals.oom_score_adj.map_or(0, |score| (i32::from(score) + 1001).clamp(0, 2001) as u64);
    let pressure = vitals.memory_pressure.map_or(0, |pressure| u64::from(pressure.min(10_000)) + 1);
    let processes = cgroup.processes.map_or(0, |processes| u64::from(processes.min(10_000)) + 1);
    state.set_scalar(Scalar::MEMORY_USED, vitals.memory_used.unwrap_or(0));
    state.set_scalar(Scalar::MACHINE_OOM_KILLS, count(vitals.machine_oom_kills));
    state.set_scalar(Scalar::CGROUP, cgroup.id);
    state.set_scalar(Scalar::CGROUP_OOM_KILLS, count(cgroup.oom_kills));
    state.set_scalar(Scalar::CGROUP_MEMORY_LIMIT, cgroup.limit.unwrap_or(0));
    state.set_scalar(Scalar::PROCESSOR_TIME, time);
    state.set_scalar(Scalar::MEMORY_RISK, score | pressure << 16 | processes << 32);
    if let Some(debugged) = vitals.debugged {
        state.set_scalar(Scalar::DEBUGGED, debugged.into());
    }
    state.set_scalar(Scalar::VITALS_READ, crate::clock::now_ns());
}

/// Does nothing, because this system has no such values.
#[cfg(not(supported))]
pub(crate) fn note(_state: &RunState<'_>) {}

/// Calls [`note`] if the last reading was a second before `now_ns`.
///
/// On an alternate signal stack, which may be small, it does nothing.
pub(crate) fn note_at(state: &RunState<'_>, now_ns: u64) {
    let last = LAST.load(Ordering::Relaxed);
    if now_ns.abs_diff(last) < INTERVAL_NS
        || LAST.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_err()
        || is_on_alternate_stack()
    {
        return;
    }
    note(state);
    // Near its CPU time limit, a process has less than a second left.
    let time = state.scalar(Scalar::PROCESSOR_TIME);
    if let Some(limit) = (time >> 32).checked_sub(1)
        && u64::from(time as u32) > limit.saturating_mul(100).saturating_sub(NEAR_LIMIT)
    {
        LAST.store(now_ns.saturating_sub(INTERVAL_NS - NEAR_INTERVAL_NS), Ordering::Relaxed);
    }
}

#[cfg(not(supported))]
fn is_on_alternate_stack() -> bool {
    false
}

#[cfg(supported)]
fn is_on_alternate_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: it only queries the stack, and writes one structure.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 }
}
