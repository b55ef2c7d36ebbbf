//! The `ucontext` that the kernel passes to a signal handler, and its `siginfo`.
//!
//! Layouts are the kernel's own (`asm/ucontext.h`, `asm/sigcontext.h`, `asm-generic/siginfo.h` in
//! the Linux UAPI), not those of a C library's header: they are the same for glibc, musl and
//! bionic.

pub use crate::processor_fault::{Access, FaultState};
use crate::registers::Registers;

/// A signal's alternate stack, `stack_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalStack {
    /// The lowest address.
    pub sp: usize,
    /// `SS_ONSTACK`, `SS_DISABLE`.
    pub flags: i32,
    /// Size in bytes.
    pub size: usize,
}

#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
#[repr(C)]
pub(super) struct Layout {
    pub(super) flags: u64,
    pub(super) link: u64,
    stack: SignalStack,
    // struct sigcontext
    r8_to_r15: [u64; 8],
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    pub(super) rip: u64,
    eflags: u64,
    pub(super) segments: [u16; 4],
    pub(super) err: u64,
    pub(super) trapno: u64,
    oldmask: u64,
    pub(super) cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
    // back in struct ucontext
    sigmask: u64,
}

#[cfg(target_arch = "aarch64")]
#[derive(Debug)]
#[repr(C)]
pub(super) struct Layout {
    pub(super) flags: u64,
    pub(super) link: u64,
    stack: SignalStack,
    sigmask: u64,
    unused: [u8; 120],
    padding: u64,
    // struct sigcontext, aligned to 16
    pub(super) fault_address: u64,
    x: [u64; 31],
    sp: u64,
    pub(super) pc: u64,
    pub(super) pstate: u64,
    /// Pads `extension` to the kernel's alignment of 16.
    padding_2: u64,
    pub(super) extension: [u64; 512],
}

/// The context of an interrupted thread, in the kernel's layout and location.
#[derive(Debug)]
#[repr(transparent)]
pub struct Context(Layout);

/// The context passed to a signal handler: the same as [`Context`] on Linux.
pub type SignalContext = Context;

impl Context {
    /// Returns the interrupted thread's state.
    #[inline(always)]
    pub fn machine(&self) -> &Context {
        self
    }

    /// Returns the context at the third argument of a handler installed with `SA_SIGINFO`.
    ///
    /// # Safety
    /// `pointer` must be that argument, and the handler must not have returned while the result is
    /// used.
    #[inline(always)]
    pub unsafe fn from_pointer<'a>(pointer: *mut libc::c_void) -> &'a mut Context {
        // SAFETY: the kernel writes this layout there; the caller keeps it alive.
        // Async-signal-safe: no call.
        unsafe { &mut *pointer.cast() }
    }

    /// Returns the context of a waiting handler, on any thread; others may read it, too.
    ///
    /// # Safety
    /// `address` must be that of a [`Context`] that stays valid and unchanged while the result is
    /// used.
    pub unsafe fn shared_at<'a>(address: usize) -> &'a Context {
        // SAFETY: by the contract. Async-signal-safe: no call.
        unsafe { &*(address as *const Context) }
    }

    /// Creates the context that a signal would have found with these registers.
    ///
    /// For a crash that no signal reported (an uncaught exception): the thread blocks `mask`, and
    /// there is no fault state.
    #[must_use]
    pub fn of_registers(registers: &Registers, mask: u64) -> Context {
        // SAFETY: only integers, for which zero is valid.
        let mut layout: Layout = unsafe { core::mem::zeroed() };
        layout.sigmask = mask;
        #[cfg(target_arch = "x86_64")]
        {
            let [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15] = registers.gpr;
            let r8_to_r15 = [r8, r9, r10, r11, r12, r13, r14, r15];
            layout = Layout { r8_to_r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, ..layout };
            (layout.rip, layout.eflags) = (registers.pc, registers.flags);
        }
        #[cfg(target_arch = "aarch64")]
        {
            (layout.x, layout.sp, layout.pc, layout.pstate) =
                (registers.x, registers.sp, registers.pc, registers.pstate);
        }
        Context(layout)
    }

    /// Returns the general registers at the time of the signal.
    #[cfg(target_arch = "x86_64")]
    pub fn registers(&self) -> Registers {
        let Layout {
            rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8_to_r15: [r8, r9, r10, r11, r12, r13, r14, r15], ..
        } = self.0;
        Registers {
            gpr: [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15],
            pc: self.0.rip,
            flags: self.0.eflags,
        }
    }

    /// Returns the general registers at the time of the signal.
    #[cfg(target_arch = "aarch64")]
    pub fn registers(&self) -> Registers {
        Registers { x: self.0.x, sp: self.0.sp, pc: self.0.pc, pstate: self.0.pstate }
    }

    /// Returns the program counter.
    #[inline(always)]
    pub fn pc(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        return self.0.rip;
        #[cfg(target_arch = "aarch64")]
        return self.0.pc;
    }

    /// Sets the program counter at which the thread continues when the handler returns.
    pub fn set_pc(&mut self, pc: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.0.rip = pc;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.0.pc = pc;
        }
    }

    /// Returns the stack pointer.
    #[inline(always)]
    pub fn sp(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        return self.0.rsp;
        #[cfg(target_arch = "aarch64")]
        return self.0.sp;
    }

    /// Sets the stack pointer with which the thread continues when the handler returns.
    pub fn set_sp(&mut self, sp: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.0.rsp = sp;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.0.sp = sp;
        }
    }

    /// Returns the result register of a function or system call, rax or x0.
    pub fn result(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        return self.0.rax;
        #[cfg(target_arch = "aarch64")]
        return self.0.x[0];
    }

    /// Sets the result register.
    pub fn set_result(&mut self, value: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            self.0.rax = value;
        }
        #[cfg(target_arch = "aarch64")]
        {
            self.0.x[0] = value;
        }
    }

    /// Clears the direction flag, which the ABI promises to be clear at every call and return.
    #[cfg(target_arch = "x86_64")]
    pub fn clear_direction(&mut self) {
        self.0.eflags &= !0x400;
    }

    /// Sets whether the processor traps after the next instruction that succeeds (`EFLAGS.TF`).
    #[cfg(target_arch = "x86_64")]
    pub fn set_single_step(&mut self, on: bool) {
        self.0.eflags = self.0.eflags & !0x100 | u64::from(on) << 8;
    }

    /// Returns the signals that the thread blocks once the handler returns (64-bit kernel set).
    #[inline(always)]
    pub fn signal_mask(&self) -> u64 {
        self.0.sigmask
    }

    /// Sets the signals that the thread blocks once the handler returns.
    pub fn set_signal_mask(&mut self, mask: u64) {
        self.0.sigmask = mask;
    }

    /// Returns the thread's alternate stack, which the kernel installs when the handler returns.
    pub fn alternate_stack(&mut self) -> &mut SignalStack {
        &mut self.0.stack
    }

    /// Returns the processor's description of the fault.
    #[cfg(target_arch = "x86_64")]
    pub fn fault(&self) -> FaultState {
        FaultState { address: self.0.cr2, trap: self.0.trapno, error: self.0.err }
    }

    /// Returns the processor's description of the fault.
    #[cfg(target_arch = "aarch64")]
    pub fn fault(&self) -> FaultState {
        /// `ESR_MAGIC` of asm/sigcontext.h.
        const ESR_MAGIC: u32 = 0x4553_5201;
        FaultState { address: self.0.fault_address, trap: 0, error: self.record(ESR_MAGIC).unwrap_or(0) }
    }

    /// Returns the thread's shadow stack pointer (GCS), 0 if it has none.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn shadow_stack(&self) -> u64 {
        /// `GCS_MAGIC` in asm/sigcontext.h; the first field of `struct gcs_context` is the pointer.
        const GCS_MAGIC: u32 = 0x4743_5300;
        self.record(GCS_MAGIC).unwrap_or(0)
    }

    /// Returns the first word of the kernel's record with that magic number.
    #[cfg(target_arch = "aarch64")]
    fn record(&self, wanted: u32) -> Option<u64> {
        // Records of {magic: u32, size: u32, …} until one with magic 0.
        let mut at = 0_usize;
        while let Some(head) = self.0.extension.get(at) {
            let (magic, size) = (*head as u32, (*head >> 32) as usize);
            if magic == wanted {
                return self.0.extension.get(at + 1).copied();
            }
            if magic == 0 || size < 8 {
                break;
            }
            at += size / 8;
        }
        None
    }

    /// Returns the faulting instruction's memory access, if the processor reports it.
    pub fn access(&self) -> Option<Access> {
        self.fault().access()
    }
}

/// A signal's `siginfo`, in the kernel's layout for 64-bit systems.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalInfo {
    /// The signal number.
    pub signo: i32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`: positive if the kernel raised the signal, else a process sent it.
    pub code: i32,
    padding: i32,
    fields: [u64; 14],
}

impl SignalInfo {
    /// A placeholder for no signal, with the invalid number 0.
    pub const NONE: SignalInfo = SignalInfo { signo: 0, errno: 0, code: 0, padding: 0, fields: [0; 14] };

    /// Creates a `siginfo` that the kernel did not write.
    ///
    /// `value` is the first field: `si_addr` of a fault, else the sender's process id.
    pub(super) fn made(signo: i32, code: i32, value: u64) -> SignalInfo {
        let mut fields = [0; 14];
        fields[0] = value;
        SignalInfo { signo, errno: 0, code, padding: 0, fields }
    }

    /// Whether the kernel raised the signal for an instruction of this thread (it was not sent).
    ///
    /// `SI_KERNEL` (0x80) counts: x86_64 uses it for a general protection fault, such as a
    /// non-canonical address.
    #[inline(always)]
    pub fn is_fault(&self) -> bool {
        self.code > 0
    }

    /// Returns `si_addr`, for fault signals.
    #[inline(always)]
    pub fn address(&self) -> u64 {
        self.fields[0]
    }

    /// Returns `si_addr` without the tag that an arm64 pointer may have in its top byte.
    ///
    /// Mappings are looked up by this address.
    #[inline(always)]
    pub fn untagged_address(&self) -> u64 {
        untagged(self.fields[0])
    }

    /// Removes the tag from `si_addr`, and returns the address with the tag.
    ///
    /// The kernel does this for a handler that has not requested tags (`SA_EXPOSE_TAGBITS`). The
    /// result is for [`set_address`](Self::set_address).
    pub fn hide_tag(&mut self) -> u64 {
        let address = self.fields[0];
        self.fields[0] = untagged(address);
        address
    }

    /// Sets `si_addr`.
    pub fn set_address(&mut self, address: u64) {
        self.fields[0] = address;
    }

    /// Returns the sender's process and user ids, for signals that a process sent.
    ///
    /// Signals of a timer or of ready input have other numbers in that place (sigaction(2)).
    pub fn sender(&self) -> Option<(i32, u32)> {
        const SI_MESGQ: i32 = -3;
        let is_sent = matches!(self.code, libc::SI_USER | libc::SI_QUEUE | SI_MESGQ | libc::SI_TKILL);
        (is_sent && !self.is_fault()).then_some((self.fields[0] as i32, (self.fields[0] >> 32) as u32))
    }

    /// Returns the value of a timer's or a queued signal (`si_value`).
    #[inline(always)]
    pub fn timer_value(&self) -> u64 {
        self.fields[1]
    }

    /// Returns the system call's number, for SIGSYS.
    pub fn system_call(&self) -> i32 {
        self.fields[1] as i32
    }

    /// Returns the system call's architecture (`si_arch`), for SIGSYS, if it is not the process's.
    ///
    /// That is the case for `int 0x80` in a 64-bit process, or in a 32-bit one.
    pub fn foreign_system_call_arch(&self) -> Option<u32> {
        // linux/audit.h: EM_X86_64 or EM_AARCH64, 64 bits, little endian.
        const NATIVE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
        let arch = (self.fields[1] >> 32) as u32;
        (arch != NATIVE).then_some(arch)
    }
}

/// Removes an address's tag, like `untagged_addr` in Linux's arch/arm64/include/asm/uaccess.h.
///
/// A user address has a top byte that the processor ignores, or that contains a memory tag; a
/// kernel address stays as it is.
#[inline(always)]
const fn untagged(address: u64) -> u64 {
    if cfg!(target_arch = "aarch64") { address & ((address << 8).cast_signed() >> 8).cast_unsigned() } else { address }
}

const _: () = assert!(size_of::<SignalInfo>() == 128);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(core::mem::offset_of!(Layout, rip) == 168 && core::mem::offset_of!(Layout, sigmask) == 296);
#[cfg(target_arch = "aarch64")]
const _: () =
    assert!(core::mem::offset_of!(Layout, fault_address) == 176 && core::mem::offset_of!(Layout, extension) == 464);
