//! `__cxa_throw` and `__cxa_rethrow` of libstdc++, for programs that libstdc++ is linked into
//! (`-static-libstdc++`, `-static`).
//!
//! There the linker takes Coroner's definitions and omits libstdc++'s, so there are no original
//! functions to continue in: these do the same (GCC's `libstdc++-v3/libsupc++/eh_throw.cc`; "C++
//! ABI: Exception Handling" 2.4.3 and 2.5.4). (libc++abi has them in one object file with code that
//! every throwing program needs: such a program has two definitions, and does not link.)
//!
//! | field | bytes before the object |
//! |---|---|
//! | `referenceCount`, an `int` | 128 |
//! | `exceptionType`, `exceptionDestructor`, `unexpectedHandler`, `terminateHandler` | 112, 104, 96, 88 |
//! | `handlerCount`, an `int` | 72 |
//! | `unwindHeader`: `exception_class`, `exception_cleanup` | 32, 24 |

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};

use crate::itanium::{CLASS, Function, GNU, GNU_UNWIND_AT, TYPE, function};

/// Distances in bytes from the thrown object back to the fields that are only used here.
const REFERENCES: u64 = 128;
const DESTRUCTOR: u64 = 104;
const UNEXPECTED: u64 = 96;
const TERMINATE: u64 = 88;
const CLEANUP: u64 = 24;
/// Distance in bytes from the start of the header to `handlerCount`.
const HANDLERS_AT: u64 = 40;

unsafe extern "C" {
    fn _Unwind_RaiseException(exception: *mut c_void) -> i32;
    fn _Unwind_Resume_or_Rethrow(exception: *mut c_void) -> i32;
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
    initialise_header as *const () as usize
}

/// Defines a function that calls `$prepare` with its arguments and the unwinder with the result.
/// Only this frame is between the thrower and the unwinder: an exception must not pass through
/// Rust.
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
                "sub rsp, 24",
                ".cfi_def_cfa_offset 32",
                "call {prepare}",
                "mov [rsp], rax",
                "mov rdi, rax",
                "call {unwind}",
                "mov rdi, [rsp]",
                "call {failed}",
                "ud2",
                ".cfi_endproc",
                prepare = sym $prepare,
                unwind = sym $unwind,
                failed = sym failed,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "hint #36", // bti j
                ".cfi_startproc",
                "stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "bl {prepare}",
                "str x0, [sp, #16]",
                "bl {unwind}",
                "ldr x0, [sp, #16]",
                "bl {failed}",
                "brk #1",
                ".cfi_endproc",
                prepare = sym $prepare,
                unwind = sym $unwind,
                failed = sym failed,
            );
        }
    };
}
raising!(coroner_raise: begin_throw, _Unwind_RaiseException);
raising!(coroner_raise_again: begin_rethrow, _Unwind_Resume_or_Rethrow);

/// Calls a function of the runtime that takes at most one pointer and returns at most one.
///
/// # Safety
/// See that function.
unsafe fn call(which: Function, argument: u64) -> u64 {
    let at = function(which);
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

/// Counts one more uncaught exception of the thread.
///
/// # Safety
/// The thread must be about to throw.
unsafe fn count_uncaught() -> *mut Globals {
    // SAFETY: `__cxa_eh_globals *__cxa_get_globals()`, which is there wherever an exception can be
    // caught.
    let globals = unsafe { call(Function::MakeGlobals, 0) } as *mut Globals;
    if globals.is_null() {
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
    // SAFETY: the thread's own.
    unsafe { (*globals).uncaught = (*globals).uncaught.wrapping_add(1) };
    globals
}

/// Counts an exception as thrown and fills in its header; returns its `_Unwind_Exception`.
///
/// # Safety
/// See [`initialise_header`].
unsafe extern "C" fn begin_throw(object: u64, type_info: u64, destructor: u64) -> u64 {
    // SAFETY: by the contract.
    unsafe {
        let _ = count_uncaught();
        let references = initialise_header(object, type_info, destructor) as *mut i32;
        references.write(1);
    }
    object - CLASS
}

/// Fills in the header of an object that has no references yet; returns the header.
///
/// # Safety
/// The arguments must be those of `__cxa_throw`: `__cxa_allocate_exception` created the object,
/// after a zeroed header.
unsafe extern "C" fn initialise_header(object: u64, type_info: u64, destructor: u64) -> u64 {
    let references = object - REFERENCES;
    // SAFETY: by the contract; the runtime's functions have no arguments.
    unsafe {
        (references as *mut i32).write(0);
        put(object - TYPE, type_info);
        put(object - DESTRUCTOR, destructor);
        put(object - UNEXPECTED, call(Function::GetUnexpected, 0));
        put(object - TERMINATE, call(Function::GetTerminate, 0));
        put(object - CLASS, GNU);
        put(object - CLEANUP, cleanup as *const () as u64);
    }
    references
}

/// Marks the exception that is being handled as thrown again; returns its `_Unwind_Exception`.
///
/// # Safety
/// The program must have called `__cxa_rethrow`.
unsafe extern "C" fn begin_rethrow() -> u64 {
    // SAFETY: the thread's own lists, by the runtime's rules.
    unsafe {
        let globals = count_uncaught();
        let header = (*globals).caught;
        if header == 0 {
            call(Function::Terminate, 0);
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

/// Ends the process after the unwinder found no handler.
///
/// # Safety
/// `exception` must be the unwinder's argument.
unsafe extern "C" fn failed(exception: u64) -> ! {
    // SAFETY: `void *__cxa_begin_catch(void *)` and `void std::terminate()`; the latter does not
    // return.
    unsafe {
        call(Function::BeginCatch, exception);
        call(Function::Terminate, 0);
        libc::abort()
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
        call(Function::FreeException, object);
    }
}
