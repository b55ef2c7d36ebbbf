//! The boundary between the program's code and the host's.
//!
//! *Out* (the program calls an import): the import is bound to a stub in a synthetic image
//! ([`crate::loader::synthetic`]). The stub jumps to the gate, which records the caller's stack
//! pointer and callee-saved registers in the thread's record and calls the host's function. While
//! the thread is in host code (such as a blocking system call), Mach and signals show it at the
//! stub, with those registers, as macOS shows a thread in a system call in
//! `libsystem_kernel.dylib`.
//!
//! *In* (the host calls the program: `main`, a thread's function): [`enter`] switches to a stack of
//! the program and starts there as macOS does ([`Beginning`]), so that an unwinder finds the same
//! frames.
//!
//! The machine-dependent half is `x86_64.rs` or `aarch64.rs`: assembly, the layout of Linux's
//! ucontext, and Darwin's thread, float and exception states.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

use crate::host::{
    kernel::thread::Thread,
    libsystem::conditions,
    loader::{synthetic, system_images},
};

/// The arguments of [`darwin_host_enter`]. The fields' order is the assembly's.
#[repr(C)]
pub(crate) struct Entrance {
    function: usize,
    /// The address at which to keep the host's stack pointer.
    keep: usize,
    arguments: [usize; 4],
    /// The jump's target, stack pointer and frame pointer, and on arm64 the link register.
    to: usize,
    sp: usize,
    fp: usize,
    link: usize,
}

/// The way to enter a function of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// From host code, with an empty frame record that ends the stack.
    Host,
    /// Entry of a thread's function.
    ///
    /// The kernel enters `thread_start` with frame pointer 0 (XNU bsd/pthread/pthread_shims.c,
    /// `bsdthread_create`: a state of zeros except for the program counter, stack pointer and
    /// arguments).
    Thread,
    /// Entry of `main`.
    ///
    /// dyld 3 jumps to it with a return address in `start`. On x86_64 the frame pointer points to a
    /// record with frame pointer 0, followed by the kernel's argc, which looks like its return
    /// address (dyld-832.7.1, src/dyldStartup.s, `Lnew`); on arm64 the record is empty. dyld 4
    /// calls it from a function whose frame record is empty (dyld-1122.1, dyld/dyldStartup.s).
    Main,
}

/// Calls the program's `function` on the stack that ends at `stack_top`; returns its result.
///
/// `main` does not return.
///
/// # Safety
/// The function must take at most four integer arguments, and the stack must be mapped and unused.
pub(crate) unsafe fn enter(beginning: Beginning, function: usize, stack_top: usize, arguments: [usize; 4]) -> usize {
    // The record is at this address, the host's stack pointer above it. 256 bytes above that stay
    // free, because the gate copies words above a call's stack pointer.
    let record = base_record(stack_top);
    let keep = record + 16;
    let mut entrance = Entrance { function, keep, arguments, to: 0, sp: record, fp: record, link: 0 };
    let mut words = [0, 0];
    match beginning {
        Beginning::Host => entrance.to = synthetic::start_code(),
        Beginning::Thread => {
            (entrance.to, entrance.sp, entrance.fp) = (system_images::thread_start(), keep, 0);
            // It writes the record itself.
            words = [usize::MAX; 2];
        }
        Beginning::Main if conditions::is_later() => entrance.to = system_images::start(),
        Beginning::Main => {
            (entrance.to, entrance.link) = (function, system_images::start());
            if cfg!(target_arch = "x86_64") {
                words[1] = arguments[0];
                entrance.sp = record - 8;
                // SAFETY: by contract; the return address.
                unsafe { (entrance.sp as *mut usize).write(entrance.link) };
            }
        }
    }
    // SAFETY: by contract; the stack is this call's.
    unsafe {
        (record as *mut [usize; 2]).write(words);
        darwin_host_enter(&raw const entrance)
    }
}

/// Returns the frame record of [`enter`] for a stack that ends at `stack_top`, for [`leave`].
pub(crate) fn base_record(stack_top: usize) -> usize {
    ((stack_top - 256) & !15) - 32
}

/// Ends the call of [`enter`] with this record, as if the function had returned `value`.
///
/// The call may be at any depth.
///
/// # Safety
/// That call must be in progress on this thread.
pub(crate) unsafe fn leave(record: usize, value: usize) -> ! {
    // SAFETY: by contract.
    unsafe { darwin_host_leave(record, value) }
}

unsafe extern "C" {
    fn darwin_host_enter(entrance: *const Entrance) -> usize;
    fn darwin_host_leave(record: usize, value: usize) -> !;
    fn darwin_host_left();
    fn darwin_host_gate();
    fn darwin_host_gate_covered();
    fn darwin_host_gate_uncovered();
    fn darwin_host_gate_end();
    fn darwin_host_set_thread(thread: usize);
    fn darwin_host_get_thread() -> usize;
    pub(crate) fn darwin_host_setjmp();
    pub(crate) fn darwin_host_longjmp();
}

/// Returns the address of the gate, which stubs jump to.
pub(crate) fn gate_address() -> usize {
    darwin_host_gate as *const () as usize
}

/// Returns the address of the code to which the synthetic start code returns.
pub(crate) fn left_address() -> usize {
    darwin_host_left as *const () as usize
}

/// Makes `thread` the calling thread's record.
pub(crate) fn set_thread(thread: *mut Thread) {
    // SAFETY: writes the thread's own slot.
    unsafe { darwin_host_set_thread(thread as usize) }
}

/// Returns the calling thread's record; null on a thread that the program does not own.
pub(crate) fn thread_pointer() -> *mut Thread {
    // SAFETY: reads the thread's own slot.
    unsafe { darwin_host_get_thread() as *mut Thread }
}

/// The location of an instruction pointer, seen from the program.
pub(crate) enum Place {
    /// In the program's own code (or at the target of its bad jump): its registers apply unchanged.
    Program,
    /// In the gate, outside the part in which the caller's registers are recorded.
    ///
    /// All registers but the pc are the caller's.
    Gate,
    /// In host code that the gate called: the program is at the stub.
    Host,
}

/// Returns the location of `pc` for `thread`.
pub(crate) fn place(thread: &Thread, pc: usize) -> Place {
    let at = |f: unsafe extern "C" fn()| f as *const () as usize;
    if (at(darwin_host_gate)..at(darwin_host_gate_end)).contains(&pc) {
        let covered = at(darwin_host_gate_covered)..at(darwin_host_gate_uncovered);
        return if covered.contains(&pc) { Place::Host } else { Place::Gate };
    }
    if crate::host::loader::tlv::contains(pc) {
        return Place::Gate;
    }
    if crate::host::loader::is_program_code(pc) || !crate::host::loader::is_host_code(pc) || thread.gate_is_empty() {
        return Place::Program;
    }
    Place::Host
}
