//! Header section: format, run, process, system.

use coroner_report::wire::{FORMAT_VERSION, Header, Os, SectionKind};

use super::SectionResult;
use crate::session::CrashSession;

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let run = &session.installed.run;
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: session.run_id,
        event_id: crate::run::random_id(),
        pid: session.context.pid as u32,
        ppid: coroner_process::process::parent_pid() as u32,
        arch: coroner_process::registers::Arch::OF_THIS_PROCESS,
        os: Os::NATIVE,
        page_size: run.page_size,
        pointer_auth_mask: coroner_walk::authentication_mask(),
        sdk_version: env!("CARGO_PKG_VERSION").as_bytes(),
        process_start_ns: run.process_start,
        process_name: run.program.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
    };
    session.section(SectionKind::HEADER, |encoder| header.encode(encoder))
}
