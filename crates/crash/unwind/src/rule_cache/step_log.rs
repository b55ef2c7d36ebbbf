//! Log of the frames that a walk by cached rules has stepped over, before they are returned.

use super::EntryIndex;

/// Maximum number of steps before their frames are returned: more than most walks have.
pub(crate) const LOG_LENGTH: usize = 256;

/// A frame that was stepped from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedFrame {
    /// CFA of the frame: the caller's stack pointer.
    pub(crate) cfa: u64,
    /// Return address of the frame.
    pub(crate) caller: u64,
    /// Place of the frame's rule.
    pub(crate) place: EntryIndex,
}

/// The frames that were last stepped from. It is part of the [`RuleCache`](super::RuleCache), so
/// that it need not be initialized for each walk.
#[derive(Debug)]
pub(crate) struct StepLog(pub(crate) [LoggedFrame; LOG_LENGTH]);

impl StepLog {
    pub(crate) const EMPTY: StepLog = StepLog([LoggedFrame { cfa: 0, caller: 0, place: EntryIndex::NONE }; LOG_LENGTH]);
}
