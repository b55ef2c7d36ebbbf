//! Functions that no app wrote, though they are in its image: what a compiler or a library put there.

/// Rust's standard library, the runtime of C++ exceptions, and the crates that are Coroner.
const CRATES: [&str; 19] = [
    "__cxa_",
    "__cxxabiv1::",
    "__gxx_personality",
    "_Unwind_",
    "std::",
    "core::",
    "alloc::",
    "__rust_",
    "rust_begin_unwind",
    "__rustc::",
    "coroner::",
    "coroner_capture::",
    "coroner_exceptions::",
    "coroner_ffi::",
    "coroner_process::",
    "coroner_report::",
    "coroner_scan::",
    "coroner_unwind::",
    "coroner_walk::",
];

/// What starts a program.
const START: [&str; 12] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone3",
    "__clone3",
    "abort",
    "raise",
    "pthread_kill",
    "__pthread_kill_internal",
    "__pthread_kill_implementation",
];

/// Whether a function (by its demangled name) is of a language's runtime, of a program's start or of Coroner itself: not the
/// one to look at first, whatever image it is in. `<paint::Brush as core::fmt::Display>::fmt` is of who wrote `Brush`, which of
/// `<usize as core::fmt::Display>::fmt` is who wrote the trait.
pub fn is_runtime_function(function: &str) -> bool {
    let is_theirs = |path: &str| CRATES.iter().any(|prefix| path.starts_with(prefix));
    let Some(implementation) = function.strip_prefix('<') else {
        return is_theirs(function) || START.contains(&function);
    };
    let (implementor, of) = implementation.split_once(" as ").unwrap_or((implementation, ""));
    let implementor = implementor.trim_start_matches(['&', '*', '[', '(']);
    let implementor = implementor.strip_prefix("mut ").unwrap_or(implementor);
    is_theirs(implementor) || (!implementor.contains("::") && is_theirs(of))
}
