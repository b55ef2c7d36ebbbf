//! All callee-saved registers, through each form of call frame information and through code that
//! has none: a function sets them to known values and calls one of the shapes, which saves and
//! overwrites them and calls back.

use coroner_unwind::{
    AddressRange, Architecture, Found, Image, Images, Options, Registered, Row, Rule, RuleCache, Walker,
};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, capture_here};
use std::sync::Mutex;

#[cfg(target_arch = "x86_64")]
const KNOWN: [(u8, u64); 6] = [(3, 0x1001), (6, 0x1002), (12, 0x1003), (13, 0x1004), (14, 0x1005), (15, 0x1006)];
#[cfg(target_arch = "aarch64")]
const KNOWN: [(u8, u64); 11] = [
    (19, 0x1001),
    (20, 0x1002),
    (21, 0x1003),
    (22, 0x1004),
    (23, 0x1005),
    (24, 0x1006),
    (25, 0x1007),
    (26, 0x1008),
    (27, 0x1009),
    (28, 0x100a),
    (29, 0x100b),
];

// `set_known(shape, callback)`: sets the registers of KNOWN and calls `shape(callback)`. Saved
// registers are compared after the prologue, the last one pushed first, as compilers do: LLVM's
// assembler takes compact unwind's order from theirs.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    coroner_unwind_test_support::epilogue_directive!(),
    ".text",
    ".globl set_known",
    "set_known:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    "push rbp",
    ".cfi_def_cfa_offset 24",
    "push r12",
    ".cfi_def_cfa_offset 32",
    "push r13",
    ".cfi_def_cfa_offset 40",
    "push r14",
    ".cfi_def_cfa_offset 48",
    "push r15",
    ".cfi_def_cfa_offset 56",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 64",
    ".cfi_offset r15, -56",
    ".cfi_offset r14, -48",
    ".cfi_offset r13, -40",
    ".cfi_offset r12, -32",
    ".cfi_offset rbp, -24",
    ".cfi_offset rbx, -16",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov ebx, 0x1001",
    "mov ebp, 0x1002",
    "mov r12d, 0x1003",
    "mov r13d, 0x1004",
    "mov r14d, 0x1005",
    "mov r15d, 0x1006",
    "call rax",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    // all pushed, no frame pointer
    ".globl shape_pushed",
    "shape_pushed:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    "push rbp",
    ".cfi_def_cfa_offset 24",
    "push r12",
    ".cfi_def_cfa_offset 32",
    "push r13",
    ".cfi_def_cfa_offset 40",
    "push r14",
    ".cfi_def_cfa_offset 48",
    "push r15",
    ".cfi_def_cfa_offset 56",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 64",
    ".cfi_offset r15, -56",
    ".cfi_offset r14, -48",
    ".cfi_offset r13, -40",
    ".cfi_offset r12, -32",
    ".cfi_offset rbp, -24",
    ".cfi_offset rbx, -16",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "call rdi",
    "add rsp, 8",
    "cfa_in_epilogue 56",
    "pop r15",
    "cfa_in_epilogue 48",
    "pop r14",
    "cfa_in_epilogue 40",
    "pop r13",
    "cfa_in_epilogue 32",
    "pop r12",
    "cfa_in_epilogue 24",
    "pop rbp",
    "cfa_in_epilogue 16",
    "pop rbx",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    // as compiled for Darwin: an rbp frame that saves registers above it
    ".globl shape_compiled",
    "shape_compiled:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push r15",
    "push r14",
    "push r13",
    "push r12",
    "push rbx",
    "sub rsp, 24",
    ".cfi_offset rbx, -56",
    ".cfi_offset r12, -48",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -32",
    ".cfi_offset r15, -24",
    "xor ebx, ebx",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "call rdi",
    "add rsp, 24",
    "pop rbx",
    "pop r12",
    "pop r13",
    "pop r14",
    "pop r15",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    // rbp frame, registers moved to the stack, more than 127 words away, variable stack below
    ".globl shape_framed",
    "shape_framed:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 5000",
    "mov [rbp - 4000], rbx",
    ".cfi_offset rbx, -4016",
    "mov [rbp - 8], r15",
    ".cfi_offset r15, -24",
    "mov [rbp - 2000], r12",
    ".cfi_offset r12, -2016",
    "sub rsp, rdi",
    "add rsp, rdi",
    "and rsp, -64",
    "xor ebx, ebx",
    "xor r12d, r12d",
    "xor r15d, r15d",
    "call rdi",
    "mov rbx, [rbp - 4000]",
    "mov r15, [rbp - 8]",
    "mov r12, [rbp - 2000]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    // GCC's realigned function: the CFA is in memory, saved registers by expression
    ".globl shape_realigned",
    "shape_realigned:",
    ".cfi_startproc",
    "lea r10, [rsp + 8]",
    ".cfi_def_cfa r10, 0",
    "and rsp, -128",
    "push qword ptr [r10 - 8]",
    "push rbp",
    "mov rbp, rsp",
    ".cfi_escape 0x10, 6, 2, 0x76, 0",
    "push r10",
    ".cfi_escape 0x0f, 3, 0x76, 0x78, 6",
    "push rbx",
    ".cfi_escape 0x10, 3, 2, 0x76, 0x70",
    "xor ebx, ebx",
    "call rdi",
    "pop rbx",
    "pop r10",
    ".cfi_def_cfa r10, 0",
    "pop rbp",
    "lea rsp, [r10 - 8]",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    // rbx kept in r12, r12 on the stack; the CFA relative to r13
    ".globl shape_moved",
    "shape_moved:",
    ".cfi_startproc",
    "push r12",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset r12, -16",
    "push r13",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset r13, -24",
    "mov r12, rbx",
    ".cfi_register rbx, r12",
    "lea r13, [rsp + 24]",
    ".cfi_def_cfa r13, 0",
    "sub rsp, 4096",
    "xor ebx, ebx",
    "and rsp, -16",
    "call rdi",
    "lea rsp, [r13 - 24]",
    "mov rbx, r12",
    "pop r13",
    ".cfi_def_cfa rsp, 16",
    "pop r12",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    // no call frame information at all, no frame pointer
    ".globl shape_without_cfi",
    "shape_without_cfi:",
    "push rbx",
    "push rbp",
    "sub rsp, 40",
    "mov [rsp + 8], r14",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "xor r14d, r14d",
    "call rdi",
    "test eax, eax",
    "je 1f",
    "call rdi",
    "1: mov r14, [rsp + 8]",
    "add rsp, 40",
    "pop rbp",
    "pop rbx",
    "ret",
    "ud2",
    // the same, registered: a frame record 0x20 above the stack pointer
    ".globl shape_registered",
    "shape_registered:",
    "push rbp",
    "sub rsp, 0x20",
    "xor ebp, ebp",
    "call rdi",
    "add rsp, 0x20",
    "pop rbp",
    "ret",
    "ud2",
    ".globl shape_registered_end",
    "shape_registered_end:",
    ".purgem cfa_in_epilogue",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".macro push_all",
    "stp x29, x30, [sp, #-96]!",
    ".cfi_def_cfa_offset 96",
    ".cfi_offset x29, -96",
    ".cfi_offset x30, -88",
    "stp x19, x20, [sp, #16]",
    ".cfi_offset x19, -80",
    ".cfi_offset x20, -72",
    "stp x21, x22, [sp, #32]",
    ".cfi_offset x21, -64",
    ".cfi_offset x22, -56",
    "stp x23, x24, [sp, #48]",
    ".cfi_offset x23, -48",
    ".cfi_offset x24, -40",
    "stp x25, x26, [sp, #64]",
    ".cfi_offset x25, -32",
    ".cfi_offset x26, -24",
    "stp x27, x28, [sp, #80]",
    ".cfi_offset x27, -16",
    ".cfi_offset x28, -8",
    ".endm",
    ".macro pop_all",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #96",
    ".cfi_restore_state",
    "ret",
    ".endm",
    ".macro spoil",
    "mov x19, #0",
    "mov x20, #0",
    "mov x21, #0",
    "mov x22, #0",
    "mov x23, #0",
    "mov x24, #0",
    "mov x25, #0",
    "mov x26, #0",
    "mov x27, #0",
    "mov x28, #0",
    ".endm",
    ".text",
    ".globl set_known",
    "set_known:",
    ".cfi_startproc",
    ".cfi_remember_state",
    "push_all",
    "mov x9, x0",
    "mov x0, x1",
    "mov x19, #0x1001",
    "mov x20, #0x1002",
    "mov x21, #0x1003",
    "mov x22, #0x1004",
    "mov x23, #0x1005",
    "mov x24, #0x1006",
    "mov x25, #0x1007",
    "mov x26, #0x1008",
    "mov x27, #0x1009",
    "mov x28, #0x100a",
    "mov x29, #0x100b",
    "blr x9",
    "pop_all",
    ".cfi_endproc",
    ".globl shape_pushed",
    "shape_pushed:",
    ".cfi_startproc",
    ".cfi_remember_state",
    "push_all",
    "spoil",
    "mov x29, #0",
    "blr x0",
    "pop_all",
    ".cfi_endproc",
    // as compiled for Darwin: the frame record above the saved registers
    ".globl shape_compiled",
    "shape_compiled:",
    ".cfi_startproc",
    "stp x28, x27, [sp, #-96]!",
    "stp x26, x25, [sp, #16]",
    "stp x24, x23, [sp, #32]",
    "stp x22, x21, [sp, #48]",
    "stp x20, x19, [sp, #64]",
    "stp x29, x30, [sp, #80]",
    "add x29, sp, #80",
    ".cfi_def_cfa w29, 16",
    ".cfi_offset w30, -8",
    ".cfi_offset w29, -16",
    ".cfi_offset w19, -24",
    ".cfi_offset w20, -32",
    ".cfi_offset w21, -40",
    ".cfi_offset w22, -48",
    ".cfi_offset w23, -56",
    ".cfi_offset w24, -64",
    ".cfi_offset w25, -72",
    ".cfi_offset w26, -80",
    ".cfi_offset w27, -88",
    ".cfi_offset w28, -96",
    "spoil",
    "blr x0",
    "ldp x29, x30, [sp, #80]",
    "ldp x20, x19, [sp, #64]",
    "ldp x22, x21, [sp, #48]",
    "ldp x24, x23, [sp, #32]",
    "ldp x26, x25, [sp, #16]",
    "ldp x28, x27, [sp], #96",
    "ret",
    ".cfi_endproc",
    // frame pointer as base, variable stack below
    ".globl shape_framed",
    "shape_framed:",
    ".cfi_startproc",
    ".cfi_remember_state",
    "push_all",
    "mov x29, sp",
    ".cfi_def_cfa x29, 96",
    "spoil",
    "sub sp, sp, #4080",
    "sub sp, sp, #16",
    "blr x0",
    "mov sp, x29",
    "pop_all",
    ".cfi_endproc",
    // the CFA in memory: x29 points to a word that contains it
    ".globl shape_realigned",
    "shape_realigned:",
    ".cfi_startproc",
    ".cfi_remember_state",
    "push_all",
    "spoil",
    "add x9, sp, #96",
    "sub sp, sp, #128",
    "mov x10, sp",
    "and sp, x10, #-64",
    "str x9, [sp]",
    "mov x29, sp",
    ".cfi_escape 0x0f, 3, 0x8d, 0, 6",
    "blr x0",
    "ldr x9, [x29]",
    "sub sp, x9, #96",
    ".cfi_def_cfa sp, 96",
    "pop_all",
    ".cfi_endproc",
    // x29 in x20, lr in x21, those two on the stack
    ".globl shape_moved",
    "shape_moved:",
    ".cfi_startproc",
    "stp x20, x21, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x20, -16",
    ".cfi_offset x21, -8",
    "mov x20, x29",
    ".cfi_register x29, x20",
    "mov x21, x30",
    ".cfi_register x30, x21",
    "mov x29, #7",
    "blr x0",
    "mov x29, x20",
    "mov x30, x21",
    "ldp x20, x21, [sp], #16",
    "ret",
    ".cfi_endproc",
    // no call frame information at all, no frame record
    ".globl shape_without_cfi",
    "shape_without_cfi:",
    "sub sp, sp, #48",
    "stp x19, x30, [sp, #16]",
    "str x29, [sp, #32]",
    "mov x19, #0",
    "mov x29, #0",
    "blr x0",
    "cbz w0, 1f",
    "blr x0",
    "1: ldr x29, [sp, #32]",
    "ldp x19, x30, [sp, #16]",
    "add sp, sp, #48",
    "ret",
    "brk #1",
    ".globl shape_registered",
    "shape_registered:",
    "stp x29, x30, [sp, #-16]!",
    "sub sp, sp, #0x20",
    "mov x29, #0",
    "blr x0",
    "add sp, sp, #0x20",
    "ldp x29, x30, [sp], #16",
    "ret",
    "brk #1",
    ".globl shape_registered_end",
    "shape_registered_end:",
);

// The assembly's own names, because C names have an underscore prefix in Mach-O.
unsafe extern "C" {
    #[link_name = "\x01set_known"]
    fn set_known(shape: unsafe extern "C" fn(), callback: extern "C" fn() -> u32);
    #[link_name = "\x01shape_pushed"]
    fn shape_pushed();
    #[link_name = "\x01shape_compiled"]
    fn shape_compiled();
    #[link_name = "\x01shape_framed"]
    fn shape_framed();
    #[link_name = "\x01shape_realigned"]
    fn shape_realigned();
    #[link_name = "\x01shape_moved"]
    fn shape_moved();
    #[link_name = "\x01shape_without_cfi"]
    fn shape_without_cfi();
    #[link_name = "\x01shape_registered"]
    fn shape_registered();
    #[link_name = "\x01shape_registered_end"]
    static shape_registered_end: u8;
}

/// The registers of the frames of `set_known` and of the shape, and how they were found, as seen by
/// the callback.
static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// Registers by number, how the frame was found, and its depth.
type Seen = (Vec<(u8, Option<u64>)>, Found, usize);

/// Loaded images and one registered range.
struct WithRegistered(Loaded);

impl Images for WithRegistered {
    fn find(&self, address: u64) -> Option<Image> {
        self.0.find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        self.0.is_executable(address)
    }

    fn registered(&self, address: u64) -> Option<Registered> {
        let start = shape_registered as *const () as u64;
        let range = AddressRange { start, end: &raw const shape_registered_end as u64 };
        let rule = Rule::Row(Row::frame_record_at::<Native>(Native::SP, 0x20));
        range.contains(address).then_some(Registered { range, rule })
    }
}

extern "C" fn callback() -> u32 {
    let images = WithRegistered(Loaded::now());
    let mut cache = Box::new(RuleCache::new());
    let registers = capture_here();
    let mut walker =
        Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, Options::default());
    // Only the first call counts; `shape_pushed` follows.
    let here = set_known as *const () as u64..shape_pushed as *const () as u64;
    for depth in 1..20 {
        if walker.step().is_err() {
            break;
        }
        if here.contains(&walker.frame().pc) {
            let found = walker.frame().found;
            let file = walker.registers();
            let values = KNOWN.iter().map(|(number, _)| (*number, file.certain(*number))).collect();
            *SEEN.lock().unwrap() = Some((values, found, depth));
            break;
        }
    }
    0
}

fn seen(shape: unsafe extern "C" fn()) -> Seen {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *SEEN.lock().unwrap() = None;
    // SAFETY: the shapes call their argument and follow the calling convention.
    unsafe { set_known(shape, callback) };
    SEEN.lock().unwrap().take().expect("the frame of set_known")
}

fn known() -> Vec<(u8, Option<u64>)> {
    KNOWN.iter().map(|(number, value)| (*number, Some(*value))).collect()
}

/// Returns the kind of unwind data that describe a shape. In Mach-O it is compact unwind where
/// possible, else DWARF.
const fn unwind_data_kind(compact: bool) -> Found {
    if cfg!(target_vendor = "apple") && compact { Found::CompactUnwind } else { Found::Cfi }
}

#[test]
fn registers_are_restored_by_unwind_data() {
    let shapes: [(&str, unsafe extern "C" fn(), Found); 5] = [
        ("compiled", shape_compiled, unwind_data_kind(true)),
        ("pushed", shape_pushed, unwind_data_kind(cfg!(target_arch = "x86_64"))),
        ("framed", shape_framed, unwind_data_kind(false)),
        ("realigned", shape_realigned, unwind_data_kind(false)),
        ("moved", shape_moved, unwind_data_kind(false)),
    ];
    for (name, shape, found) in shapes {
        assert_eq!(seen(shape), (known(), found, 2), "{name}");
    }
}

#[test]
fn registers_are_restored_by_code_analysis() {
    assert_eq!(seen(shape_without_cfi), (known(), Found::CodeAnalysis, 2));
}

#[test]
fn registers_are_restored_by_a_registered_rule() {
    assert_eq!(seen(shape_registered), (known(), Found::Registered, 2));
}
