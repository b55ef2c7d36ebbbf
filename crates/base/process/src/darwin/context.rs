//! A thread's state as the kernel hands it out: by `thread_get_state`, in an exception message, or in a signal's `ucontext`.
//!
//! Layouts: `_STRUCT_X86_THREAD_STATE64`, `_STRUCT_ARM_THREAD_STATE64` and the exception states of <mach/i386/_structs.h> and
//! <mach/arm/_structs.h>; `_STRUCT_MCONTEXT64` (<i386/_mcontext.h>, <arm/_mcontext.h>) begins with the exception state and the
//! thread state, so that one type stands for all; `ucontext64` of <sys/_types/_ucontext64.h>; `siginfo_t` of <sys/signal.h>.

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

/// `natural_t`s in a state.
const fn words<T>() -> u32 {
    (size_of::<T>() / 4) as u32
}

/// A thread's general registers and what the processor said of its last fault.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Context {
    exception: layout::Exception,
    thread: layout::Thread,
}

impl Context {
    /// The state of another thread, which should stand still: suspended, or waiting for the reply to an exception.
    ///
    /// # Errors
    /// What the kernel answered (<mach/kern_return.h>): a thread that has ended is `KERN_INVALID_ARGUMENT` or
    /// `KERN_TERMINATED`.
    pub fn of_thread(thread: mach_port_t) -> Result<Context, kern_return_t> {
        let mut context = Self::of_stopped_thread(thread)?;
        let mut count = words::<layout::Exception>();
        let state = (&raw mut context.exception).cast();
        // SAFETY: the kernel writes at most `count` words of the state. Where there is none, the zeros stand.
        // Async-signal-safe: one message to the kernel.
        let _ = unsafe { thread_get_state(thread, layout::EXCEPTION, state, &raw mut count) };
        Ok(context)
    }

    /// The general registers of another thread, which should stand still; nothing of a fault.
    pub(crate) fn of_stopped_thread(thread: mach_port_t) -> Result<Context, kern_return_t> {
        let mut context = Context::default();
        let mut count = words::<layout::Thread>();
        let state = (&raw mut context.thread).cast();
        // SAFETY: the kernel writes at most `count` words of the state. Async-signal-safe: one message to the kernel.
        let answer = unsafe { thread_get_state(thread, layout::THREAD, state, &raw mut count) };
        if answer == KERN_SUCCESS { Ok(context) } else { Err(answer) }
    }

    /// Lets a thread that stands still go on with these general registers.
    ///
    /// # Safety
    /// The thread must be able to go on so.
    pub unsafe fn set_to(&self, thread: mach_port_t) -> Result<(), kern_return_t> {
        let state = (&raw const self.thread).cast_mut().cast();
        // SAFETY: the kernel reads the state; the rest is the caller's promise. Async-signal-safe: one message to the kernel.
        match unsafe { thread_set_state(thread, layout::THREAD, state, words::<layout::Thread>()) } {
            KERN_SUCCESS => Ok(()),
            answer => Err(answer),
        }
    }

    /// The general registers.
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

    /// The general registers; pc, sp, fp and lr without the kernel's own authentication codes, which an arm64e process sees
    /// on them.
    #[cfg(target_arch = "aarch64")]
    pub fn registers(&self) -> Registers {
        /// `__DARWIN_ARM_THREAD_STATE64_FLAGS_IB_SIGNED_LR`, `_KERNEL_SIGNED_PC`, `_KERNEL_SIGNED_LR`.
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

    /// The program counter.
    pub fn pc(&self) -> u64 {
        self.registers().pc
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers().sp()
    }

    /// Sets where the thread goes on.
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

    /// Sets the stack pointer with which it does.
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

    /// What the processor said of the fault.
    pub fn fault(&self) -> FaultState {
        let exception = self.exception;
        #[cfg(target_arch = "x86_64")]
        return FaultState { address: exception.address, trap: exception.trapno.into(), error: exception.err.into() };
        #[cfg(target_arch = "aarch64")]
        FaultState { address: exception.address, trap: exception.exception.into(), error: exception.esr.into() }
    }

    /// How the faulting instruction touched memory, if the processor says.
    pub fn access(&self) -> Option<Access> {
        self.fault().access()
    }
}

/// A signal's alternate stack, `stack_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalStack {
    /// Lowest address.
    pub sp: usize,
    /// Bytes.
    pub size: usize,
    /// `SS_ONSTACK`, `SS_DISABLE`.
    pub flags: i32,
}

/// `struct __darwin_ucontext64`, which a signal handler gets.
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
    /// The context at the third argument of a handler installed with `SA_SIGINFO`.
    ///
    /// # Safety
    /// `pointer` must be that argument, and the handler must not have returned while the result is used.
    pub unsafe fn from_pointer<'a>(pointer: *mut libc::c_void) -> &'a mut SignalContext {
        // SAFETY: the kernel writes this layout there; the caller keeps it alive. Async-signal-safe: no call.
        unsafe { &mut *pointer.cast() }
    }

    /// The interrupted thread's registers, and what the processor said of its last fault.
    pub fn machine(&self) -> &Context {
        // SAFETY: the kernel puts an mcontext beside the ucontext, and it begins with this layout.
        unsafe { &*self.machine }
    }

    /// As [`SignalContext::machine`]; what is changed holds when the handler returns.
    pub fn machine_mut(&mut self) -> &mut Context {
        // SAFETY: as in `machine`; `self` is borrowed alone.
        unsafe { &mut *self.machine }
    }

    /// The signals that the thread blocks once the handler returns; bit 0 is signal 1.
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
    /// The signal.
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

/// `SI_USER` and those that follow it: somebody sent the signal.
const SI_USER: i32 = 0x10001;

impl SignalInfo {
    /// The kernel's own signal, raised by an instruction of this thread, as far as Darwin says: a signal that was sent to a
    /// thread has no code, one that was sent to the process `SI_USER`.
    pub fn is_fault(&self) -> bool {
        self.code > 0 && self.code < SI_USER
    }

    /// `si_addr`, for the signals of faults.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// `si_addr`: nothing here asks XNU for tags of pointers.
    pub fn untagged_address(&self) -> u64 {
        self.address
    }

    /// The sender's process and user ids, for signals that a process sent.
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
