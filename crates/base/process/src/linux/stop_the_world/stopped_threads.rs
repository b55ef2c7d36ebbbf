//! One stop: asking every thread, waiting, reading the answers, releasing the threads.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::futex::{self, Reach};
use super::queued_signal::is_alive;
use super::signal_safety;
use super::thread_slot::{Phase, Request, Shared, Slot, next_generation, word};
use super::{NotCaptured, ThreadStopper};
use crate::linux::context::Context;
use crate::linux::syscall::Errno;
use crate::linux::threads::{
    KernelState, Listing, TaskDirectory, ThreadName, Tid, announced_threads, monotonic_now, process_id, this_thread,
};
use crate::linux::tracer::{Tracer, Tracing};
use crate::registers::Registers;

/// Maximum number of listings of the threads.
///
/// Two are usual; but a thread may have begun to start another one before it answers, and that one
/// another one.
const LISTINGS: u32 = 100;

/// Number of listings whose new threads the tracing helper stops.
///
/// If each new thread immediately starts another one, that might never end: by the time that the
/// helper has the newest, there is a newer one. The signal is sent during the listing, and is
/// faster.
const TRACED_LISTINGS: u32 = 16;

/// Number of listings without new threads after which the kernel's higher thread count is ignored.
const REPEATS: u32 = 3;

/// Time without an answer after which the threads are listed again, in nanoseconds.
///
/// Applies while some threads are silent.
const SLICE: u64 = 1_000_000;

/// Least time that a round of a wait counts, in nanoseconds, so that every wait ends.
const MIN_ROUND: u64 = 10_000;

/// The progress of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of threads in the table: all but the asker and the excluded.
    pub threads: usize,
    /// Number of threads whose registers are available.
    pub captured: usize,
    /// Number of threads without an answer so far.
    ///
    /// They have not exited, and have not been given up with a reason.
    pub silent: usize,
}

/// A thread's captured registers, or the reason for their absence.
#[derive(Debug)]
pub enum Capture<'a> {
    /// The thread was interrupted by the signal and waits.
    Stopped(&'a Context),
    /// The thread crashed too, and parked itself in its own crash handler.
    Crashed(&'a Context),
    /// The tracing helper stopped the thread.
    Traced(&'a Registers),
    /// The thread's registers are not known.
    Not(NotCaptured),
}

impl Capture<'_> {
    /// Returns the thread's registers, if known.
    pub fn registers(&self) -> Option<Registers> {
        match self {
            Capture::Stopped(context) | Capture::Crashed(context) => Some(context.registers()),
            Capture::Traced(registers) => Some(**registers),
            Capture::Not(_) => None,
        }
    }
}

/// A thread in a stop.
#[derive(Debug)]
pub struct Thread<'a> {
    /// Thread id.
    pub tid: Tid,
    /// Thread name, if the thread answered itself; otherwise `TaskDirectory::name` may know it.
    pub name: Option<ThreadName>,
    /// Time of the answer, in nanoseconds of `CLOCK_MONOTONIC`; 0 if there was none.
    pub time: u64,
    /// The thread's registers, or the reason for their absence.
    pub capture: Capture<'a>,
}

/// A stop in progress. Dropping it releases all threads.
#[derive(Debug)]
pub struct StoppedThreads<'a> {
    stopper: &'a ThreadStopper,
    tasks: &'a TaskDirectory,
    excluded: &'a [Tid],
    asker: Tid,
    pid: i32,
    generation: u32,
    /// Number of slots in use.
    used: usize,
    /// Number of slots that wait for space in the signal queue.
    unsent: usize,
    overflow: usize,
    listings: u32,
    listing: Listing,
    tracing: Option<Tracing<'a>>,
    /// Whether threads that are added to the table are sent the signal.
    signals: bool,
    /// Whether a thread is stopped only if that does it no harm: the process continues.
    is_careful: bool,
    /// Whether the silent threads have been checked for the kernel's own threads.
    workers_noted: bool,
}

impl ThreadStopper {
    /// Asks every thread but the caller and `excluded` to stop, and returns without waiting.
    ///
    /// The threads hand over their registers. `excluded` are Coroner's own threads, each once.
    /// `None` if the handler can't be put in place.
    ///
    /// The caller's duty: one thread at a time (the owner of the report lock). If another stop is
    /// still in progress, its asker has exited; it is ended here.
    ///
    /// Threads that are still stopped after the time of [`Config::hold`], or after the asker has
    /// exited, continue by themselves.
    ///
    /// [`Config::hold`]: super::Config::hold
    pub fn begin<'a>(&'a self, tasks: &'a TaskDirectory, excluded: &'a [Tid]) -> Option<StoppedThreads<'a>> {
        self.begin_by(tasks, excluded, true, false)
    }

    /// Like [`Self::begin`], for a process that continues: threads that block or await the signal
    /// are only traced, those with a seccomp filter of their own not stopped at all.
    pub fn begin_carefully<'a>(&'a self, tasks: &'a TaskDirectory, excluded: &'a [Tid]) -> Option<StoppedThreads<'a>> {
        self.begin_by(tasks, excluded, true, true)
    }

    /// Like [`Self::begin_carefully`], but asks no threads: [`StoppedThreads::trace_all`] stops
    /// them.
    pub fn begin_silently<'a>(&'a self, tasks: &'a TaskDirectory, excluded: &'a [Tid]) -> Option<StoppedThreads<'a>> {
        self.begin_by(tasks, excluded, false, true)
    }

    fn begin_by<'a>(
        &'a self,
        tasks: &'a TaskDirectory,
        excluded: &'a [Tid],
        signals: bool,
        is_careful: bool,
    ) -> Option<StoppedThreads<'a>> {
        let shared = self.shared;
        if shared.busy.swap(1, SeqCst) != 0 {
            // The earlier asker has exited, or is in the process that this one was forked from:
            // only the owner of the report lock gets here.
            shared.stopped.store(0, SeqCst);
            futex::wake(&shared.stopped, Reach::Private, i32::MAX);
        }
        if self.ensure_handler().is_err() {
            shared.busy.store(0, SeqCst);
            return None;
        }
        let generation = next_generation(shared.generation.load(Relaxed));
        shared.generation.store(generation, Relaxed);
        shared.hold_until.store(monotonic_now().saturating_add(self.hold), SeqCst);
        shared.answers.store(0, SeqCst);
        shared.awaited.store(u32::MAX, SeqCst);
        shared.asker.store(this_thread(), SeqCst);
        shared.is_watched.store(0, SeqCst);
        shared.polled.store(0, SeqCst);
        shared.stopped.store(generation, SeqCst);
        let mut stop = StoppedThreads {
            stopper: self,
            tasks,
            excluded,
            asker: this_thread(),
            pid: process_id(),
            generation,
            used: 0,
            unsent: 0,
            overflow: 0,
            listings: 0,
            listing: Listing::default(),
            tracing: None,
            signals,
            is_careful,
            workers_noted: false,
        };
        if !stop.ask_announced() {
            stop.ask_new();
        }
        Some(stop)
    }
}

impl<'a> StoppedThreads<'a> {
    fn shared(&self) -> &'static Shared {
        self.stopper.shared
    }

    /// Returns the slots in use.
    fn slots(&self) -> &'static [Slot] {
        self.shared().slots().get(..self.used).unwrap_or(&[])
    }

    /// Asks the threads that are known without a listing. `false` if those are not all.
    fn ask_announced(&mut self) -> bool {
        let pid = self.pid;
        if self.tasks.count() == Ok(1) {
            return true;
        }
        // A thread that has exited is recognized by the signal that can't be sent.
        if !self.signals || self.stopper.signal == 0 {
            return false;
        }
        for tid in core::iter::once(pid).chain(announced_threads(pid).filter(|tid| *tid != pid)) {
            if tid != self.asker && !self.excluded.contains(&tid) && !self.ask(tid) {
                return false;
            }
        }
        let gone = |slot: &&Slot| slot.verdict.load(Relaxed) == NotCaptured::ThreadGone as u32;
        let known = self.used.saturating_sub(self.slots().iter().filter(gone).count());
        let Ok(all) = self.tasks.count() else { return false };
        let missing = all.saturating_sub(self.excluded_alive().saturating_add(known).saturating_add(1));
        missing == 0 || self.probe(missing)
    }

    /// Asks threads by the ids that follow the process's, which are those of its first threads.
    ///
    /// `false` if it doesn't find as many threads as are missing. An unused id costs one system
    /// call; for a listing the kernel creates a file for each thread.
    fn probe(&mut self, missing: usize) -> bool {
        let (mut missing, known) = (missing, self.used);
        let end = self.pid.saturating_add(missing.saturating_mul(4).min(4096) as i32).saturating_add(32);
        for tid in self.pid.saturating_add(1)..end {
            let is_known = || self.slots().iter().take(known).any(|slot| slot.tid.load(Relaxed) == tid);
            if tid == self.asker || self.excluded.contains(&tid) || is_known() {
                continue;
            }
            let place = self.used;
            if !self.ask(tid) {
                return false;
            }
            match self.slots().get(place).map(|slot| slot.verdict.load(Relaxed)) {
                Some(0) => missing = missing.saturating_sub(1),
                verdict => {
                    self.used = place;
                    // If signals are refused, the result doesn't show whether there is such a
                    // thread.
                    if verdict != Some(NotCaptured::ThreadGone as u32) {
                        return false;
                    }
                }
            }
            if missing == 0 {
                return true;
            }
        }
        false
    }

    /// Returns the number of excluded threads that are alive, without the asker.
    fn excluded_alive(&self) -> usize {
        self.excluded.iter().filter(|tid| **tid != self.asker && is_alive(self.pid, **tid)).count()
    }

    /// Lists the threads and asks those that are not in the table yet.
    ///
    /// Returns whether there may be more: some were new, or the list was incomplete.
    ///
    /// The kernel ends a listing early if the thread at its current position exits at that moment.
    /// But a captured thread can't exit, so a listing without all of those was cut short.
    fn ask_new(&mut self) -> bool {
        if self.listings >= LISTINGS {
            return false;
        }
        self.listings = self.listings.saturating_add(1);
        let before = self.used;
        let captured = self.progress().captured;
        let mut met = 0_usize;
        let mut overflow = 0_usize;
        // The kernel lists threads in the order of their creation, so a second listing finds the
        // slots in order.
        let mut expected = 0_usize;
        let tasks = self.tasks;
        let listing = tasks.list(&mut |tid| {
            if tid == self.asker || self.excluded.contains(&tid) {
                return;
            }
            let slots = self.slots();
            let is_it = |index: usize| slots.get(index).is_some_and(|slot| slot.tid.load(Relaxed) == tid);
            let known = if is_it(expected) { Some(expected) } else { (0..before).find(|index| is_it(*index)) };
            if let Some(known) = known {
                expected = known.saturating_add(1);
                if slots.get(known).is_some_and(|slot| self.is_captured(slot) || self.stopped(slot).is_some()) {
                    met = met.saturating_add(1);
                }
                return;
            }
            expected = usize::MAX;
            if !self.ask(tid) {
                overflow = overflow.saturating_add(1);
            }
        });
        self.listing = listing;
        self.overflow = overflow;
        self.used > before || met < captured
    }

    /// Adds a thread to the table and sends it the signal. `false` if the table is full.
    fn ask(&mut self, tid: Tid) -> bool {
        let shared = self.shared();
        let Some(slot) = shared.slots().get(self.used) else { return false };
        slot.tid.store(tid, Relaxed);
        slot.context.store(0, Relaxed);
        slot.time.store(0, Relaxed);
        slot.verdict.store(0, Relaxed);
        slot.crashing.store(0, Relaxed);
        slot.job.store(0, Relaxed);
        slot.state.store(word(self.generation, Phase::Asked), SeqCst);
        let index = self.used;
        self.used = self.used.saturating_add(1);
        // A thread that is parked as crashing already blocks the signal.
        if self.find_crashing(slot) {
            return true;
        }
        if self.signals {
            self.send_carefully(index, slot);
        } else if self.is_careful && signal_safety::has_own_filter(tid) {
            slot.verdict.store(NotCaptured::OwnFilter as u32, Relaxed);
        }
        true
    }

    /// Sends the signal, unless it would do harm to a thread that continues.
    fn send_carefully(&mut self, index: usize, slot: &Slot) {
        if self.is_careful
            && let Some(reason) = signal_safety::refusal(slot.tid.load(Relaxed), self.stopper.signal)
        {
            slot.verdict.store(reason as u32, Relaxed);
        } else {
            self.send(index, slot);
        }
    }

    fn send(&mut self, index: usize, slot: &Slot) {
        let request = Request { generation: self.generation, single: false, index: index as u32 };
        let verdict = match self.stopper.send(self.pid, slot.tid.load(Relaxed), request) {
            Ok(()) => 0,
            Err(Errno::AGAIN) => {
                self.unsent = self.unsent.saturating_add(1);
                NotCaptured::SignalQueueFull as u32
            }
            Err(Errno(libc::ESRCH)) => NotCaptured::ThreadGone as u32,
            Err(_) => NotCaptured::SignalDenied as u32,
        };
        slot.verdict.store(verdict, Relaxed);
    }

    /// Sends the signals again for which there was no space in the signal queue.
    fn send_unsent(&mut self) {
        self.unsent = 0;
        for (index, slot) in self.slots().iter().enumerate() {
            if slot.verdict.load(Relaxed) == NotCaptured::SignalQueueFull as u32 {
                self.send(index, slot);
            }
        }
    }

    /// Records in a thread's slot the other slot in which it parked when it crashed.
    ///
    /// `false` if it did not.
    fn find_crashing(&self, slot: &Slot) -> bool {
        let tid = slot.tid.load(Relaxed);
        let answered = word(1, Phase::Answered);
        let mut parked = self.shared().crashing.iter();
        let found = parked.position(|one| one.tid.load(SeqCst) == tid && one.state.load(SeqCst) == answered);
        if let Some(index) = found {
            slot.crashing.store((index as u32).wrapping_add(1), Relaxed);
        }
        found.is_some()
    }

    /// Returns the slot of a single capture that holds this thread.
    ///
    /// The thread can't answer a stop before that asker releases it, and that asker is itself
    /// stopped.
    fn find_single(&self, tid: Tid) -> Option<&'static Slot> {
        self.shared()
            .single
            .iter()
            .find(|one| one.tid.load(Relaxed) == tid && one.state.load(Acquire) & 3 == Phase::Answered as u32)
    }

    fn has_answered(&self, slot: &Slot) -> bool {
        slot.state.load(Acquire) == word(self.generation, Phase::Answered)
    }

    /// Returns the progress of the stop.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress { threads: self.used, ..Progress::default() };
        for slot in self.slots() {
            if self.is_captured(slot) || self.stopped(slot).is_some() {
                progress.captured = progress.captured.saturating_add(1);
            } else if slot.verdict.load(Relaxed) == 0 {
                progress.silent = progress.silent.saturating_add(1);
            }
        }
        progress
    }

    /// Whether a thread's context is available, in whichever slot.
    fn is_captured(&self, slot: &Slot) -> bool {
        self.has_answered(slot)
            || slot.crashing.load(Relaxed) != 0
            || self.find_crashing(slot)
            || self.find_single(slot.tid.load(Relaxed)).is_some()
    }

    /// Waits until every thread has answered, including those that started meanwhile.
    ///
    /// Also ends if nobody has answered for `grace` nanoseconds, or after `limit` nanoseconds. Each
    /// round counts at most [`SLICE`], so that time in which the process is stopped or throttled
    /// does not count.
    ///
    /// After it, the `silent` threads are those worth tracing. They may still answer.
    pub fn wait(&mut self, grace: u64, limit: u64) -> Progress {
        let shared = self.shared();
        let mut answers = shared.answers.load(SeqCst);
        let (mut waited, mut quiet_since, mut round_began) = (0_u64, 0_u64, monotonic_now());
        let mut repeated = 0_u32;
        loop {
            let seen = shared.answers.load(SeqCst);
            let progress = self.progress();
            let now = monotonic_now();
            waited = waited.saturating_add(now.saturating_sub(round_began).clamp(MIN_ROUND, SLICE));
            round_began = now;
            if seen != answers {
                (answers, quiet_since) = (seen, waited);
            }
            if progress.silent == 0 && self.unsent == 0 {
                if waited >= limit || self.is_complete(&progress) {
                    return progress;
                }
                if self.ask_new() {
                    repeated = 0;
                } else if repeated == REPEATS {
                    return progress;
                } else {
                    // Additional threads in the kernel's count may be exiting, or be new and after
                    // the end of a listing that was cut short.
                    repeated = repeated.saturating_add(1);
                }
                continue;
            }
            if waited >= limit || waited.saturating_sub(quiet_since) >= grace {
                return progress;
            }
            if progress.silent > 0 {
                // Wake up at the last answer from those that were sent the signal.
                let slice = grace.min(SLICE).min(limit - waited);
                self.sleep(seen.wrapping_add(progress.silent as u32), now.saturating_add(slice));
            }
            if shared.answers.load(SeqCst) == seen {
                // Threads that have exited never answer, and those that have started were not asked
                // yet.
                self.note_ended();
                if self.ask_new() {
                    quiet_since = waited;
                }
            }
            if self.unsent > 0 {
                let before = self.unsent;
                self.send_unsent();
                if self.unsent >= before && self.progress().silent == 0 {
                    // No space, and nobody left whose answer would free some.
                    return self.progress();
                }
            }
        }
    }

    /// Whether the process has no other threads.
    ///
    /// Captured threads can't exit, so if the numbers agree, none is new.
    fn is_complete(&self, progress: &Progress) -> bool {
        let known = progress.captured.saturating_add(self.excluded_alive()).saturating_add(1);
        self.tasks.count() == Ok(known)
    }

    /// Sleeps until there are `awaited` answers, or until `until`.
    fn sleep(&self, awaited: u32, until: u64) {
        let shared = self.shared();
        shared.awaited.store(awaited, SeqCst);
        loop {
            let now = shared.answers.load(SeqCst);
            // Counting is modulo 2^32, and there may be more answers than awaited.
            if now.wrapping_sub(awaited) as i32 >= 0 || monotonic_now() >= until {
                return;
            }
            futex::wait(&shared.answers, Reach::Private, now, until);
        }
    }

    /// Determines which silent threads have exited, and which are the kernel's own.
    ///
    /// Neither ever answer.
    fn note_ended(&mut self) {
        for slot in self.slots() {
            if slot.verdict.load(Relaxed) == 0
                && !self.has_answered(slot)
                && !is_alive(self.pid, slot.tid.load(Relaxed))
            {
                slot.verdict.store(NotCaptured::ThreadGone as u32, Relaxed);
            }
        }
        if !core::mem::replace(&mut self.workers_noted, true) {
            self.note_kernel_workers();
        }
    }

    /// Stops and reads silent threads through the tracing helper.
    ///
    /// Includes those that could not be sent the signal. They stay stopped until the stop ends.
    pub fn trace(&mut self, tracer: &'a Tracer, deadline: u64) -> Progress {
        if self.tracing.is_none() {
            self.tracing = tracer.begin();
        }
        let slots = self.slots();
        let wanted = |stop: &Self, slot: &Slot| match slot.verdict.load(Relaxed) {
            0 => !stop.is_captured(slot),
            verdict => [NotCaptured::SignalQueueFull, NotCaptured::SignalDenied, NotCaptured::SignalUnsafe]
                .into_iter()
                .any(|reason| verdict == reason as u32),
        };
        for slot in slots {
            if slot.job.load(Relaxed) == 0
                && wanted(self, slot)
                && let Some(tracing) = &mut self.tracing
                && let Some(job) = tracing.add(slot.tid.load(Relaxed))
            {
                slot.job.store((job as u32).wrapping_add(1), Relaxed);
            }
        }
        // Stays in `self`: if the deadline ends this call, the stop's end still ends the helper.
        let Some(tracing) = &mut self.tracing else { return self.progress() };
        tracing.run(deadline);
        for slot in slots {
            let Some(job) = slot.job.load(Relaxed).checked_sub(1) else { continue };
            let late = matches!(tracing.outcome(job as usize), Some(Err(NotCaptured::TraceDeadline)));
            if late && self.tasks.state(slot.tid.load(Relaxed)) == Ok(KernelState::DiskSleep) {
                slot.verdict.store(NotCaptured::Uninterruptible as u32, Relaxed);
                slot.job.store(0, Relaxed);
            }
        }
        self.progress()
    }

    /// Stops every thread through the tracing helper, including those that start meanwhile.
    ///
    /// Their system calls continue afterwards as if nothing had happened. Threads that it may not
    /// trace, and those that start faster than it stops them, are then sent the signal;
    /// [`Self::wait`] waits for them.
    ///
    /// A thread that another process traces (a debugger) is one of those.
    pub fn trace_all(&mut self, tracer: &'a Tracer, deadline: u64) {
        loop {
            self.note_kernel_workers();
            let progress = self.trace(tracer, deadline);
            // A listing that was cut short may lack the newest thread: list once more.
            if self.is_complete(&progress) || monotonic_now() >= deadline || self.listings >= TRACED_LISTINGS {
                break;
            }
            if !(self.ask_new() || self.ask_new()) {
                break;
            }
        }
        self.signals = true;
        for (index, slot) in self.slots().iter().enumerate() {
            let verdict = slot.verdict.load(Relaxed);
            if verdict != 0 || self.is_captured(slot) || self.is_out_of_reach(slot) {
                continue;
            }
            slot.job.store(0, Relaxed);
            self.send_carefully(index, slot);
        }
    }

    /// Whether the tracing helper has stopped a thread, or found that nothing can stop it.
    ///
    /// Such a thread has exited, or waits in the kernel.
    fn is_out_of_reach(&self, slot: &Slot) -> bool {
        use NotCaptured::{ThreadGone, TraceDeadline};
        matches!(self.traced(slot), Some(Ok(_) | Err(ThreadGone | TraceDeadline)))
    }

    /// Determines which threads are the kernel's own and never answer.
    fn note_kernel_workers(&self) {
        for slot in self.slots() {
            if slot.verdict.load(Relaxed) == 0
                && slot.job.load(Relaxed) == 0
                && !self.is_captured(slot)
                && self.tasks.is_kernel_worker(slot.tid.load(Relaxed))
            {
                slot.verdict.store(NotCaptured::KernelThread as u32, Relaxed);
            }
        }
    }

    /// Returns the tracing helper's result for this thread.
    fn traced(&self, slot: &Slot) -> Option<Result<&Registers, NotCaptured>> {
        let job = slot.job.load(Relaxed).checked_sub(1)?;
        self.tracing.as_ref()?.outcome(job as usize)
    }

    /// Returns the registers of this thread read by the tracing helper.
    fn stopped(&self, slot: &Slot) -> Option<&Registers> {
        self.traced(slot)?.ok()
    }

    /// Returns the number of threads in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the asker is the only thread.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the number of threads for which the table had no space.
    pub fn overflow(&self) -> usize {
        self.overflow
    }

    /// Returns the result of the last listing; an error means that some threads may be missing.
    pub fn listing(&self) -> Listing {
        self.listing
    }

    /// Returns the threads, usually in the order of their creation.
    ///
    /// Without those that exited meanwhile and those of the kernel.
    pub fn threads(&self) -> impl Iterator<Item = Thread<'_>> {
        self.slots().iter().map(|slot| self.thread(slot)).filter(|thread| {
            !matches!(thread.capture, Capture::Not(NotCaptured::ThreadGone | NotCaptured::KernelThread))
        })
    }

    fn thread(&self, slot: &'static Slot) -> Thread<'_> {
        let tid = slot.tid.load(Relaxed);
        let crashing = slot.crashing.load(Relaxed).checked_sub(1);
        if let Some(one) = crashing.and_then(|index| self.shared().crashing.get(index as usize)) {
            let (name, time) = (Some(one.name()), one.time.load(Relaxed));
            return Thread { tid, name, time, capture: held(one, Capture::Crashed) };
        }
        if self.has_answered(slot) {
            let (name, time) = (Some(slot.name()), slot.time.load(Relaxed));
            return Thread { tid, name, time, capture: held(slot, Capture::Stopped) };
        }
        if let Some(one) = self.find_single(tid) {
            return Thread { tid, name: None, time: 0, capture: held(one, Capture::Stopped) };
        }
        let capture = match self.traced(slot) {
            Some(Ok(registers)) => Capture::Traced(registers),
            Some(Err(reason)) => Capture::Not(reason),
            None => Capture::Not(
                NotCaptured::from_number(slot.verdict.load(Relaxed) as u8).unwrap_or(NotCaptured::NoAnswer),
            ),
        };
        Thread { tid, name: None, time: 0, capture }
    }

    /// Releases all threads: each continues as if nothing had happened.
    pub fn release(self) {
        drop(self);
    }

    /// Like [`Self::leave_stopped`], but the threads continue by themselves after that time.
    ///
    /// They continue up to a twentieth of a second later, or when [`ThreadStopper::resume_all`] is
    /// called.
    pub fn leave_stopped_for(mut self, nanoseconds: u64) {
        // Traced threads continue at once: they can't be released later.
        drop(self.tracing.take());
        self.shared().hold_until.store(monotonic_now().saturating_add(nanoseconds), SeqCst);
        core::mem::forget(self);
    }

    /// Ends the stop without releasing any thread.
    ///
    /// The threads stay stopped until the process terminates, which is about to happen; if it does
    /// not, they continue after a second.
    pub fn leave_stopped(self) {
        self.shared().hold_until.store(monotonic_now().saturating_add(1_000_000_000), SeqCst);
        core::mem::forget(self);
    }
}

/// Returns the context that a stopped thread left in its slot.
fn held<'r>(slot: &Slot, kind: impl FnOnce(&'r Context) -> Capture<'r>) -> Capture<'r> {
    let context = slot.context.load(Relaxed);
    if context == 0 {
        return Capture::Not(NotCaptured::NoAnswer);
    }
    // SAFETY: the address of the third argument of a handler that waits, on the stack of its
    // thread, until the stop ends (which the result's lifetime does not outlive).
    // Async-signal-safe: no call.
    kind(unsafe { Context::shared_at(context) })
}

impl Drop for StoppedThreads<'_> {
    fn drop(&mut self) {
        let shared = self.shared();
        drop(self.tracing.take());
        let silent = self.slots().iter().any(|slot| !self.has_answered(slot) && slot.verdict.load(Relaxed) == 0);
        // From here on late signals find nothing to answer; then one call wakes all.
        shared.stopped.store(0, SeqCst);
        futex::wake(&shared.stopped, Reach::Private, i32::MAX);
        if silent {
            self.stopper.discard_late_signals();
        }
        shared.busy.store(0, SeqCst);
    }
}
