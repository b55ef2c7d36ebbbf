//! The program's threads: one record for each, which is also the program's `pthread_t`.
//!
//! Darwin's `pthread_t` is a pointer to an opaque structure (<sys/_pthread/_pthread_types.h>); here
//! it is a pointer to a [`Thread`]. Records of ended threads are never unmapped: a stale
//! `pthread_t`, or one used by another thread, stays readable.

use std::{
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use super::pages;
use crate::host::{
    gate::{self, GateFrame, LinuxContext},
    mach::exceptions::ExceptionActions,
};

/// Maximum nesting of imports that call back into the program, which calls imports.
///
/// The page after the last frame is not mapped.
const GATE_DEPTH: usize = 256;
/// The first key that is allocated; there are PTHREAD_KEYS_MAX (512, <limits.h>).
///
/// Lower keys are reserved for the system's own libraries (`_INTERNAL_POSIX_THREAD_KEYS_MAX` of
/// libpthread).
pub(crate) const FIRST_KEY: usize = 256;
pub(crate) const KEYS: usize = FIRST_KEY + 512;
/// Size of the host's signal stack: enough for a Mach message and several nested signals.
const SIGNAL_STACK: usize = 256 * 1024;

/// A blocking system call: its number and its arguments, as in the program's registers.
///
/// Source: bsd/kern/syscalls.master.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) arguments: [u64; 8],
}

/// A thread. The gate's assembly accesses the first field.
#[repr(C)]
pub(crate) struct Thread {
    /// The place for the gate's next record of a caller.
    gate_top: *mut GateFrame,
    pub(crate) tid: AtomicI32,
    /// The thread's port name in the task, 0 after it ended.
    pub(crate) port: AtomicU32,
    /// `THREAD_IDENTIFIER_INFO`'s thread_id, `pthread_threadid_np`: unique in the process.
    pub(crate) unique_id: AtomicU64,
    pub(crate) name: [u8; 64],

    /// The program's stack: lowest usable address and end. The guard is below.
    pub(crate) stack_low: usize,
    pub(crate) stack_end: usize,
    pub(crate) guard: usize,
    /// The mapping to unmap after the thread's end.
    ///
    /// 0 for the main thread and for stacks provided by the program.
    pub(crate) stack_mapping: (usize, usize),
    pub(crate) signal_stack: *mut u8,

    pub(crate) start: usize,
    pub(crate) argument: usize,
    pub(crate) result: AtomicUsize,
    pub(crate) detached: AtomicU32,
    /// 1 after the program's part of the thread has ended (futex).
    pub(crate) ended: AtomicU32,
    /// `tl_exit_gate`: threads that join this one wait on this word.
    pub(crate) exit_gate: AtomicU32,
    pub(crate) specific: [usize; KEYS],
    pub(crate) errno: i32,

    /// The program's signal mask, as Darwin bits, and the fault signals that arrived while blocked.
    pub(crate) blocked: AtomicU32,
    pub(crate) pending: AtomicU32,
    /// `sigaltstack`: base, size, flags (SS_DISABLE 4).
    pub(crate) alternate: (usize, usize, i32),
    /// Counts the program's handlers that ran: a system call that none interrupted is restarted.
    pub(crate) handled: AtomicU32,

    /// Mach's suspend count, and a word that changes with it or with the parking.
    pub(crate) suspended: AtomicI32,
    pub(crate) changed: AtomicU32,
    /// Not null while the thread is stopped: suspended, or waiting for an exception's reply.
    pub(crate) context: AtomicPtr<LinuxContext>,
    /// The thread's own state, stored by the suspension handler on request: flavor and bytes.
    pub(crate) probe: *mut (i32, Vec<u8>),
    /// The signal and address of the last fault, for the exception state.
    pub(crate) last_fault: (i32, usize),
    pub(crate) exception_actions: ExceptionActions,
    pub(crate) reply_port: u32,
    /// An exception to raise when the thread leaves the kernel: number (0: none) and codes.
    pub(crate) raised: (i32, [i64; 2]),
    /// The dispatch queue whose work it runs (`dispatch_qaddr` is this field's address).
    pub(crate) queue: AtomicUsize,
    call: Call,
    /// The gate's top when the thread began that call. Null if it is in no call.
    ///
    /// An import called meanwhile by a signal handler is a different one.
    call_depth: AtomicPtr<GateFrame>,

    gate_frames: [GateFrame; GATE_DEPTH],
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0x1000);

impl Thread {
    /// Creates an unused record.
    pub(crate) fn create() -> &'static mut Thread {
        let size = pages::round(size_of::<Thread>());
        // The record ends at the mapping's end, and the page after it is a guard.
        let base = pages::map(size + pages::PAGE);
        assert!(!base.is_null(), "no memory for a thread");
        // SAFETY: a fresh mapping, all zero and large enough; zero is correct for every field but
        // those set here.
        unsafe {
            libc::mprotect(base.add(size).cast(), pages::PAGE, libc::PROT_NONE);
            let thread = &mut *base.add((size - size_of::<Thread>()) & !15).cast::<Thread>();
            let owner = ptr::from_mut(thread);
            for frame in &mut thread.gate_frames {
                *frame = GateFrame::new(owner);
            }
            thread.gate_top = thread.gate_frames.as_mut_ptr();
            thread.unique_id = AtomicU64::new(NEXT_ID.fetch_add(1, Ordering::Relaxed));
            thread.signal_stack = pages::map(SIGNAL_STACK);
            thread.alternate = (0, 0, 4);
            thread.detached = AtomicU32::new(0);
            thread
        }
    }

    /// Makes this the calling thread's record, and sets the host's signal stack.
    pub(crate) fn adopt(&mut self) {
        gate::set_thread(self);
        // SAFETY: plain system calls on the host's own memory.
        unsafe {
            self.tid.store(libc::syscall(libc::SYS_gettid) as i32, Ordering::SeqCst);
            let stack = libc::stack_t { ss_sp: self.signal_stack.cast(), ss_flags: 0, ss_size: SIGNAL_STACK };
            libc::sigaltstack(&raw const stack, ptr::null_mut());
        }
    }

    /// Returns the innermost caller that the gate recorded.
    pub(crate) fn gate_frame(&self) -> GateFrame {
        // SAFETY: the caller checked `gate_is_empty`, or the thread is in the gate's code.
        unsafe { *self.gate_top.sub(1) }
    }

    pub(crate) fn gate_is_empty(&self) -> bool {
        ptr::eq(self.gate_top, self.gate_frames.as_ptr())
    }

    pub(crate) fn gate_reset(&mut self) {
        self.gate_top = self.gate_frames.as_mut_ptr();
    }

    /// Runs `body`, which waits, while the thread appears to be in this system call.
    pub(crate) fn in_call(&mut self, number: u32, arguments: &[u64], body: impl FnOnce()) {
        let mut call = Call { number, arguments: [0; 8] };
        call.arguments[..arguments.len()].copy_from_slice(arguments);
        // The handler of a signal on this thread reads it.
        let outer = (self.call, self.call_depth.swap(ptr::null_mut(), Ordering::SeqCst));
        self.call = call;
        self.call_depth.store(self.gate_top, Ordering::SeqCst);
        body();
        self.call_depth.store(ptr::null_mut(), Ordering::SeqCst);
        self.call = outer.0;
        self.call_depth.store(outer.1, Ordering::SeqCst);
    }

    /// Returns the system call in which the innermost import blocks.
    pub(crate) fn call(&self) -> Option<Call> {
        (self.call_depth.load(Ordering::SeqCst) == self.gate_top).then_some(self.call)
    }

    /// Returns the gate's depth, to restore it after a call that may not return normally.
    pub(crate) fn gate_depth(&self) -> *mut GateFrame {
        self.gate_top
    }

    /// Unmaps the stack and the signal stack. The record itself stays mapped.
    pub(crate) fn release_memory(&mut self) {
        // SAFETY: the thread has ended, so its stacks are unused.
        unsafe {
            libc::munmap(self.signal_stack.cast(), SIGNAL_STACK);
            if self.stack_mapping.1 != 0 {
                libc::munmap(self.stack_mapping.0 as *mut libc::c_void, self.stack_mapping.1);
                self.stack_mapping = (0, 0);
            }
        }
    }
}

/// Returns the calling thread's record.
///
/// Every thread that runs the program's code has one. Records are never unmapped, and each field
/// has one writer at a time: the thread itself, or the holder of the lock.
pub(crate) fn current() -> &'static mut Thread {
    let thread = gate::thread_pointer();
    if thread.is_null() {
        super::ending::refuse!("the program's code runs on a thread that the host did not make");
    }
    // SAFETY: as above.
    unsafe { &mut *thread }
}
