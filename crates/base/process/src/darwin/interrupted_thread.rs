//! Stopping one thread of a living process to look at its registers and stack.
//!
//! Two threads that stopped each other would both stand still for ever, and a thread that stops another is at that moment a
//! thread that a third may stop. So one thread at a time stops another, as long as it looks at it.
//!
//! The kernel finds threads by port and people by id. Only the list of all threads leads from the one to the other, by a
//! message for each; it is kept ([`Known`]), so that a thread that was found once costs three messages: stop, registers, go on.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mach2::port::mach_port_t;

use super::context::Context;
use super::threads::{Facts, ThreadList, Tid, facts, process_id, release, resume, retain, suspend, this_thread};

/// The thread that stops another one, by its process, so that a child of fork, where that thread is not, doesn't wait for it.
struct Turn {
    process: AtomicI32,
    known: UnsafeCell<Known>,
}

// SAFETY: what is known is touched only by the thread whose turn it is.
unsafe impl Sync for Turn {}

static TURN: Turn = Turn { process: AtomicI32::new(0), known: UnsafeCell::new(Known::new()) };

/// Held by the thread whose turn it is.
#[derive(Debug)]
struct Taken;

impl Taken {
    /// Waits until no other thread stops one: microseconds, or as long as that one has no processor.
    fn wait() -> Taken {
        let me = process_id();
        loop {
            let now = TURN.process.load(Relaxed);
            if now != me && TURN.process.compare_exchange_weak(now, me, Acquire, Relaxed).is_ok() {
                return Taken;
            }
            // SAFETY: no arguments; others run.
            unsafe { libc::sched_yield() };
        }
    }

    #[allow(clippy::unused_self, reason = "it is what makes the access exclusive")]
    fn known(&mut self) -> &mut Known {
        // SAFETY: this is the only value of its kind in the process, and it is borrowed alone.
        unsafe { &mut *TURN.known.get() }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TURN.process.store(0, Release);
    }
}

/// The most threads that are kept; of others the list is asked for each time.
const MAX_KNOWN: usize = 256;

/// A thread with a right for its port: a name that we have a right for is never another thread's. Ids are never used again.
#[derive(Clone, Copy)]
struct Entry {
    port: mach_port_t,
    /// Its specific data are at 0 where the kernel did not say.
    facts: Facts,
}

/// Threads of this task.
struct Known {
    threads: [Entry; MAX_KNOWN],
    count: usize,
    /// Whose ports they are: a child of fork has none of them.
    process: i32,
}

impl Known {
    const fn new() -> Known {
        let facts = Facts { tid: 0, queue_at: 0, specific: 0 };
        Known { threads: [Entry { port: 0, facts }; MAX_KNOWN], count: 0, process: 0 }
    }

    /// A thread by its id. The right stays here, and good until something else is asked for.
    fn thread(&mut self, tid: Tid) -> Option<Entry> {
        let process = process_id();
        if self.process != process {
            (self.process, self.count) = (process, 0);
        }
        self.find(tid).or_else(|| {
            self.refresh(tid);
            self.find(tid)
        })
    }

    fn find(&self, tid: Tid) -> Option<Entry> {
        self.threads.iter().take(self.count).find(|entry| entry.facts.tid == tid).copied()
    }

    /// Takes in the threads that there are now: as many as there is room for, `wanted` among them.
    fn refresh(&mut self, wanted: Tid) {
        let Ok(list) = ThreadList::take() else { return };
        self.threads.iter().take(self.count).for_each(|entry| release(entry.port));
        self.count = 0;
        for port in list.ports() {
            let Some(facts) = facts(*port) else { continue };
            if self.count == MAX_KNOWN && facts.tid == wanted {
                self.count = MAX_KNOWN.saturating_sub(1);
                self.threads.last().into_iter().for_each(|entry| release(entry.port));
            }
            if let Some(place) = self.threads.get_mut(self.count)
                && retain(*port)
            {
                *place = Entry { port: *port, facts };
                self.count = self.count.saturating_add(1);
            }
        }
    }
}

/// Another thread that stands still while this exists.
#[derive(Debug)]
pub struct Interrupted {
    thread: mach_port_t,
    specific: u64,
    context: Context,
    /// Given back when the thread goes on already.
    _turn: Taken,
}

impl Interrupted {
    /// Stops a thread of this task by its id; `None` if there is none, it is the calling one, or one of
    /// [`set_exception_receivers`](super::threads::set_exception_receivers). Be brief: it may hold any
    /// lock, and others who want to stop a thread wait.
    pub fn stop(tid: Tid) -> Option<Interrupted> {
        if tid == this_thread() {
            return None;
        }
        let mut turn = Taken::wait();
        let Entry { port: thread, facts } = turn.known().thread(tid)?;
        // One that has ended since it was listed is refused.
        if !suspend(thread, &facts) {
            return None;
        }
        if let Ok(context) = Context::of_stopped_thread(thread) {
            return Some(Interrupted { thread, specific: facts.specific, context, _turn: turn });
        }
        resume(thread);
        None
    }

    /// Where it was stopped. What the processor said of its last fault is not asked for.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Where its specific data begin; 0 where the kernel does not say.
    pub fn specific(&self) -> u64 {
        // It was not notified of a thread that had just come into being when it was listed.
        if self.specific == 0 { facts(self.thread).map_or(0, |facts| facts.specific) } else { self.specific }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        resume(self.thread);
    }
}
