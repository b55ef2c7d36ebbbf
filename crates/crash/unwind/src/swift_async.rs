//! Swift's async frames: the code that runs when the function on the stack returns is not on the
//! stack.
//!
//! An async function stores three words where others store two: the address of its async context,
//! the frame pointer with `0001` in the top four bits, the return address. A context begins with
//! its parent's address and the address where the parent resumes. This is the same as in
//! `gen/thread_stack_pcs.c` of Apple's Libc, the walk behind `backtrace_async`.

use crate::cold_path;
use crate::frame::End;
use coroner_process::memory::{Memory, Unreadable};

/// Whether marks of async frames are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwiftAsync {
    /// Marks are not followed: the mark is removed from frame pointers and the walk stays on the
    /// stack.
    #[default]
    Ignore,
    /// Marks are followed if this address of the thread's current task (the Swift runtime's third
    /// thread-specific datum, 0 if there is none) is that of a task with an identifier, as Libc
    /// checks.
    Task(u64),
    /// Marks are always followed: for snapshots without thread-specific data.
    Follow,
}

/// Offset of a task's identifier, 32 bits that are never 0: "an ABI guarantee from the Swift
/// runtime".
const TASK_IDENTIFIER: u64 = 4 * 8 + 4;

impl SwiftAsync {
    /// Key of a thread's current task among the thread's specific data on Apple's systems, reserved
    /// for the Swift runtime by libpthread (`__PTK_FRAMEWORK_SWIFT_KEY3` of its tsd_private.h).
    pub const DARWIN_TASK_KEY: u64 = 103;

    /// Returns the setting that Libc uses for a thread of an Apple system whose specific data begin
    /// at `specific` (`thread_handle` of `THREAD_IDENTIFIER_INFO`, 0 if the kernel doesn't provide
    /// it): marks are followed if the thread runs a task, or if that can't be read.
    pub fn for_darwin_thread<M: Memory>(memory: &mut M, specific: u64) -> SwiftAsync {
        if specific == 0 {
            return SwiftAsync::Follow;
        }
        let place = specific.wrapping_add(Self::DARWIN_TASK_KEY * 8);
        memory.read_u64(place).map_or(SwiftAsync::Follow, SwiftAsync::Task)
    }

    /// Returns `true` if a marked frame must be followed.
    pub fn follows<M: Memory>(self, memory: &mut M) -> bool {
        match self {
            SwiftAsync::Ignore | SwiftAsync::Task(0) => false,
            SwiftAsync::Follow => true,
            SwiftAsync::Task(task) => {
                let mut identifier = [0; 4];
                memory.read(task.wrapping_add(TASK_IDENTIFIER), &mut identifier).is_ok() && identifier != [0; 4]
            }
        }
    }
}

/// Returns `true` if a saved frame pointer has the mark.
#[inline]
pub(crate) const fn is_marked(saved_fp: u64) -> bool {
    saved_fp >> 60 == 1
}

/// Returns a saved frame pointer without the mark.
#[inline]
pub(crate) const fn without_mark(saved_fp: u64) -> u64 {
    if is_marked(saved_fp) {
        // A well-predicted branch, and no arithmetic that the next frame would have to wait for.
        cold_path();
        return saved_fp & (u64::MAX >> 4);
    }
    saved_fp
}

/// Iterates over the contexts above a marked frame record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contexts {
    /// The next context.
    context: u64,
    // Brent's cycle detection: an older context, and the number of steps until it is replaced.
    marker: u64,
    steps: u32,
    limit: u32,
}

impl Contexts {
    /// Creates the iterator from the context of the record at `record` (the address of the saved
    /// frame pointer).
    ///
    /// # Errors
    /// [`Unreadable`] if the word below the record can't be read.
    pub(crate) fn from_record<M: Memory>(memory: &mut M, record: u64, mask: u64) -> Result<Contexts, Unreadable> {
        let context = memory.read_u64(record.wrapping_sub(8))? & mask;
        Ok(Contexts { context, marker: 0, steps: 0, limit: 2 })
    }

    /// Returns the next context's address, and the address of its resume function plus one, so that
    /// it is looked up like a return address although it is a function's first instruction.
    ///
    /// # Errors
    /// Why there is no next context.
    pub(crate) fn next<M: Memory>(&mut self, memory: &mut M, mask: u64) -> Result<(u64, u64), End> {
        let context = self.context;
        if context == 0 || context & 7 != 0 {
            return Err(End::EndOfStack);
        }
        if context == self.marker {
            return Err(End::NoProgress { sp: context });
        }
        if self.steps >= self.limit {
            self.marker = context;
            self.steps = 0;
            self.limit = self.limit.saturating_mul(2);
        }
        self.steps = self.steps.saturating_add(1);
        let (parent, resume) = memory.read_pair(context).map_err(|error| End::Unreadable { address: error.address })?;
        let resume = resume & mask;
        if resume == 0 {
            return Err(End::EndOfStack);
        }
        self.context = parent & mask;
        Ok((context, resume.wrapping_add(1)))
    }
}
