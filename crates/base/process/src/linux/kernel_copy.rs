//! Copies of this process's own memory by the kernel.
//!
//! A bad address is an error of the system call and not a fault.

pub use super::access_check::{is_accessible, is_zero};
use super::syscall::{Errno, Result, syscall};
use crate::files::{Descriptor, File, open, read_at};
use crate::memory::{Memory, Unreadable};

/// Copies `length` bytes of this process's memory by the kernel, from one address to another.
///
/// # Errors
/// `EFAULT` if a byte can't be read or written; other errors if the kernel lacks
/// process_vm_readv(2) or a sandbox refuses it.
///
/// # Safety
/// The caller must own the bytes at `to`, as far as there are any.
#[inline(always)]
pub(crate) unsafe fn copy_own(from: usize, to: usize, length: usize) -> Result<()> {
    let local = libc::iovec { iov_base: to as *mut _, iov_len: length };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: length };
    // SAFETY: the kernel writes into the caller's bytes. Async-signal-safe: two system calls. The
    // process ID is not remembered: a child of fork must not read its parent.
    let copied = unsafe {
        let pid = syscall!(libc::SYS_getpid)?;
        syscall!(libc::SYS_process_vm_readv, pid, &raw const local, 1, &raw const remote, 1, 0)
    }?;
    if copied == length { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// The pages of this process that are in its page tables, by `/proc/self/pagemap`.
///
/// Reading a present page neither waits for a file, a swap device or a page fault server, nor
/// reaches a device's registers. (Documentation/admin-guide/mm/pagemap.rst. mincore(2) would report
/// the same for files that are not in memory, if the process may not write them.)
#[derive(Debug)]
pub struct PresentPages {
    file: Option<File>,
    page_size: u64,
}

impl PresentPages {
    /// Opens the file. If it can't be opened, no page is present. Async-signal-safe.
    pub fn open(page_size: u32) -> PresentPages {
        let file = open(Descriptor::WORKING_DIRECTORY, c"/proc/self/pagemap", libc::O_RDONLY, 0).ok();
        PresentPages { file, page_size: page_size.into() }
    }

    /// Whether the page that contains `address` is present.
    pub fn contains(&self, address: u64) -> bool {
        const PRESENT: u64 = 1 << 63;
        let Some(file) = &self.file else { return false };
        let mut entry = [0; 8];
        let at = address.checked_div(self.page_size).unwrap_or(0).saturating_mul(8);
        read_at(file, &mut entry, at) == Ok(8) && u64::from_ne_bytes(entry) & PRESENT != 0
    }
}

/// A reader that copies this process's own memory through process_vm_readv(2).
#[derive(Clone, Copy, Debug)]
pub struct KernelCopy {
    pid: i32,
}

impl KernelCopy {
    /// Creates a reader; `None` if the kernel or a sandbox refuses the call.
    ///
    /// Asks the kernel for the process id each time: a child of fork must not read its parent.
    pub fn new() -> Option<Self> {
        // SAFETY: getpid has no arguments and no effects.
        let pid = unsafe { syscall!(libc::SYS_getpid) }.ok()?;
        let mut copy = KernelCopy { pid: pid as i32 };
        if cfg!(miri) {
            // The fake kernel knows only its own mappings, and not the address of a local.
            return Some(copy);
        }
        let probe = [0x5a_u8; 8];
        let mut got = [0; 8];
        copy.read(probe.as_ptr() as u64, &mut got).ok()?;
        (got == probe).then_some(copy)
    }
}

impl Memory for KernelCopy {
    fn read(&mut self, address: u64, into: &mut [u8]) -> core::result::Result<(), Unreadable> {
        if into.is_empty() {
            return Ok(());
        }
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes at most `into.len()` bytes into `into` and reports bad
        // addresses as an error or a short count. Async-signal-safe: one system call.
        let copied =
            unsafe { syscall!(libc::SYS_process_vm_readv, self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        if copied == Ok(into.len()) { Ok(()) } else { Err(Unreadable { address }) }
    }
}

/// A reader that copies through a pipe, for use where process_vm_readv is refused.
///
/// write(2) from the address, read(2) into the buffer.
#[derive(Debug)]
struct PipeCopy {
    reader: i32,
    writer: i32,
}

/// Bytes that go through the pipe at once: `PIPE_BUF`, which every pipe accepts as a whole.
const PIPE_PIECE: usize = 4096;

impl PipeCopy {
    /// Creates the pipe. Its operations don't block.
    fn open() -> Result<PipeCopy> {
        let mut ends = [0_i32; 2];
        // SAFETY: the kernel writes two descriptors. Async-signal-safe: one system call.
        unsafe { syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }?;
        Ok(PipeCopy { reader: ends[0], writer: ends[1] })
    }

    /// Takes up to `into.len()` bytes out of the pipe; returns their number.
    fn take(&self, into: &mut [u8]) -> usize {
        // SAFETY: the kernel writes at most the buffer's length into it. Async-signal-safe: one
        // system call.
        unsafe { syscall!(libc::SYS_read, self.reader, into.as_mut_ptr(), into.len()) }.unwrap_or(0)
    }
}

impl Memory for PipeCopy {
    fn read(&mut self, address: u64, into: &mut [u8]) -> core::result::Result<(), Unreadable> {
        let mut at = address;
        for piece in into.chunks_mut(PIPE_PIECE) {
            // SAFETY: the kernel reads the bytes, and returns an error or a short count where there
            // are none. Async-signal-safe: one system call.
            let written = unsafe { syscall!(libc::SYS_write, self.writer, at, piece.len()) }.unwrap_or(0);
            let taken = self.take(piece.get_mut(..written).unwrap_or_default());
            if written != piece.len() || taken != written {
                return Err(Unreadable { address });
            }
            at = at.checked_add(written as u64).ok_or(Unreadable { address })?;
        }
        Ok(())
    }
}

impl Drop for PipeCopy {
    fn drop(&mut self) {
        for descriptor in [self.reader, self.writer] {
            // SAFETY: a descriptor of this value's own. Async-signal-safe: one system call.
            let _ = unsafe { syscall!(libc::SYS_close, descriptor) };
        }
    }
}

/// Reads of this process's memory that can't fault, independent of signal handlers.
///
/// Through process_vm_readv(2), or through a pipe if the kernel or a sandbox refuses that. For
/// outside crash time: it may hold two descriptors until it is dropped.
#[derive(Debug)]
pub struct CheckedMemory(Way);

#[derive(Debug)]
enum Way {
    Copy(KernelCopy),
    Pipe(PipeCopy),
}

impl CheckedMemory {
    /// Creates a reader; `None` if the kernel refuses both ways.
    pub fn open() -> Option<CheckedMemory> {
        if let Some(copy) = KernelCopy::new() {
            return Some(CheckedMemory(Way::Copy(copy)));
        }
        Self::through_pipe()
    }

    /// Creates a reader that works without process_vm_readv; `None` if there is no pipe.
    pub fn through_pipe() -> Option<CheckedMemory> {
        PipeCopy::open().ok().map(|pipe| CheckedMemory(Way::Pipe(pipe)))
    }
}

impl Memory for CheckedMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> core::result::Result<(), Unreadable> {
        match &mut self.0 {
            Way::Copy(copy) => copy.read(address, into),
            Way::Pipe(pipe) => pipe.read(address, into),
        }
    }
}
