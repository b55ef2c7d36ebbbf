//! A thread's state from the kernel: `thread_get_state`, an exception message, or a `ucontext`.
//!
//! Layouts: `_STRUCT_X86_THREAD_STATE64`, `_STRUCT_ARM_THREAD_STATE64` and the exception states in
//! <mach/i386/_structs.h> and <mach/arm/_structs.h>; `_STRUCT_MCONTEXT64` (<i386/_mcontext.h>,
//! <arm/_mcontext.h>) begins with the exception state and the thread state, so that one type
//! represents all; `ucontext64` in <sys/_types/_ucontext64.h>; `siginfo_t` in <sys/signal.h>.

use mach2::kern_return::{KERN_SUCCESS, kern_return_t};
use mach2::port::mach_port_t;
use mach2::thread_act::{thread_get_state, thread_set_state};

#[cfg(target_arch = "aarch64")]
use super::pointers::authentication_mask;
pub use crate::processor_fault::{Access, FaultState};
use crate::registers::Registers;

#[cfg(target_arch = "x86_64")]
mod layout {
    /// `x86_THREAD_STATE64`.
    pub(super) const THREAD: i32 = 4;
    /// `x86_EXCEPTION_STATE64`.
    pub(super) const EXCEPTION: i32 = 6;

    /// `_STRUCT_X86_EXCEPTION_STATE64`.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    pub(super) struct Exception {
        pub trapno: u16,
        pub cpu: u16,
        pub err: u32,
        pub address: u64,
    }

    /// `_STRUCT_X86_THREAD_STATE64`.
    pub(super) type Thread = mach2::structs::x86_thread_state64_t;
}

#[cfg(target_arch = "aarch64")]
mod layout {
    /// `ARM_THREAD_STATE64`.
    pub(super) const THREAD: i32 = 6;
    /// `ARM_EXCEPTION_STATE64`.
    pub(super) const EXCEPTION: i32 = 7;

    /// `_STRUCT_ARM_EXCEPTION_STATE64`.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    pub(super) struct Exception {
        pub address: u64,
        pub esr: u32,
        pub exception: u32,
    }

    /// `_STRUCT_ARM_THREAD_STATE64`, whose last word holds flags.
    pub(super) type Thread = mach2::structs::arm_thread_state64_t;
}

/// Number of `natural_t`s in a state.
const fn words<T>() -> u32 {
    (size_of::<T>() / 4) as u32
}

/// A thread's general registers and the processor's description of its last fault.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Context {
    exception: layout::Exception,
    thread: layout::Thread,
}

impl Context {
    /// Reads the state of another thread, which should be suspended or waiting for a reply.
    ///
    /// The reply is that to an exception.
    ///
    /// # Errors
    /// The kernel's error (<mach/kern_return.h>): a thread that has exited is
    /// `KERN_INVALID_ARGUMENT` or `KERN_TERMINATED`.
    pub fn of_thread(thread: mach_port_t) -> Result<Context, kern_return_t> {
        let mut context = Self::of_stopped_thread(thread)?;
        let mut count = words::<layout::Exception>();
        let state = (&raw mut context.exception).cast();
        // SAFETY: the kernel writes at most `count` words of the state. If there is no exception
        // state, the zeros remain. Async-signal-safe: one message to the kernel.
        let _ = unsafe { thread_get_state(thread, layout::EXCEPTION, state, &raw mut count) };
        Ok(context)
    }

    /// Reads the general registers of another thread, which should be stopped; no fault state.
    pub(crate) fn of_stopped_thread(thread: mach_port_t) -> Result<Context, kern_return_t> {
        let mut context = Context::default();
        let mut count = words::<layout::Thread>();
        let state = (&raw mut context.thread).cast();
        // SAFETY: the kernel writes at most `count` words of the state. Async-signal-safe: one
        // message to the kernel.
        let answer = unsafe { thread_get_state(thread, layout::THREAD, state, &raw mut count) };
        if answer == KERN_SUCCESS { Ok(context) } else { Err(answer) }
    }

    /// Sets the general registers of a stopped thread, with which it continues.
    ///
    /// # Safety
    /// The thread must be able to continue with them.
    pub unsafe fn set_to(&self, thread: mach_port_t) -> Result<(), kern_return_t> {
        let state = (&raw const self.thread).cast_mut().cast();
        // SAFETY: the kernel reads the state; the rest is the caller's promise. Async-signal-safe:
        // one message to the kernel.
        match unsafe { thread_set_state(thread, layout::THREAD, state, words::<layout::Thread>()) } {
            KERN_SUCCESS => Ok(()),
            answer => Err(answer),
        }
    }

    /// Returns the general registers.
    #[cfg(target_arch = "x86_64")]
    pub fn registers(&self) -> Registers {
        let t = &self.thread;
        Registers {
            gpr: [
                t.__rax, t.__rdx, t.__rcx, t.__rbx, t.__rsi, t.__rdi, t.__rbp, t.__rsp, t.__r8, t.__r9, t.__r10,
                t.__r11, t.__r12, t.__r13, t.__r14, t.__r15,
            ],
            pc: t.__rip,
            flags: t.__rflags,
        }
    }

    /// Returns the general registers.
    ///
    /// pc, sp, fp and lr are without the kernel's own authentication codes, which an arm64e process
    /// sees on them.
    #[cfg(target_arch = "aarch64")]
    pub fn registers(&self) -> Registers {
        /// `__DARWIN_ARM_THREAD_STATE64_FLAGS_IB_SIGNED_LR`, `_KERNEL_SIGNED_PC`,
        /// `_KERNEL_SIGNED_LR`.
        const SIGNED: u32 = 2 | 4 | 8;
        let t = &self.thread;
        let mut x = [0; 31];
        for (to, from) in x.iter_mut().zip(t.__x) {
            *to = from;
        }
        let mut registers = Registers { x, sp: t.__sp, pc: t.__pc, pstate: t.__cpsr.into() };
        (registers.x[29], registers.x[30]) = (t.__fp, t.__lr);
        if t.__pad & SIGNED != 0 {
            let address = !authentication_mask();
            registers.pc &= address;
            registers.sp &= address;
            registers.x[29] &= address;
            registers.x[30] &= address;
        }
        registers
    }

    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.registers().pc
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers().sp()
    }

    /// Sets the program counter at which the thread continues.
    pub fn set_pc(&mut self, pc: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.thread.__rip = pc;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.thread.__pc = pc;
        }
    }

    /// Sets the stack pointer with which the thread continues.
    pub fn set_sp(&mut self, sp: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.thread.__rsp = sp;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.thread.__sp = sp;
        }
    }

    /// Sets the register that holds a function's result, rax or x0.
    pub fn set_result(&mut self, value: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.thread.__rax = value;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.thread.__x[0] = value;
        }
    }

    /// Clears the direction flag, which the ABI promises to be clear at every call and return.
    #[cfg(target_arch = "x86_64")]
    pub fn clear_direction(&mut self) {
        self.thread.__rflags &= !0x400;
    }

    /// Returns the processor's description of the fault.
    pub fn fault(&self) -> FaultState {
        let exception = self.exception;
        #[cfg(target_arch = "x86_64")]
        return FaultState { address: exception.address, trap: exception.trapno.into(), error: exception.err.into() };
        #[cfg(target_arch = "aarch64")]
        FaultState { address: exception.address, trap: exception.exception.into(), error: exception.esr.into() }
    }

    /// Returns the faulting instruction's memory access, if the processor reports it.
    pub fn access(&self) -> Option<Access> {
        self.fault().access()
    }
}

/// A signal's alternate stack, `stack_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalStack {
    /// The lowest address.
    pub sp: usize,
    /// Size in bytes.
    pub size: usize,
    /// `SS_ONSTACK`, `SS_DISABLE`.
    pub flags: i32,
}

/// `struct __darwin_ucontext64`, which a signal handler receives.
#[derive(Debug)]
#[repr(C)]
pub struct SignalContext {
    on_stack: i32,
    mask: u32,
    stack: SignalStack,
    link: usize,
    machine_size: usize,
    machine: *mut Context,
}

impl SignalContext {
    /// Returns the context at the third argument of a handler installed with `SA_SIGINFO`.
    ///
    /// # Safety
    /// `pointer` must be that argument, and the handler must not have returned while the result is
    /// used.
    pub unsafe fn from_pointer<'a>(pointer: *mut libc::c_void) -> &'a mut SignalContext {
        // SAFETY: the kernel writes this layout there; the caller keeps it alive.
        // Async-signal-safe: no call.
        unsafe { &mut *pointer.cast() }
    }

    /// Returns the interrupted thread's registers, and the state of its last fault.
    pub fn machine(&self) -> &Context {
        // SAFETY: the kernel puts an mcontext beside the ucontext, and it begins with this layout.
        unsafe { &*self.machine }
    }

    /// Like [`SignalContext::machine`]; changes take effect when the handler returns.
    pub fn machine_mut(&mut self) -> &mut Context {
        // SAFETY: as in `machine`; `self` is borrowed alone.
        unsafe { &mut *self.machine }
    }

    /// Returns the signals that the thread blocks once the handler returns; bit 0 is signal 1.
    pub fn signal_mask(&self) -> u32 {
        self.mask
    }

    /// Sets the signals that the thread blocks once the handler returns.
    pub fn set_signal_mask(&mut self, mask: u32) {
        self.mask = mask;
    }
}

/// A signal's `siginfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalInfo {
    /// The signal number.
    pub signo: i32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`.
    pub code: i32,
    pid: i32,
    uid: u32,
    status: i32,
    address: u64,
    value: u64,
    band: i64,
    reserved: [u64; 7],
}

/// `SI_USER` and the codes above it: the signal was sent.
const SI_USER: i32 = 0x10001;

impl SignalInfo {
    /// Whether the signal was raised by an instruction of this thread, as far as Darwin reports it.
    ///
    /// A signal sent to a thread has no code, one sent to the process has `SI_USER`.
    pub fn is_fault(&self) -> bool {
        self.code > 0 && self.code < SI_USER
    }

    /// Returns `si_addr`, for fault signals.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns `si_addr`: pointer tags are not requested from XNU.
    pub fn untagged_address(&self) -> u64 {
        self.address
    }

    /// Returns the sender's process and user ids, for signals that a process sent.
    pub fn sender(&self) -> Option<(i32, u32)> {
        (!self.is_fault() && self.pid != 0).then_some((self.pid, self.uid))
    }
}

const _: () = assert!(size_of::<SignalInfo>() == 104 && size_of::<SignalContext>() == 56);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Context>() == 16 + 21 * 8);
#[cfg(target_arch = "aarch64")]
const _: () = assert!(size_of::<Context>() == 16 + 33 * 8 + 8);

#[cfg(all(test, target_arch = "aarch64"))]
mod tests;
