//! The gate, registers and states of x86_64.
//!
//! Layouts: <mach/i386/_structs.h>, <mach/i386/thread_status.h>.

use std::arch::global_asm;

use super::Place;
use crate::host::{kernel::thread::Thread, loader::synthetic};

/// The gate's record of a caller. The fields' order is the assembly's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateFrame {
    pub(crate) stub: usize,
    pub(crate) sp: usize,
    rbp: usize,
    rbx: usize,
    r12: usize,
    r13: usize,
    r14: usize,
    r15: usize,
}

impl GateFrame {
    pub(crate) const fn new(_owner: *mut Thread) -> Self {
        Self { stub: 0, sp: 0, rbp: 0, rbx: 0, r12: 0, r13: 0, r14: 0, r15: 0 }
    }
}

// r11 holds the stub's address (its target is at +40); r10 is free. Sixteen words of stack
// arguments are copied: no import has more than eleven arguments, and test programs don't call
// printf with more than twenty values.
global_asm!(
    r#"
    .section .tbss.darwin_host_thread,"awT",@nobits
    .globl darwin_host_thread
    .hidden darwin_host_thread
    .balign 8
darwin_host_thread:
    .zero 8

    .text
    .globl darwin_host_gate, darwin_host_gate_covered, darwin_host_gate_uncovered, darwin_host_gate_end
    .balign 16
darwin_host_gate:
    mov r10, qword ptr fs:[darwin_host_thread@tpoff]
    mov r10, [r10]
    mov [r10], r11
    mov [r10 + 8], rsp
    mov [r10 + 16], rbp
    mov [r10 + 24], rbx
    mov [r10 + 32], r12
    mov [r10 + 40], r13
    mov [r10 + 48], r14
    mov [r10 + 56], r15
    mov r10, qword ptr fs:[darwin_host_thread@tpoff]
    add qword ptr [r10], 64
darwin_host_gate_covered:
    sub rsp, 8
    .rept 16
    push qword ptr [rsp + 136]
    .endr
    call [r11 + 40]
    add rsp, 136
    mov r10, qword ptr fs:[darwin_host_thread@tpoff]
    sub qword ptr [r10], 64
darwin_host_gate_uncovered:
    ret
darwin_host_gate_end:

    .globl darwin_host_enter, darwin_host_left, darwin_host_leave
darwin_host_enter:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov rax, [rdi + 8]
    mov [rax], rsp
    mov rsp, [rdi + 56]
    mov rbp, [rdi + 64]
    mov r10, rdi
    mov rax, [r10]
    mov rdi, [r10 + 16]
    mov rsi, [r10 + 24]
    mov rdx, [r10 + 32]
    mov rcx, [r10 + 40]
    jmp [r10 + 48]
darwin_host_leave:
    mov rbp, rdi
    mov rax, rsi
darwin_host_left:
    mov rsp, [rbp + 16]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

    .globl darwin_host_set_thread, darwin_host_get_thread
darwin_host_set_thread:
    mov qword ptr fs:[darwin_host_thread@tpoff], rdi
    ret
darwin_host_get_thread:
    mov rax, qword ptr fs:[darwin_host_thread@tpoff]
    ret

    // jmp_buf is 148 bytes (<setjmp.h>, _JBLEN 37 ints): registers, return address, and the gate's
    // depth.
    .globl darwin_host_setjmp, darwin_host_longjmp
darwin_host_setjmp:
    mov [rdi], rbx
    mov [rdi + 8], rbp
    mov [rdi + 16], r12
    mov [rdi + 24], r13
    mov [rdi + 32], r14
    mov [rdi + 40], r15
    mov rax, [rsp]
    mov [rdi + 48], rax
    lea rax, [rsp + 8]
    mov [rdi + 56], rax
    mov rax, qword ptr fs:[darwin_host_thread@tpoff]
    mov rax, [rax]
    mov [rdi + 64], rax
    xor eax, eax
    ret
darwin_host_longjmp:
    mov rax, qword ptr fs:[darwin_host_thread@tpoff]
    mov rdx, [rdi + 64]
    mov [rax], rdx
    mov eax, esi
    test eax, eax
    jne 1f
    inc eax
1:  mov rbx, [rdi]
    mov rbp, [rdi + 8]
    mov r12, [rdi + 16]
    mov r13, [rdi + 24]
    mov r14, [rdi + 32]
    mov r15, [rdi + 40]
    mov rsp, [rdi + 56]
    jmp [rdi + 48]
"#
);

/// Linux's ucontext on this architecture.
pub(crate) type LinuxContext = libc::ucontext_t;

/// `_STRUCT_X86_THREAD_STATE64`, flavor x86_THREAD_STATE64 (4).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadState {
    pub(crate) rax: u64,
    pub(crate) rbx: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rbp: u64,
    pub(crate) rsp: u64,
    pub(crate) r8: u64,
    pub(crate) r9: u64,
    pub(crate) r10: u64,
    pub(crate) r11: u64,
    pub(crate) r12: u64,
    pub(crate) r13: u64,
    pub(crate) r14: u64,
    pub(crate) r15: u64,
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
    pub(crate) cs: u64,
    pub(crate) fs: u64,
    pub(crate) gs: u64,
}

/// `_STRUCT_X86_EXCEPTION_STATE64`, flavor x86_EXCEPTION_STATE64 (6).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExceptionState {
    pub(crate) trapno: u16,
    pub(crate) cpu: u16,
    pub(crate) err: u32,
    pub(crate) faultvaddr: u64,
}

/// `_STRUCT_X86_FLOAT_STATE64`, flavor x86_FLOAT_STATE64 (5).
///
/// Two reserved words, the FXSAVE image, one reserved word.
pub(crate) const FLOAT_STATE_SIZE: usize = 524;
/// `sizeof(_STRUCT_MCONTEXT64)`: exception, thread and float states, rounded up.
pub(crate) const MCONTEXT_SIZE: usize = 712;
pub(crate) const FLAVOR_THREAD_STATE64: i32 = 4;
pub(crate) const FLAVOR_FLOAT_STATE64: i32 = 5;
pub(crate) const FLAVOR_EXCEPTION_STATE64: i32 = 6;
/// x86_THREAD_STATE, x86_EXCEPTION_STATE, x86_FLOAT_STATE.
///
/// Each has a header of flavor and count before the 64-bit state.
pub(crate) const UNIFIED_FLAVORS: [(i32, i32); 3] = [(7, 4), (8, 5), (9, 6)];
/// Names of flavors that the host doesn't support, for messages.
pub(crate) const FLAVOR_NAMES: &[(i32, &str)] =
    &[(1, "x86_THREAD_STATE32"), (11, "x86_DEBUG_STATE64"), (13, "x86_THREAD_STATE_NONE"), (17, "x86_AVX_STATE64")];

impl ThreadState {
    pub(crate) fn pc(&self) -> usize {
        self.rip as usize
    }
    /// Creates the state that starts `sigtramp` for a handler.
    ///
    /// Source: XNU bsd/dev/i386/unix_signal.c, sendsig.
    pub(crate) fn for_handler(
        handler: usize,
        arguments: [usize; 3],
        frame: usize,
        sp: usize,
        trampoline: usize,
    ) -> Self {
        Self {
            rax: handler as u64,
            rbx: frame as u64,
            rdi: arguments[0] as u64,
            rsi: arguments[1] as u64,
            rdx: arguments[2] as u64,
            rsp: sp as u64,
            rip: trampoline as u64,
            rflags: 0x202,
            cs: 0x2b,
            ..Self::default()
        }
    }
}

/// Returns the frame in the callee-saved register of a `sigtramp` that returned.
pub(crate) fn frame_of_trampoline(context: &LinuxContext) -> usize {
    context.uc_mcontext.gregs[libc::REG_RBX as usize] as usize
}

pub(crate) fn pc(context: &LinuxContext) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

pub(crate) fn sp(context: &LinuxContext) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// Returns the Linux signal mask that returning from a handler restores.
///
/// It is the set's first word, which is all that the kernel reads.
pub(crate) fn mask_mut(context: &mut LinuxContext) -> &mut u64 {
    // SAFETY: the set is at least eight bytes and aligned for u64.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
}

/// Returns the thread's registers as the program and its debuggers see them.
pub(crate) fn thread_state(thread: &Thread, context: &LinuxContext) -> ThreadState {
    let g = &context.uc_mcontext.gregs;
    let r = |index: i32| g[index as usize] as u64;
    // Darwin's 64-bit user code segment is 0x2b; Linux's is 0x33. fs and gs are 0 in user space.
    let mut state = ThreadState {
        rax: r(libc::REG_RAX),
        rbx: r(libc::REG_RBX),
        rcx: r(libc::REG_RCX),
        rdx: r(libc::REG_RDX),
        rdi: r(libc::REG_RDI),
        rsi: r(libc::REG_RSI),
        rbp: r(libc::REG_RBP),
        rsp: r(libc::REG_RSP),
        r8: r(libc::REG_R8),
        r9: r(libc::REG_R9),
        r10: r(libc::REG_R10),
        r11: r(libc::REG_R11),
        r12: r(libc::REG_R12),
        r13: r(libc::REG_R13),
        r14: r(libc::REG_R14),
        r15: r(libc::REG_R15),
        rip: r(libc::REG_RIP),
        rflags: r(libc::REG_EFL),
        cs: 0x2b,
        fs: 0,
        gs: 0,
    };
    match super::place(thread, pc(context)) {
        Place::Program => state,
        Place::Gate => {
            state.rip = synthetic::gate_stub() as u64;
            state
        }
        Place::Host => {
            let frame = thread.gate_frame();
            let state = ThreadState {
                rip: frame.stub as u64,
                rsp: frame.sp as u64,
                rbp: frame.rbp as u64,
                rbx: frame.rbx as u64,
                r12: frame.r12 as u64,
                r13: frame.r13 as u64,
                r14: frame.r14 as u64,
                r15: frame.r15 as u64,
                rflags: state.rflags,
                cs: 0x2b,
                ..ThreadState::default()
            };
            let Some(call) = thread.call() else { return state };
            // As `syscall` left them (XNU bsd/dev/i386/systemcalls.c, `unix_syscall64`; the class
            // is SYSCALL_CLASS_UNIX).
            let [rdi, rsi, rdx, r10, r8, r9, ..] = call.arguments;
            let rip = state.rip + synthetic::IN_CALL as u64;
            let rax = 0x200_0000 | u64::from(call.number);
            ThreadState { rip, rax, rdi, rsi, rdx, r10, r8, r9, rcx: rip, r11: state.rflags, ..state }
        }
    }
}

/// Makes the interrupted thread continue with `state`.
///
/// Flags that user code may not set stay unchanged.
pub(crate) fn set_thread_state(context: &mut LinuxContext, state: &ThreadState) {
    let g = &mut context.uc_mcontext.gregs;
    let user_flags = 0x0024_4dd5;
    let flags = (g[libc::REG_EFL as usize] as u64 & !user_flags) | (state.rflags & user_flags);
    for (index, value) in [
        (libc::REG_RAX, state.rax),
        (libc::REG_RBX, state.rbx),
        (libc::REG_RCX, state.rcx),
        (libc::REG_RDX, state.rdx),
        (libc::REG_RDI, state.rdi),
        (libc::REG_RSI, state.rsi),
        (libc::REG_RBP, state.rbp),
        (libc::REG_RSP, state.rsp),
        (libc::REG_R8, state.r8),
        (libc::REG_R9, state.r9),
        (libc::REG_R10, state.r10),
        (libc::REG_R11, state.r11),
        (libc::REG_R12, state.r12),
        (libc::REG_R13, state.r13),
        (libc::REG_R14, state.r14),
        (libc::REG_R15, state.r15),
        (libc::REG_RIP, state.rip),
        (libc::REG_EFL, flags),
    ] {
        g[index as usize] = value as i64;
    }
}

/// Returns the thread's last fault: the hardware's trap number, error code and CR2, as from Linux.
pub(crate) fn exception_state(context: &LinuxContext, _signal: i32, _address: usize) -> ExceptionState {
    let g = &context.uc_mcontext.gregs;
    ExceptionState {
        trapno: g[libc::REG_TRAPNO as usize] as u16,
        cpu: 0,
        err: g[libc::REG_ERR as usize] as u32,
        faultvaddr: g[libc::REG_CR2 as usize] as u64,
    }
}

/// Returns the FXSAVE image's address, and the size of everything that the kernel saved there.
fn floats(context: &LinuxContext) -> (*mut u8, usize) {
    let image = context.uc_mcontext.fpregs.cast::<u8>();
    if image.is_null() {
        return (image, 0);
    }
    // SAFETY: the kernel wrote an FXSAVE image; its software-reserved bytes at 464 contain a magic
    // number and the size of the whole (Linux arch/x86/include/uapi/asm/sigcontext.h, struct
    // _fpx_sw_bytes).
    unsafe {
        let magic = image.add(464).cast::<u32>().read_unaligned();
        let size = image.add(468).cast::<u32>().read_unaligned() as usize;
        (image, if magic == 0x4650_5853 { size.clamp(512, 4096) } else { 512 })
    }
}

/// Returns the FXSAVE image as Darwin's float state.
pub(crate) fn float_state(context: &LinuxContext) -> [u8; FLOAT_STATE_SIZE] {
    let mut state = [0; FLOAT_STATE_SIZE];
    let (image, size) = floats(context);
    if size >= 512 {
        // SAFETY: the image has 512 bytes. The last 48 are the kernel's own data and not registers.
        unsafe { std::ptr::copy_nonoverlapping(image, state.as_mut_ptr().add(8), 464) };
    }
    state
}

/// Makes the interrupted thread continue with these x87 and SSE registers.
pub(crate) fn set_float_state(context: &mut LinuxContext, state: &[u8; FLOAT_STATE_SIZE]) {
    let (image, size) = floats(context);
    if size >= 512 {
        // SAFETY: as above; reserved MXCSR bits, which would fault on return, are cleared.
        unsafe {
            std::ptr::copy_nonoverlapping(state.as_ptr().add(8), image, 416);
            let mxcsr = image.add(24).cast::<u32>();
            mxcsr.write_unaligned(mxcsr.read_unaligned() & 0xffff);
        }
    }
}

/// A complete machine state, kept on the program's stack while its signal handler runs.
#[repr(C, align(64))]
pub(crate) struct SavedContext {
    context: LinuxContext,
    float_size: usize,
    floats: [u8; 4096],
}

impl SavedContext {
    /// Saves `context` and the memory it points to into `place`.
    ///
    /// # Safety
    /// `place` must be writable.
    pub(crate) unsafe fn save(place: *mut Self, context: &LinuxContext) {
        let (image, size) = floats(context);
        // SAFETY: by contract; `size` bytes are at `image`.
        unsafe {
            (&raw mut (*place).context).write(*context);
            (&raw mut (*place).float_size).write(size);
            std::ptr::copy_nonoverlapping(image, (&raw mut (*place).floats).cast(), size);
        }
    }

    /// Writes the saved state over `context`, which keeps its own memory for float registers.
    ///
    /// # Safety
    /// `place` must hold a state written by [`SavedContext::save`].
    pub(crate) unsafe fn restore(place: *const Self, context: &mut LinuxContext) {
        // SAFETY: by contract; both images were written by this kernel for this CPU and have the
        // same size.
        unsafe {
            let (image, size) = floats(context);
            let fpregs = context.uc_mcontext.fpregs;
            *context = (&raw const (*place).context).read();
            context.uc_mcontext.fpregs = fpregs;
            std::ptr::copy_nonoverlapping((&raw const (*place).floats).cast(), image, size.min((*place).float_size));
        }
    }
}

/// Returns a fault's Mach exception, code and subcode.
///
/// Source: XNU osfmk/i386/trap.c, user_trap; <mach/i386/exception.h>.
pub(crate) fn classify(context: &LinuxContext, signal: i32, si_code: i32, address: usize) -> (i32, i64, i64) {
    use crate::host::mach::exceptions::{EXC_ARITHMETIC, EXC_BAD_ACCESS, EXC_BAD_INSTRUCTION, EXC_BREAKPOINT};
    let state = exception_state(context, signal, address);
    match state.trapno {
        0 => (EXC_ARITHMETIC, 1, 0),                           // EXC_I386_DIV
        1 => (EXC_BREAKPOINT, 1, 0),                           // EXC_I386_SGL
        3 => (EXC_BREAKPOINT, 2, 0),                           // EXC_I386_BPT
        6 => (EXC_BAD_INSTRUCTION, 1, 0),                      // EXC_I386_INVOP
        11 => (EXC_BAD_INSTRUCTION, 11, i64::from(state.err)), // EXC_I386_SEGNPFLT
        12 => (EXC_BAD_INSTRUCTION, 12, i64::from(state.err)), // EXC_I386_STKFLT
        // EXC_I386_GPFLT: privileged instructions and non-canonical addresses; the subcode is the
        // error code.
        13 => (EXC_BAD_ACCESS, 13, i64::from(state.err)),
        14 => (EXC_BAD_ACCESS, crate::host::signals::faults::access_code(signal, si_code), address as i64),
        16 => (EXC_ARITHMETIC, 5, 0), // EXC_I386_EXTERR
        17 => (EXC_BAD_ACCESS, 0x101, address as i64),
        19 => (EXC_ARITHMETIC, 8, 0), // EXC_I386_SSEEXTERR
        other => crate::host::kernel::ending::refuse!("a fault with trap number {other} (Linux signal {signal})"),
    }
}
