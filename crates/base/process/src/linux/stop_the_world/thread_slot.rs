//! The shared table through which threads hand over their contexts, and the threads' side of it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use super::adaptive_spin::{self, Habits};
use super::futex::{self, Reach};
use super::queued_signal::{QueuedSignal, is_alive};
use crate::linux::deadline;
use crate::linux::syscall::syscall;
use crate::linux::threads::{ThreadName, Tid, monotonic_now, process_id, this_thread};

/// Maximum number of parked threads that crash during another crash's report.
pub(super) const CRASHING: usize = 32;

/// Maximum number of simultaneous single captures.
pub(super) const SINGLE: usize = 16;

/// Phase of a slot, in the two low bits of [`Slot::state`]; the rest is the request's generation.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// No request, or the request is over.
    Idle = 0,
    /// The thread was sent the signal.
    Asked = 1,
    /// Like [`Phase::Asked`], and the asker sleeps until the answer (single captures only).
    Awaited = 2,
    /// The thread's context is in the slot and the thread waits.
    Answered = 3,
}

pub(super) const fn word(generation: u32, phase: Phase) -> u32 {
    generation << 2 | phase as u32
}

/// Returns the next generation.
///
/// Generations have 30 bits; 0 is never used, so that zeroed memory has no valid generation.
pub(super) const fn next_generation(generation: u32) -> u32 {
    let next = generation.wrapping_add(1) & (u32::MAX >> 2);
    if next == 0 { 1 } else { next }
}

/// A thread's slot, in a cache line of its own so that simultaneous answers don't interfere.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// [`word`]; also the futex of a single capture.
    pub(super) state: AtomicU32,
    pub(super) tid: AtomicI32,
    /// Address of the `ucontext`, on the thread's own stack.
    pub(super) context: AtomicUsize,
    /// Time of the answer in `CLOCK_MONOTONIC` nanoseconds.
    ///
    /// In a single capture it is set only if the asker sleeps, and is 0 if the answer came from the
    /// processor that the asker had left.
    pub(super) time: AtomicU64,
    pub(super) name: [AtomicU64; 2],
    /// A `NotCaptured` number, 0 while undecided; written by the asker.
    pub(super) verdict: AtomicU32,
    /// Index plus one of the slot in which this thread parked when it crashed, 0 if it did not.
    ///
    /// Written by the asker.
    pub(super) crashing: AtomicU32,
    /// Index plus one of this thread's job with the tracing helper, 0 if it has none.
    ///
    /// Written by the asker. In a slot of a single capture, the process that uses the slot.
    pub(super) job: AtomicU32,
    /// The asking thread in a single capture.
    pub(super) asker: AtomicI32,
    /// The processor on which the asker of a single capture ran when it asked.
    pub(super) asker_processor: AtomicU32,
    /// 1 if the thread held by a single capture sleeps, and must be woken.
    pub(super) asleep: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    pub(super) fn name(&self) -> ThreadName {
        let [first, second] = &self.name;
        ThreadName::from_words([first.load(Relaxed), second.load(Relaxed)])
    }

    /// Stores the calling thread's context, name and the time; returns the time.
    ///
    /// The name is written directly to its destination, because the stack may be small.
    fn publish(&self, context: usize) -> u64 {
        let name = self.name.as_ptr();
        // SAFETY: the kernel writes 16 bytes into the two words, which are this thread's to write
        // until the phase is set. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_NAME, name) };
        let now = monotonic_now();
        self.time.store(now, Relaxed);
        self.context.store(context, Relaxed);
        now
    }
}

/// The table shared by all threads.
///
/// Its memory is never unmapped, because a late signal must find it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shared {
    /// The generation whose threads are to stay stopped, 0 if none.
    ///
    /// This is the one futex word on which all of them wait.
    pub(super) stopped: AtomicU32,
    /// Time at which stopped threads continue in any case (`CLOCK_MONOTONIC` nanoseconds).
    pub(super) hold_until: AtomicU64,
    /// The thread that asked for the stop: if it exits, the stopped threads continue.
    pub(super) asker: AtomicI32,
    /// 1 if a stopped thread is to send the asker the ticks of its deadline.
    pub(super) is_watched: AtomicU32,
    /// When a stopped thread last polled ([`Shared::poll`]), in `CLOCK_MONOTONIC` nanoseconds.
    pub(super) polled: AtomicU64,
    /// Number of answers in this stop, a futex word.
    pub(super) answers: AtomicU32,
    /// The number of answers at which the asker is woken.
    pub(super) awaited: AtomicU32,
    /// The generation of the last stop.
    pub(super) generation: AtomicU32,
    /// 1 while a stop is in progress.
    pub(super) busy: AtomicU32,
    /// The generation of the last single capture.
    pub(super) single_generation: AtomicU32,
    /// The times that threads take to answer a single capture.
    pub(super) habits: Habits,
    pub(super) single: [Slot; SINGLE],
    pub(super) crashing: [Slot; CRASHING],
    /// Capacity of `slots`, written before the table becomes visible.
    pub(super) capacity: usize,
    pub(super) slots: AtomicPtr<Slot>,
}

/// The table, once `prepare` has created it; never unmapped and never replaced.
pub(super) static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

impl Shared {
    /// Returns the table, if there is one.
    pub(super) fn get() -> Option<&'static Shared> {
        // SAFETY: null or a mapping that holds an initialised `Shared` and is never unmapped.
        // Async-signal-safe: no call.
        unsafe { SHARED.load(Acquire).as_ref() }
    }

    /// Returns the slots of a stop.
    pub(super) fn slots(&self) -> &'static [Slot] {
        let slots = self.slots.load(Relaxed);
        if slots.is_null() {
            return &[];
        }
        // SAFETY: `prepare` set both to the slots after this structure, zeroed (which is a valid
        // slot) and never unmapped. Async-signal-safe: no call.
        unsafe { core::slice::from_raw_parts(slots, self.capacity) }
    }

    /// Ends the stop of `generation` if the asker has exited or the threads' time is over, and
    /// sends the asker a tick of its deadline if it is watched. Called on a stopped thread.
    ///
    /// One thread at a time does this for all, and `false` is returned to the others: a thousand
    /// threads that poll would need the processor time that the asker lacks.
    fn poll(&self, generation: u32, now: u64) -> bool {
        let last = self.polled.load(SeqCst);
        let is_due = now.saturating_sub(last) >= LIVENESS / 2;
        if !is_due || self.polled.compare_exchange(last, now, SeqCst, SeqCst).is_err() {
            return false;
        }
        let asker = self.asker.load(Relaxed);
        if now >= self.hold_until.load(Acquire) || !is_alive(process_id(), asker) {
            if self.stopped.compare_exchange(generation, 0, SeqCst, SeqCst).is_ok() {
                futex::wake(&self.stopped, Reach::Private, i32::MAX);
            }
        } else if self.is_watched.load(SeqCst) != 0 {
            let _ = QueuedSignal::send(process_id(), asker, deadline::SIGNAL, deadline::MARK);
        }
        true
    }

    /// Counts an answer, and wakes the asker if it is the last one awaited.
    fn count_answer(&self) {
        let now = self.answers.fetch_add(1, SeqCst).wrapping_add(1);
        if now == self.awaited.load(SeqCst) {
            futex::wake(&self.answers, Reach::Private, 1);
        }
    }
}

/// The content of the signal's value: slot, kind and generation.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) generation: u32,
    pub(super) single: bool,
    pub(super) index: u32,
}

impl Request {
    /// Bit 31 of the low half: a single capture.
    const SINGLE: u32 = 1 << 31;

    pub(super) fn to_value(self) -> u64 {
        let kind = if self.single { Request::SINGLE } else { 0 };
        u64::from(self.generation) << 32 | u64::from(self.index | kind)
    }

    fn from_value(value: u64) -> Request {
        let low = value as u32;
        Request { generation: (value >> 32) as u32, single: low & Request::SINGLE != 0, index: low & !Request::SINGLE }
    }
}

/// The signal's handler: runs on any thread at any instruction.
///
/// It may find little stack. Rust's standard library gives its threads 8 KiB of alternate stack, of
/// which one signal frame takes 3.4 KiB if the processor has AVX-512: inside another handler 1 KiB
/// is left. So everything on this path keeps its frames small, even without optimisation (a test
/// runs it so).
///
/// It answers only a current request to this thread; for anything else (a late signal of a stop
/// that was given up, an app's own use of the number) it returns at once.
pub(super) extern "C" fn on_signal(_signal: i32, info: *const QueuedSignal, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to a handler installed with SA_SIGINFO.
    // Async-signal-safe: no call.
    let value = unsafe { info.as_ref() }.and_then(QueuedSignal::value);
    let (Some(value), Some(shared)) = (value, Shared::get()) else { return };
    let request = Request::from_value(value);
    if request.single {
        answer_single(shared, request, context as usize);
    } else {
        answer_stop(shared, request, context as usize);
    }
}

/// Interval at which a stopped thread checks whether the asker is still alive, in nanoseconds.
///
/// Also the interval of a deadline's ticks ([`deadline::TICK_MS`]).
const LIVENESS: u64 = 50_000_000;

const _: () = assert!(LIVENESS == deadline::TICK_MS as u64 * 1_000_000);

/// Number of threads that take over soon if the one that polls no longer does.
const RESERVES: u32 = 8;

/// Interval at which the reserves check whether a thread polls, in nanoseconds.
const RESERVE_INTERVAL: u64 = 1_000_000_000;

/// Interval at which all other threads do, in nanoseconds.
const LAST_INTERVAL: u64 = 10_000_000_000;

fn answer_stop(shared: &Shared, request: Request, context: usize) {
    let generation = request.generation;
    let Some(slot) = shared.slots().get(request.index as usize) else { return };
    if shared.stopped.load(Acquire) != generation
        || slot.state.load(Acquire) != word(generation, Phase::Asked)
        || slot.tid.load(Relaxed) != this_thread()
    {
        return;
    }
    let mut now = slot.publish(context);
    slot.state.store(word(generation, Phase::Answered), Release);
    shared.count_answer();
    let reserve = if request.index < RESERVES { RESERVE_INTERVAL } else { LAST_INTERVAL };
    // Read the time only after a wait: a thousand threads get here at once.
    loop {
        let interval = if shared.poll(generation, now) { LIVENESS } else { reserve };
        if shared.stopped.load(Acquire) != generation {
            break;
        }
        futex::wait(&shared.stopped, Reach::Private, generation, now.saturating_add(interval));
        if shared.stopped.load(Acquire) != generation {
            break;
        }
        now = monotonic_now();
    }
}

/// Maximum time that a held thread spins for its release, in nanoseconds.
///
/// A walk takes less, except for the first one.
const HELD_LOOKING: u64 = 20_000;

fn answer_single(shared: &Shared, request: Request, context: usize) {
    let Some(slot) = shared.single.get(request.index as usize) else { return };
    let (asked, awaited) = (word(request.generation, Phase::Asked), word(request.generation, Phase::Awaited));
    let answered = word(request.generation, Phase::Answered);
    let me = this_thread();
    let state = slot.state.load(Acquire);
    if (state != asked && state != awaited) || slot.tid.load(Relaxed) != me {
        return;
    }
    let asker_processor = slot.asker_processor.load(Relaxed);
    let may_be_held = give_up_asking(shared, slot, me);
    slot.context.store(context, Relaxed);
    let answer = if may_be_held { answered } else { word(0, Phase::Idle) };
    // The asker may give up at any moment, or go to sleep: both change the word, and the exchange
    // detects it.
    let mut seen = state;
    loop {
        if seen == awaited {
            let left_for_us = adaptive_spin::this_processor() == asker_processor;
            slot.time.store(if left_for_us { 0 } else { monotonic_now() }, Relaxed);
        }
        match slot.state.compare_exchange(seen, answer, SeqCst, SeqCst) {
            Ok(_) => break,
            Err(now) if now == awaited => seen = now,
            Err(_) => return,
        }
    }
    if seen == awaited {
        futex::wake(&slot.state, Reach::Private, 1);
    }
    if !may_be_held {
        return;
    }
    // On the asker's own processor nothing happens while this thread spins.
    let limit = if adaptive_spin::this_processor() == asker_processor { 0 } else { HELD_LOOKING };
    if adaptive_spin::while_it_is(&slot.state, answered, limit) != answered {
        return;
    }
    // Set before the word is read once more: the asker changes the word before it checks whether
    // the thread sleeps.
    slot.asleep.store(1, SeqCst);
    while slot.state.load(SeqCst) == answered {
        futex::wait(&slot.state, Reach::Private, answered, monotonic_now().saturating_add(LIVENESS));
        // An asker that has exited releases nobody. A stop in progress may be reading this thread,
        // for as long as it lasts.
        let is_stopped = shared.stopped.load(SeqCst) != 0 && monotonic_now() < shared.hold_until.load(SeqCst);
        if !is_stopped
            && !is_alive(process_id(), slot.asker.load(SeqCst))
            && slot.state.compare_exchange(answered, word(0, Phase::Idle), SeqCst, SeqCst).is_ok()
        {
            free(slot);
        }
    }
}

/// Ensures that the calling thread, for which `by` asks, holds no other thread while it is held.
///
/// Threads that interrupt each other in a circle would each wait for the next forever. An
/// unanswered request of the calling thread is withdrawn if the other asker has precedence (the one
/// with the lower id, so that in a circle one succeeds); it is repeated when the thread continues.
///
/// `false` if the thread must not be held now: it already has a thread, whose context it may be
/// reading, or has precedence itself.
fn give_up_asking(shared: &Shared, by: &Slot, me: Tid) -> bool {
    for own in &shared.single {
        if own.asker.load(SeqCst) != me {
            continue;
        }
        let mut seen = own.state.load(SeqCst);
        while seen & 3 != Phase::Idle as u32 {
            if seen & 3 == Phase::Answered as u32 || by.asker.load(SeqCst) >= me {
                return false;
            }
            match own.state.compare_exchange(seen, word(0, Phase::Idle), SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
    }
    true
}

/// A thread that has crashed during another crash's report.
///
/// That report may read its context until this value is dropped.
#[derive(Debug)]
pub struct ParkedCrashingThread<'a> {
    slot: &'a Slot,
}

impl<'a> ParkedCrashingThread<'a> {
    /// Parks the calling thread in a free slot. `None` if there is none.
    pub(super) fn park(shared: &'a Shared, tid: Tid, context: usize) -> Option<Self> {
        let slot = shared.crashing.iter().find(|slot| slot.tid.compare_exchange(0, tid, SeqCst, SeqCst).is_ok())?;
        slot.publish(context);
        slot.state.store(word(1, Phase::Answered), SeqCst);
        shared.count_answer();
        Some(ParkedCrashingThread { slot })
    }
}

impl Drop for ParkedCrashingThread<'_> {
    fn drop(&mut self) {
        self.slot.state.store(word(1, Phase::Idle), SeqCst);
        self.slot.tid.store(0, SeqCst);
    }
}

/// Returns the address of the signal's handler for the kernel.
pub(super) fn entry() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return coroner_stop_signal_entry as *const () as usize;
    #[cfg(any(target_arch = "aarch64", miri))]
    {
        // Two casts of a function may give different addresses, and under Miri they do.
        static ENTRY: extern "C" fn(i32, *const QueuedSignal, *mut libc::c_void) = on_signal;
        ENTRY as *const () as usize
    }
}

// An interrupted thread may have EFLAGS.AC set (bit 18, Intel SDM volume 3, 2.3), which the kernel
// leaves as it is: the handler's own unaligned accesses would fault. The interrupted flags are
// restored with the context.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_stop_signal_entry,\"ax\",@progbits",
    ".globl coroner_stop_signal_entry",
    ".hidden coroner_stop_signal_entry",
    ".type coroner_stop_signal_entry,@function",
    "coroner_stop_signal_entry:",
    ".cfi_startproc",
    "endbr64",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "and dword ptr [rsp], 0xfffbffff",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "jmp {on_signal}",
    ".cfi_endproc",
    ".size coroner_stop_signal_entry, . - coroner_stop_signal_entry",
    ".popsection",
    on_signal = sym on_signal,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn coroner_stop_signal_entry();
}

/// Frees a slot.
pub(super) fn free(slot: &Slot) {
    slot.asker.store(0, SeqCst);
    slot.tid.store(0, Relaxed);
    slot.job.store(0, SeqCst);
}
