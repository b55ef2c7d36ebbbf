//! The program's threads: one record each, which is also the program's `pthread_t`.
//!
//! Darwin's `pthread_t` is a pointer to an opaque structure (<sys/_pthread/_pthread_types.h>); here it is a pointer to a
//! [`Thread`]. Records of ended threads are never unmapped: a stale `pthread_t` or one in another thread's hands stays
//! readable.

use std::{
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use super::pages;
use crate::host::{
    gate::{self, GateFrame, LinuxContext},
    mach::exceptions::ExceptionActions,
};

/// Depth of imports that call back into the program that call imports. The page behind the last is not mapped.
const GATE_DEPTH: usize = 256;
/// Keys from 256 on are given out, PTHREAD_KEYS_MAX (512, <limits.h>) of them; those below are reserved for the system's own
/// libraries (`_INTERNAL_POSIX_THREAD_KEYS_MAX` of libpthread).
pub(crate) const FIRST_KEY: usize = 256;
pub(crate) const KEYS: usize = FIRST_KEY + 512;
/// Host signal handlers run here: deep enough for a Mach message and several nested signals.
const SIGNAL_STACK: usize = 256 * 1024;

/// A system call that blocks: its number (bsd/kern/syscalls.master) and its arguments, as the program's registers have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) arguments: [u64; 8],
}

/// One thread. The gate's assembly knows the first field.
#[repr(C)]
pub(crate) struct Thread {
    /// Where the gate notes the next caller.
    gate_top: *mut GateFrame,
    pub(crate) tid: AtomicI32,
    /// The thread's port name in the task, 0 once it ended.
    pub(crate) port: AtomicU32,
    /// `THREAD_IDENTIFIER_INFO`'s thread_id, `pthread_threadid_np`: unique in the process's life.
    pub(crate) unique_id: AtomicU64,
    pub(crate) name: [u8; 64],

    /// The program's stack: lowest usable address and end. The guard lies below.
    pub(crate) stack_low: usize,
    pub(crate) stack_end: usize,
    pub(crate) guard: usize,
    /// What to unmap when the thread is gone; 0 for the main thread and stacks that the program gave.
    pub(crate) stack_mapping: (usize, usize),
    pub(crate) signal_stack: *mut u8,

    pub(crate) start: usize,
    pub(crate) argument: usize,
    pub(crate) result: AtomicUsize,
    pub(crate) detached: AtomicU32,
    /// 1 when the program's part of the thread has ended (futex).
    pub(crate) ended: AtomicU32,
    /// `tl_exit_gate`: who waits for its end sleeps by this word.
    pub(crate) exit_gate: AtomicU32,
    pub(crate) specific: [usize; KEYS],
    pub(crate) errno: i32,

    /// The program's signal mask, as Darwin bits; and what arrived of the fault signals while blocked.
    pub(crate) blocked: AtomicU32,
    pub(crate) pending: AtomicU32,
    /// `sigaltstack`: base, size, flags (SS_DISABLE 4).
    pub(crate) alternate: (usize, usize, i32),
    /// Counts handlers of the program that ran: a system call that was interrupted by none is restarted.
    pub(crate) handled: AtomicU32,

    /// Mach's suspend count, and a word that changes whenever it or the parking does.
    pub(crate) suspended: AtomicI32,
    pub(crate) changed: AtomicU32,
    /// Not null while the thread stands still: suspended, or waiting for an exception's reply.
    pub(crate) context: AtomicPtr<LinuxContext>,
    /// Where the signal that suspends leaves the thread's own state when it asks for it: flavor and bytes.
    pub(crate) probe: *mut (i32, Vec<u8>),
    /// The signal and address of the last fault, for the exception state.
    pub(crate) last_fault: (i32, usize),
    pub(crate) exception_actions: ExceptionActions,
    pub(crate) reply_port: u32,
    /// An exception that the kernel raises when the thread leaves it: number (0: none) and codes.
    pub(crate) raised: (i32, [i64; 2]),
    /// The dispatch queue whose work it does (`dispatch_qaddr` is this place).
    pub(crate) queue: AtomicUsize,
    call: Call,
    /// What the gate had noted when the thread began that call: an import that a signal's handler calls meanwhile is another one. Null:
    /// it is in none.
    call_depth: AtomicPtr<GateFrame>,

    gate_frames: [GateFrame; GATE_DEPTH],
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0x1000);

impl Thread {
    /// A fresh record, not yet anybody's.
    pub(crate) fn create() -> &'static mut Thread {
        let size = pages::round(size_of::<Thread>());
        // The record ends at the mapping's end, and the page after it is a guard.
        let base = pages::map(size + pages::PAGE);
        assert!(!base.is_null(), "no memory for a thread");
        // SAFETY: a fresh mapping, all zero, large enough; every field but the ones set here is right when zero.
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

    /// Makes this the calling thread's record, and gives it the host's signal stack.
    pub(crate) fn adopt(&mut self) {
        gate::set_thread(self);
        // SAFETY: plain system calls on our own memory.
        unsafe {
            self.tid.store(libc::syscall(libc::SYS_gettid) as i32, Ordering::SeqCst);
            let stack = libc::stack_t { ss_sp: self.signal_stack.cast(), ss_flags: 0, ss_size: SIGNAL_STACK };
            libc::sigaltstack(&raw const stack, ptr::null_mut());
        }
    }

    /// The innermost caller that the gate noted.
    pub(crate) fn gate_frame(&self) -> GateFrame {
        // SAFETY: the caller checked `gate_is_empty`, or the gate's code is where the thread stands.
        unsafe { *self.gate_top.sub(1) }
    }

    pub(crate) fn gate_is_empty(&self) -> bool {
        ptr::eq(self.gate_top, self.gate_frames.as_ptr())
    }

    pub(crate) fn gate_reset(&mut self) {
        self.gate_top = self.gate_frames.as_mut_ptr();
    }

    /// Waits by `body`, and is seen meanwhile in that system call with these arguments.
    pub(crate) fn in_call(&mut self, number: u32, arguments: &[u64], body: impl FnOnce()) {
        let mut call = Call { number, arguments: [0; 8] };
        call.arguments[..arguments.len()].copy_from_slice(arguments);
        // It is looked at in the handler of a signal, on this thread.
        let outer = (self.call, self.call_depth.swap(ptr::null_mut(), Ordering::SeqCst));
        self.call = call;
        self.call_depth.store(self.gate_top, Ordering::SeqCst);
        body();
        self.call_depth.store(ptr::null_mut(), Ordering::SeqCst);
        self.call = outer.0;
        self.call_depth.store(outer.1, Ordering::SeqCst);
    }

    /// The system call in which the innermost import blocks.
    pub(crate) fn call(&self) -> Option<Call> {
        (self.call_depth.load(Ordering::SeqCst) == self.gate_top).then_some(self.call)
    }

    /// The gate's depth, to restore after a call that may not come back by the ordinary way.
    pub(crate) fn gate_depth(&self) -> *mut GateFrame {
        self.gate_top
    }

    /// Gives the stack and the signal stack back. The record itself stays mapped.
    pub(crate) fn release_memory(&mut self) {
        // SAFETY: the thread has ended; nothing runs on these.
        unsafe {
            libc::munmap(self.signal_stack.cast(), SIGNAL_STACK);
            if self.stack_mapping.1 != 0 {
                libc::munmap(self.stack_mapping.0 as *mut libc::c_void, self.stack_mapping.1);
                self.stack_mapping = (0, 0);
            }
        }
    }
}

/// The calling thread's record.
///
/// Every thread on which the program's code runs has one; records are never unmapped, and each field has one writer at a
/// time: the thread itself, or the holder of the lock.
pub(crate) fn current() -> &'static mut Thread {
    let thread = gate::thread_pointer();
    if thread.is_null() {
        super::ending::refuse!("the program's code runs on a thread that the host did not make");
    }
    // SAFETY: as above.
    unsafe { &mut *thread }
}
