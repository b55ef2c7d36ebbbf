//! Functions of compilers, libraries and runtimes, which no app wrote even if its image has them.

/// The standard libraries of Rust and Swift, the C++ exception runtime, and Coroner itself.
const CRATES: [&str; 25] = [
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
    "coroner_unwind::",
    "coroner_walk::",
    // Go's runtime.
    "runtime.",
    "runtime/",
    "internal/runtime/",
    // Swift's standard library and Coroner's module, demangled and mangled.
    "Swift.",
    "$ss",
    "Coroner.Coroner.",
    "$s7Coroner",
];

/// Functions that start and end a program or report its heap as damaged.
///
/// A static program's own image contains them.
const START: [&str; 33] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "pthread_create",
    "exit",
    "_exit",
    "_Exit",
    "clone3",
    "__clone3",
    "__clone",
    "__libc_message",
    "malloc_printerr",
    "__assert_fail",
    "__assert_fail_base",
    "__fortify_fail",
    "__stack_chk_fail",
    "gsignal",
    "malloc",
    "calloc",
    "realloc",
    "free",
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "malloc_consolidate",
    "unlink_chunk",
    "abort",
    "raise",
    "pthread_kill",
    "__pthread_kill_internal",
    "__pthread_kill_implementation",
];

/// Functions by which Rust's standard library begins a panic.
const PANIC: [&str; 14] = [
    "__rustc::",
    "alloc::alloc::handle_alloc_error",
    "alloc::raw_vec::capacity_overflow",
    "core::cell::panic_",
    "core::option::expect_failed",
    "core::option::unwrap_failed",
    "core::panicking::",
    "core::result::unwrap_failed",
    "core::slice::index::slice_",
    "core::str::slice_error_fail",
    "rust_begin_unwind",
    "rust_panic",
    "std::panicking::",
    "std::sys::backtrace::",
];

/// Whether a function only passes a panic of Rust on to the panic hook, by its demangled name.
pub fn is_panic_function(function: &str) -> bool {
    PANIC.iter().any(|prefix| function.starts_with(prefix))
        || (function.starts_with("<alloc::boxed::Box<") && function.contains("PanicHookInfo"))
}

/// Whether a function belongs to a language runtime, a program's startup code or Coroner itself.
///
/// Such a function is not the one to look at first, whatever image it is in. `function` is a
/// demangled name. `<paint::Brush as core::fmt::Display>::fmt` belongs to the author of `Brush`,
/// `<usize as core::fmt::Display>::fmt` to the author of the trait.
pub fn is_runtime_function(function: &str) -> bool {
    let is_theirs = |path: &str| CRATES.iter().any(|prefix| path.starts_with(prefix));
    let Some(implementation) = function.strip_prefix('<') else {
        // GCC's copies of a function have a suffix: `raise.constprop.0`, `main.cold`.
        let whole = function.split('.').next().unwrap_or_default();
        // Swift appends the type to getters, setters and initial values: `shop.Cart.total.getter :
        // Swift.Int`.
        let named = function.split(" : ").next().unwrap_or_default();
        let is_library = is_theirs(without_return_type(named)) && !is_swift_extension(function);
        return is_library || START.contains(&whole);
    };
    let (implementor, of) = implementation.split_once(" as ").unwrap_or((implementation, ""));
    let implementor = implementor.trim_start_matches(['&', '*', '[', '(']);
    let implementor = implementor.strip_prefix("mut ").unwrap_or(implementor);
    is_theirs(implementor) || (!implementor.contains("::") && is_theirs(of))
}

/// Whether a mangled name is another module's extension of a Swift standard library type.
///
/// `$ss5ErrorP4shopE6reportyyF` is `report` from an `extension Error` in the module `shop`. The
/// type is followed by the module, by the extension's constraints on generic types (which end with
/// `l`), and by `E`.
fn is_swift_extension(mangled: &str) -> bool {
    let of_type = mangled.strip_prefix("$ss").and_then(after_identifier);
    let Some(module) = of_type.and_then(|rest| rest.strip_prefix(['V', 'O', 'C', 'P'])) else { return false };
    let Some(mut rest) = after_identifier(module) else { return false };
    let mut before = 'l';
    while let Some(character) = rest.chars().next() {
        if (before, character) == ('l', 'E') {
            return true;
        }
        before = character;
        rest = after_identifier(rest).unwrap_or(&rest[character.len_utf8()..]);
    }
    false
}

/// Returns the text after an identifier that is preceded by its length.
fn after_identifier(mangled: &str) -> Option<&str> {
    let digits = mangled.bytes().take_while(u8::is_ascii_digit).count();
    let length: usize = mangled[..digits].parse().ok()?;
    mangled.get(digits..)?.get(length..).filter(|_| length > 0)
}

/// Strips the return type from a demangled C++ template instance.
///
/// Such as `void std::swap<int>(int&, int&)`.
fn without_return_type(function: &str) -> &str {
    let mut depth = 0_usize;
    let mut start = 0;
    for (place, character) in function.char_indices() {
        match character {
            '(' if depth == 0 => break,
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = place + 1,
            _ => {}
        }
    }
    &function[start..]
}

/// Parts of paths that contain other authors' sources.
///
/// Rust's standard library as built and as a toolchain component, Cargo's registries and checkouts,
/// C++ library headers, glibc, Apple's SDKs, and Coroner's own crates if they are in a folder
/// beside the app's.
const SOURCES: [&str; 16] = [
    "/rustc/",
    // Dependencies of the standard library.
    "/rust/deps/",
    "/rustlib/src/rust/library/",
    "/registry/src/",
    "/git/checkouts/",
    // Go's modules.
    "/pkg/mod/",
    "/include/c++/",
    "/sysdeps/",
    "/Developer/Platforms/",
    "/crates/launch/coroner/src/",
    "/crates/crash/capture/src/",
    "/crates/crash/exceptions/src/",
    "/crates/bindings/ffi/src/",
    "/crates/base/process/src/",
    "/crates/crash/unwind/src/",
    "/crates/crash/walk/src/",
];
/// Beginnings of paths that contain other authors' sources.
const SOURCE_ROOTS: [&str; 8] = [
    "/usr/include/",
    "/usr/lib/gcc/",
    "/usr/lib/go-",
    "/usr/lib/llvm",
    "/usr/local/go/src/",
    "library/core/",
    "library/alloc/",
    "library/std/",
];

/// Whether a source file belongs to a language runtime or another dependency instead of the app.
///
/// Covers crates from a registry and from a `vendor` directory made by `cargo vendor`.
pub fn is_runtime_source(path: &str) -> bool {
    if path.contains('\\') {
        return is_runtime_source(&path.replace('\\', "/"));
    }
    SOURCE_ROOTS.iter().any(|root| path.starts_with(root))
        // All entries begin with a slash, and a path has few of them.
        || path.match_indices('/').any(|(at, _)| {
            let rest = &path[at..];
            SOURCES.iter().any(|source| rest.starts_with(source)) || is_vendored(rest)
        })
}

/// Whether the rest of a path begins with `/vendor/CRATE/src`.
fn is_vendored(rest: &str) -> bool {
    rest.strip_prefix("/vendor/").is_some_and(|below| below.split('/').nth(1) == Some("src"))
}

/// Whether code is not the app's own, whatever image it is in.
///
/// Decided by the source file, if known, and by the function's name. Events, summaries and texts
/// all use this rule.
pub fn is_runtime_code(function: Option<&str>, file: Option<&str>) -> bool {
    file.is_some_and(is_runtime_source) || is_runtime_function(function.unwrap_or_default())
}
