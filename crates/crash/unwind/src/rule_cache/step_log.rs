//! The frames that a walk by cached rules has stepped over, before they are given out.

use super::EntryIndex;

/// How many steps are made before their frames are given out: more than most walks have.
pub(crate) const LOG_LENGTH: usize = 256;

/// A frame that was stepped from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedFrame {
    /// Its CFA: the caller's stack pointer.
    pub(crate) cfa: u64,
    /// Its return address.
    pub(crate) caller: u64,
    /// Where its rule is.
    pub(crate) place: EntryIndex,
}

/// The frames that were stepped from last. It is part of the [`RuleCache`](super::RuleCache), so that it need not be initialised for each walk.
#[derive(Debug)]
pub(crate) struct StepLog(pub(crate) [LoggedFrame; LOG_LENGTH]);

impl StepLog {
    pub(crate) const EMPTY: StepLog = StepLog([LoggedFrame { cfa: 0, caller: 0, place: EntryIndex::NONE }; LOG_LENGTH]);
}
