//! Backtraces on a system where stacks can't be walked.

use std::fmt;
use std::sync::Arc;

use coroner_process::registers::Registers;

use super::{Backtrace, CaptureOptions, ThreadId};

/// The reason that another thread was not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotCaptured {
    /// Stacks can't be walked on this system.
    Unsupported,
    /// The thread has ended; never returned on this system.
    ThreadGone,
}

impl fmt::Display for NotCaptured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("stacks can't be walked on this system")
    }
}

impl std::error::Error for NotCaptured {}

pub(super) fn store_current_registers(_: &mut Registers) {}

pub(super) fn for_each_thread(_: &mut impl FnMut(ThreadId)) {}

impl Backtrace {
    pub(super) fn walk(_: &Registers, _: &CaptureOptions) -> Backtrace {
        Self::empty(Arc::default())
    }

    pub(super) fn capture_other(_: ThreadId, _: &CaptureOptions, _: u64) -> Result<Backtrace, NotCaptured> {
        Err(NotCaptured::Unsupported)
    }
}
