//! What threads wait for, and who holds it: filled in by the crate `coroner-explain`.

use super::address::Address;
use serde::{Deserialize, Serialize};

/// A thread that waits in the kernel for something that another thread has or does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LockWait {
    /// The thread that waits.
    pub tid: u64,
    /// What it waits for.
    pub kind: WaitKind,
    /// Whose lock it is: `glibc`, `musl`, `bionic`, `std` (Rust's), `parking_lot`, `kernel` (a futex with priority inheritance), `libpthread`
    /// and `libplatform` (Apple's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// The address of the lock, or, where its layout is not known, of the word that the kernel was asked to watch.
    pub address: Address,
    /// Whether the wait ends by itself, since it has a time-out.
    pub timed: bool,
    /// The thread that holds it, or that is to end; `None` if the memory does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u64>,
    /// What is known of that thread.
    pub owner_is: OwnerIs,
}

/// What is known of the thread that holds a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwnerIs {
    /// It is in the report.
    InReport,
    /// The process has no such thread any more.
    Gone,
    /// The lock is shared with other processes, and this one has no such thread: it is another process's, or gone.
    Elsewhere,
    /// The report does not have all threads.
    NotInReport,
    /// No owner is known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitKind {
    /// A mutex.
    Mutex,
    /// A lock for many readers or one writer, to read.
    ReadLock,
    /// The same, to write.
    WriteLock,
    /// A condition variable.
    Condition,
    /// A semaphore.
    Semaphore,
    /// The end of a thread.
    ThreadEnd,
    /// A barrier.
    Barrier,
    /// Another thread's call of what is done once.
    Once,
    /// To be woken by another thread (`park` of Rust's threads).
    Park,
    /// An `os_unfair_lock`.
    UnfairLock,
    /// A ulock of Apple's systems of which no more is known.
    Ulock,
    /// A futex of which no more is known.
    #[default]
    #[serde(other)]
    Futex,
}

impl WaitKind {
    /// In words, with the article.
    pub fn words(self) -> &'static str {
        match self {
            WaitKind::Mutex => "a mutex",
            WaitKind::ReadLock => "a lock to read",
            WaitKind::WriteLock => "a lock to write",
            WaitKind::Condition => "a condition variable",
            WaitKind::Semaphore => "a semaphore",
            WaitKind::ThreadEnd => "the end of a thread",
            WaitKind::Barrier => "a barrier",
            WaitKind::Once => "what is done once",
            WaitKind::Park => "to be woken",
            WaitKind::UnfairLock => "an os_unfair_lock",
            WaitKind::Ulock => "a ulock",
            WaitKind::Futex => "a futex",
        }
    }

    /// Whether some thread has it, and others wait until it is let go.
    pub fn is_lock(self) -> bool {
        matches!(self, WaitKind::Mutex | WaitKind::ReadLock | WaitKind::WriteLock | WaitKind::UnfairLock)
    }
}

impl LockWait {
    /// The thread of this process whose doing it waits for.
    pub fn owner_in_report(&self) -> Option<u64> {
        self.owner.filter(|_| self.owner_is == OwnerIs::InReport)
    }
}

/// `thread 4711 waits for a mutex of glibc at 0x7f0012345678, which thread 4712 has`.
impl core::fmt::Display for LockWait {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "thread {} waits for {}", self.tid, self.kind.words())?;
        if let Some(library) = &self.library {
            write!(f, " of {}", if library == "kernel" { "the kernel (priority inheritance)" } else { library })?;
        }
        write!(f, " at {}", self.address)?;
        match (self.owner, self.kind) {
            (None, kind) if kind.is_lock() => f.write_str("; who has it is not known")?,
            (None, _) => {}
            (Some(owner), WaitKind::ThreadEnd) => write!(f, ", that of thread {owner}")?,
            (Some(owner), _) if owner == self.tid => f.write_str(", which it has itself")?,
            (Some(owner), _) => write!(f, ", which thread {owner} has")?,
        }
        f.write_str(match self.owner_is {
            OwnerIs::Gone => ", a thread that has ended",
            OwnerIs::Elsewhere => ", which is no thread of this process",
            OwnerIs::NotInReport => ", which is not in the report",
            _ => "",
        })?;
        if self.timed { f.write_str(", for a limited time") } else { Ok(()) }
    }
}
