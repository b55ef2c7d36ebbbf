//! Live backtraces: where a thread is now, fast enough to leave on.
//!
//! ```
//! let backtrace = coroner::Backtrace::current();
//! for frame in backtrace.names().frames() {
//!     println!("{frame}");
//! }
//! println!("with lines:\n{backtrace}");
//! ```
//!
//! *Capturing* walks the stack with the unwinder that also walks crashes, and takes addresses only: no allocation, no lock, a
//! handful of nanoseconds a frame. (A thread's first capture asks the system where its stack is, for which glibc allocates; a
//! process' first one, and the first after a library was loaded, makes the list of images.) *Naming* happens when
//! [`Backtrace::names`] is called: identical stacks are recognised by a 64-bit hash and share one [`Names`] in a bounded cache,
//! which nobody waits for.
//!
//! A backtrace keeps the list of images as it was when it was captured: its names are right even if a library was unloaded, and
//! another one loaded in its place, before they were asked for.
//!
//! # Limits
//! 128 frames ([`Backtrace::MAX_FRAMES`]); the kernel's and other processes' threads are out of reach; threads that block the
//! stopper's signal do not answer ([`NotCaptured`]). Other threads can be captured only while Coroner is
//! [installed](crate::install). Where no fault is caught ([`InstallLimits::no_faults`](crate::InstallLimits::no_faults)), backtraces are empty.

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

/// The number that the system gives a thread: `gettid` on Linux, `pthread_threadid_np` on Apple's systems.
pub type ThreadId = Tid;

#[cfg(supported)]
thread_local! {
    static STACK: ThreadStack = const { ThreadStack::new() };
}

/// What to capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions {
    /// The greatest number of frames, at most [`Backtrace::MAX_FRAMES`].
    pub depth: usize,
    /// Frames left out at the innermost end.
    pub skip: usize,
    /// Only frames of the app's own images (see [`set_in_app`]), those of runtimes that are linked into them included: their functions are
    /// known with the names ([`NamedFrame::in_app`]).
    pub in_app_only: bool,
    /// Whether the walk goes from an async function of Swift's to those that wait for it (its marks in frame records are
    /// followed, on Apple's systems where the thread runs a task, as `backtrace_async` does), instead of to the executor that
    /// runs it. Default: yes on Apple's systems, no elsewhere.
    pub swift_async: bool,
    /// Whether another thread is stopped by ptrace, from a helper process, so that its system calls go on; by the signal, which is
    /// quicker, `epoll_wait`, `poll`, `nanosleep` and some others end with `EINTR`. Where ptrace is not allowed, it is the signal all
    /// the same (`docs/limits.md` says where). Linux only: elsewhere no call ends. Default: no.
    pub by_ptrace: bool,
}

/// The most frames that are walked for one backtrace.
#[cfg(supported)]
const MAX_WALKED: usize = 4096;

#[cfg(supported)]
impl CaptureOptions {
    /// `marks` is what is done at marks of Swift's async frames if they are wanted.
    fn of_walk(&self, marks: SwiftAsync) -> WalkOptions {
        let swift_async = if self.swift_async { marks } else { swift_tasks::NOT_FOLLOWED };
        // One more than are kept tells that there are more.
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
    /// Return addresses, or for bits set in `instructions` addresses of instructions.
    addresses: [MaybeUninit<u64>; Backtrace::MAX_FRAMES],
    /// The low half first. Words, so that the alignment is that of a word: C callers give the memory.
    instructions: [u64; 2],
    length: usize,
    /// There were more frames than were wanted.
    truncated: bool,
    hash: u64,
    images: Arc<LoadedImages>,
}

impl Backtrace {
    /// The most frames of one backtrace.
    pub const MAX_FRAMES: usize = 128;

    /// The calling thread's stack, beginning with the caller of this function.
    #[inline(never)]
    #[must_use]
    pub fn current() -> Backtrace {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        Self::walk(&registers, &CaptureOptions { skip: 1, ..CaptureOptions::default() })
    }

    /// The calling thread's stack; with `skip` 0 it begins with the caller of this function.
    #[inline(never)]
    #[must_use]
    pub fn current_with(options: &CaptureOptions) -> Backtrace {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        Self::above_with(&registers, options)
    }

    /// The stack of the caller of a function that is running on this thread: `registers` are that function's.
    pub(crate) fn above(registers: &Registers) -> Backtrace {
        Self::above_with(registers, &CaptureOptions::default())
    }

    /// For bindings, whose own frames are not to be in the stack: that of the caller of the function that `registers` are of
    /// ([`current_registers`](crate::current_registers)).
    #[doc(hidden)]
    #[inline]
    pub fn above_with(registers: &Registers, options: &CaptureOptions) -> Backtrace {
        Self::walk(registers, &CaptureOptions { skip: options.skip.saturating_add(1), ..*options })
    }

    /// The stack of another thread of this process, by the number that the system gives it ([`thread_id`] of that thread). The
    /// thread is stopped (on Linux by a signal, or [by ptrace](CaptureOptions::by_ptrace)), stands still for the microseconds that the
    /// walk takes, and goes on.
    ///
    /// That of the calling thread begins with the caller of this function, if `skip` is 0.
    ///
    /// # Errors
    /// Why the thread did not answer.
    #[inline(never)]
    pub fn of_thread(thread: ThreadId, options: &CaptureOptions) -> Result<Backtrace, NotCaptured> {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        if thread == thread_id() { Ok(Self::above_with(&registers, options)) } else { Self::of_other(thread, options) }
    }

    /// As [`Self::of_thread`], for a thread that is not the calling one.
    #[cfg(supported)]
    fn of_other(thread: ThreadId, options: &CaptureOptions) -> Result<Backtrace, NotCaptured> {
        // The list of images is brought up to date before: the thread that is going to stand still may hold any lock.
        let Some(memory) = LiveReader::new() else { return Err(NotCaptured::RegistersUnreadable) };
        let mut backtrace = Self::empty(images::current(Some(memory)));
        let mut rules = claim_rules();
        os::with_stopped(thread, options.by_ptrace, memory, &mut |registers, marks| {
            backtrace.fill(registers, memory, options, options.of_walk(marks), &mut rules);
        })?;
        Ok(backtrace)
    }

    /// The stacks of all threads of this process, the calling one included, each with its number. Threads are captured one
    /// after another, not at one moment. That of the calling thread begins with the caller of this function, if `skip` is 0. Empty while
    /// Coroner is not installed.
    #[inline(never)]
    #[must_use]
    pub fn of_all_threads(options: &CaptureOptions) -> Vec<(ThreadId, Result<Backtrace, NotCaptured>)> {
        let mut registers = Registers::default();
        store_current_registers(&mut registers);
        let mut threads = Vec::with_capacity(64);
        // A listing may miss a thread while another one ends: once more, until nothing is new.
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
        let capture = |thread| match thread {
            own if own == thread_id() => Ok(Self::above_with(&registers, options)),
            other => Self::of_other(other, options),
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

    /// The stack of a place on the calling thread.
    #[cfg(supported)]
    #[inline]
    fn walk(registers: &Registers, options: &CaptureOptions) -> Backtrace {
        let mut made = MaybeUninit::uninit();
        Self::walk_into(registers, options, &mut made);
        // SAFETY: it was made.
        unsafe { made.assume_init() }
    }

    /// Makes a backtrace of the calling thread. A function of its own, so that its kilobyte is made where its caller's caller wants it,
    /// and not copied there.
    #[cfg(supported)]
    #[inline(never)]
    fn walk_into(registers: &Registers, options: &CaptureOptions, made: &mut MaybeUninit<Backtrace>) {
        let mut reader = STACK.with(|stack| stack.reader(registers.sp()));
        let made = made.write(Self::empty(images::current(reader.list())));
        let walk = options.of_walk(swift_tasks::of_this_thread());
        let mut rules = claim_rules();
        if reader.is_fastest() {
            made.fill_through(registers, &mut reader, options, walk, &mut rules);
        } else if let Some(memory) = reader.elsewhere() {
            made.fill(registers, memory, options, walk, &mut rules);
        }
    }

    /// Walks through whatever reader it is.
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
            // As the other walks have it: the unwinder is compiled once for all.
            LiveReader::Loads(_) => {
                self.fill_through(registers, &mut StackReader::of_elsewhere(memory), options, walk, rules);
            }
            LiveReader::Copies(copy) => {
                let mut windows = CopiedWindows::new(copy);
                self.fill_through(registers, &mut StackReader::of_windows(&mut windows), options, walk, rules);
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
        // In registers, not in `self`: each frame would wait for the one before it to be stored.
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

    /// The addresses (avma), innermost first: of instructions after calls, but for the innermost of another thread, those
    /// that a signal interrupted, and those of signal trampolines.
    pub fn addresses(&self) -> &[u64] {
        let addresses = &raw const self.addresses[..self.length];
        // SAFETY: the first `length` ones were written, and each is laid out as its word is.
        unsafe { &*(addresses as *const [u64]) }
    }

    /// The address to look frame `index` up with: inside the call, where the frame's address is that after a call.
    pub fn lookup_address(&self, index: usize) -> Option<u64> {
        let address = self.addresses().get(index)?;
        let is_instruction = self.instructions[index / 64] >> (index % 64) & 1 == 1;
        Some(if is_instruction { *address } else { address.wrapping_sub(1) })
    }

    /// Whether there were more frames than were wanted.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// A number that identical stacks (of the same loaded images) share and others, for all practical purposes, do not. Not
    /// the same in another run of the app.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The names of the frames: from the cache where this stack was named before, else by one pass over each image's symbol
    /// table.
    pub fn names(&self) -> Arc<Names> {
        cache::names_of(self)
    }
}

impl std::fmt::Debug for Backtrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names().frames()).finish()
    }
}

/// The calling thread's number, as [`Backtrace::of_thread`] takes it.
#[must_use]
pub fn thread_id() -> ThreadId {
    threads::this_thread()
}

/// A cache of rules; waits as long as sixteen walks are under way, each of which takes microseconds.
#[cfg(supported)]
#[inline]
fn claim_rules() -> rule_caches::Claimed {
    loop {
        if let Some(claimed) = rule_caches::claim() {
            return claimed;
        }
    }
}

/// Words that are hashed side by side, so that no multiplication waits for the one before it.
const LANES: usize = 4;

/// A hash of addresses in their order. Each is mixed into one of four by a multiplication that carries every bit upwards and a
/// rotation that brings the upper ones down again, so that neither permutations nor repetitions (recursion) cancel out, as they
/// do in an XOR of addresses; the end is the finaliser of MurmurHash3, by which every bit depends on every other.
fn hash(addresses: &[u64], instructions: u128, images: u64) -> u64 {
    // Digits of pi: no lane begins as another does, and so none takes another's words.
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
