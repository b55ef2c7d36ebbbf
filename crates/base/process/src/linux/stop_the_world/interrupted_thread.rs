//! Interrupts one thread of a live process to read its registers and stack.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::adaptive_spin::{self, Answered};
use super::futex::{self, Reach};
use super::signal_safety;
use super::thread_slot::{Phase, Request, Slot, free, next_generation, word};
use super::{NotCaptured, ThreadStopper};
use crate::linux::context::Context;
use crate::linux::syscall::Errno;
use crate::linux::threads::{Tid, monotonic_now, process_id, this_thread};
use crate::linux::tracer::Tracer;
use crate::registers::Registers;
use crate::stack::page_size;

/// A thread that is stopped as long as this value exists.
#[derive(Debug)]
pub struct Interrupted<'a> {
    slot: &'a Slot,
}

impl Interrupted<'_> {
    /// Returns the thread's context.
    pub fn context(&self) -> &Context {
        // SAFETY: the thread waits in its handler, whose third argument this is, until `self` is
        // dropped.
        unsafe { Context::shared_at(self.slot.context.load(Relaxed)) }
    }
}

impl Interrupted<'_> {
    /// Returns the thread's context; changes take effect when the thread continues.
    pub fn context_mut(&mut self) -> &mut Context {
        // SAFETY: as in `context`; `self` is borrowed alone.
        unsafe { Context::from_pointer(self.slot.context.load(Relaxed) as *mut libc::c_void) }
    }
}

impl Drop for Interrupted<'_> {
    fn drop(&mut self) {
        self.slot.state.store(word(0, Phase::Idle), SeqCst);
        // Most threads are released while they still spin on the word.
        if self.slot.asleep.load(SeqCst) != 0 {
            futex::wake(&self.slot.state, Reach::Private, 1);
        }
        free(self.slot);
    }
}

/// The result of asking a thread.
enum Answer {
    /// The thread is held.
    Held,
    /// The thread is busy with its own capture, or this thread was held for another's: ask again.
    PutOff,
    /// The thread has not answered, and the request is withdrawn.
    None,
}

/// Time to wait before asking again, in nanoseconds: a walk takes some ten microseconds.
const PUT_OFF: u64 = 20_000;

impl ThreadStopper {
    /// Interrupts another thread of this process, which is stopped until the result is dropped.
    ///
    /// Several threads may do so at once (up to 16), even with each other: a thread is held only
    /// while it holds nobody. Be brief: the interrupted thread may hold any lock, even the
    /// allocator's, so nothing that takes a lock may be called meanwhile.
    ///
    /// # Errors
    /// [`NotCaptured::SignalUnsafe`] if the thread awaits signals, [`NotCaptured::OwnFilter`] if it
    /// has a seccomp filter that this one has not; [`NotCaptured::NoAnswer`] after `timeout`
    /// nanoseconds, [`NotCaptured::ThreadGone`], [`NotCaptured::TableFull`] if 16 captures are in
    /// progress, or why the signal could not be sent. The thread is then left as it was.
    pub fn interrupt(&self, tid: Tid, timeout: u64) -> Result<Interrupted<'_>, NotCaptured> {
        let began = monotonic_now();
        if let Some(reason) = signal_safety::settled_refusal(tid, self.signal, (began, timeout)) {
            return Err(reason);
        }
        let pid = process_id();
        let (index, slot) = self.claim(pid).ok_or(NotCaptured::TableFull)?;
        slot.asker.store(this_thread(), SeqCst);
        let deadline = began.saturating_add(timeout);
        let reason = loop {
            match self.ask(slot, index, (pid, tid), deadline) {
                Ok(Answer::Held) => return Ok(Interrupted { slot }),
                Ok(Answer::None) => break NotCaptured::NoAnswer,
                Err(reason) => break reason,
                Ok(Answer::PutOff) => {}
            }
            let now = monotonic_now();
            if now >= deadline {
                break NotCaptured::NoAnswer;
            }
            // Nobody wakes this word: it is a sleep.
            futex::wait(&slot.state, Reach::Private, word(0, Phase::Idle), deadline.min(now.saturating_add(PUT_OFF)));
        };
        free(slot);
        // The signal may still be pending. Flushing it would also remove those of other captures in
        // progress.
        if reason == NotCaptured::NoAnswer
            && self.shared.single.iter().all(|other| other.job.load(SeqCst) == 0)
            && self.shared.busy.load(SeqCst) == 0
        {
            self.discard_late_signals();
        }
        Err(reason)
    }

    /// Like [`Self::interrupt`], but by ptrace, which doesn't interrupt the thread's system call.
    ///
    /// Calls `with` with its registers while it is stopped. One thread at a time may do so, the
    /// others wait. Slower: it creates a process (not async-signal-safe).
    ///
    /// # Errors
    /// [`NotCaptured::TraceDeadline`] after `timeout` nanoseconds, [`NotCaptured::ThreadGone`],
    /// [`NotCaptured::OwnFilter`] and [`NotCaptured::TableFull`] as above, or why the thread can't
    /// be traced ([`NotCaptured::is_trace_refused`]).
    pub fn trace<R>(&self, tid: Tid, timeout: u64, with: impl FnOnce(&Registers) -> R) -> Result<R, NotCaptured> {
        if signal_safety::has_own_filter(tid) {
            return Err(NotCaptured::OwnFilter);
        }
        let deadline = monotonic_now().saturating_add(timeout);
        let _alone = OnlyTracer::claim(deadline)?;
        let tracer = Tracer::prepare(1, page_size()).map_err(|_| NotCaptured::HelperDenied)?;
        let result = self.trace_by(&tracer, tid, deadline, with);
        tracer.unmap();
        result
    }

    fn trace_by<R>(
        &self,
        tracer: &Tracer,
        tid: Tid,
        deadline: u64,
        with: impl FnOnce(&Registers) -> R,
    ) -> Result<R, NotCaptured> {
        // A thread that holds another puts off those who ask for it: the traced thread may be
        // asking for this one.
        let (_, slot) = self.claim(process_id()).ok_or(NotCaptured::TableFull)?;
        slot.asleep.store(0, SeqCst);
        slot.asker.store(this_thread(), SeqCst);
        slot.state.store(word(1, Phase::Answered), SeqCst);
        let _holder = Interrupted { slot };
        let mut tracing = tracer.begin().ok_or(NotCaptured::TableFull)?;
        let job = tracing.add(tid).ok_or(NotCaptured::TableFull)?;
        tracing.run_briefly(deadline);
        let registers = tracing.outcome(job).unwrap_or(Err(NotCaptured::TraceDeadline))?;
        let result = with(registers);
        // A crash of the traced thread may have stopped this one for too long.
        if tracing.is_held() { Ok(result) } else { Err(NotCaptured::TraceDeadline) }
    }

    /// Sends the signal once, and waits for the result.
    fn ask(&self, slot: &Slot, index: usize, (pid, tid): (i32, Tid), deadline: u64) -> Result<Answer, NotCaptured> {
        let generation = self.shared.single_generation.fetch_add(1, Relaxed);
        let generation = next_generation(generation & (u32::MAX >> 2));
        slot.tid.store(tid, Relaxed);
        slot.asker_processor.store(adaptive_spin::this_processor(), Relaxed);
        slot.asleep.store(0, SeqCst);
        slot.state.store(word(generation, Phase::Asked), SeqCst);
        let request = Request { generation, single: true, index: index as u32 };
        let sent = self.ensure_handler().and_then(|()| self.send(pid, tid, request));
        if let Err(error) = sent {
            slot.state.store(word(0, Phase::Idle), SeqCst);
            return Err(match error {
                Errno(libc::ESRCH) => NotCaptured::ThreadGone,
                Errno::AGAIN => NotCaptured::SignalQueueFull,
                _ => NotCaptured::SignalDenied,
            });
        }
        Ok(self.answer(slot, generation, tid, deadline))
    }

    /// Waits for the answer. If there is none in time, a later one is refused.
    fn answer(&self, slot: &Slot, generation: u32, tid: Tid, deadline: u64) -> Answer {
        let (asked, awaited) = (word(generation, Phase::Asked), word(generation, Phase::Awaited));
        let habits = &self.shared.habits;
        let mut state = slot.state.load(SeqCst);
        // An immediate answer provides no information on how long to spin.
        if state == asked {
            let began = monotonic_now();
            state = adaptive_spin::while_it_is(&slot.state, asked, habits.spin_time(tid));
            if state != asked {
                habits.note(tid, Answered::After(monotonic_now().saturating_sub(began)));
            } else if let Err(now) = slot.state.compare_exchange(asked, awaited, SeqCst, SeqCst) {
                state = now;
            } else {
                state = sleep(slot, awaited, deadline);
                habits.note(
                    tid,
                    match slot.time.load(Relaxed) {
                        _ if state == awaited => Answered::Not,
                        0 => Answered::InPlaceOfTheAsker,
                        time => Answered::After(time.saturating_sub(began)),
                    },
                );
            }
        }
        match state {
            state if state == word(generation, Phase::Answered) => Answer::Held,
            state if state == awaited => Answer::None,
            _ => Answer::PutOff,
        }
    }

    /// Returns a slot for this process: a free one, or one that the parent was using at the fork.
    fn claim(&self, pid: i32) -> Option<(usize, &Slot)> {
        let pid = pid as u32;
        self.shared.single.iter().enumerate().find(|(_, slot)| {
            let owner = slot.job.load(Relaxed);
            owner != pid && slot.job.compare_exchange(owner, pid, SeqCst, SeqCst).is_ok()
        })
    }
}

/// The right to trace threads of this process, until it is dropped.
///
/// Two threads that traced each other would both be stopped. A thread that reports a crash traces
/// without it: whoever has the right may already be stopped.
#[derive(Debug)]
pub struct OnlyTracer(());

/// Id of the process whose thread has the right, a futex word; 0 for none.
///
/// After a fork, the child's copy contains its parent's id.
static TRACING: AtomicU32 = AtomicU32::new(0);

/// Number of times that a thread tries to get the right: others may be faster.
const ATTEMPTS: u32 = 1000;

impl OnlyTracer {
    /// Waits for the right until `deadline` (`CLOCK_MONOTONIC` nanoseconds). Async-signal-safe.
    ///
    /// # Errors
    /// [`NotCaptured::TraceDeadline`].
    pub fn claim(deadline: u64) -> Result<OnlyTracer, NotCaptured> {
        let me = process_id() as u32;
        for _ in 0..ATTEMPTS {
            let owner = TRACING.load(SeqCst);
            if owner != me {
                if TRACING.compare_exchange(owner, me, SeqCst, SeqCst).is_ok() {
                    return Ok(OnlyTracer(()));
                }
            } else if monotonic_now() < deadline {
                futex::wait(&TRACING, Reach::Private, me, deadline);
            } else {
                break;
            }
        }
        Err(NotCaptured::TraceDeadline)
    }
}

impl Drop for OnlyTracer {
    fn drop(&mut self) {
        TRACING.store(0, SeqCst);
        futex::wake(&TRACING, Reach::Private, 1);
    }
}

/// Sleeps while the answer is awaited; returns the last value of the slot's word.
///
/// It is still `awaited` if there is no answer in time; a later answer is then refused.
fn sleep(slot: &Slot, awaited: u32, deadline: u64) -> u32 {
    loop {
        let state = slot.state.load(SeqCst);
        if state != awaited {
            return state;
        }
        if monotonic_now() < deadline {
            futex::wait(&slot.state, Reach::Private, awaited, deadline);
        } else if let Err(now) = slot.state.compare_exchange(awaited, word(0, Phase::Idle), SeqCst, SeqCst) {
            return now;
        } else {
            return awaited;
        }
    }
}
