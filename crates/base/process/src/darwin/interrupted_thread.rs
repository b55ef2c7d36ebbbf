//! Stops one thread of a live process to read its registers and stack.
//!
//! If two threads stopped each other, both would be stopped forever, and a thread that stops
//! another may itself be stopped by a third. So only one thread at a time may stop another, until
//! it has finished reading it.
//!
//! The kernel identifies threads by port, people identify them by id. Only the list of all threads
//! maps one to the other, with a message per thread; the mapping is kept ([`Known`]), so that a
//! thread that was found once costs three messages: stop, registers, resume.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mach2::port::mach_port_t;

use super::context::Context;
use super::threads::{Facts, ThreadList, Tid, facts, process_id, release, resume, retain, suspend, this_thread};

/// The turn to stop a thread, taken with the process id.
///
/// A child of fork, in which the thread with the turn doesn't exist, therefore doesn't wait for it.
struct Turn {
    process: AtomicI32,
    known: UnsafeCell<Known>,
}

// SAFETY: the known threads are accessed only by the thread whose turn it is.
unsafe impl Sync for Turn {}

static TURN: Turn = Turn { process: AtomicI32::new(0), known: UnsafeCell::new(Known::new()) };

/// Held by the thread whose turn it is.
#[derive(Debug)]
struct Taken;

impl Taken {
    /// Waits until no other thread stops one.
    ///
    /// Takes microseconds, or as long as that thread gets no processor.
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

/// Maximum number of threads that are kept; for others, the list is requested each time.
const MAX_KNOWN: usize = 256;

/// A thread with a right for its port.
///
/// A name that we have a right for never becomes another thread's. Ids are never reused.
#[derive(Clone, Copy)]
struct Entry {
    port: mach_port_t,
    /// The thread's facts; `specific` is 0 if the kernel did not report it.
    facts: Facts,
}

/// Known threads of this task.
struct Known {
    threads: [Entry; MAX_KNOWN],
    count: usize,
    /// Id of the process that the ports belong to: a child of fork has none of them.
    process: i32,
}

impl Known {
    const fn new() -> Known {
        let facts = Facts { tid: 0, queue_at: 0, specific: 0 };
        Known { threads: [Entry { port: 0, facts }; MAX_KNOWN], count: 0, process: 0 }
    }

    /// Returns a thread by its id. The right stays here, and is valid until the next request.
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

    /// Records the current threads: as many as fit, including `wanted`.
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

/// Another thread, stopped as long as this value exists.
#[derive(Debug)]
pub struct Interrupted {
    thread: mach_port_t,
    specific: u64,
    context: Context,
    /// Released after the thread has been resumed.
    _turn: Taken,
}

impl Interrupted {
    /// Stops a thread of this task by its id.
    ///
    /// `None` if there is none, if it is the calling one, or if it is one of
    /// [`set_exception_receivers`](super::threads::set_exception_receivers). Be brief: the thread
    /// may hold any lock, and other threads wait for their turn.
    pub fn stop(tid: Tid) -> Option<Interrupted> {
        if tid == this_thread() {
            return None;
        }
        let mut turn = Taken::wait();
        let Entry { port: thread, facts } = turn.known().thread(tid)?;
        // A thread that has exited since it was listed is rejected.
        if !suspend(thread, &facts) {
            return None;
        }
        if let Ok(context) = Context::of_stopped_thread(thread) {
            return Some(Interrupted { thread, specific: facts.specific, context, _turn: turn });
        }
        resume(thread);
        None
    }

    /// Returns the thread's registers. The fault state is not read.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the address of the thread's specific data; 0 if the kernel does not report it.
    pub fn specific(&self) -> u64 {
        // Not yet known for a thread that had just been created when it was listed.
        if self.specific == 0 { facts(self.thread).map_or(0, |facts| facts.specific) } else { self.specific }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        resume(self.thread);
    }
}
