//! Swift async frames in this program's own code: a function stores its context and marks its frame
//! record like Swift's compiler ("extended frame" in Swift's docs/ABI), and is walked from a
//! callback through its own unwind data.

use coroner_unwind::{End, Found, Options, RuleCache, SwiftAsync, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, capture_here};
use std::sync::Mutex;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".globl async_function",
    "async_function:",
    ".cfi_startproc",
    "bts rbp, 60",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push rsi",
    "lea rbp, [rsp + 8]",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 8",
    "call rdi",
    "add rsp, 16",
    "pop rbp",
    "btr rbp, 60",
    "ret",
    ".cfi_endproc",
    ".globl resume_caller",
    "resume_caller:",
    "ud2",
    ".globl resume_its_caller",
    "resume_its_caller:",
    "ud2",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".globl async_function",
    "async_function:",
    ".cfi_startproc",
    "orr x29, x29, #0x1000000000000000",
    "sub sp, sp, #32",
    "stp x29, x30, [sp, #16]",
    "str x1, [sp, #8]",
    "add x29, sp, #16",
    ".cfi_def_cfa w29, 16",
    ".cfi_offset w30, -8",
    ".cfi_offset w29, -16",
    "blr x0",
    "ldp x29, x30, [sp, #16]",
    "add sp, sp, #32",
    "and x29, x29, #0xefffffffffffffff",
    "ret",
    ".cfi_endproc",
    ".globl resume_caller",
    "resume_caller:",
    "brk #1",
    ".globl resume_its_caller",
    "resume_its_caller:",
    "brk #1",
);

// The assembly's own names, because C names have an underscore prefix in Mach-O.
unsafe extern "C" {
    #[link_name = "\x01async_function"]
    fn async_function(callback: extern "C" fn(), context: *const [u64; 2]);
    #[link_name = "\x01resume_caller"]
    fn resume_caller();
    #[link_name = "\x01resume_its_caller"]
    fn resume_its_caller();
}

/// A walk's result: how each frame was found, with its lookup address, and the walk's end.
type Walked = (Vec<(Found, u64)>, Option<End>);

/// Walks from the callback with this option.
fn walk(swift_async: SwiftAsync) -> Walked {
    static SEEN: Mutex<Option<Walked>> = Mutex::new(None);
    static OPTION: Mutex<SwiftAsync> = Mutex::new(SwiftAsync::Ignore);
    static ONE: Mutex<()> = Mutex::new(());

    extern "C" fn callback() {
        let options = Options { swift_async: *OPTION.lock().unwrap(), ..Options::default() };
        let images = Loaded::now();
        let mut cache = Box::new(RuleCache::new());
        let registers = capture_here();
        let mut walker = Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, options);
        let frames = std::iter::from_fn(|| walker.next_frame()).map(|frame| (frame.found, frame.lookup_address()));
        *SEEN.lock().unwrap() = Some((frames.collect(), walker.end()));
    }

    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *OPTION.lock().unwrap() = swift_async;
    let outer = [0, resume_its_caller as *const () as u64];
    let context = [outer.as_ptr() as u64, resume_caller as *const () as u64];
    // SAFETY: the function stores the context's address, calls back and returns.
    unsafe { async_function(callback, &raw const context) };
    SEEN.lock().unwrap().take().expect("the callback ran")
}

#[test]
fn async_contexts_are_followed() {
    let (frames, end) = walk(SwiftAsync::Follow);
    let code = async_function as *const () as u64..resume_caller as *const () as u64;
    let at = frames.iter().position(|(_, address)| code.contains(address)).expect("the async function's frame");
    let resumed = [resume_caller as *const () as u64, resume_its_caller as *const () as u64];
    assert_eq!(frames[at + 1..], resumed.map(|address| (Found::SwiftAsync, address)), "{frames:x?}");
    assert_eq!(end, Some(End::EndOfStack));
}

#[test]
fn without_a_task_the_walk_stays_on_the_stack() {
    for swift_async in [SwiftAsync::Task(0), SwiftAsync::Ignore] {
        stays_on_the_stack(swift_async);
    }
}

fn stays_on_the_stack(swift_async: SwiftAsync) {
    let (frames, end) = walk(swift_async);
    assert!(frames.iter().all(|(found, _)| *found != Found::SwiftAsync), "{frames:x?}");
    // This function is the caller.
    let here = walk as *const () as u64;
    assert!(frames.iter().any(|(_, address)| (here..here + 0x2000).contains(address)), "{frames:x?}");
    assert_eq!(end, Some(End::EndOfStack));
}
