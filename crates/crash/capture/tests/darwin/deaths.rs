//! The functions that crash. Each has its own name, which is compared with the report's frames, and
//! none is inlined.

use std::hint::black_box;

/// `crashreporter_annotations_t`, as in Apple's programs: version, message, …, message2.
#[repr(C)]
pub(crate) struct CrashInfo(pub [usize; 8]);

/// Version 7, in the segment that iOS 26 has it in.
#[used]
#[unsafe(link_section = "__DATA_DIRTY,__crash_info")]
static mut CRASH_INFO: CrashInfo = CrashInfo([7, 0, 0, 0, 0, 0, 0, 0]);

/// The program's message about its crash.
pub(crate) const LAST_WORDS: &core::ffi::CStr = c"the test's last words";

/// Sets the message.
pub(crate) fn say_last_words() {
    // SAFETY: no other thread exists yet that could read it.
    unsafe { (&raw mut CRASH_INFO.0[1]).write_volatile(LAST_WORDS.as_ptr() as usize) };
}

/// Keeps the caller's frame: a call in tail position would drop it.
macro_rules! keep {
    ($call:expr) => {
        black_box($call)
    };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_null_store() {
    // SAFETY: none: it is the fault that the test is about.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_bad_pointer() {
    // SAFETY: none: it is the fault that the test is about.
    unsafe { black_box(0x7_dead_0000 as *mut u32).read_volatile() };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_read_only() {
    static WORD: u32 = 7;
    // SAFETY: none: it is the fault that the test is about.
    unsafe { black_box((&raw const WORD).cast_mut()).write_volatile(1) };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_jump_null() {
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("call {}", in(reg) black_box(0_u64), clobber_abi("C"));
    }
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("blr {}", in(reg) black_box(0_u64), clobber_abi("C"));
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_no_execute() {
    // On the heap.
    let page = black_box(vec![0_u64; 1024]);
    // SAFETY: none: what is called is data, which is the fault that the test is about.
    let there: extern "C" fn() = unsafe { std::mem::transmute(page.as_ptr()) };
    keep!(there());
    drop(page);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_undefined() {
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("ud2");
    }
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("udf #0");
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_trap() {
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("int3");
    }
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("brk #1");
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_privileged() {
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("hlt");
    }
    // SAFETY: none: it is the fault that the test is about.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("tlbi vmalle1");
    }
}

/// The guard of the port of [`die_guard`].
pub(crate) const GUARD: u64 = 0xc0_2012;

/// Destroys a port whose receive right somebody guards.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_guard() {
    unsafe extern "C" {
        /// <mach/mach_port.h>.
        fn mach_port_guard(task: u32, name: u32, guard: u64, strict: i32) -> i32;
    }
    let mut port = 0;
    // SAFETY: a port of this function's own.
    unsafe {
        let task = mach2::traps::mach_task_self();
        assert_eq!(mach2::mach_port::mach_port_allocate(task, 1, &raw mut port), 0);
        assert_eq!(mach_port_guard(task, port, GUARD, 1), 0);
        keep!(mach2::mach_port::mach_port_mod_refs(task, port, 1, -1));
    }
}

/// `EXC_SOFTWARE` with `EXC_UNIX_ABORT`, raised by the kernel (a service of darwin-host's).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_software() {
    let raise = crate::host::service(c"darwin_host_raise");
    // SAFETY: the host's service has this type.
    let raise: extern "C" fn(i32, i64, i64) = unsafe { std::mem::transmute(raise) };
    keep!(raise(5, 0x10002, 0x4711));
}

/// A null store as the work of a dispatch queue with the label [`QUEUE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_in_queue() {
    extern "C" fn work(_: *mut core::ffi::c_void) {
        keep!(die_null_store());
    }
    unsafe extern "C" {
        /// <dispatch/queue.h>.
        fn dispatch_queue_create(label: *const core::ffi::c_char, attributes: usize) -> usize;
        fn dispatch_sync_f(queue: usize, context: usize, work: extern "C" fn(*mut core::ffi::c_void));
    }
    // Some processor time, which the report must contain.
    while spent() < 50_000_000 {
        for round in 0..100_000 {
            black_box(round);
        }
    }
    // SAFETY: a label that ends in NUL; the work takes no context.
    unsafe { keep!(dispatch_sync_f(dispatch_queue_create(QUEUE.as_ptr(), 0), 0, work)) };
}

/// Returns this thread's processor time in nanoseconds, from the kernel.
fn spent() -> u64 {
    // SAFETY: plain numbers and bytes, of which zeros are valid.
    let mut info: libc::thread_extended_info = unsafe { std::mem::zeroed() };
    let mut count = (size_of::<libc::thread_extended_info>() / 4) as u32;
    let flavor = libc::THREAD_EXTENDED_INFO as u32;
    // SAFETY: the thread's own port; writes no more than `count` words into `info`.
    let status = unsafe {
        let this = libc::pthread_mach_thread_np(libc::pthread_self());
        libc::thread_info(this, flavor, (&raw mut info).cast(), &raw mut count)
    };
    assert_eq!(status, 0);
    info.pth_user_time + info.pth_system_time
}

/// The label of the queue of [`die_in_queue`].
pub(crate) const QUEUE: &core::ffi::CStr = c"com.example.work";

// A function that stores its context and marks its frame record as Swift's compiler does (docs/ABI
// of swift, "extended frame"), calls its first argument, and, never run, where those resume who
// wait for it.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".globl _async_function",
    "_async_function:",
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
    ".globl _resume_waiting",
    "_resume_waiting:",
    "ud2",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".p2align 2",
    ".globl _async_function",
    "_async_function:",
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
    ".globl _resume_waiting",
    "_resume_waiting:",
    "brk #1",
);

unsafe extern "C" {
    fn async_function(call: extern "C" fn(), context: *const [u64; 2]);
    fn resume_waiting();
}

/// Makes a null store below an async function, on a thread that runs a task if requested.
fn die_in_async_function(is_task: bool) {
    /// `__PTK_FRAMEWORK_SWIFT_KEY3`, and a task as the Swift runtime has it: 4 words, 4 bytes, the
    /// identifier.
    const TASK_KEY: libc::pthread_key_t = 103;
    static TASK: [u32; 10] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let task = if is_task { TASK.as_ptr().cast() } else { std::ptr::null() };
    let context = [0, resume_waiting as *const () as u64];
    // SAFETY: libpthread has this key and nothing else here uses it; the function stores the
    // context's address, and calls back.
    unsafe {
        assert_eq!(libc::pthread_setspecific(TASK_KEY, task), 0);
        keep!(async_function(die_null_store, &raw const context));
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_in_task() {
    keep!(die_in_async_function(true));
}

/// A frame that looks like an async function's, on a thread that runs no task.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_beside_task() {
    keep!(die_in_async_function(false));
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_abort() {
    // SAFETY: has no conditions.
    unsafe { libc::abort() }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_raise() {
    // SAFETY: has no conditions.
    keep!(unsafe { libc::raise(libc::SIGSEGV) });
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_kill() {
    // SAFETY: a set of signals on this stack; a signal to this process.
    unsafe {
        let abort = 1_u32 << (libc::SIGABRT - 1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const abort, std::ptr::null_mut());
        libc::kill(libc::getpid(), libc::SIGABRT);
        std::thread::sleep(std::time::Duration::from_millis(100));
        keep!(libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const abort, std::ptr::null_mut()));
    }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_divide() {
    // SAFETY: none: it is the fault that the test is about.
    unsafe { std::arch::asm!("div {0:e}", in(reg) black_box(0_u32), inout("eax") 1_u32 => _, inout("edx") 0_u32 => _) };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_overflow() {
    #[allow(unconditional_recursion)]
    extern "C" fn deeper(level: u64) -> u64 {
        let room = black_box([level; 64]);
        deeper(level + 1).wrapping_add(room[(level % 64) as usize])
    }
    keep!(deeper(black_box(0)));
}

/// Calls a death, so that there is a second frame to find.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn call_death(death: extern "C" fn()) {
    keep!(death());
}

// What -mbranch-protection=pac-ret makes of a function: its return address is signed, with the
// stack pointer, before it is stored.
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl _die_signed",
    ".p2align 2",
    "_die_signed:",
    ".cfi_startproc",
    "mov x9, x30",
    "paciasp",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    ".cfi_def_cfa x29, 16",
    ".cfi_offset x30, -8",
    ".cfi_offset x29, -16",
    "eor x0, x9, x30",
    "bl _die_below_signed",
    "ldp x29, x30, [sp], #16",
    "autiasp",
    "ret",
    ".cfi_endproc",
);

#[cfg(target_arch = "aarch64")]
unsafe extern "C" {
    fn die_signed();
}

/// Crashes if the caller's return address is stored with an authentication code.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn die_below_signed(code: u64) {
    assert_ne!(code, 0, "this processor signs nothing");
    keep!(die_null_store());
}

/// Returns the function that crashes in the named way.
pub(crate) fn named(name: &str) -> extern "C" fn() {
    match name {
        "null-store" => die_null_store,
        "bad-pointer" => die_bad_pointer,
        "read-only" => die_read_only,
        "jump-null" => die_jump_null,
        "no-execute" => die_no_execute,
        "undefined" => die_undefined,
        "trap" => die_trap,
        "privileged" => die_privileged,
        "guard" => die_guard,
        "software" => die_software,
        "in-queue" => die_in_queue,
        "in-task" => die_in_task,
        "beside-task" => die_beside_task,
        #[cfg(target_arch = "aarch64")]
        // SAFETY: it takes no arguments, and dies as the others do.
        "signed-frame" => unsafe { std::mem::transmute::<unsafe extern "C" fn(), extern "C" fn()>(die_signed) },
        "abort" => die_abort,
        "raise" => die_raise,
        "kill" => die_kill,
        #[cfg(target_arch = "x86_64")]
        "divide" => die_divide,
        "overflow" => die_overflow,
        other => panic!("no death is called {other}"),
    }
}

/// Waits below a named function, as the other threads do during the crash.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn park_here() {
    loop {
        keep!(std::thread::park());
    }
}
