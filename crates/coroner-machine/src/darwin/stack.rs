//! Stacks: alternate signal stacks for threads.

use super::context::SignalStack;
use super::syscall::{Errno, Result, check};

/// A stack made in normal life: a mapping with an unreadable guard page below it.
#[derive(Debug)]
pub struct Stack {
    mapping: usize,
    guard: usize,
    size: usize,
}

impl Stack {
    /// Maps a stack of at least `size` bytes, of which the highest `touched` are touched, so that no page has to be found
    /// for them when memory is short.
    ///
    /// # Errors
    /// What mmap or mprotect answered.
    pub fn map_touching(size: usize, page: usize, touched: usize) -> Result<Stack> {
        let page = page.max(4096);
        let size = size.saturating_add(page - 1) & !(page - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapping =
            unsafe { libc::mmap(core::ptr::null_mut(), size + page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let stack = Stack { mapping: mapping as usize, guard: page, size };
        // SAFETY: the page is ours, just mapped.
        if let Err(error) = check(unsafe { libc::mprotect(mapping, page, libc::PROT_NONE) } as isize) {
            stack.unmap();
            return Err(error);
        }
        let mut offset = size.saturating_sub(touched) & !(page - 1);
        while offset < size {
            // SAFETY: inside the mapping, which is writable above its guard page.
            unsafe { ((mapping as usize + page + offset) as *mut u8).write_volatile(0) };
            offset += page;
        }
        Ok(stack)
    }

    /// A stack of [`Stack::map_touching`] again, from its base, its size and the page size that it was made with.
    pub fn from_parts(base: usize, size: usize, page: usize) -> Stack {
        let guard = page.max(4096);
        Stack { mapping: base - guard, guard, size }
    }

    /// The lowest usable address.
    pub fn base(&self) -> usize {
        self.mapping + self.guard
    }

    /// The usable bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Unmaps the stack (normal life).
    pub fn unmap(self) {
        // SAFETY: the mapping is ours and, since `self` is consumed, nobody holds it any more.
        unsafe { libc::munmap(self.mapping as *mut libc::c_void, self.size + self.guard) };
    }

    /// As an alternate signal stack.
    pub fn as_signal_stack(&self) -> SignalStack {
        SignalStack { sp: self.base(), flags: 0, size: self.size }
    }
}

/// The alternate signal stack of the calling thread.
///
/// # Errors
/// What sigaltstack answered.
pub fn alternate_stack() -> Result<SignalStack> {
    let mut now = SignalStack { sp: 0, flags: 0, size: 0 };
    // SAFETY: the kernel writes one `stack_t`, which has this layout. Async-signal-safe: one system call.
    check(unsafe { libc::sigaltstack(core::ptr::null(), (&raw mut now).cast()) } as isize)?;
    Ok(now)
}

/// Makes `stack` the alternate signal stack of the calling thread.
///
/// # Errors
/// What sigaltstack answered (`EPERM` while the thread runs on its alternate stack).
///
/// # Safety
/// The memory must stay mapped, and be used for nothing else, for as long as the thread has it as its alternate stack.
pub unsafe fn set_alternate_stack(stack: &SignalStack) -> Result<()> {
    // SAFETY: the kernel reads one `stack_t`; the memory is the caller's promise.
    let answer = unsafe { libc::sigaltstack(core::ptr::from_ref(stack).cast(), core::ptr::null_mut()) };
    check(answer as isize).map(|_| ())
}

const _: () = assert!(size_of::<SignalStack>() == size_of::<libc::stack_t>());
