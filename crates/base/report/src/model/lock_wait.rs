//! Thread waits and lock owners, filled in by the crate `coroner-explain`.

use super::address::Address;
use serde::{Deserialize, Serialize};

/// A thread that waits in the kernel for something that another thread holds or does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LockWait {
    /// The thread that waits.
    pub tid: u64,
    /// Kind of the object that the thread waits for.
    pub kind: WaitKind,
    /// The library that implements the lock.
    ///
    /// One of `glibc`, `musl`, `bionic`, `std` (Rust's), `parking_lot`, `kernel` (a futex with
    /// priority inheritance), `libpthread` and `libplatform` (Apple's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Address of the lock or, if its layout is not known, of the word that the kernel watches.
    pub address: Address,
    /// Whether the wait has a timeout.
    pub timed: bool,
    /// The thread that holds the lock or that is being joined; `None` if memory doesn't show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u64>,
    /// State of the owner, as far as it is known.
    pub owner_is: OwnerIs,
}

/// State of the thread that holds a lock, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwnerIs {
    /// The owner is in the report.
    InReport,
    /// The process no longer has such a thread.
    Gone,
    /// The lock is shared with other processes, and this process has no such thread.
    ///
    /// The owner is in another process, or has ended.
    Elsewhere,
    /// The owner is not in the report, which doesn't include all threads.
    NotInReport,
    /// No owner is known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Kind of object that a thread waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitKind {
    /// A mutex.
    Mutex,
    /// A reader-writer lock, to read.
    ReadLock,
    /// A reader-writer lock, to write.
    WriteLock,
    /// A condition variable.
    Condition,
    /// A semaphore.
    Semaphore,
    /// The end of a thread (join).
    ThreadEnd,
    /// A barrier.
    Barrier,
    /// A one-time initialization that another thread is running.
    Once,
    /// A wake-up by another thread (Rust's `thread::park`).
    Park,
    /// An `os_unfair_lock`.
    UnfairLock,
    /// An Apple ulock of unknown use.
    Ulock,
    /// A futex of unknown use.
    #[default]
    #[serde(other)]
    Futex,
}

impl WaitKind {
    /// The kind in words that complete "waits for …".
    pub fn words(self) -> &'static str {
        match self {
            WaitKind::Mutex => "a mutex",
            WaitKind::ReadLock => "a read lock",
            WaitKind::WriteLock => "a write lock",
            WaitKind::Condition => "a condition variable",
            WaitKind::Semaphore => "a semaphore",
            WaitKind::ThreadEnd => "the end of a thread",
            WaitKind::Barrier => "a barrier",
            WaitKind::Once => "a one-time initialization",
            WaitKind::Park => "an unpark call",
            WaitKind::UnfairLock => "an os_unfair_lock",
            WaitKind::Ulock => "a ulock",
            WaitKind::Futex => "a futex",
        }
    }

    /// Whether a thread holds the object while others wait for its release.
    pub fn is_lock(self) -> bool {
        matches!(self, WaitKind::Mutex | WaitKind::ReadLock | WaitKind::WriteLock | WaitKind::UnfairLock)
    }
}

impl LockWait {
    /// The owner, if it is a thread in this report.
    pub fn owner_in_report(&self) -> Option<u64> {
        self.owner.filter(|_| self.owner_is == OwnerIs::InReport)
    }
}

/// Formats like `thread 4711 waits for a mutex (glibc) at 0x7f0012345678, held by thread 4712`.
///
/// For a join: `thread 1 is in pthread_join, waiting for thread 2`.
impl core::fmt::Display for LockWait {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.kind == WaitKind::ThreadEnd {
            write!(f, "thread {} is in pthread_join", self.tid)?;
        } else {
            write!(f, "thread {} waits for {}", self.tid, self.kind.words())?;
            if let Some(library) = &self.library {
                write!(f, " ({})", if library == "kernel" { "kernel, priority inheritance" } else { library })?;
            }
            write!(f, " at {}", self.address)?;
        }
        match (self.owner, self.kind) {
            (None, kind) if kind.is_lock() => f.write_str("; its owner is unknown")?,
            (None, _) => {}
            (Some(owner), WaitKind::ThreadEnd) => write!(f, ", waiting for thread {owner}")?,
            (Some(owner), _) if owner == self.tid => f.write_str(", which it already holds")?,
            (Some(owner), _) => write!(f, ", held by thread {owner}")?,
        }
        f.write_str(match self.owner_is {
            OwnerIs::Gone => ", which has exited",
            OwnerIs::Elsewhere => ", which is not in this process",
            OwnerIs::NotInReport => ", which is not in the report",
            _ => "",
        })?;
        if self.timed { f.write_str(", with a timeout") } else { Ok(()) }
    }
}
