//! Futex commands and words (linux/futex.h).

use coroner_report::model::{FutexWait, WaitKind};

/// `FUTEX_CMD_MASK`, `FUTEX_PRIVATE_FLAG`, `FUTEX_TID_MASK`, `FUTEX_OWNER_DIED` in linux/futex.h.
const COMMAND: u32 = 127;
const PRIVATE: u32 = 128;
pub(super) const TID: u32 = 0x3fff_ffff;
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
/// `FUTEX_WAIT`.
pub(super) const WAIT: u32 = 0;

/// Whether only threads of this process can wait for the futex.
pub(super) fn is_private(futex: &FutexWait) -> bool {
    futex.operation & PRIVATE != 0
}

/// Returns the call's command without flags.
pub(super) fn command(futex: &FutexWait) -> u32 {
    futex.operation & COMMAND
}

/// A lock, as the layout of its library records it.
pub(super) struct Lock {
    pub(super) kind: WaitKind,
    /// Offset of the futex word in the lock.
    pub(super) word_offset: u64,
    pub(super) owner: Option<u32>,
}
