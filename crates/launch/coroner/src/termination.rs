//! Determines why a run ended that did not record its end.
//!
//! This happens once, at the first launch that processes the run, because counters change.
//!
//! | reason | evidence | certainty |
//! |---|---|---|
//! | replaced | the process is running another program by now: the run's files are no longer mapped | certain |
//! | system restart | another boot id | likely; the process may have been killed before |
//! | out of memory | the kernel's log contains the process id, after the process's start, and its name | certain |
//! | | a counter of such kills increased (the cgroup's `oom_kill`, or the machine's if the cgroup has changed), and the process used half of its limit at the last reading | likely |
//! | | a counter increased, or was not read before | possible |
//! | CPU time | it had used nine tenths of `RLIMIT_CPU` at the last reading | likely |
//! | debugger | one was attached at the last check | likely |
//! | update | the program's build id has changed | possible |
//!
//! A possible reason doesn't change the outcome. If the counters did not change, or the log
//! contains only other processes, it was not out of memory, which is also recorded.

use std::ffi::OsStr;
use std::io;

use coroner_report::model::{RunFacts, Termination, TerminationCertainty, TerminationReason};
use coroner_report::run_state::{ExitKind, FIXED_BYTES};
use coroner_report::wire::Os;

use crate::outcome::Outcome;
use crate::store::directory::Directory;

#[cfg(all(supported, not(target_vendor = "apple")))]
mod kernel_log;

/// In a run's directory: the [`Termination`] that a launch determined, as JSON.
pub(crate) const FILE: &str = "termination.json";

/// Reads the result of an earlier investigation; `None` if there was none, or it is damaged.
pub(crate) fn read(bytes: &[u8]) -> Option<Termination> {
    serde_json::from_slice(bytes).ok()
}

/// Returns the outcome of a run that ended for this reason; `None` if the reason is not certain
/// enough.
pub(crate) fn outcome(termination: &Termination) -> Option<Outcome> {
    if termination.certainty == TerminationCertainty::Possible {
        return None;
    }
    match termination.reason {
        TerminationReason::OutOfMemory => Some(Outcome::OutOfMemory),
        TerminationReason::SystemRestart => Some(Outcome::SystemRestart),
        TerminationReason::CpuLimit => Some(Outcome::CpuLimit),
        TerminationReason::Debugger => Some(Outcome::Debugged),
        TerminationReason::Replaced => Some(Outcome::CleanExit),
        _ => None,
    }
}

/// Returns the cause if the run recorded a signal that asked it to stop.
pub(crate) fn from_signal(facts: &RunFacts) -> Option<Termination> {
    let lifecycle = &facts.lifecycle;
    if !matches!(lifecycle.exit, ExitKind::SIGTERM | ExitKind::SIGNAL) {
        return None;
    }
    let number = lifecycle.exit_signal?;
    let name = coroner_report::model::signal_name(Os::NATIVE, number)
        .map_or_else(|| format!("signal {number}"), ToOwned::to_owned);
    let sender = match (lifecycle.exit_sender, &lifecycle.exit_sender_name) {
        (Some(pid), Some(by)) => format!("{name} was sent by process {pid} ({by})"),
        (Some(pid), None) => format!("{name} was sent by process {pid}"),
        (None, _) => format!("{name} was sent by the kernel or an unknown process"),
    };
    let mut found = Termination {
        reason: TerminationReason::Signal,
        certainty: TerminationCertainty::Certain,
        evidence: vec![sender],
    };
    if lifecycle.exit_handled {
        found.reason = TerminationReason::StopTimeout;
        found.certainty = TerminationCertainty::Possible;
        found.evidence.push(format!(
            "the app handles {name} itself, and reached neither `exit` nor the end of `main` afterwards"
        ));
    }
    Some(found)
}

/// Determines why a run ended that did not record its end, and stores the result in its directory.
///
/// `None` if there is nothing to determine.
pub(crate) fn investigate(run: &Directory, state: &[u8]) -> Option<Termination> {
    // The fixed part of the state contains whether there is anything to determine.
    let start = RunFacts::read(state.get(..FIXED_BYTES as usize)?).ok()?.lifecycle;
    if start.exit != ExitKind::RUNNING || start.crashed_by.is_some() {
        return None;
    }
    let facts = RunFacts::read(state).ok().filter(|facts| facts.app.installed.is_some())?;
    let now = Now::default();
    let found = replaced(&facts, &now).unwrap_or_else(|| explain(&facts, &now));
    let noted = serde_json::to_vec(&found).map_err(io::Error::from);
    if let Err(error) = noted.and_then(|json| run.write_quickly(OsStr::new(FILE), &json)) {
        log::debug!("coroner: can't store why the run in `{}` ended: {error}", run.path().display());
    }
    Some(found)
}

/// Whether the process is still running although its run has ended, because it executed another
/// program or its own again.
///
/// The process that claimed the run has checked that no process maps the run's files.
fn replaced(facts: &RunFacts, now: &Now) -> Option<Termination> {
    let process = coroner_report::run_state::ProcessIdentity::from(facts.process?);
    // Also check the boot: a running process with this id may be another one since a reboot.
    let own = coroner_report::run_state::ProcessIdentity::of_this_process();
    let is_this_boot = facts.os.boot_id.is_some() && facts.os.boot_id == now.boot_id;
    (is_this_boot && process.lives(&own) == Some(true)).then(|| Termination {
        reason: TerminationReason::Replaced,
        certainty: TerminationCertainty::Certain,
        evidence: vec![format!("process {} is still running, as another program or restarted (execve)", process.pid)],
    })
}

/// The machine's state at the investigating launch.
#[derive(Debug)]
#[cfg_attr(any(target_vendor = "apple", not(supported)), derive(Default))]
pub(crate) struct Now {
    boot_id: Option<String>,
    build_id: Option<String>,
    #[cfg(all(supported, not(target_vendor = "apple")))]
    vitals: coroner_process::vitals::Vitals,
    /// Reads the kernel's log, only if needed.
    #[cfg(all(supported, not(target_vendor = "apple")))]
    kernel_log: fn() -> Option<String>,
}

#[cfg(all(supported, not(target_vendor = "apple")))]
impl Default for Now {
    fn default() -> Self {
        Self {
            boot_id: crate::facts::boot_id(),
            build_id: crate::facts::build_id(),
            vitals: coroner_process::vitals::Vitals::read(),
            kernel_log: kernel_log::read,
        }
    }
}

/// Explains why a run with these facts ended that did not record its end.
pub(crate) fn explain(facts: &RunFacts, now: &Now) -> Termination {
    let found = |reason, certainty, evidence: Vec<String>| Termination { reason, certainty, evidence };
    if let (Some(then), Some(boot)) = (&facts.os.boot_id, &now.boot_id)
        && then != boot
    {
        let sentence = format!("the machine rebooted: its boot id was {then} and is now {boot}");
        return found(TerminationReason::SystemRestart, TerminationCertainty::Likely, vec![sentence]);
    }
    #[cfg(all(supported, not(target_vendor = "apple")))]
    let mut memory = memory::explain(facts, now);
    #[cfg(any(target_vendor = "apple", not(supported)))]
    let mut memory = Termination::default();
    if memory.reason == TerminationReason::OutOfMemory && memory.certainty > TerminationCertainty::Possible {
        return memory;
    }
    let vitals = facts.vitals.as_ref();
    if let Some((used, limit)) = vitals.and_then(|vitals| Some((vitals.cpu_used_ms?, vitals.cpu_limit_s?))) {
        let sentence = format!(
            "it had used {}.{:03} s of CPU time at the last reading, and the kernel kills it at {limit} s (RLIMIT_CPU)",
            used / 1000,
            used % 1000
        );
        if used >= limit.saturating_mul(900) {
            return found(TerminationReason::CpuLimit, TerminationCertainty::Likely, vec![sentence]);
        }
        // How much the process used after the reading is unknown: the limit may have been the
        // cause.
        memory.evidence.push(sentence);
    }
    if facts.lifecycle.debugged {
        let sentence = "a debugger was attached at the last check".to_owned();
        return found(TerminationReason::Debugger, TerminationCertainty::Likely, vec![sentence]);
    }
    if memory.reason == TerminationReason::OutOfMemory {
        return memory;
    }
    if let (Some(then), Some(build)) = (&facts.app.build_id, &now.build_id)
        && then != build
    {
        let mut evidence = vec![format!("the program's file was replaced: its build id was {then} and is now {build}")];
        evidence.extend(memory.evidence);
        return found(TerminationReason::AppUpdate, TerminationCertainty::Possible, evidence);
    }
    memory
}

/// Determines whether the process was killed to free memory.
#[cfg(all(supported, not(target_vendor = "apple")))]
mod memory {
    use coroner_report::model::Timestamp;

    use super::{Now, RunFacts, Termination, TerminationCertainty, TerminationReason, kernel_log};

    pub(super) fn explain(facts: &RunFacts, now: &Now) -> Termination {
        let then = facts.vitals.clone().unwrap_or_default();
        let cgroup = now.vitals.cgroup.filter(|cgroup| cgroup.id != 0 && Some(cgroup.id) == then.cgroup);
        let moved = |then: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(then?));
        let since_start = |now: Option<u64>| now.filter(|count| *count == 0);
        let of_machine = moved(then.machine_oom_kills, now.vitals.machine_oom_kills)
            .or_else(|| since_start(now.vitals.machine_oom_kills));
        let of_cgroup = cgroup.and_then(|cgroup| {
            moved(then.cgroup_oom_kills, cgroup.oom_kills).or_else(|| since_start(cgroup.oom_kills))
        });
        let not = |sentence: &str| Termination { evidence: vec![sentence.to_owned()], ..Termination::default() };
        if of_machine == Some(0) {
            return not("no process on this machine was killed to free memory in the meantime");
        }
        if of_cgroup == Some(0) {
            return not("no process in its cgroup was killed to free memory in the meantime");
        }
        let mut evidence = Vec::new();
        if let (Some(log), Some(process)) = (kernel_log::victims(facts, now.kernel_log), facts.process) {
            if let Some(victim) = log.victims.iter().find(|victim| victim.pid == process.pid) {
                evidence.push(format!("the kernel's log: {}", victim.line));
                let is_named = facts.app.process_name.as_ref().is_some_and(|name| victim.is_of(name));
                let certainty = if is_named { TerminationCertainty::Certain } else { TerminationCertainty::Likely };
                add_memory(&mut evidence, facts, now);
                return Termination { reason: TerminationReason::OutOfMemory, certainty, evidence };
            }
            if log.is_whole {
                return not(
                    "the kernel's log contains other processes that were killed to free memory, but not this one",
                );
            }
        }
        let which = match (of_cgroup, of_machine) {
            (Some(count), _) => format!("{} in its cgroup", processes(count)),
            (None, Some(count)) => format!("{} on the machine", processes(count)),
            (None, None) => {
                let known = cgroup.and_then(|cgroup| cgroup.oom_kills).or(now.vitals.machine_oom_kills);
                let Some(count) = known else { return Termination::default() };
                let whose = if cgroup.is_some() { "in its cgroup" } else { "on the machine" };
                evidence.push(format!(
                    "{} {whose} killed to free memory so far; how many of them before the run began is unknown",
                    processes(count)
                ));
                add_memory(&mut evidence, facts, now);
                let (reason, certainty) = (TerminationReason::OutOfMemory, TerminationCertainty::Possible);
                return Termination { reason, certainty, evidence };
            }
        };
        let since = if is_of_run(facts, then.read) { "since the last reading" } else { "since before the run began" };
        evidence.push(format!("killed to free memory {since}: {which}"));
        let most = [then.cgroup_memory_limit, facts.device.memory_size].into_iter().flatten().min();
        let used = facts.lifecycle.memory_used.filter(|_| is_of_run(facts, then.read));
        let is_large = used.zip(most).is_some_and(|(used, most)| used >= most / 2);
        add_memory(&mut evidence, facts, now);
        if !is_large {
            evidence.push("which process it was is unknown".to_owned());
        }
        let certainty = if is_large { TerminationCertainty::Likely } else { TerminationCertainty::Possible };
        Termination { reason: TerminationReason::OutOfMemory, certainty, evidence }
    }

    /// Whether the reading is from this run, and not from an earlier one.
    fn is_of_run(facts: &RunFacts, read: Timestamp) -> bool {
        facts.app.installed.is_some_and(|installed| read >= installed)
    }

    fn processes(count: u64) -> String {
        if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
    }

    /// Adds the memory that the process used, and its limits.
    fn add_memory(evidence: &mut Vec<String>, facts: &RunFacts, now: &Now) {
        let then = facts.vitals.clone().unwrap_or_default();
        let mebibytes = |bytes: u64| format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
        if let Some(used) = facts.lifecycle.memory_used.filter(|_| is_of_run(facts, then.read)) {
            let limit = then.cgroup_memory_limit;
            let limit = limit.map_or_else(String::new, |limit| format!(" of its cgroup's {}", mebibytes(limit)));
            evidence.push(format!("it used {}{limit} at the last reading", mebibytes(used)));
        }
        let cgroup = now.vitals.cgroup.filter(|cgroup| Some(cgroup.id) == then.cgroup);
        if let Some((peak, limit)) = cgroup.and_then(|cgroup| Some((cgroup.peak?, cgroup.limit?))) {
            evidence.push(format!("its cgroup used up to {} of {}", mebibytes(peak), mebibytes(limit)));
        }
        if let Some(score) = then.oom_score_adj.filter(|score| *score != 0) {
            evidence.push(format!("its oom_score_adj was {score}"));
        }
        if let Some(pressure) = then.memory_pressure.filter(|pressure| *pressure > 0) {
            evidence.push(format!("memory pressure (PSI, some avg10) was {}.{:02} %", pressure / 100, pressure % 100));
        }
    }
}

#[cfg(all(test, supported, not(target_vendor = "apple")))]
mod tests;
