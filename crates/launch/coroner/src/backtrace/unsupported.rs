//! Backtraces on a system where stacks are not walked.

use std::fmt;
use std::sync::Arc;

use coroner_process::registers::Registers;

use super::{Backtrace, CaptureOptions, ThreadId};

/// The reason why another thread was not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotCaptured {
    /// Stacks are not walked on this system.
    Unsupported,
    /// The thread has ended; never returned on this system.
    ThreadGone,
}

impl fmt::Display for NotCaptured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("stacks are not walked on this system")
    }
}

impl std::error::Error for NotCaptured {}

pub(super) fn store_current_registers(_: &mut Registers) {}

pub(super) fn for_each_thread(_: &mut impl FnMut(ThreadId)) {}

impl Backtrace {
    pub(super) fn walk(_: &Registers, _: &CaptureOptions) -> Backtrace {
        Self::empty(Arc::default())
    }

    pub(super) fn of_other(_: ThreadId, _: &CaptureOptions) -> Result<Backtrace, NotCaptured> {
        Err(NotCaptured::Unsupported)
    }
}
