//! Thread-local variables: descriptors, the thunk, and each thread's copy.
//!
//! A descriptor is `{ thunk, key, offset }` (<mach-o/loader.h>, S_THREAD_LOCAL_VARIABLES; dyld's
//! threadLocalHelpers.s). Code calls `thunk(descriptor)`, which returns the variable's address and
//! preserves every other register. The key is the image's pthread key; its value is the thread's
//! copy of the image's initial content, created at the first access.

use std::{arch::global_asm, mem::offset_of};

use super::{
    image::Image,
    macho::{S_THREAD_LOCAL_REGULAR, S_THREAD_LOCAL_VARIABLES, S_THREAD_LOCAL_ZEROFILL},
};
use crate::host::{
    kernel::{ending::refuse, thread, thread::Thread},
    libsystem::specific,
};

#[repr(C)]
struct Descriptor {
    thunk: usize,
    key: usize,
    offset: usize,
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    r#"
    .text
    .globl darwin_host_tlv, darwin_host_tlv_end
    .balign 16
darwin_host_tlv:
    push rcx
    mov rax, qword ptr fs:[darwin_host_thread@tpoff]
    mov rcx, [rdi + 8]
    mov rax, [rax + rcx * 8 + {specific}]
    test rax, rax
    je 1f
    add rax, [rdi + 16]
    pop rcx
    ret
1:  push rbp
    mov rbp, rsp
    push rdi
    push rsi
    push rdx
    push r8
    push r9
    push r10
    push r11
    sub rsp, 576
    and rsp, -64
    fxsave64 [rsp]
    mov rdi, rcx
    call {make}
    fxrstor64 [rsp]
    lea rsp, [rbp - 56]
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdx
    pop rsi
    pop rdi
    pop rbp
    add rax, [rdi + 16]
    pop rcx
    ret
darwin_host_tlv_end:
"#,
    specific = const offset_of!(Thread, specific),
    make = sym make,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    r#"
    .text
    .globl darwin_host_tlv, darwin_host_tlv_end
    .balign 16
darwin_host_tlv:
    stp x16, x17, [sp, #-16]!
    mrs x16, tpidr_el0
    add x16, x16, #:tprel_hi12:darwin_host_thread, lsl #12
    add x16, x16, #:tprel_lo12_nc:darwin_host_thread
    ldr x16, [x16]
    ldr x17, [x0, #8]
    add x16, x16, x17, lsl #3
    ldr x16, [x16, #{specific}]
    cbz x16, 1f
    ldr x17, [x0, #16]
    add x0, x16, x17
    ldp x16, x17, [sp], #16
    ret
1:  stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #672
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp q0, q1, [sp, #128]
    stp q2, q3, [sp, #160]
    stp q4, q5, [sp, #192]
    stp q6, q7, [sp, #224]
    stp q8, q9, [sp, #256]
    stp q10, q11, [sp, #288]
    stp q12, q13, [sp, #320]
    stp q14, q15, [sp, #352]
    stp q16, q17, [sp, #384]
    stp q18, q19, [sp, #416]
    stp q20, q21, [sp, #448]
    stp q22, q23, [sp, #480]
    stp q24, q25, [sp, #512]
    stp q26, q27, [sp, #544]
    stp q28, q29, [sp, #576]
    stp q30, q31, [sp, #608]
    mov x0, x17
    bl {make}
    mov x16, x0
    ldp x0, x1, [sp]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp q0, q1, [sp, #128]
    ldp q2, q3, [sp, #160]
    ldp q4, q5, [sp, #192]
    ldp q6, q7, [sp, #224]
    ldp q8, q9, [sp, #256]
    ldp q10, q11, [sp, #288]
    ldp q12, q13, [sp, #320]
    ldp q14, q15, [sp, #352]
    ldp q16, q17, [sp, #384]
    ldp q18, q19, [sp, #416]
    ldp q20, q21, [sp, #448]
    ldp q22, q23, [sp, #480]
    ldp q24, q25, [sp, #512]
    ldp q26, q27, [sp, #544]
    ldp q28, q29, [sp, #576]
    ldp q30, q31, [sp, #608]
    mov sp, x29
    ldp x29, x30, [sp], #16
    ldr x17, [x0, #16]
    add x0, x16, x17
    ldp x16, x17, [sp], #16
    ret
darwin_host_tlv_end:
"#,
    specific = const offset_of!(Thread, specific),
    make = sym make,
);

unsafe extern "C" {
    fn darwin_host_tlv();
}

/// The initial content of an image's thread-locals, by key.
#[derive(Clone, Copy)]
struct Template {
    start: usize,
    filled: usize,
    size: usize,
}

static mut TEMPLATES: [Template; thread::KEYS] = [Template { start: 0, filled: 0, size: 0 }; thread::KEYS];

/// Points the image's descriptors at the thunk and at the image's key.
pub(super) fn prepare(image: &Image) {
    let mut descriptors = image.sections_of(S_THREAD_LOCAL_VARIABLES).peekable();
    if descriptors.peek().is_none() {
        return;
    }
    // The content is the regular sections, then the zero-filled ones, which linkers make
    // contiguous.
    let filled = image.sections_of(S_THREAD_LOCAL_REGULAR);
    let zero = image.sections_of(S_THREAD_LOCAL_ZEROFILL);
    let filled: Vec<_> = filled.filter(|s| s.1 > 0).collect();
    let all: Vec<_> = filled.iter().copied().chain(zero).filter(|s| s.1 > 0).collect();
    let start = all.iter().map(|s| s.0).min().unwrap_or(0);
    let end = all.iter().map(|s| s.0 + s.1).max().unwrap_or(0);
    let filled = filled.iter().map(|s| s.0 + s.1).max().map_or(0, |end| end - start);
    let Some(key) = specific::create_key(libc::free as *const () as usize) else {
        refuse!("no pthread key is left for the thread-local variables of {:?}", image.path);
    };
    // SAFETY: written before any descriptor with this key can be used.
    unsafe { TEMPLATES[key] = Template { start, filled, size: end - start } };
    for (address, size) in descriptors {
        for at in (address..address + size).step_by(size_of::<Descriptor>()) {
            // SAFETY: the section contains descriptors; it is writable until the image is
            // protected.
            unsafe {
                let descriptor = &mut *(at as *mut Descriptor);
                descriptor.thunk = darwin_host_tlv as *const () as usize;
                descriptor.key = key;
            }
        }
    }
}

/// Creates the calling thread's copy of the thread-locals with this key.
extern "C" fn make(key: usize) -> usize {
    // SAFETY: the template was written with its descriptors; the block is fresh.
    unsafe {
        let template = TEMPLATES[key];
        let mut block = std::ptr::null_mut();
        if libc::posix_memalign(&raw mut block, 64, template.size.max(64)) != 0 {
            refuse!("no memory for thread-local variables");
        }
        libc::memset(block, 0, template.size.max(64));
        libc::memcpy(block, template.start as *const libc::c_void, template.filled);
        thread::current().specific[key] = block as usize;
        block as usize
    }
}

/// Whether `pc` is in the thunk.
pub(crate) fn contains(pc: usize) -> bool {
    unsafe extern "C" {
        fn darwin_host_tlv_end();
    }
    (darwin_host_tlv as *const () as usize..darwin_host_tlv_end as *const () as usize).contains(&pc)
}
