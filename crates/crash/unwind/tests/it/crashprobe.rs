//! Crashes with unusual frames, like CrashProbe's scenarios 4, 5, 9, 12 and 18–21, and a few more:
//! a child process crashes, walks in its signal handler, and sends the frames to the test.

use coroner_test_support::isolated;
use coroner_unwind::{AddressKind, End, Found, Frame, Options, RuleCache, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, by_unwind_data, capture_here, context_registers};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

// Functions whose frames are expected. Each calls its first argument, passing the second.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    coroner_unwind_test_support::epilogue_directive!(),
    ".text",
    // no frame pointer; keeps rbx
    ".globl probe_outer",
    "probe_outer:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "call rax",
    "pop rbx",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_outer_end",
    "probe_outer_end:",
    // no frame pointer, nothing saved
    ".globl probe_call",
    "probe_call:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_def_cfa_offset 32",
    "call rdi",
    "add rsp, 24",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_call_end",
    "probe_call_end:",
    // a frameless leaf that crashes (like objc_msgSend with a bad isa)
    ".globl probe_leaf",
    "probe_leaf:",
    ".cfi_startproc",
    "xor eax, eax",
    "mov rax, [rax]",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_leaf_end",
    "probe_leaf_end:",
    // crashes after an inner call has returned
    ".globl probe_stale",
    "probe_stale:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call probe_nothing",
    "xor eax, eax",
    "mov rax, [rax]",
    "add rsp, 8",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_stale_end",
    "probe_stale_end:",
    "probe_nothing:",
    "ret",
    // frameless, its CFA in another register, rbp used for something else
    ".globl probe_dwarf",
    "probe_dwarf:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push r12",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset r12, -24",
    "lea r12, [rsp + 24]",
    ".cfi_def_cfa r12, 0",
    "sub rsp, 4096",
    "and rsp, -64",
    "mov ebp, 5",
    "call probe_leaf",
    "ud2",
    ".cfi_endproc",
    ".globl probe_dwarf_end",
    "probe_dwarf_end:",
    // overwrites the stack above its stack pointer, and below it
    ".globl probe_smash_bottom",
    "probe_smash_bottom:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "mov rdi, rsp",
    "mov ecx, 32",
    "mov rax, 0xfffffffffffffeed",
    "rep stosq",
    "xor eax, eax",
    "mov rax, [rax]",
    ".cfi_endproc",
    "ud2",
    ".globl probe_smash_bottom_end",
    "probe_smash_bottom_end:",
    ".globl probe_smash_top",
    "probe_smash_top:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "lea rdi, [rsp - 256]",
    "mov ecx, 32",
    "mov rax, 0xfffffffffffffeed",
    "rep stosq",
    "xor eax, eax",
    "mov rax, [rax]",
    ".cfi_endproc",
    "ud2",
    ".globl probe_smash_top_end",
    "probe_smash_top_end:",
    ".globl probe_recurse",
    "probe_recurse:",
    ".cfi_startproc",
    "sub rsp, 56",
    ".cfi_def_cfa_offset 64",
    "call probe_recurse",
    "add rsp, 56",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_recurse_end",
    "probe_recurse_end:",
    // its unwind data describe a CFA 8 bytes too low; the word in the return address's place is the
    // argument
    ".globl probe_wrong_cfa",
    "probe_wrong_cfa:",
    ".cfi_startproc",
    "sub rsp, 168",
    ".cfi_def_cfa_offset 168",
    "mov [rsp + 160], rdi",
    "call probe_leaf",
    "add rsp, 168",
    "cfa_in_epilogue 8",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_wrong_cfa_end",
    "probe_wrong_cfa_end:",
    ".purgem cfa_in_epilogue",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".globl probe_outer",
    "probe_outer:",
    ".cfi_startproc",
    "stp x19, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x19, -32",
    ".cfi_offset x30, -24",
    "mov x9, x0",
    "mov x0, x1",
    "mov x1, x2",
    "blr x9",
    "ldp x19, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x19",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_outer_end",
    "probe_outer_end:",
    ".globl probe_call",
    "probe_call:",
    ".cfi_startproc",
    "str x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x30, -16",
    "blr x0",
    "ldr x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_call_end",
    "probe_call_end:",
    ".globl probe_leaf",
    "probe_leaf:",
    ".cfi_startproc",
    "mov x0, #0",
    "ldr x0, [x0]",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_leaf_end",
    "probe_leaf_end:",
    // the link register contains an address in this function when it crashes
    ".globl probe_stale",
    "probe_stale:",
    ".cfi_startproc",
    "str x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x30, -16",
    "bl probe_nothing",
    "mov x0, #0",
    "ldr x0, [x0]",
    "ldr x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_stale_end",
    "probe_stale_end:",
    "probe_nothing:",
    "ret",
    // as in CrashProbe: fp in x19, lr in x20, nothing on the stack
    ".globl probe_dwarf",
    "probe_dwarf:",
    ".cfi_startproc",
    "mov x19, x29",
    ".cfi_register x29, x19",
    "mov x20, x30",
    ".cfi_register x30, x20",
    "mov x29, #5",
    "bl probe_leaf",
    "brk #1",
    ".cfi_endproc",
    ".globl probe_dwarf_end",
    "probe_dwarf_end:",
    ".globl probe_smash_bottom",
    "probe_smash_bottom:",
    ".cfi_startproc",
    "str x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x30, -16",
    "mov x9, sp",
    "b 1f",
    ".cfi_endproc",
    ".globl probe_smash_top",
    "probe_smash_top:",
    ".cfi_startproc",
    "str x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x30, -16",
    "sub x9, sp, #256",
    "1:",
    "mov x10, #32",
    "mov x11, #-275",
    "2:",
    "str x11, [x9], #8",
    "subs x10, x10, #1",
    "b.ne 2b",
    "mov x0, #0",
    "ldr x0, [x0]",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_smash_bottom_end",
    "probe_smash_bottom_end:",
    ".globl probe_smash_top_end",
    "probe_smash_top_end:",
    ".globl probe_recurse",
    "probe_recurse:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-64]!",
    ".cfi_def_cfa_offset 64",
    ".cfi_offset x29, -64",
    ".cfi_offset x30, -56",
    "bl probe_recurse",
    "ldp x29, x30, [sp], #64",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_recurse_end",
    "probe_recurse_end:",
    ".globl probe_wrong_cfa",
    "probe_wrong_cfa:",
    ".cfi_startproc",
    "str x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x30, -8",
    "str x0, [sp, #8]",
    "bl probe_leaf",
    "ldr x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    "brk #1",
    ".globl probe_wrong_cfa_end",
    "probe_wrong_cfa_end:",
);

macro_rules! probes {
    ($($name:ident $end:ident),*) => {
        // The assembly's own names, because C names have an underscore prefix in Mach-O.
        unsafe extern "C" {
            $(
                #[link_name = concat!("\x01", stringify!($name))]
                fn $name();
                #[link_name = concat!("\x01", stringify!($end))]
                static $end: u8;
            )*
        }
        /// Returns the name of the probe function that contains an address.
        fn probe_of(address: u64) -> &'static str {
            $(if (($name as *const () as u64)..(&raw const $end as u64)).contains(&address) {
                return stringify!($name);
            })*
            "other"
        }
    };
}

probes!(
    probe_outer probe_outer_end, probe_call probe_call_end, probe_leaf probe_leaf_end, probe_stale probe_stale_end,
    probe_dwarf probe_dwarf_end, probe_smash_bottom probe_smash_bottom_end, probe_smash_top probe_smash_top_end,
    probe_recurse probe_recurse_end, probe_wrong_cfa probe_wrong_cfa_end
);

/// The data that the handler sends: three words per frame, then the end's number and the number of
/// skipped frames.
#[derive(Debug)]
struct Sent {
    frames: Vec<(u64, Found, AddressKind)>,
    end: u64,
    total: u64,
}

static PIPE: AtomicI32 = AtomicI32::new(-1);
/// Whether the handler walks from its own frame, across the trampoline, rather than from the
/// context.
static FROM_HANDLER: AtomicBool = AtomicBool::new(false);

extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let from_handler = FROM_HANDLER.load(Ordering::Relaxed);
    let registers = if from_handler { capture_here() } else { context_registers(context) };
    let images = Loaded::now();
    let mut cache = Box::new(RuleCache::new());
    let mut walker =
        Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, Options::default());
    let frames: Vec<Frame> = std::iter::from_fn(|| walker.next_frame()).collect();
    let end = walker.end().unwrap_or(End::EndOfStack);
    let mut words = Vec::new();
    // The first and the last.
    let (first, rest) = frames.split_at(frames.len().min(64));
    for frame in first.iter().chain(&rest[rest.len().saturating_sub(16)..]) {
        words.extend([frame.pc, frame.found as u64, frame.kind as u64]);
    }
    words.extend([end.number().into(), frames.len() as u64]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // SAFETY: writes the vector to the pipe and ends the child.
    unsafe {
        libc::write(PIPE.load(Ordering::Relaxed), bytes.as_ptr().cast(), bytes.len());
        libc::_exit(0);
    }
}

/// Runs `crash` in a child process, on a thread with an alternate stack; returns the data from its
/// handler.
fn child(from_handler: bool, crash: impl FnOnce()) -> Sent {
    // One at a time: qemu-user may hang in a child that was forked while another thread forked.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut pipe = [0; 2];
    // SAFETY: plain POSIX; the child does not return.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            PIPE.store(pipe[1], Ordering::Relaxed);
            FROM_HANDLER.store(from_handler, Ordering::Relaxed);
            let size = 1 << 20;
            let stack = libc::mmap(
                core::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            );
            let alternate = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: size };
            libc::sigaltstack(&raw const alternate, core::ptr::null_mut());
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT, libc::SIGTRAP] {
                libc::sigaction(signal, &raw const action, core::ptr::null_mut());
            }
            crash();
            libc::_exit(1);
        }
        libc::close(pipe[1]);
        let mut bytes = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            let read = libc::read(pipe[0], buffer.as_mut_ptr().cast(), buffer.len());
            if read <= 0 {
                break;
            }
            bytes.extend_from_slice(&buffer[..read as usize]);
        }
        libc::close(pipe[0]);
        let mut status = 0;
        libc::waitpid(pid, &raw mut status, 0);
        assert_eq!(status, 0, "the child failed");
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (frames, tail) = words.split_at(words.len() - 2);
        let frames = frames
            .as_chunks::<3>()
            .0
            .iter()
            .map(|word| {
                let found = Found::from_number(word[1] as u8).unwrap();
                (word[0], found, AddressKind::from_number(word[2] as u8).unwrap())
            })
            .collect();
        Sent { frames, end: tail[0], total: tail[1] }
    }
}

/// Calls `probe_outer(function, argument)`.
fn through_outer(function: unsafe extern "C" fn(), argument: u64) {
    // SAFETY: the function takes these arguments.
    unsafe {
        let outer: unsafe extern "C" fn(unsafe extern "C" fn(), u64) = core::mem::transmute(probe_outer as *const ());
        outer(function, argument);
    }
}

impl Sent {
    /// Returns the names of the frames' functions up to `probe_outer`.
    fn names(&self) -> Vec<&'static str> {
        let names: Vec<_> = self
            .frames
            .iter()
            .map(|(pc, _, kind)| probe_of(if *kind == AddressKind::ReturnAddress { pc.wrapping_sub(1) } else { *pc }))
            .collect();
        let outer = names.iter().position(|name| *name == "probe_outer");
        names[..outer.map_or(names.len(), |index| index + 1)].to_vec()
    }

    fn ended_at_the_end(&self) -> bool {
        self.end == u64::from(End::EndOfStack.number())
    }
}

#[test]
fn the_caller_of_a_bad_pointer_is_found() {
    isolated(concat!(module_path!(), "::the_caller_of_a_bad_pointer_is_found"), || {
        // NX page: mapped, not executable (scenario 4); null; nothing mapped there.
        let page = std::ptr::from_ref(Box::leak(Box::new([0u64; 512]))) as u64;
        for target in [page, 0, 0x5a5a_5a5a_5000] {
            let sent = child(false, || through_outer(probe_call, target));
            assert_eq!(sent.frames[0].0, target);
            assert_eq!(sent.names(), ["other", "probe_call", "probe_outer"], "{sent:x?}");
            let found = if cfg!(target_arch = "x86_64") { Found::StackTop } else { Found::LinkRegister };
            assert_eq!(sent.frames[1].1, found);
            assert!(by_unwind_data(sent.frames[2].1), "{sent:x?}");
            assert!(sent.ended_at_the_end(), "{sent:x?}");
        }
    });
}

#[test]
fn a_stale_link_register_is_not_a_caller() {
    isolated(concat!(module_path!(), "::a_stale_link_register_is_not_a_caller"), || {
        for (function, name) in [(probe_leaf as unsafe extern "C" fn(), "probe_leaf"), (probe_stale, "probe_stale")] {
            let sent = child(false, || through_outer(function, 0));
            assert_eq!(sent.names(), [name, "probe_outer"], "{sent:x?}");
            assert!(sent.ended_at_the_end(), "{sent:x?}");
        }
    });
}

#[test]
fn frameless_functions_are_unwound_by_dwarf() {
    isolated(concat!(module_path!(), "::frameless_functions_are_unwound_by_dwarf"), || {
        let sent = child(false, || through_outer(probe_dwarf, 0));
        assert_eq!(sent.names(), ["probe_leaf", "probe_dwarf", "probe_outer"], "{sent:x?}");
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

#[test]
fn abort_has_its_caller() {
    isolated(concat!(module_path!(), "::abort_has_its_caller"), || {
        let sent = child(false, || {
            // SAFETY: only its type is changed.
            let abort: u64 = libc::abort as *const () as u64;
            through_outer(probe_call, abort);
        });
        let names = sent.names();
        assert_eq!(names[names.len() - 2..], ["probe_call", "probe_outer"], "{sent:x?}");
        assert!(names[..names.len() - 2].iter().all(|name| *name == "other"));
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

#[test]
fn smashed_stacks_end_the_walk() {
    isolated(concat!(module_path!(), "::smashed_stacks_end_the_walk"), || {
        // The words above the stack pointer are overwritten, including the return address.
        let sent = child(false, || through_outer(probe_smash_bottom, 0));
        assert!(sent.names()[0].starts_with("probe_smash"), "{sent:x?}");
        assert!(sent.total < 64, "{sent:x?}");
        // Those below it don't matter.
        let sent = child(false, || through_outer(probe_smash_top, 0));
        assert_eq!(sent.names().last(), Some(&"probe_outer"), "{sent:x?}");
        assert!(sent.names()[0].starts_with("probe_smash"), "{sent:x?}");
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

#[test]
fn a_stack_overflow_keeps_both_ends() {
    isolated(concat!(module_path!(), "::a_stack_overflow_keeps_both_ends"), || {
        let sent = child(false, || {
            std::thread::Builder::new()
                .stack_size(7 << 20)
                .spawn(|| {
                    // SAFETY: the handler needs an alternate stack on this thread, too.
                    unsafe {
                        let stack = Box::leak(vec![0u8; 1 << 20].into_boxed_slice());
                        let alternate =
                            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
                        libc::sigaltstack(&raw const alternate, core::ptr::null_mut());
                    }
                    through_outer(probe_recurse, 0);
                })
                .unwrap()
                .join()
                .unwrap();
        });
        assert!(sent.total > 100_000, "{}", sent.total);
        assert_eq!(sent.frames.len(), 80);
        assert!(sent.names()[..64].iter().all(|name| *name == "probe_recurse"));
        assert_eq!(sent.names().last(), Some(&"probe_outer"));
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

#[test]
fn a_walk_from_the_handler_crosses_the_trampoline() {
    isolated(concat!(module_path!(), "::a_walk_from_the_handler_crosses_the_trampoline"), || {
        let sent = child(true, || through_outer(probe_leaf, 0));
        let names = sent.names();
        assert_eq!(names[names.len() - 2..], ["probe_leaf", "probe_outer"], "{sent:x?}");
        let trampoline =
            sent.frames.iter().position(|frame| frame.2 == AddressKind::SignalTrampoline).expect("a signal trampoline");
        let interrupted = &sent.frames[trampoline + 1];
        assert_eq!(probe_of(interrupted.0), "probe_leaf");
        assert_eq!(interrupted.2, AddressKind::InstructionPointer);
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

#[test]
fn code_analysis_corrects_wrong_unwind_data() {
    isolated(concat!(module_path!(), "::code_analysis_corrects_wrong_unwind_data"), || {
        for argument in [0, 5, 1 << 40] {
            let sent = child(false, || through_outer(probe_wrong_cfa, argument));
            assert_eq!(sent.names(), ["probe_leaf", "probe_wrong_cfa", "probe_outer"], "{sent:x?}");
            assert!(sent.ended_at_the_end(), "{sent:x?}");
        }
    });
}

// The frame of OpenSSL's bn_mul_mont: the CFA is in memory, at an index; the epilogue restores the
// stack pointer through rsi, which before that is an argument.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl probe_indexed",
    "probe_indexed:",
    ".cfi_startproc",
    "mov rsi, rdi",
    "xor edi, edi",
    "mov r9d, 6",
    "mov rax, rsp",
    ".cfi_def_cfa_register rax",
    "sub rsp, 0x100",
    "and rsp, -64",
    "mov [rsp + r9 * 8 + 8], rax",
    // DW_CFA_def_cfa_expression: breg7 8, breg9 0, lit8, mul, plus, deref, plus_uconst 8
    ".cfi_escape 0x0f, 0x0a, 0x77, 0x08, 0x79, 0x00, 0x38, 0x1e, 0x22, 0x06, 0x23, 0x08",
    "mov dword ptr [rdi], 1",
    "mov rsi, [rsp + r9 * 8 + 8]",
    ".cfi_def_cfa rsi, 8",
    "mov eax, 1",
    "lea rsp, [rsi]",
    ".cfi_def_cfa_register rsp",
    "ret",
    ".cfi_endproc",
    "ud2",
    ".globl probe_indexed_end",
    "probe_indexed_end:",
);

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn expressions_are_not_overruled_by_code() {
    unsafe extern "C" {
        fn probe_indexed();
        static probe_indexed_end: u8;
    }
    isolated(concat!(module_path!(), "::expressions_are_not_overruled_by_code"), || {
        // After the call in `probe_call`: an invented caller, where the argument points.
        let after_call = probe_call as *const () as u64 + 6;
        for words in [[0, 0], [after_call, 0]] {
            let sent = child(false, || through_outer(probe_indexed, words.as_ptr() as u64));
            let code = probe_indexed as *const () as u64..&raw const probe_indexed_end as u64;
            assert!(code.contains(&sent.frames[0].0), "{sent:x?}");
            assert_eq!(sent.names(), ["other", "probe_outer"], "{sent:x?}");
            assert!(by_unwind_data(sent.frames[1].1), "{sent:x?}");
            assert!(sent.ended_at_the_end(), "{sent:x?}");
        }
    });
}

// Go's asmcgocall, which has no unwind data, calls on the system's stack: it keeps the distance of
// the caller's stack pointer from the end of the goroutine's stack.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl probe_switch",
    "probe_switch:",
    "mov rdx, rsp",
    "lea rdi, [rip + probe_goroutine]",
    "lea rax, [rdx + 4096]",
    "mov [rdi + 8], rax",
    "lea rsp, [rip + probe_system_stack + 8192]",
    "sub rsp, 64",
    "and rsp, -16",
    "mov [rsp + 48], rdi",
    "mov rdi, [rdi + 8]",
    "sub rdi, rdx",
    "mov [rsp + 40], rdi",
    // a stale return address
    "lea rax, [rip + probe_call + 6]",
    "mov [rsp + 8], rax",
    "call probe_leaf",
    "mov rdi, [rsp + 48]",
    "mov rsi, [rdi + 8]",
    "sub rsi, [rsp + 40]",
    "mov fs:[-8], rdi",
    "mov rsp, rsi",
    "mov [rsp + 24], eax",
    "ret",
    "ud2",
    ".bss",
    ".balign 16",
    "probe_goroutine: .skip 64",
    "probe_system_stack: .skip 8192",
    ".text",
);

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn a_switch_of_stacks_is_followed() {
    unsafe extern "C" {
        fn probe_switch();
    }
    isolated(concat!(module_path!(), "::a_switch_of_stacks_is_followed"), || {
        let sent = child(false, || through_outer(probe_switch, 0));
        assert_eq!(sent.names(), ["probe_leaf", "other", "probe_outer"], "{sent:x?}");
        assert_eq!(sent.frames[2].1, Found::CodeAnalysis, "{sent:x?}");
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}

// A signal handler without unwind data that calls the other one.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl probe_plain_handler", "probe_plain_handler:", "sub rsp, 24", "call {handler}", "add rsp, 24", "ret", "ud2",
    handler = sym handler,
);
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".globl probe_plain_handler", "probe_plain_handler:", "stp x29, x30, [sp, #-32]!", "bl {handler}", "ldp x29, x30, [sp], #32", "ret", "brk #1",
    handler = sym handler,
);

#[test]
#[cfg(target_os = "linux")]
fn a_walk_from_a_handler_without_unwind_data_crosses_the_trampoline() {
    isolated(concat!(module_path!(), "::a_walk_from_a_handler_without_unwind_data_crosses_the_trampoline"), || {
        unsafe extern "C" {
            fn probe_plain_handler();
        }
        let sent = child(true, || {
            // SAFETY: the function has a signal handler's parameters.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = probe_plain_handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut());
            }
            through_outer(probe_leaf, 0);
        });
        let names = sent.names();
        assert_eq!(names[names.len() - 2..], ["probe_leaf", "probe_outer"], "{sent:x?}");
        let trampoline = sent.frames.iter().position(|frame| frame.2 == AddressKind::SignalTrampoline);
        assert_eq!(trampoline, Some(names.len() - 3), "{sent:x?}");
        assert!(sent.ended_at_the_end(), "{sent:x?}");
    });
}
