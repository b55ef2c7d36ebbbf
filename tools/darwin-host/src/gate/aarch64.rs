//! The gate, registers and states of arm64.
//!
//! Layouts: <mach/arm/_structs.h>, <mach/arm/thread_status.h>.

use std::arch::global_asm;

use super::Place;
use crate::host::{kernel::thread::Thread, loader::synthetic};

/// The gate's record of a caller. The fields' order is the assembly's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateFrame {
    pub(crate) stub: usize,
    owner: *mut Thread,
    pub(crate) sp: usize,
    lr: usize,
    fp: usize,
    x19_to_x28: [usize; 10],
    unused: usize,
}

impl GateFrame {
    pub(crate) const fn new(owner: *mut Thread) -> Self {
        Self { stub: 0, owner, sp: 0, lr: 0, fp: 0, x19_to_x28: [0; 10], unused: 0 }
    }
}

// x16 holds the stub's address (its target is at +40); x17 is free; the stack is as the caller left
// it.
global_asm!(
    r#"
    .section .tbss.darwin_host_thread,"awT",@nobits
    .globl darwin_host_thread
    .hidden darwin_host_thread
    .balign 8
darwin_host_thread:
    .zero 8

    .text
    .macro thread_slot register
    mrs \register, tpidr_el0
    add \register, \register, #:tprel_hi12:darwin_host_thread, lsl #12
    add \register, \register, #:tprel_lo12_nc:darwin_host_thread
    .endm

    .globl darwin_host_gate, darwin_host_gate_covered, darwin_host_gate_uncovered, darwin_host_gate_end
    .balign 16
darwin_host_gate:
    thread_slot x17
    ldr x17, [x17]
    ldr x17, [x17]
    str x16, [x17]
    mov x16, sp
    str x16, [x17, #16]
    str x30, [x17, #24]
    str x29, [x17, #32]
    stp x19, x20, [x17, #40]
    stp x21, x22, [x17, #56]
    stp x23, x24, [x17, #72]
    stp x25, x26, [x17, #88]
    stp x27, x28, [x17, #104]
    ldr x16, [x17, #8]
    add x17, x17, #128
    str x17, [x16]
darwin_host_gate_covered:
    ldr x16, [x17, #-128]
    ldr x16, [x16, #40]
    blr x16
    thread_slot x16
    ldr x16, [x16]
    ldr x17, [x16]
    sub x17, x17, #128
    ldr x30, [x17, #24]
    str x17, [x16]
darwin_host_gate_uncovered:
    ret
darwin_host_gate_end:

    .globl darwin_host_enter, darwin_host_left, darwin_host_leave
darwin_host_enter:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    ldr x9, [x0, #8]
    mov x10, sp
    str x10, [x9]
    mov x9, x0
    ldr x10, [x9, #56]
    mov sp, x10
    ldp x29, x30, [x9, #64]
    ldr x16, [x9]
    ldr x17, [x9, #48]
    ldp x0, x1, [x9, #16]
    ldp x2, x3, [x9, #32]
    br x17
darwin_host_leave:
    mov x29, x0
    mov x0, x1
darwin_host_left:
    ldr x9, [x29, #16]
    mov sp, x9
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    ret

    .globl darwin_host_set_thread, darwin_host_get_thread
darwin_host_set_thread:
    thread_slot x9
    str x0, [x9]
    ret
darwin_host_get_thread:
    thread_slot x9
    ldr x0, [x9]
    ret

    // jmp_buf is 192 bytes (<setjmp.h>, _JBLEN 48 ints).
    .globl darwin_host_setjmp, darwin_host_longjmp
darwin_host_setjmp:
    stp x19, x20, [x0]
    stp x21, x22, [x0, #16]
    stp x23, x24, [x0, #32]
    stp x25, x26, [x0, #48]
    stp x27, x28, [x0, #64]
    stp x29, x30, [x0, #80]
    stp d8, d9, [x0, #96]
    stp d10, d11, [x0, #112]
    stp d12, d13, [x0, #128]
    stp d14, d15, [x0, #144]
    mov x9, sp
    thread_slot x10
    ldr x10, [x10]
    ldr x10, [x10]
    stp x9, x10, [x0, #160]
    mov x0, #0
    ret
darwin_host_longjmp:
    ldp x9, x10, [x0, #160]
    thread_slot x11
    ldr x11, [x11]
    str x10, [x11]
    ldp x19, x20, [x0]
    ldp x21, x22, [x0, #16]
    ldp x23, x24, [x0, #32]
    ldp x25, x26, [x0, #48]
    ldp x27, x28, [x0, #64]
    ldp x29, x30, [x0, #80]
    ldp d8, d9, [x0, #96]
    ldp d10, d11, [x0, #112]
    ldp d12, d13, [x0, #128]
    ldp d14, d15, [x0, #144]
    mov sp, x9
    cmp w1, #0
    csinc w0, w1, wzr, ne
    br x30
"#
);

/// Linux's ucontext on this architecture (arch/arm64/include/uapi/asm/{ucontext,sigcontext}.h).
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinuxContext {
    flags: u64,
    link: usize,
    stack: [u64; 3],
    mask: [u64; 16],
    padding: u64,
    fault_address: u64,
    registers: [u64; 31],
    sp: u64,
    pc: u64,
    pstate: u64,
    padding_of_reserved: u64,
    /// Records of a magic number, a size and a body.
    ///
    /// The float registers are in the one with [`FPSIMD_MAGIC`].
    reserved: [u8; 4096],
}

const _: () = assert!(std::mem::offset_of!(LinuxContext, fault_address) == 176);
const _: () = assert!(std::mem::offset_of!(LinuxContext, reserved) == 176 + 288);

const FPSIMD_MAGIC: u32 = 0x4650_8001;

/// `_STRUCT_ARM_THREAD_STATE64`, flavor ARM_THREAD_STATE64 (6).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadState {
    pub(crate) x: [u64; 29],
    pub(crate) fp: u64,
    pub(crate) lr: u64,
    pub(crate) sp: u64,
    pub(crate) pc: u64,
    pub(crate) cpsr: u32,
    pub(crate) flags: u32,
}

/// `_STRUCT_ARM_EXCEPTION_STATE64`, flavor ARM_EXCEPTION_STATE64 (7).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExceptionState {
    pub(crate) far: u64,
    pub(crate) esr: u32,
    pub(crate) exception: u32,
}

/// `_STRUCT_ARM_NEON_STATE64`, flavor ARM_NEON_STATE64 (17).
///
/// q0–q31, fpsr, fpcr, padded to its alignment of 16.
pub(crate) const FLOAT_STATE_SIZE: usize = 528;
/// `sizeof(_STRUCT_MCONTEXT64)`: exception, thread and NEON states.
pub(crate) const MCONTEXT_SIZE: usize = 816;
pub(crate) const FLAVOR_THREAD_STATE64: i32 = 6;
pub(crate) const FLAVOR_FLOAT_STATE64: i32 = 17;
pub(crate) const FLAVOR_EXCEPTION_STATE64: i32 = 7;
/// ARM_THREAD_STATE: a header of flavor and count before the 64-bit state.
pub(crate) const UNIFIED_FLAVORS: [(i32, i32); 1] = [(1, 6)];
/// Names of flavors that the host doesn't support, for messages.
pub(crate) const FLAVOR_NAMES: &[(i32, &str)] = &[
    (2, "ARM_VFP_STATE"),
    (3, "ARM_EXCEPTION_STATE"),
    (4, "ARM_DEBUG_STATE"),
    (5, "ARM_THREAD_STATE_NONE"),
    (9, "ARM_THREAD_STATE32"),
    (15, "ARM_DEBUG_STATE64"),
    (16, "ARM_NEON_STATE"),
    (27, "ARM_PAGEIN_STATE"),
];

impl ThreadState {
    pub(crate) fn pc(&self) -> usize {
        self.pc as usize
    }
    /// Creates the state that starts `sigtramp` for a handler.
    ///
    /// Source: XNU bsd/dev/arm/unix_signal.c, sendsig.
    pub(crate) fn for_handler(
        handler: usize,
        arguments: [usize; 3],
        frame: usize,
        sp: usize,
        trampoline: usize,
    ) -> Self {
        let mut state = Self { sp: sp as u64, pc: trampoline as u64, ..Self::default() };
        for (register, argument) in state.x.iter_mut().zip(arguments) {
            *register = argument as u64;
        }
        state.x[16] = handler as u64;
        state.x[19] = frame as u64;
        state
    }
}

/// Returns the frame in the callee-saved register of a `sigtramp` that returned.
pub(crate) fn frame_of_trampoline(context: &LinuxContext) -> usize {
    context.registers[19] as usize
}

pub(crate) fn pc(context: &LinuxContext) -> usize {
    context.pc as usize
}

pub(crate) fn sp(context: &LinuxContext) -> usize {
    context.sp as usize
}

/// Returns the Linux signal mask that returning from a handler restores.
pub(crate) fn mask_mut(context: &mut LinuxContext) -> &mut u64 {
    &mut context.mask[0]
}

/// Returns the thread's registers as the program and its debuggers see them.
pub(crate) fn thread_state(thread: &Thread, context: &LinuxContext) -> ThreadState {
    let r = &context.registers;
    let mut state = ThreadState {
        fp: r[29],
        lr: r[30],
        sp: context.sp,
        pc: context.pc,
        cpsr: context.pstate as u32,
        ..Default::default()
    };
    match super::place(thread, pc(context)) {
        Place::Program => state.x.copy_from_slice(&r[..29]),
        Place::Gate => {
            state.x.copy_from_slice(&r[..29]);
            state.pc = synthetic::gate_stub() as u64;
        }
        Place::Host => {
            let frame = thread.gate_frame();
            state.pc = frame.stub as u64;
            state.sp = frame.sp as u64;
            state.lr = frame.lr as u64;
            state.fp = frame.fp as u64;
            for (register, value) in state.x[19..].iter_mut().zip(frame.x19_to_x28) {
                *register = value as u64;
            }
            // As `svc` left them (XNU bsd/dev/arm/systemcalls.c, `arm_get_u64_syscall_args`).
            if let Some(call) = thread.call() {
                state.pc += synthetic::IN_CALL as u64;
                state.x[..8].copy_from_slice(&call.arguments);
                state.x[16] = u64::from(call.number);
            }
        }
    }
    state
}

/// Makes the interrupted thread continue with `state`. Only cpsr's condition flags are used.
pub(crate) fn set_thread_state(context: &mut LinuxContext, state: &ThreadState) {
    context.registers[..29].copy_from_slice(&state.x);
    context.registers[29] = state.fp;
    context.registers[30] = state.lr;
    context.sp = state.sp;
    context.pc = state.pc;
    context.pstate = (context.pstate & !0xf000_0000) | u64::from(state.cpsr & 0xf000_0000);
}

/// Returns the last fault's address and syndrome.
///
/// qemu-user provides no syndrome: it is derived from the signal (Arm ARM, ESR_EL1: exception class
/// in bits 26–31, 0x24 data abort from a lower level, 0x20 instruction abort, 0x3c BRK, 0 unknown;
/// in an abort bit 6 WnR, bits 0–5 the status, 0x07 translation and 0x0f permission fault at level
/// 3). WnR is determined from the instruction.
pub(crate) fn exception_state(context: &LinuxContext, signal: i32, address: usize) -> ExceptionState {
    const LENGTH_32: u32 = 1 << 25;
    let instruction: Option<u32> = crate::host::kernel::pages::read_value(context.pc as usize);
    let esr = match signal {
        libc::SIGTRAP => (0x3c << 26) | LENGTH_32 | instruction.map_or(0, |i| (i >> 5) & 0xffff),
        libc::SIGSEGV | libc::SIGBUS => {
            let class = if address == context.pc as usize { 0x20 } else { 0x24 };
            // Loads and stores have bits 27 and 25 as 1x0; bit 22 is L (for most of them) or opc's
            // low bit.
            let write =
                class == 0x24 && instruction.is_some_and(|i| i & 0x0a00_0000 == 0x0800_0000 && i & (1 << 22) == 0);
            let protected =
                crate::host::kernel::pages::mapping_at_or_after(address).is_some_and(|m| m.start <= address);
            (class << 26) | LENGTH_32 | (u32::from(write) << 6) | if protected { 0x0f } else { 0x07 }
        }
        _ => LENGTH_32,
    };
    ExceptionState { far: address as u64, esr, exception: 0 }
}

/// Returns the offset in `reserved` of the FPSIMD record's body (fpsr, fpcr, then 32 × 16 bytes).
fn floats(context: &LinuxContext) -> Option<usize> {
    let mut at = 0;
    while let Some(head) = context.reserved.get(at..at + 8) {
        let magic = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if magic == FPSIMD_MAGIC && at + 528 <= context.reserved.len() {
            return Some(at + 8);
        }
        if magic == 0 || size < 8 {
            return None;
        }
        at += size;
    }
    None
}

/// Returns the FPSIMD record as Darwin's NEON state.
pub(crate) fn float_state(context: &LinuxContext) -> [u8; FLOAT_STATE_SIZE] {
    let mut state = [0; FLOAT_STATE_SIZE];
    if let Some(at) = floats(context) {
        state[..512].copy_from_slice(&context.reserved[at + 8..at + 520]);
        state[512..520].copy_from_slice(&context.reserved[at..at + 8]);
    }
    state
}

/// Makes the interrupted thread continue with these float registers.
pub(crate) fn set_float_state(context: &mut LinuxContext, state: &[u8; FLOAT_STATE_SIZE]) {
    if let Some(at) = floats(context) {
        context.reserved[at + 8..at + 520].copy_from_slice(&state[..512]);
        context.reserved[at..at + 8].copy_from_slice(&state[512..520]);
    }
}

/// A complete machine state, kept on the program's stack while its signal handler runs.
#[repr(C, align(64))]
pub(crate) struct SavedContext {
    context: LinuxContext,
}

impl SavedContext {
    /// Saves `context` into `place`.
    ///
    /// # Safety
    /// `place` must be writable.
    pub(crate) unsafe fn save(place: *mut Self, context: &LinuxContext) {
        // SAFETY: by contract.
        unsafe { (&raw mut (*place).context).write(*context) };
    }

    /// Writes the saved state over `context`.
    ///
    /// # Safety
    /// `place` must hold a state written by [`SavedContext::save`].
    pub(crate) unsafe fn restore(place: *const Self, context: &mut LinuxContext) {
        // SAFETY: by contract.
        *context = unsafe { (&raw const (*place).context).read() };
    }
}

/// Returns a fault's Mach exception, code and subcode.
///
/// Source: XNU osfmk/arm64/sleh.c; <mach/arm/exception.h>.
pub(crate) fn classify(context: &LinuxContext, signal: i32, si_code: i32, address: usize) -> (i32, i64, i64) {
    use crate::host::mach::exceptions::{EXC_BAD_ACCESS, EXC_BAD_INSTRUCTION, EXC_BREAKPOINT};
    const BUS_ADRALN: i32 = 1;
    match signal {
        libc::SIGBUS if si_code == BUS_ADRALN => (EXC_BAD_ACCESS, 0x101, address as i64), // EXC_ARM_DA_ALIGN
        libc::SIGSEGV | libc::SIGBUS => {
            (EXC_BAD_ACCESS, crate::host::signals::faults::access_code(signal, si_code), address as i64)
        }
        // EXC_ARM_UNDEFINED, with the instruction (handle_uncategorized). Also for privileged
        // instructions.
        libc::SIGILL => {
            let instruction: Option<u32> = crate::host::kernel::pages::read_value(context.pc as usize);
            (EXC_BAD_INSTRUCTION, 1, i64::from(instruction.unwrap_or(0)))
        }
        libc::SIGTRAP => (EXC_BREAKPOINT, 1, context.pc as i64), // EXC_ARM_BREAKPOINT (handle_breakpoint)
        other => crate::host::kernel::ending::refuse!("a fault with Linux signal {other} (code {si_code})"),
    }
}
