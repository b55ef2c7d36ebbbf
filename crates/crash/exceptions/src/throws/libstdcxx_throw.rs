//! `__cxa_throw` and `__cxa_rethrow` of libstdc++, for programs and libraries that libstdc++ is
//! linked into (`-static-libstdc++`, `-static`).
//!
//! There the linker takes Coroner's definitions and omits libstdc++'s, so there are no original
//! functions to continue in: these do the same (GCC's `libstdc++-v3/libsupc++/eh_throw.cc`; "C++
//! ABI: Exception Handling" 2.4.3 and 2.5.4). (libc++abi has them in one object file with code that
//! every throwing program needs: a static program has two definitions, and does not link; next to
//! the shared library, it has its own.)
//!
//! The runtime's other functions are those that the thrower is bound to: of the program, or of its
//! own image. If they are local there (`--exclude-libs`, a version script), the exception is thrown
//! and caught nevertheless, but not counted by `std::uncaught_exceptions`.
//!
//! | field | bytes before the object |
//! |---|---|
//! | `referenceCount`, an `int` | 128 |
//! | padding: an address in the image that threw | 120 |
//! | `exceptionType`, `exceptionDestructor`, `unexpectedHandler`, `terminateHandler` | 112, 104, 96, 88 |
//! | `handlerCount`, an `int` | 72 |
//! | `unwindHeader`: `exception_class`, `exception_cleanup` | 32, 24 |

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};

use super::runtime_of_caller;
use crate::itanium::{CLASS, Function, GNU, GNU_UNWIND_AT, TYPE};

/// Distances in bytes from the thrown object back to the fields that are only used here.
const REFERENCES: u64 = 128;
const CALLER: u64 = 120;
const DESTRUCTOR: u64 = 104;
const UNEXPECTED: u64 = 96;
const TERMINATE: u64 = 88;
const CLEANUP: u64 = 24;
/// Distance in bytes from the start of the header to `handlerCount`.
const HANDLERS_AT: u64 = 40;

unsafe extern "C" {
    fn _Unwind_RaiseException(exception: *mut c_void) -> i32;
    fn _Unwind_Resume_or_Rethrow(exception: *mut c_void) -> i32;
    fn _Unwind_GetCFA(context: *mut c_void) -> u64;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
    fn _Unwind_GetLanguageSpecificData(context: *mut c_void) -> u64;
    fn _Unwind_GetRegionStart(context: *mut c_void) -> u64;
}

/// `__cxa_eh_globals`.
#[repr(C)]
struct Globals {
    /// Header of the exception that is being handled.
    caught: u64,
    uncaught: u32,
}

/// Returns the function that continues a throw, called like `__cxa_throw`.
pub(super) fn throw() -> usize {
    coroner_raise as *const () as usize
}

/// Returns the function that continues a rethrow, called like `__cxa_rethrow`.
pub(super) fn rethrow() -> usize {
    coroner_raise_again as *const () as usize
}

/// Returns the function that does the same as `__cxa_init_primary_exception`.
pub(super) fn initialise() -> usize {
    coroner_initialise as *const () as usize
}

/// Whether a runtime is found whose work can be done here.
pub(super) fn has_runtime(caller: u64) -> bool {
    runtime_of_caller::function(caller, Function::MakeGlobals) != 0
}

/// Calls [`initialise_header`] with its return address as fourth argument.
///
/// # Safety
/// As for the functions of [`raising`].
#[unsafe(naked)]
unsafe extern "C" fn coroner_initialise() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("endbr64", "mov rcx, [rsp]", "jmp {header}", header = sym initialise_header);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("hint #36", "mov x3, x30", "b {header}", header = sym initialise_header);
}

/// Defines a function that calls `$prepare` with its arguments and its return address, and the
/// unwinder with the result. Only this frame is between the thrower and the unwinder: an exception
/// must not pass through Rust.
macro_rules! raising {
    ($name:ident: $prepare:ident, $unwind:ident) => {
        /// # Safety
        /// Must be jumped to with the arguments and the stack of the call of the function that it
        /// replaces.
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "endbr64",
                ".cfi_startproc",
                ".cfi_personality 0x1b, {personality}", // pcrel, sdata4
                "mov rcx, [rsp]",
                "sub rsp, 24",
                ".cfi_def_cfa_offset 32",
                "mov [rsp + 8], rcx",
                "call {prepare}",
                "mov [rsp], rax",
                "mov rdi, rax",
                "call {unwind}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "call {failed}",
                "ud2",
                ".cfi_endproc",
                prepare = sym $prepare,
                unwind = sym $unwind,
                failed = sym failed,
                personality = sym personality,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "hint #36", // bti j
                ".cfi_startproc",
                ".cfi_personality 0x1b, {personality}", // pcrel, sdata4
                "stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "mov x3, x30",
                "str x3, [sp, #24]",
                "bl {prepare}",
                "str x0, [sp, #16]",
                "bl {unwind}",
                "ldp x0, x1, [sp, #16]",
                "bl {failed}",
                "brk #1",
                ".cfi_endproc",
                prepare = sym $prepare,
                unwind = sym $unwind,
                failed = sym failed,
                personality = sym personality,
            );
        }
    };
}
raising!(coroner_raise: begin_throw, _Unwind_RaiseException);
raising!(coroner_raise_again: begin_rethrow, _Unwind_Resume_or_Rethrow);

/// Personality routine of the frames that raise: it catches nothing.
///
/// The thrower may have an unwinder of its own (`-static-libgcc`), whose functions its runtime's
/// personality routine calls with the context of the unwinder that is used here. The layouts are
/// the same, but that unwinder has never run, so it doesn't know the registers' sizes, and
/// `_Unwind_SetGR` would abort. Registers that a context holds by value need no size, so the two
/// registers of a landing pad are made to be held so, in the context that the unwinder reuses for
/// the thrower's frames (`struct _Unwind_Context` of GCC's `libgcc/unwind-dw2.c`).
///
/// # Safety
/// Must be called by an unwinder.
unsafe extern "C" fn personality(_: i32, actions: i32, _: u64, _: u64, context: *mut c_void) -> i32 {
    const URC_CONTINUE_UNWIND: i32 = 8;
    const UA_CLEANUP_PHASE: i32 = 2;
    /// Maximum number of registers in a context: more than any version has.
    const MAX_REGISTERS: usize = 128;
    /// `__builtin_eh_return_data_regno`: rax and rdx; x0 and x1.
    const DATA_REGISTERS: [usize; 2] = [0, 1];
    if actions & UA_CLEANUP_PHASE == 0 {
        return URC_CONTINUE_UNWIND;
    }
    // SAFETY: the unwinder's own functions, with its context.
    let known = unsafe { [_Unwind_GetCFA(context), _Unwind_GetIP(context), _Unwind_GetLanguageSpecificData(context)] };
    // SAFETY: as above.
    let function = unsafe { _Unwind_GetRegionStart(context) };
    let words = context.cast::<u64>();
    // {reg[], cfa, ra, lsda, {tbase, dbase, func}, flags, version, args_size, by_value[]}
    // SAFETY: a context contains these fields after its registers: it is at least as large as what
    // is read before they are found. (The unwinder keeps it on its stack, below this thread's
    // frames, so that reading beyond a smaller one reads the stack.)
    let at = (1..MAX_REGISTERS).find(|at| unsafe {
        let field = |index: usize| words.add(at + index).read();
        [field(0), field(1), field(2)] == known && field(5) == function && field(7) == 0
    });
    if let Some(at) = at {
        // SAFETY: the layout was just checked.
        unsafe {
            let by_value = words.add(at + 9).cast::<u8>();
            DATA_REGISTERS.into_iter().for_each(|register| by_value.add(register).write(1));
        }
    }
    URC_CONTINUE_UNWIND
}

/// Calls a function of the caller's runtime that takes at most one pointer and returns at most one;
/// returns 0 if it can't be found.
///
/// # Safety
/// See that function.
unsafe fn call(caller: u64, which: Function, argument: u64) -> u64 {
    let at = runtime_of_caller::function(caller, which);
    if at == 0 {
        return 0;
    }
    // SAFETY: by the contract: in both calling conventions an argument that is not taken does no
    // harm.
    unsafe { core::mem::transmute::<usize, extern "C" fn(u64) -> u64>(at)(argument) }
}

/// # Safety
/// `at` must be the address of a word of an exception's header.
unsafe fn put(at: u64, value: u64) {
    // SAFETY: by the contract.
    unsafe { (at as *mut u64).write(value) };
}

/// Counts one more uncaught exception of the thread; returns its globals, null if they can't be
/// found.
///
/// # Safety
/// The thread must be about to throw.
unsafe fn count_uncaught(caller: u64) -> *mut Globals {
    // SAFETY: `__cxa_eh_globals *__cxa_get_globals()`.
    let globals = unsafe { call(caller, Function::MakeGlobals, 0) } as *mut Globals;
    if !globals.is_null() {
        // SAFETY: the thread's own.
        unsafe { (*globals).uncaught = (*globals).uncaught.wrapping_add(1) };
    }
    globals
}

/// Counts an exception as thrown and fills in its header; returns its `_Unwind_Exception`.
///
/// # Safety
/// See [`initialise_header`].
unsafe extern "C" fn begin_throw(object: u64, type_info: u64, destructor: u64, caller: u64) -> u64 {
    // SAFETY: by the contract.
    unsafe {
        let _ = count_uncaught(caller);
        let references = initialise_header(object, type_info, destructor, caller) as *mut i32;
        references.write(1);
    }
    object - CLASS
}

/// Fills in the header of an object that has no references yet; returns the header.
///
/// # Safety
/// The arguments must be those of `__cxa_throw`: `__cxa_allocate_exception` created the object,
/// after a zeroed header.
unsafe extern "C" fn initialise_header(object: u64, type_info: u64, destructor: u64, caller: u64) -> u64 {
    let references = object - REFERENCES;
    // SAFETY: by the contract; the runtime's functions have no arguments.
    unsafe {
        let handler = |which| match call(caller, which, 0) {
            0 => libc::abort as *const () as u64,
            handler => handler,
        };
        (references as *mut i32).write(0);
        put(object - CALLER, caller);
        put(object - TYPE, type_info);
        put(object - DESTRUCTOR, destructor);
        put(object - UNEXPECTED, handler(Function::GetUnexpected));
        put(object - TERMINATE, handler(Function::GetTerminate));
        put(object - CLASS, GNU);
        put(object - CLEANUP, cleanup as *const () as u64);
    }
    references
}

/// Marks the exception that is being handled as thrown again; returns its `_Unwind_Exception`.
///
/// # Safety
/// The program must have called `__cxa_rethrow`.
unsafe extern "C" fn begin_rethrow(_: u64, _: u64, _: u64, caller: u64) -> u64 {
    // SAFETY: the thread's own lists, by the runtime's rules.
    unsafe {
        let globals = count_uncaught(caller);
        let header = if globals.is_null() { 0 } else { (*globals).caught };
        if header == 0 {
            terminate(caller);
        }
        let exception = header + GNU_UNWIND_AT;
        if (exception as *const u64).read() & !1 == GNU {
            // `__cxa_end_catch` recognizes a rethrow by it.
            let handlers = (header + HANDLERS_AT) as *mut i32;
            handlers.write(handlers.read().wrapping_neg());
        } else {
            (*globals).caught = 0;
        }
        exception
    }
}

/// Calls `std::terminate()`: the program rethrows nothing, or nobody catches its exception.
///
/// # Safety
/// Ends the process.
unsafe fn terminate(caller: u64) -> ! {
    // SAFETY: by the contract.
    unsafe {
        call(caller, Function::Terminate, 0);
        libc::abort()
    }
}

/// Ends the process after the unwinder found no handler.
///
/// # Safety
/// `exception` must be the unwinder's argument.
unsafe extern "C" fn failed(exception: u64, caller: u64) -> ! {
    // SAFETY: `void *__cxa_begin_catch(void *)`.
    unsafe {
        call(caller, Function::BeginCatch, exception);
        terminate(caller)
    }
}

/// `exception_cleanup`: called when the last handler of an exception ended, or one of another
/// language did.
///
/// # Safety
/// Must be called by the unwinder or the runtime with an exception whose header [`begin_throw`]
/// filled in.
unsafe extern "C" fn cleanup(reason: i32, exception: u64) {
    /// `_URC_NO_REASON` and `_URC_FOREIGN_EXCEPTION_CAUGHT`.
    const DELETED: [i32; 2] = [0, 1];
    let object = exception + CLASS;
    // SAFETY: the header in front of the object; the functions are those of `__cxa_throw`.
    unsafe {
        if !DELETED.contains(&reason) {
            let terminate = ((object - TERMINATE) as *const usize).read();
            core::mem::transmute::<usize, extern "C" fn()>(terminate)();
            libc::abort();
        }
        if AtomicI32::from_ptr((object - REFERENCES) as *mut i32).fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let destructor = ((object - DESTRUCTOR) as *const usize).read();
        if destructor != 0 {
            core::mem::transmute::<usize, extern "C" fn(u64)>(destructor)(object);
        }
        let caller = ((object - CALLER) as *const u64).read();
        call(caller, Function::FreeException, object);
    }
}
