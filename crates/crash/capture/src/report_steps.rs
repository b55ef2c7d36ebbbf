//! The steps of one report, in order of decreasing value and increasing risk.
//!
//! | step | what | if it faults, blocks or is killed |
//! |---|---|---|
//! | 1 | crash record: some stores into the mapped run state | continues with the next step |
//! | 2 | header, the crash, all registers of the crashed thread | the next launch makes a report from the record |
//! | 3 | deadline; the images are listed; the crashed thread is walked (for a hang: all others stop, and the hung thread is walked) | registers alone |
//! | 4 | all other threads are asked to stop (without waiting) | no other threads |
//! | 4a | code around the program counter, mappings around the fault address, deallocated objects | loses that section |
//! | 5 | images | |
//! | 6 | waits for the other threads, traces those that don't respond, walks all, in batches | loses that thread |
//! | 7 | stack memory of the crashed thread, and of all threads if requested | loses that thread's |
//! | 8 | names for the report's addresses, image by image: for all images, or for those whose files were replaced | loses that image's names |
//! | 9 | the app's memory, and the memory that the crashed thread's registers point to | loses that section |
//! | 10 | end: what is missing, duration of each step | a report without an end: readable |

use coroner_process::identity::start_and_memory;
use coroner_process::memory::Memory as _;
use coroner_process::memory_use::available;
use coroner_report::run_state::Scalar;
use coroner_report::wire::{Phase, SectionKind};

use crate::concurrent_crashes::CONCURRENT;
use crate::installed::Installed;
use crate::os::other_threads::OtherThreads;
#[cfg(target_vendor = "apple")]
use crate::sections::zombies;
use crate::sections::{
    app_memory, crash, crashed_thread, end, exceptions, fault_surroundings, header, images, other_threads,
    register_memory, section, stack_memory, symbol_names, write_fault,
};
use crate::session::{CrashSession, guarded, memory};
use crate::stack_overflow;

/// Writes the whole report. `begin_deadline` is called once the crash is on disk.
pub(crate) fn write_report(session: &mut CrashSession<'_>, begin_deadline: impl FnOnce(&mut CrashSession<'_>)) {
    write_first(session);
    begin_deadline(session);
    write_rest(session);
    session.finish();
}

/// Writes the crash and the crashed thread's registers, which need neither another thread nor the
/// app's memory.
fn write_first(session: &mut CrashSession<'_>) {
    guarded(session, SectionKind::HEADER, None, |session| {
        session.clear_stale();
        header::write(session);
    });
    guarded(session, SectionKind::CRASH, None, |session| _ = crash::write(session));
    if session.context.hung.is_none() {
        guarded(session, SectionKind::THREADS, Some(session.context.tid as u64), |session| {
            crashed_thread::write_registers(session);
        });
    }
    write_fault(session);
    session.phases.end(Phase::ENTRY);
}

/// Writes all other sections.
fn write_rest(session: &mut CrashSession<'_>) {
    let (hangs, tid) = (session.context.hung.is_some(), Some(session.context.tid as u64));
    section(session, SectionKind::EXCEPTIONS, None, exceptions::write);
    if hangs {
        ask_others_to_stop(session);
    }
    guarded(session, SectionKind::IMAGES, None, images::list);
    guarded(session, SectionKind::CRASH, None, classify);
    if hangs {
        // The hung thread is one of the others, and must be stopped before it is walked.
        wait_for_others(session);
        other_threads::write_hung(session);
    } else {
        // Before the others are asked to stop: on a machine without processor time to spare, a
        // thousand of them use up what there is.
        section(session, SectionKind::THREADS, tid, crashed_thread::write);
        if session.wants_all_threads() {
            ask_others_to_stop(session);
        }
        if session.is_overflow {
            guarded(session, SectionKind::CRASH, None, confirm_overflow);
        }
        section(session, SectionKind::CODE, None, fault_surroundings::write_code);
        section(session, SectionKind::MAPPINGS, None, fault_surroundings::write_mappings);
        #[cfg(target_vendor = "apple")]
        section(session, SectionKind::ZOMBIES, None, zombies::write);
    }
    write_fault(session);
    session.phases.end(Phase::CRASHED_THREAD);
    section(session, SectionKind::IMAGES, None, images::write);
    section(session, SectionKind::ANNOTATIONS, None, images::write_annotations);
    session.phases.end(Phase::IMAGES);
    if session.threads.is_some() {
        if !hangs {
            wait_for_others(session);
        }
        if session.wants_all_threads() {
            other_threads::write(session);
            session.phases.end(Phase::OTHER_THREADS);
        }
    } else if session.wants_all_threads() {
        other_threads::note_unlisted(session);
    }
    CONCURRENT.close();
    if CONCURRENT.count(session.context.tid as u64) > session.concurrent_written
        || session.is_overflow
        || session.is_bad_stack_pointer
    {
        // The crash section again, with what wasn't known at first: the last one counts.
        section(session, SectionKind::CRASH, None, crash::write);
    }
    section(session, SectionKind::STACK_MEMORY, tid, stack_memory::write);
    stack_memory::write_others(session);
    session.phases.end(Phase::STACK_MEMORY);
    symbol_names::write_all(session);
    session.phases.end(Phase::SYMBOL_NAMES);
    app_memory::write_all(session);
    section(session, SectionKind::STACK_MEMORY, tid, register_memory::write);
    // Before the end, which records how long all of it took.
    if session.installed.is_own_process(session.context.pid) {
        guarded(session, SectionKind::RUN_STATE, None, |session| note_memory(session.installed));
    }
    section(session, SectionKind::END, None, end::write);
}

fn ask_others_to_stop(session: &mut CrashSession<'_>) {
    session.threads = OtherThreads::begin(session.installed, &session.held.resources, session.context);
}

/// Waits for the other threads to stop. Guarded, so that the deadline ends this wait, too, should a
/// system call never return.
fn wait_for_others(session: &mut CrashSession<'_>) {
    if session.threads.is_none() {
        return;
    }
    guarded(session, SectionKind::THREADS, None, |session| {
        let installed = session.installed;
        if let Some(threads) = &mut session.threads {
            threads.stop(installed);
        }
    });
    session.phases.end(Phase::STOP_THREADS);
}

/// Records how much memory the process used, how much was still available, and when the process
/// started.
fn note_memory(installed: &Installed) {
    let (start, used) = start_and_memory(installed.run.page_size);
    let values =
        [(Scalar::MEMORY_USED, used), (Scalar::MEMORY_AVAILABLE, available()), (Scalar::PROCESS_STARTED, start)];
    for (scalar, value) in values {
        installed.run.state.set_scalar(scalar, value.unwrap_or(0));
    }
}

/// Classifies the crash by the mappings and the stack. Reads the app's memory.
fn classify(session: &mut CrashSession<'_>) {
    if session.context.hung.is_some() {
        return;
    }
    if let Some(images) = &session.workspace.images {
        session.is_overflow = stack_overflow::is_overflow(session.context, &images.mappings);
    }
    session.is_bad_stack_pointer = memory().read_u64(session.context.registers.sp()).is_err();
}

/// Confirms a stack overflow: a full stack still has its caller's frame, while nothing of an
/// unmapped one can be read.
fn confirm_overflow(session: &mut CrashSession<'_>) {
    let ring = &session.workspace.ring;
    let own = match ring.first_cfa {
        0 => session.context.registers.sp(),
        // On x86_64, the return address is below it.
        cfa if cfg!(target_arch = "x86_64") => cfa.wrapping_sub(8),
        // On arm64 there may be no memory there: a call stores nothing, and the caller may not yet
        // have used the end of its frame. The caller's own caller, the third frame, is found in
        // memory.
        _ if ring.walked > 2 => return,
        cfa => cfa,
    };
    session.is_overflow = memory().read_u64(own).is_ok();
}
