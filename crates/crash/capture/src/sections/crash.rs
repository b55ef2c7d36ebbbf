//! Crash section: what happened. Written first, from the monitor's data alone, and once more when
//! more is known.

use core::sync::atomic::Ordering;

use coroner_report::wire::{ConcurrentCrash, Crash, CrashFlags, SectionKind};

use super::SectionResult;
use crate::concurrent_crashes::{self, CONCURRENT};
use crate::session::CrashSession;

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    const NO_CRASH: ConcurrentCrash = ConcurrentCrash { tid: 0, signal: 0, code: 0, address: None, after_ns: None };
    let context = session.context;
    let mut concurrent = [NO_CRASH; concurrent_crashes::CAPACITY];
    let count = CONCURRENT.copy(&mut concurrent, context.tid as u64, session.started);
    session.concurrent_written = count;
    let flags = [
        (session.is_overflow, CrashFlags::STACK_OVERFLOW),
        (session.faults > 0, CrashFlags::RECRASH),
        (!session.installed.is_own_process(context.pid), CrashFlags::FORK_CHILD),
        (session.is_bad_stack_pointer, CrashFlags::BAD_STACK_POINTER),
        (session.is_non_fatal(), CrashFlags::NOT_FATAL),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    let flags = set.fold(CrashFlags::default(), |flags, (_, flag)| flags.with(flag));
    let uncaught = context.uncaught.and_then(|uncaught| uncaught.exceptions.first());
    let crash = Crash {
        time_ns: context.time_ns,
        since_install_ns: session.started.saturating_sub(session.installed.run.installed_at.load(Ordering::Relaxed)),
        monitor: context.monitor,
        signal: context.signal,
        mach: context.mach,
        tid: context.tid as u64,
        flags,
        access: context.access,
        address: context.address,
        concurrent_crashes: concurrent.get(..count).unwrap_or_default(),
        message: uncaught.and_then(|exception| exception.message),
        exception_type: uncaught.and_then(|exception| exception.type_name),
        location: uncaught.and_then(|exception| exception.location),
        hang: context.hung.map(|hung| hung.hang),
    };
    session.section(SectionKind::CRASH, |encoder| crash.encode(encoder))
}
