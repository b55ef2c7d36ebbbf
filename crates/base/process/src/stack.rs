//! Stacks: switching to a large one (Linux), and alternate signal stacks for threads.

#[cfg(not(target_vendor = "apple"))]
use crate::assembly_routine::routine;
use crate::files::{guard, map_untouched, touch, unmap};
use crate::os::context::SignalStack;
use crate::os::syscall::{Result, call};

// coroner_stack_call(top, function, argument): calls function(argument) with the stack pointer at
// `top`. The old stack pointer stays in the frame pointer, so that both unwind data and the frame
// chain lead back.
#[cfg(all(target_arch = "x86_64", not(target_vendor = "apple")))]
routine!(
    "coroner_stack_call",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
);
#[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]
routine!(
    "coroner_stack_call",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "mov sp, x0",
    "mov x0, x2",
    "blr x1",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    "ret",
);

#[cfg(not(target_vendor = "apple"))]
unsafe extern "C" {
    fn coroner_stack_call(top: usize, function: unsafe extern "C" fn(*mut libc::c_void), argument: *mut libc::c_void);
}

/// Returns the system's page size (not async-signal-safe).
pub fn page_size() -> usize {
    /// The largest page size of all systems.
    const LARGEST: usize = 1 << 16;
    // SAFETY: only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(LARGEST)
}

/// A stack created outside a signal handler: a mapping with an inaccessible guard page below it.
#[derive(Debug)]
pub struct Stack {
    mapping: usize,
    guard: usize,
    size: usize,
}

impl Stack {
    /// Maps a stack of at least `size` bytes (not async-signal-safe).
    ///
    /// The highest `touched` bytes are touched, so that no page has to be found for them when
    /// memory is short.
    pub fn map(size: usize, page: usize, touched: usize) -> Result<Stack> {
        let page = page.max(4096);
        let size = size.saturating_add(page - 1) & !(page - 1);
        let mapping = map_untouched(size + page)?;
        let stack = Stack { mapping, guard: page, size };
        // SAFETY: the page is ours, just mapped.
        if let Err(error) = unsafe { guard(mapping, page) } {
            stack.unmap();
            return Err(error);
        }
        let untouched = size.saturating_sub(touched) & !(page - 1);
        // SAFETY: inside the mapping, which is fresh, and writable above its guard page.
        unsafe { touch(mapping + page + untouched, size - untouched) };
        Ok(stack)
    }

    /// Reconstructs a stack from [`Stack::map`] by its base, its size and its page size.
    ///
    /// # Safety
    /// There must be such a stack, whose value was forgotten.
    pub(crate) unsafe fn from_parts(base: usize, size: usize, page: usize) -> Stack {
        let guard = page.max(4096);
        Stack { mapping: base - guard, guard, size }
    }

    /// Returns the address above the highest byte; 16-byte aligned.
    pub fn top(&self) -> usize {
        self.mapping + self.guard + self.size
    }

    /// Returns the lowest usable address.
    pub fn base(&self) -> usize {
        self.mapping + self.guard
    }

    /// Returns the number of usable bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    #[cfg(not(target_vendor = "apple"))]
    /// Calls `function(argument)` on this stack and returns when it does.
    ///
    /// # Safety
    /// The stack must not be in use; `function(argument)` must be sound to call and must not
    /// unwind.
    pub unsafe fn call(&self, function: unsafe extern "C" fn(*mut libc::c_void), argument: *mut libc::c_void) {
        // SAFETY: `top` is the top of a writable mapping, 16-byte aligned as both ABIs require.
        // Async-signal-safe: no call but `function`.
        unsafe { coroner_stack_call(self.top(), function, argument) };
    }

    /// Unmaps the stack (not async-signal-safe).
    pub fn unmap(self) {
        // SAFETY: the mapping is ours and, since `self` is consumed, nobody holds it any more.
        unsafe { unmap(self.mapping, self.size + self.guard) };
    }

    /// Returns this stack as an alternate signal stack.
    pub fn as_signal_stack(&self) -> SignalStack {
        SignalStack { sp: self.base(), flags: 0, size: self.size }
    }
}

/// Returns the alternate signal stack of the calling thread.
pub fn alternate_stack() -> Result<SignalStack> {
    let mut now = SignalStack { sp: 0, flags: 0, size: 0 };
    // SAFETY: the kernel writes one `stack_t`. Async-signal-safe: one system call.
    unsafe { call!(sigaltstack, 0, &raw mut now) }?;
    Ok(now)
}

/// Makes `stack` the alternate signal stack of the calling thread; returns the previous one.
///
/// # Errors
/// The error of sigaltstack (`EPERM` while the thread runs on its alternate stack).
///
/// # Safety
/// The memory must stay mapped, and be used for nothing else, for as long as the thread has it as
/// its alternate stack.
pub unsafe fn set_alternate_stack(stack: &SignalStack) -> Result<SignalStack> {
    let mut before = SignalStack { sp: 0, flags: 0, size: 0 };
    // SAFETY: the kernel reads one `stack_t` and writes another; the memory is the caller's
    // promise.
    unsafe { call!(sigaltstack, core::ptr::from_ref(stack), &raw mut before) }.map(|_| before)
}

const _: () = assert!(size_of::<SignalStack>() == size_of::<libc::stack_t>());
