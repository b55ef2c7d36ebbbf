//! Live backtraces: captures a thread's stack, fast enough to leave on in production.
//!
//! ```
//! let backtrace = coroner::Backtrace::current();
//! for frame in backtrace.names().frames() {
//!     println!("{frame}");
//! }
//! println!("with lines:\n{backtrace}");
//! ```
//!
//! *Capturing* walks the stack with the unwinder that also walks crashes. It records only
//! addresses: it doesn't allocate or lock, and takes a few nanoseconds per frame. There are two
//! exceptions. A thread's first capture asks the system for the bounds of its stack, for which
//! glibc allocates. A process's first capture, and the first after a library was loaded, creates
//! the list of images.
//!
//! *Naming* happens when [`Backtrace::names`] is called. Identical stacks are recognized by a
//! 64-bit hash and share one [`Names`] in a bounded cache that never blocks. A backtrace keeps the
//! list of images at the time of the capture, so its names are correct even if a library was
//! unloaded, and another one loaded at its address, before the names were requested.
//!
//! # Limits
//! A backtrace has at most 128 frames ([`Backtrace::MAX_FRAMES`]). Kernel threads and threads of
//! other processes can't be captured; threads that block the stop signal don't respond
//! ([`NotCaptured`]). Other threads can be captured only while Coroner is
//! [installed](crate::install). Where faults are not caught
//! ([`InstallLimits::no_faults`](crate::InstallLimits::no_faults)), backtraces are empty.

mod cache;
#[cfg(all(supported, target_vendor = "apple"))]
mod darwin;
mod display;
pub(crate) mod images;
#[cfg(all(supported, not(target_vendor = "apple")))]
mod linux;
mod loaded_image;
mod names;
#[cfg(supported)]
mod shared_arc;
#[cfg(not(supported))]
mod unsupported;

#[cfg(all(supported, target_vendor = "apple"))]
use darwin as os;
#[cfg(all(supported, not(target_vendor = "apple")))]
use linux as os;

use std::mem::MaybeUninit;
#[cfg(supported)]
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coroner_process::registers::Registers;
#[cfg(supported)]
use coroner_unwind::{AddressKind, Options as WalkOptions, RuleCache, SwiftAsync};
#[cfg(supported)]
use coroner_walk::{
    CopiedWindows, LiveReader, StackReader, ThreadStack, WalkImages, rule_caches, stop_thread::for_each_thread,
    store_current_registers, swift_tasks,
};

#[cfg(supported)]
pub use coroner_walk::stop_thread::NotCaptured;
pub use names::{NamedFrame, Names};
#[cfg(not(supported))]
pub use unsupported::NotCaptured;

use images::LoadedImages;
#[cfg(not(supported))]
use unsupported::{for_each_thread, store_current_registers};

use crate::system::process::threads::{self, Tid};

/// The system's id of a thread: `gettid` on Linux, `pthread_threadid_np` on Apple systems.
pub type ThreadId = Tid;

#[cfg(supported)]
thread_local! {
    static STACK: ThreadStack = const { ThreadStack::new() };
}

/// Options for capturing a backtrace.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions {
    /// Maximum number of frames, at most [`Backtrace::MAX_FRAMES`].
    pub depth: usize,
    /// Number of innermost frames to leave out.
    pub skip: usize,
    /// Whether to capture only frames of the app's own images (see [`set_in_app`]).
    ///
    /// Functions of runtimes that are linked into these images are included, because only their
    /// names identify them ([`NamedFrame::in_app`]).
    pub in_app_only: bool,
    /// Whether the walk continues from a Swift async function to the functions that await it.
    ///
    /// Default: yes on Apple systems, no elsewhere. The walk then follows Swift's marks in frame
    /// records (on Apple systems if the thread runs a task, as `backtrace_async` does) instead of
    /// continuing to the executor that runs the function.
    pub swift_async: bool,
    /// Whether to stop another thread by ptrace from a helper process. Default: no.
    ///
    /// This doesn't interrupt the thread's system calls. Stopping by a signal is faster, but
    /// `epoll_wait`, `poll`, `nanosleep` and some others then fail with `EINTR`. Where ptrace is
    /// not allowed (see `docs/limits.md`), the signal is used anyway. Linux only: on other systems
    /// no call is interrupted.
    pub by_ptrace: bool,
}

/// Maximum number of frames that are walked for one backtrace.
#[cfg(supported)]
const MAX_WALKED: usize = 4096;

#[cfg(supported)]
impl CaptureOptions {
    /// Returns the walker's options.
    ///
    /// `marks` selects how marks of Swift async frames are handled if they are followed.
    fn walk_options(&self, marks: SwiftAsync) -> WalkOptions {
        let swift_async = if self.swift_async { marks } else { swift_tasks::NOT_FOLLOWED };
        // One frame more than requested shows whether there are more.
        let wanted = self.skip.saturating_add(self.depth.min(Backtrace::MAX_FRAMES)).saturating_add(1);
        let frames = if self.in_app_only { MAX_WALKED } else { wanted.min(MAX_WALKED) };
        WalkOptions { frames: frames as u32, reads: 1 << 16, swift_async, ..WalkOptions::default() }
    }
}

impl Default for CaptureOptions {
    fn default() -> Self {
        CaptureOptions {
            depth: Backtrace::MAX_FRAMES,
            skip: 0,
            in_app_only: false,
            swift_async: cfg!(target_vendor = "apple"),
            by_ptrace: false,
        }
    }
}

pub use images::set_in_app;

/// The addresses of a thread's stack, innermost first.
#[derive(Clone)]
pub struct Backtrace {
    /// Return addresses, or addresses of instructions where the bit in `instructions` is set.
    addresses: [MaybeUninit<u64>; Backtrace::MAX_FRAMES],
    /// The low half first. Two words rather than a `u128`, because C callers provide the memory,
    /// aligned to a word.
    instructions: [u64; 2],
    length: usize,
    /// Whether there were more frames than requested.
    truncated: bool,
    hash: u64,
    images: Arc<LoadedImages>,
}

impl Backtrace {
    /// Maximum number of frames in a backtrace.
    pub const MAX_FRAMES: usize = 128;

    /// Captures the calling thread's stack, beginning with the caller of this function.
    #[inline(never)]
    #[must_use]
    pub fn current() -> Backtrace {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        Self::walk(&registers, &CaptureOptions { skip: 1, ..CaptureOptions::default() })
    }

    /// Captures the calling thread's stack with options.
    ///
    /// With `skip` 0 it begins with the caller of this function.
    #[inline(never)]
    #[must_use]
    pub fn current_with(options: &CaptureOptions) -> Backtrace {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        Self::above_with(&registers, options)
    }

    /// Captures the stack above a function that is running on this thread with `registers`.
    pub(crate) fn above(registers: &Registers) -> Backtrace {
        Self::above_with(registers, &CaptureOptions::default())
    }

    /// Captures the stack for bindings, whose own frames should not be in it.
    ///
    /// The stack begins with the caller of the function whose registers are `registers`
    /// ([`current_registers`](crate::current_registers)).
    #[doc(hidden)]
    #[inline]
    pub fn above_with(registers: &Registers, options: &CaptureOptions) -> Backtrace {
        Self::walk(registers, &CaptureOptions { skip: options.skip.saturating_add(1), ..*options })
    }

    /// Captures the stack of the thread with the id `thread` in this process.
    ///
    /// [`thread_id`] returns the id of the thread that calls it. The thread is stopped (on Linux by
    /// a signal, or [by ptrace](CaptureOptions::by_ptrace)) for the microseconds that the walk
    /// takes, and then continues. The calling thread's stack begins with the caller of this
    /// function, if `skip` is 0.
    ///
    /// # Errors
    /// The reason why the thread could not be captured.
    #[inline(never)]
    pub fn of_thread(thread: ThreadId, options: &CaptureOptions) -> Result<Backtrace, NotCaptured> {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        if thread == thread_id() {
            Ok(Self::above_with(&registers, options))
        } else {
            Self::capture_other(thread, options, TIMEOUT_NS)
        }
    }

    /// Like [`Self::of_thread`], for a thread other than the calling one, which has `timeout`
    /// nanoseconds to answer.
    #[cfg(supported)]
    fn capture_other(thread: ThreadId, options: &CaptureOptions, timeout: u64) -> Result<Backtrace, NotCaptured> {
        // Update the list of images first: the stopped thread may hold any lock.
        let Some(memory) = LiveReader::new() else { return Err(NotCaptured::RegistersUnreadable) };
        let mut backtrace = Self::empty(images::current(Some(memory)));
        let mut rules = claim_rules();
        os::with_stopped(thread, options.by_ptrace, timeout, memory, &mut |registers, marks| {
            backtrace.fill(registers, memory, options, options.walk_options(marks), &mut rules);
        })?;
        Ok(backtrace)
    }

    /// Captures the stacks of all threads of this process, including the calling one.
    ///
    /// The result contains each thread's id. Threads are captured one after another, not at one
    /// moment. The calling thread's stack begins with the caller of this function, if `skip` is 0.
    /// Empty while Coroner is not installed.
    ///
    /// Threads that don't answer take at most about a second in total.
    #[inline(never)]
    #[must_use]
    pub fn of_all_threads(options: &CaptureOptions) -> Vec<(ThreadId, Result<Backtrace, NotCaptured>)> {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        let mut threads = Vec::with_capacity(64);
        // A listing may miss a thread while another one exits, so repeat it until no thread is new.
        for _ in 0..4 {
            let known = threads.len();
            for_each_thread(&mut |thread| {
                if !threads.contains(&thread) {
                    threads.push(thread);
                }
            });
            if threads.len() == known {
                break;
            }
        }
        let mut silence = Silence::default();
        let mut capture = |thread| match thread {
            own if own == thread_id() => Ok(Self::above_with(&registers, options)),
            other => silence.ask(other, options),
        };
        threads.into_iter().map(|thread| (thread, capture(thread))).collect()
    }

    #[inline]
    fn empty(images: Arc<LoadedImages>) -> Backtrace {
        Backtrace {
            addresses: [const { MaybeUninit::uninit() }; Self::MAX_FRAMES],
            instructions: [0; 2],
            length: 0,
            truncated: false,
            hash: 0,
            images,
        }
    }

    /// Walks the calling thread's stack from `registers`.
    #[cfg(supported)]
    #[inline]
    fn walk(registers: &Registers, options: &CaptureOptions) -> Backtrace {
        let mut backtrace = MaybeUninit::uninit();
        Self::walk_into(registers, options, &mut backtrace);
        // SAFETY: `walk_into` has initialized it.
        unsafe { backtrace.assume_init() }
    }

    /// Captures the calling thread's stack into `memory`.
    ///
    /// A separate function, so that the backtrace, a kilobyte, is created in place and not copied.
    #[cfg(supported)]
    #[inline(never)]
    fn walk_into(registers: &Registers, options: &CaptureOptions, memory: &mut MaybeUninit<Backtrace>) {
        let mut reader = STACK.with(|stack| stack.reader(registers.sp()));
        let backtrace = memory.write(Self::empty(images::current(reader.list())));
        let walk = options.walk_options(swift_tasks::for_this_thread());
        let mut rules = claim_rules();
        if reader.is_fastest() {
            backtrace.fill_through(registers, &mut reader, options, walk, &mut rules);
        } else if let Some(memory) = reader.elsewhere() {
            backtrace.fill(registers, memory, options, walk, &mut rules);
        }
    }

    /// Walks the stack through either kind of reader.
    #[cfg(supported)]
    #[inline]
    fn fill(
        &mut self,
        registers: &Registers,
        memory: LiveReader,
        options: &CaptureOptions,
        walk: WalkOptions,
        rules: &mut RuleCache,
    ) {
        match memory {
            // The same type as in the other walks, so that the unwinder is compiled only once.
            LiveReader::Loads(_) => {
                self.fill_through(registers, &mut StackReader::with_reader(memory), options, walk, rules);
            }
            LiveReader::Copies(copy) => {
                let mut windows = CopiedWindows::new(copy);
                self.fill_through(registers, &mut StackReader::with_windows(&mut windows), options, walk, rules);
            }
        }
    }

    #[cfg(supported)]
    fn fill_through(
        &mut self,
        registers: &Registers,
        memory: &mut StackReader<'_>,
        options: &CaptureOptions,
        walk: WalkOptions,
        rules: &mut RuleCache,
    ) {
        let depth = options.depth.min(Self::MAX_FRAMES);
        let images: &LoadedImages = &self.images;
        let Some(list) = &images.list else { return };
        let mut walker = coroner_walk::walker(registers, memory, WalkImages::Live(list), rules, walk);
        let mut skip = options.skip;
        // Local variables, because fields of `self` would make each frame wait for the previous
        // frame's store.
        let (mut length, mut instructions, mut truncated) = (0, 0_u128, false);
        let addresses = &mut self.addresses;
        walker.for_each(|frame| {
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            if options.in_app_only && !images.is_in_app(frame.lookup_address()) {
                return ControlFlow::Continue(());
            }
            if length == depth {
                truncated = true;
                return ControlFlow::Break(());
            }
            addresses[length].write(frame.pc);
            if frame.kind != AddressKind::ReturnAddress {
                instructions |= 1 << length;
            }
            length += 1;
            ControlFlow::Continue(())
        });
        (self.length, self.truncated) = (length, truncated);
        self.instructions = [instructions as u64, (instructions >> 64) as u64];
        self.hash = hash(self.addresses(), instructions, images.identity());
    }

    /// Returns the addresses (avma), innermost first.
    ///
    /// An address is that of the instruction after a call, except for another thread's innermost
    /// frame, frames that a signal interrupted, and signal trampolines.
    pub fn addresses(&self) -> &[u64] {
        let addresses = &raw const self.addresses[..self.length];
        // SAFETY: the first `length` elements are initialized, and each has the layout of its word.
        unsafe { &*(addresses as *const [u64]) }
    }

    /// Returns the address for looking up frame `index`.
    ///
    /// It is inside the call if the frame's address is the one after a call.
    pub fn lookup_address(&self, index: usize) -> Option<u64> {
        let address = self.addresses().get(index)?;
        let is_instruction = self.instructions[index / 64] >> (index % 64) & 1 == 1;
        Some(if is_instruction { *address } else { address.wrapping_sub(1) })
    }

    /// Whether there were more frames than requested.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Returns a hash of the stack.
    ///
    /// Identical stacks of the same loaded images have the same hash; different stacks almost
    /// certainly have different hashes. Hashes differ from run to run.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the frames' names.
    ///
    /// They come from the cache if this stack was named before, otherwise from one pass over each
    /// image's symbol table.
    pub fn names(&self) -> Arc<Names> {
        cache::cached_names(self)
    }
}

/// Maximum time in nanoseconds that a thread may take to answer: it must be scheduled first.
const TIMEOUT_NS: u64 = 100_000_000;

/// The time that threads which didn't answer have taken so far.
#[derive(Default)]
struct Silence(Duration);

impl Silence {
    /// Maximum of that time for all threads, after which each has only the time to be scheduled.
    const MAX: Duration = Duration::from_secs(1);
    const SCHEDULED_NS: u64 = 2_000_000;

    /// Captures a thread. After the first one that didn't answer, those that block the signal have
    /// only the time to be scheduled, and none when the time is over.
    fn ask(&mut self, thread: ThreadId, options: &CaptureOptions) -> Result<Backtrace, NotCaptured> {
        let rest = Self::MAX.saturating_sub(self.0).as_nanos() as u64;
        #[cfg_attr(not(supported), allow(unused_mut, reason = "no thread is asked"))]
        let mut timeout = rest.clamp(Self::SCHEDULED_NS, TIMEOUT_NS);
        #[cfg(supported)]
        if !self.0.is_zero()
            && !options.by_ptrace
            && let Err(reason) = os::can_answer(thread)
        {
            if rest == 0 {
                return Err(reason);
            }
            timeout = Self::SCHEDULED_NS;
        }
        let began = Instant::now();
        let captured = Backtrace::capture_other(thread, options, timeout);
        if captured.is_err() {
            self.0 += began.elapsed();
        }
        captured
    }
}

impl std::fmt::Debug for Backtrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names().frames()).finish()
    }
}

/// Returns the calling thread's id, for [`Backtrace::of_thread`].
#[must_use]
pub fn thread_id() -> ThreadId {
    threads::this_thread()
}

/// Claims a rule cache. Waits while sixteen walks are in progress, each of which takes
/// microseconds.
#[cfg(supported)]
#[inline]
fn claim_rules() -> rule_caches::Claimed {
    loop {
        if let Some(claimed) = rule_caches::claim() {
            return claimed;
        }
    }
}

/// Number of words that are hashed in parallel, so that no multiplication waits for the previous
/// one.
const LANES: usize = 4;

/// Hashes addresses in their order.
///
/// Each address is mixed into one of four lanes by a multiplication, which carries every bit
/// upwards, and a rotation, which brings the upper bits down again. Unlike in an XOR of addresses,
/// neither permutations nor repetitions (recursion) cancel out. MurmurHash3's finalizer then makes
/// every bit depend on every other.
fn hash(addresses: &[u64], instructions: u128, images: u64) -> u64 {
    // Digits of pi. The lanes start with different values, so that exchanging the words of two
    // lanes changes the hash.
    let mut lanes: [u64; LANES] =
        [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
    let (rows, rest) = addresses.as_chunks::<LANES>();
    for row in rows {
        for (lane, word) in lanes.iter_mut().zip(row) {
            *lane = mix(*lane, *word);
        }
    }
    for (lane, word) in lanes.iter_mut().zip(rest) {
        *lane = mix(*lane, *word);
    }
    let ends = [addresses.len() as u64, instructions as u64, (instructions >> 64) as u64, images];
    let mut hash = lanes.into_iter().chain(ends).fold(0, mix);
    for multiplier in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(multiplier);
    }
    hash ^ hash >> 33
}

#[inline]
const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(27)
}

#[cfg(test)]
mod tests;
