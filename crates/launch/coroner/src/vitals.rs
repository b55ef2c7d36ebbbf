//! What explains a run's end without a trace, noted in the run state while the app is well: memory and its limits, kills for want of memory
//! that were counted so far, processor time, a debugger (`coroner_process::vitals`).
//!
//! An ordinary launch has no call to spare for it and goes on with the counters that the run before has read, whose files it uses. They are
//! read by an install that makes the run's files, by breadcrumbs, once a second at most, by the thread that watches for hangs, and by the
//! delivery thread.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(supported, not(target_vendor = "apple")))]
use coroner_process::vitals::Vitals;
use coroner_report::run_state::{RunState, Scalar};

/// How often they are read at most.
const INTERVAL_NS: u64 = 1_000_000_000;

/// How often where the limit of processor time is near.
const NEAR_INTERVAL_NS: u64 = 20_000_000;
/// That near: hundredths of a second.
const NEAR_LIMIT: u64 = 200;

/// When they were read last, by any clock.
static LAST: AtomicU64 = AtomicU64::new(0);

/// An install has nothing to read: what the run before has read counts on. The first second of a run takes no reading.
pub(crate) fn begin() {
    LAST.store(crate::clock::now_ns(), Ordering::Relaxed);
}

/// Reads and notes them: memory, as the system counts it for its limits.
#[cfg(all(supported, target_vendor = "apple"))]
pub(crate) fn note(state: &RunState<'_>) {
    use coroner_process::memory_use::{available, used};
    state.set_scalar(Scalar::MEMORY_USED, used(coroner_process::stack::page_size() as u32).unwrap_or(0));
    state.set_scalar(Scalar::MEMORY_AVAILABLE, available().unwrap_or(0));
    state.set_scalar(Scalar::VITALS_READ, crate::clock::now_ns());
}

/// Reads and notes them. Some small files of `/proc`, a tenth of a millisecond. Allocates nothing and waits for nothing.
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) fn note(state: &RunState<'_>) {
    let vitals = Vitals::read();
    let cgroup = vitals.cgroup.unwrap_or_default();
    let count = |count: Option<u64>| count.map_or(0, |count| count.saturating_add(1));
    // Hundredths of a second.
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

/// There is no run.
#[cfg(not(supported))]
pub(crate) fn note(_state: &RunState<'_>) {}

/// As [`note`], if the last time is a second ago at `now_ns`. On an alternate signal stack, which may be small, it does nothing.
pub(crate) fn note_at(state: &RunState<'_>, now_ns: u64) {
    let last = LAST.load(Ordering::Relaxed);
    if now_ns.abs_diff(last) < INTERVAL_NS
        || LAST.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_err()
        || is_on_alternate_stack()
    {
        return;
    }
    note(state);
    // Near its limit of processor time a process has less than a second left.
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
    // SAFETY: it only asks, and writes one structure.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 }
}
