//! What live backtraces share with crash time: stopping a thread, listing threads, and reads whose faults are made good.
//!
//! Normal life only. Nothing here allocates.

use coroner_machine::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable};
use coroner_machine::rendezvous::{Interrupted, NotCaptured};
use coroner_machine::syscall::syscall;
use coroner_machine::threads::Tid;

use super::action::bit;
use crate::{global, monitor};

pub use crate::here::here;

/// Stops another thread of this process until the result is dropped. Be brief, and call nothing that may take a lock: the
/// thread may hold it.
///
/// # Errors
/// [`NotCaptured::NoAnswer`] after `timeout` nanoseconds or while Coroner is not installed; the rest as
/// [`coroner_machine::rendezvous::Rendezvous::interrupt`] says.
pub fn interrupt(tid: Tid, timeout: u64) -> Result<Interrupted<'static>, NotCaptured> {
    global::get().ok_or(NotCaptured::NoAnswer)?.os.rendezvous.interrupt(tid, timeout)
}

/// Calls `each` with the id of every thread of this process. False while Coroner is not installed.
pub fn threads(each: &mut impl FnMut(Tid)) -> bool {
    global::get().is_some_and(|global| global.os.tasks.list(each).error.is_none())
}

/// Memory for a live walk: loads, where Coroner's handler makes their faults good, else copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// Coroner's handler of SIGSEGV and SIGBUS is the first one, and this thread does not block them.
    Loads(LoadGuarded),
    /// It is not. Put it behind a [`Windowed`](coroner_machine::memory::Windowed): a copy costs a microsecond.
    Copies(KernelCopy),
}

impl Reader {
    /// The best reader that is right on this thread now. Costs a system call; nothing where the kernel refuses copies, too.
    ///
    /// An app that replaces Coroner's handler while a walk runs, or blocks these signals in it, gets what it asked for.
    pub fn new() -> Option<Reader> {
        if global::get().is_some() && monitor::signal::is_first() && !blocks_faults() {
            // SAFETY: just checked.
            return Some(Reader::Loads(unsafe { LoadGuarded::new() }));
        }
        KernelCopy::new().map(Reader::Copies)
    }
}

/// Whether the calling thread blocks SIGSEGV or SIGBUS.
fn blocks_faults() -> bool {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes one 8-byte set.
    let asked = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut mask, 8) };
    asked.is_err() || mask & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)) != 0
}

impl Memory for Reader {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read(address, into),
            Reader::Copies(memory) => memory.read(address, into),
        }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_u64(address),
            Reader::Copies(memory) => memory.read_u64(address),
        }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_pair(address),
            Reader::Copies(memory) => memory.read_pair(address),
        }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_block(address, into),
            Reader::Copies(memory) => memory.read_block(address, into),
        }
    }
}
