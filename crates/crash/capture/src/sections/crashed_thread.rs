//! Crashed thread section: first only its registers, which need no memory of the app; later the
//! whole thread with its frames, which replaces the first.

use coroner_process::shadow_stack;
use coroner_report::wire::{CaptureMethod, Registers, SectionKind, Thread, ThreadFlags, ThreadState, WalkEnd};

use super::SectionResult;
use super::frames::{CRASHED, Walk};
use crate::os::other_threads as platform;
use crate::run::ReportWriter;
use crate::session::{CrashSession, memory};

pub(crate) fn write_registers(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    let thread = Thread {
        tid: context.tid as u64,
        flags: ThreadFlags::CRASHED.with(ThreadFlags::CURRENT),
        captured_by: Some(CaptureMethod::CRASH_CONTEXT),
        registers: Some(Registers::from(&context.registers).with_extra(context.extra())),
        ..Thread::default()
    };
    session.section(SectionKind::THREADS, |encoder| {
        encoder.begin_array();
        thread.encode(encoder, &[], WalkEnd::default());
        encoder.end();
    })
}

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    let pointer = shadow_stack::at_signal(context.shadow_stack, &mut memory());
    let crashed = platform::crashed(session.installed, context, &mut memory());
    let thread = Thread {
        flags: crashed.flags.with(ThreadFlags::CRASHED).with(ThreadFlags::CURRENT),
        state: crashed.state.or(Some(ThreadState::RUNNING)),
        captured_by: Some(CaptureMethod::CRASH_CONTEXT),
        registers: Some(Registers::from(&context.registers).with_extra(context.extra()).with_shadow_stack(pointer)),
        ..crashed.wire(context.tid as u64)
    };
    let Some((walk, buffer)) = Walk::of(session.workspace) else { return SectionResult::Empty };
    let mut encoder = ReportWriter::payload(buffer);
    encoder.begin_array();
    walk.encode(&mut encoder, &thread, &context.registers, memory(), CRASHED, crashed.swift_async);
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::THREADS, length)
}
