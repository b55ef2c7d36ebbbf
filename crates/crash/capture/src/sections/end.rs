//! End section: what is missing, and the duration of each step.

use coroner_process::threads::monotonic_now;
use coroner_report::wire::{Dropped, End, SectionKind};

use super::SectionResult;
use crate::recrash::RECRASH;
use crate::run::ReportWriter;
use crate::session::CrashSession;

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let late = RECRASH.is_expired();
    let counts = session.counts;
    let dropped = [
        Dropped { section: SectionKind::THREADS, count: counts.dropped_threads },
        Dropped { section: SectionKind::IMAGES, count: counts.dropped_images },
        Dropped { section: SectionKind::SYMBOL_NAMES, count: counts.dropped_names },
    ];
    let some = dropped.iter().any(|dropped| dropped.count > 0);
    let end = End {
        complete: !late && !some && session.faults == 0 && session.report.error.is_none(),
        total_ns: monotonic_now().saturating_sub(session.started),
        phases: session.phases.all(),
        dropped: if some { &dropped } else { &[] },
        threads: counts.threads,
        threads_captured: counts.captured,
        deadline: late,
    };
    let mut encoder = ReportWriter::payload(&mut session.workspace.buffer);
    end.encode(&mut encoder);
    let length = encoder.position();
    session.seal(SectionKind::END, length)
}
