//! One crash, from the first fault to the last byte.
//!
//! On a thread and a stack that the system's own part has made ready (`linux/report.rs`: the crashed thread itself):
//!
//! | step | what | if it faults or time runs out |
//! |---|---|---|
//! | 1 | the deadline's timer starts; all other threads are asked to stop (nobody waits) | no timer; no other threads |
//! | 2 | header and what happened, on disk | the next step |
//! | 3 | the images are listed; the crashed thread is walked, on disk (of a hang: all others stop, and its thread is walked) | frames found so far are lost, registers are not |
//! | 4 | the images, on disk | |
//! | 5 | the other threads are waited for, the silent ones traced, all walked, on disk in batches | that thread alone |
//! | 6 | stack memory of the crashed thread | |
//! | 7 | names for the report's addresses, image by image | names of that image |
//! | 8 | the end: what is missing, how long each step took; the reserve is given back | a report without end: readable |
//!
//! Each section runs inside [`coroner_machine::recovery::run`]; the system's own part lets its faults and the deadline end it
//! there. Nothing here allocates, locks, formats or panics; memory that the crash may have touched is read by
//! [`coroner_machine::memory::LoadGuarded`] only, whose faults the system's own part makes good.

pub(crate) mod frames;
pub(crate) mod incident;
pub(crate) mod names;
pub(crate) mod rehearsal;
pub(crate) mod scratch;
pub(crate) mod seconds;
pub(crate) mod sections;
mod stack_overflow;
pub(crate) mod writer;

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_machine::recovery;
use coroner_machine::threads::monotonic_now;
use coroner_report::wire::{Phase, PhaseDuration, SectionKind};

use crate::global::Global;
use crate::monitor::exception::Ending;
use crate::run;

use incident::Incident;
use scratch::Scratch;
use writer::Writer;

/// What a section's run answered when it was left by a fault.
pub(crate) const FAULTED: u64 = 1;

/// One crash on its way into a report.
pub(crate) struct Task<'a> {
    pub global: &'static Global,
    pub incident: &'a Incident,
    /// By the monotonic clock.
    pub started: u64,
    pub writer: Writer,
    /// The run whose report this is: the process's, or a child's own.
    pub run_id: [u8; 16],
    pub phases: Phases,
    /// Elements that found no room or time, by section.
    pub dropped_threads: u64,
    pub dropped_images: u64,
    pub dropped_names: u64,
    pub threads: u64,
    pub captured: u64,
    pub faults: u32,
    /// Second crashes that were in the crash section when it was last written.
    pub seconds_told: usize,
    pub is_overflow: bool,
}

impl<'a> Task<'a> {
    /// A report of `incident` that goes into `file`, of the run `run_id`; nothing is written yet.
    pub(crate) fn new(
        global: &'static Global,
        incident: &'a Incident,
        file: i32,
        run_id: [u8; 16],
        started: u64,
    ) -> Task<'a> {
        Task {
            global,
            incident,
            started,
            writer: Writer::new(file),
            run_id,
            phases: Phases { since: started, ..Phases::default() },
            dropped_threads: 0,
            dropped_images: 0,
            dropped_names: 0,
            threads: 1,
            captured: 1,
            faults: 0,
            seconds_told: 0,
            is_overflow: false,
        }
    }
}

/// Reports of crashes that one run may write: of a process that goes on after each. Exceptions that it survives have the
/// numbers behind, so that they take no crash's place.
pub(crate) const MAX_REPORTS: u32 = 8;

/// The file of the next report of this run.
///
/// # Errors
/// What the system answered, and `EDQUOT` where there are [`MAX_REPORTS`] already.
pub(crate) fn report_file(global: &Global, ending: Ending) -> coroner_machine::syscall::Result<i32> {
    let another = |number| run::new_report(global.run.files.directory, number, global.setup.reserve);
    if ending == Ending::GoesOn {
        return another(global.survived.fetch_add(1, Ordering::AcqRel).saturating_add(MAX_REPORTS + 1));
    }
    if ending == Ending::FatalAgain && global.reports.load(Ordering::Acquire) == 1 {
        return Ok(global.run.files.report);
    }
    match global.reports.fetch_add(1, Ordering::AcqRel).saturating_add(1) {
        1 => Ok(global.run.files.report),
        number @ 2..=MAX_REPORTS => another(number),
        _ => Err(coroner_machine::syscall::Errno(libc::EDQUOT)),
    }
}

/// How long each step took.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    durations: [PhaseDuration; 8],
    used: usize,
    since: u64,
}

impl Phases {
    /// The step that began when the last one ended is over.
    fn end(&mut self, phase: Phase) {
        let now = monotonic_now();
        if let Some(place) = self.durations.get_mut(self.used) {
            *place = PhaseDuration { phase, ns: now.saturating_sub(self.since) };
            self.used += 1;
        }
        self.since = now;
    }

    fn all(&self) -> &[PhaseDuration] {
        self.durations.get(..self.used).unwrap_or_default()
    }
}

/// Runs a piece of the report so that a fault in it, or the deadline, ends that piece alone. True if it ran to its end.
///
/// The piece's frames are dropped without running destructors: it must hold nothing whose destructor matters.
pub(crate) fn guarded<F: FnMut(&mut Task<'_>)>(
    task: &mut Task<'_>,
    section: SectionKind,
    tid: Option<u64>,
    piece: F,
) -> bool {
    struct Call<'t, 'a, F> {
        task: &'t mut Task<'a>,
        #[cfg(feature = "fault-injection")]
        section: SectionKind,
        piece: F,
    }
    /// # Safety
    /// `call` points to a `Call` of this piece's type.
    unsafe extern "C" fn trampoline<F: FnMut(&mut Task<'_>)>(call: *mut c_void) {
        // SAFETY: by the contract.
        let call = unsafe { &mut *call.cast::<Call<'_, '_, F>>() };
        #[cfg(feature = "fault-injection")]
        crate::fault_injection::here(call.section);
        (call.piece)(call.task);
    }
    let scratch = task.global.scratch.get();
    let mut call = Call {
        task,
        #[cfg(feature = "fault-injection")]
        section,
        piece,
    };
    // SAFETY: this thread is the owner of the scratch and thus of the point; the trampoline gets its own call; frames of the
    // piece hold nothing to drop (by the contract of this function).
    let code = unsafe { recovery::run(&raw mut (*scratch).point, trampoline::<F>, (&raw mut call).cast()) };
    if code == 0 {
        return true;
    }
    task.faults = task.faults.saturating_add(1);
    // SAFETY: the owner's own field, and no piece is running.
    unsafe {
        if let Some(fault) = &mut (*scratch).fault {
            fault.section = section;
            fault.tid = tid;
        }
    }
    false
}

/// The owner's scratch.
///
/// # Safety
/// The calling thread is the owner of the latch and holds no other reference into the scratch.
#[allow(clippy::mut_from_ref)]
pub(crate) unsafe fn scratch(global: &Global) -> &mut Scratch {
    // SAFETY: by the contract.
    unsafe { &mut *global.scratch.get() }
}
