//! Layout of exceptions in flight and of types in the Itanium C++ ABI, as far as a report needs it.
//!
//! Sources: Itanium C++ ABI 2.9.5 (run-time type information) and "C++ ABI: Exception Handling" 2.2
//! (data structures); GCC's `libstdc++-v3/libsupc++/unwind-cxx.h`; LLVM's
//! `libcxxabi/src/cxa_exception.h`. The headers of both runtimes differ at their beginning and are
//! the same from `exceptionType` on, at the same distance from the thrown object after them:
//!
//! | field | bytes before the object |
//! |---|---|
//! | `exceptionType`; in a dependent exception, `primaryException` in libstdc++ | 112 |
//! | `primaryException` of a dependent exception in libc++abi | 120 |
//! | `unwindHeader.exception_class` | 32 |
//!
//! libc++abi before LLVM 10 (for example in Android 9) has no `reserve` at the beginning, but
//! padding after `adjustedPtr`: there `exceptionType` and `primaryException` are 8 bytes lower
//! ([`is_without_reserve`]).
//!
//! All memory is read through a [`Memory`]: an exception object may be as broken as anything in a
//! dying process. No symbol of a C++ runtime is needed to link: the functions that are called are
//! looked up.

use core::ffi::CStr;

use coroner_process::memory::Memory;

/// Distances in bytes from the thrown object back to fields of its header; see the module's table.
pub(crate) const TYPE: u64 = 112;
const LLVM_PRIMARY: u64 = 120;
pub(crate) const CLASS: u64 = 32;
const WORD: u64 = 8;
/// Size in bytes of an `_Unwind_Exception`, which is the end of the header.
const UNWIND_HEADER: u64 = 32;
/// Distance in bytes from the start of a header to its `_Unwind_Exception`: libstdc++'s and
/// libc++abi's.
pub(crate) const GNU_UNWIND_AT: u64 = 80;
const LLVM_UNWIND_AT: u64 = 96;

/// `exception_class` of libstdc++ (`GNUCC++\0`) and of libc++abi (`CLNGC++\0`); for a dependent
/// exception, with 1 in the last byte.
pub(crate) const GNU: u64 = u64::from_be_bytes(*b"GNUCC++\0");
const LLVM: u64 = u64::from_be_bytes(*b"CLNGC++\0");

// The symbols of a C++ runtime that are used, in the order of the enum below. Weak references,
// which the linker resolves to the program's own runtime if it has one, static or shared; none is
// needed.
#[cfg(not(target_vendor = "apple"))]
core::arch::global_asm!(
    ".pushsection .data.rel.ro.coroner_cxx_runtime,\"aw\"",
    ".balign 8",
    ".hidden coroner_cxx_runtime",
    ".globl coroner_cxx_runtime",
    "coroner_cxx_runtime:",
    ".weak _ZSt13set_terminatePFvvE",
    ".quad _ZSt13set_terminatePFvvE",
    ".weak _ZSt13get_terminatev",
    ".quad _ZSt13get_terminatev",
    ".weak __cxa_get_globals_fast",
    ".quad __cxa_get_globals_fast",
    ".weak _ZSt14get_unexpectedv",
    ".quad _ZSt14get_unexpectedv",
    ".weak _ZSt9terminatev",
    ".quad _ZSt9terminatev",
    ".weak __cxa_get_globals",
    ".quad __cxa_get_globals",
    ".weak __cxa_begin_catch",
    ".quad __cxa_begin_catch",
    ".weak __cxa_free_exception",
    ".quad __cxa_free_exception",
    ".size coroner_cxx_runtime, 64",
    ".popsection",
);

/// A function of the C++ runtime.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(all(not(target_vendor = "apple"), feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw"))),
    allow(dead_code, reason = "`throws::libstdcxx_throw` needs the last ones")
)]
pub(crate) enum Function {
    /// `std::set_terminate(void (*)())`.
    SetTerminate,
    /// `std::get_terminate()`.
    GetTerminate,
    /// `__cxa_get_globals_fast()`.
    GetGlobals,
    /// `std::get_unexpected()`.
    GetUnexpected,
    /// `std::terminate()`.
    Terminate,
    /// `__cxa_get_globals()`, which creates the globals if they don't exist.
    MakeGlobals,
    /// `__cxa_begin_catch(void *)`.
    BeginCatch,
    /// `__cxa_free_exception(void *)`.
    FreeException,
}

impl Function {
    /// Returns the function's mangled name.
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Function::SetTerminate => c"_ZSt13set_terminatePFvvE",
            Function::GetTerminate => c"_ZSt13get_terminatev",
            Function::GetGlobals => c"__cxa_get_globals_fast",
            Function::GetUnexpected => c"_ZSt14get_unexpectedv",
            Function::Terminate => c"_ZSt9terminatev",
            Function::MakeGlobals => c"__cxa_get_globals",
            Function::BeginCatch => c"__cxa_begin_catch",
            Function::FreeException => c"__cxa_free_exception",
        }
    }
}

/// Returns the address of a function of the C++ runtime that the program is bound to; 0 if it has
/// none (not async-signal-safe).
pub(crate) fn function(which: Function) -> usize {
    #[cfg(not(target_vendor = "apple"))]
    match bound(which) {
        0 => {}
        bound => return bound,
    }
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, which.name().as_ptr()) as usize }
}

/// Returns the address of a function of the C++ runtime to which the dynamic linker has bound this
/// image; 0 if there is none. Looks nothing up.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn bound(which: Function) -> usize {
    unsafe extern "C" {
        static coroner_cxx_runtime: [usize; 8];
    }
    // SAFETY: the table above; volatile, since the compiler must not know better than the dynamic
    // linker.
    unsafe { (&raw const coroner_cxx_runtime).cast::<usize>().add(which as usize).read_volatile() }
}

/// The exception that the calling thread is handling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Current {
    /// A C++ object and its `std::type_info`.
    Cpp { object: u64, type_info: u64 },
    /// An exception of another language's runtime, with its class (`MOZ\0RUST`).
    Foreign {
        /// The eight letters of the class.
        class: [u8; 8],
    },
}

/// Returns the exception that the calling thread is handling; `None` if it handles none, or if
/// there is no C++ runtime.
pub(crate) fn current(memory: &mut impl Memory) -> Option<Current> {
    static GET_GLOBALS: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
    let mut get = GET_GLOBALS.load(core::sync::atomic::Ordering::Acquire);
    if get == 0 {
        get = function(Function::GetGlobals);
        GET_GLOBALS.store(get, core::sync::atomic::Ordering::Release);
    }
    if get == 0 {
        return None;
    }
    // SAFETY: `__cxa_eh_globals *__cxa_get_globals_fast()`, which only asks.
    let globals = unsafe { core::mem::transmute::<usize, extern "C" fn() -> *const u64>(get)() };
    if globals.is_null() {
        return None;
    }
    // `caughtExceptions` is its first field.
    let header = memory.read_u64(globals as u64).ok()?;
    caught(memory, header)
}

/// Returns the exception with that header, the first of `caughtExceptions`; `None` for 0.
pub(crate) fn caught(memory: &mut impl Memory, header: u64) -> Option<Current> {
    if header == 0 {
        return None;
    }
    let class_at = |memory: &mut _, at: u64| Memory::read_u64(memory, header.wrapping_add(at)).unwrap_or(0);
    let (gnu, llvm) = (class_at(memory, GNU_UNWIND_AT), class_at(memory, LLVM_UNWIND_AT));
    if gnu & !1 == GNU {
        return read_object(header + GNU_UNWIND_AT + UNWIND_HEADER, memory);
    }
    if llvm & !1 == LLVM {
        return read_object(header + LLVM_UNWIND_AT + UNWIND_HEADER, memory);
    }
    // The place of a foreign exception's class depends on the runtime: the right one contains
    // letters.
    let is_word = |class: u64| class.to_be_bytes().iter().filter(|byte| byte.is_ascii_alphanumeric()).count() >= 4;
    let class = if is_word(gnu) { gnu } else { llvm };
    Some(Current::Foreign { class: class.to_be_bytes() })
}

/// Returns the exception whose object (for a dependent exception: what is in its place) is at that
/// address.
pub(crate) fn read_object(object: u64, memory: &mut impl Memory) -> Option<Current> {
    let class = memory.read_u64(object.checked_sub(CLASS)?).ok()?;
    // A dependent exception (`std::rethrow_exception`) refers to the primary one, whose header is
    // an ordinary one.
    let primary = match class {
        GNU | LLVM => object,
        class if class == GNU | 1 => memory.read_u64(object - TYPE).ok()?,
        class if class == LLVM | 1 => match memory.read_u64(object - LLVM_PRIMARY - WORD).ok()? {
            // `reserve`, which is zero.
            0 => memory.read_u64(object - LLVM_PRIMARY).ok()?,
            primary => primary,
        },
        _ => return None,
    };
    let is_lower = class & !1 == LLVM && is_without_reserve(memory, primary)?;
    let type_info = memory.read_u64(primary.checked_sub(TYPE + if is_lower { WORD } else { 0 })?).ok()?;
    Some(Current::Cpp { object: primary, type_info })
}

/// Whether the header of a libc++abi exception is that from before LLVM 10: where the old one has
/// `exceptionType`, a pointer, the new one has `referenceCount`.
fn is_without_reserve(memory: &mut impl Memory, object: u64) -> Option<bool> {
    const MAX_REFERENCES: u64 = 1 << 16;
    Some(memory.read_u64(object.checked_sub(TYPE + WORD)?).ok()? > MAX_REFERENCES)
}

/// Returns the object that the calling thread is handling and its type, read unguarded: outside a
/// signal handler, from the runtime's own lists.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
pub(crate) fn current_object() -> Option<(u64, u64)> {
    match current(&mut Plain)? {
        Current::Cpp { object, type_info } => Some((object, type_info)),
        Current::Foreign { .. } => None,
    }
}

/// Plain loads, for memory that the C++ runtime itself is about to use.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
struct Plain;

#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
impl Memory for Plain {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), coroner_process::memory::Unreadable> {
        // SAFETY: only for headers of exceptions that the thread is handling, which the runtime
        // reads next.
        unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

/// Maximum length in bytes of a type's name that is compared.
const NAME: usize = 256;

/// Copies a NUL-terminated text, as far as it is readable and fits; returns its length in bytes.
pub(crate) fn copy_text(memory: &mut impl Memory, address: u64, into: &mut [u8]) -> usize {
    let mut length = 0;
    for place in into.iter_mut() {
        let mut byte = [0];
        if memory.read(address.wrapping_add(length as u64), &mut byte).is_err() || byte == [0] {
            break;
        }
        *place = byte[0];
        length += 1;
    }
    length
}

/// Copies the mangled name of a type (`St13runtime_error`) to `into`; returns its length in bytes,
/// 0 if it can't be read.
pub(crate) fn type_name(memory: &mut impl Memory, type_info: u64, into: &mut [u8]) -> usize {
    // {virtual table, name}. On Apple's arm64, bit 63 is a mark (the name is not unique), and not
    // part of the address.
    let Ok(name) = memory.read_u64(type_info.wrapping_add(8)) else { return 0 };
    let mut name = name & !(1 << 63);
    // libstdc++: a name that must not be compared by its letters.
    let mut first = [0];
    if memory.read(name, &mut first).is_ok() && first == *b"*" {
        name = name.wrapping_add(1);
    }
    copy_text(memory, name, into)
}

/// Whether a type has that mangled name.
fn is_named(memory: &mut impl Memory, type_info: u64, wanted: &[u8]) -> bool {
    let mut name = [0; NAME];
    let length = type_name(memory, type_info, &mut name);
    name.get(..length) == Some(wanted)
}

/// Whether the `type_info` itself is of the class with that mangled name, which determines the
/// type's layout.
fn is_class_of_types(memory: &mut impl Memory, type_info: u64, wanted: &[u8]) -> bool {
    // The word before a virtual table's functions is the `type_info` of the table's class (ABI
    // 2.5.2).
    let Ok(functions) = memory.read_u64(type_info) else { return false };
    let Ok(class) = memory.read_u64(strip(functions).wrapping_sub(8)) else { return false };
    is_named(memory, class, wanted)
}

/// Returns a pointer without its authentication code (arm64e) or tag.
pub(crate) fn strip(pointer: u64) -> u64 {
    pointer & !coroner_walk::authentication_mask()
}

/// Classes of types with one base, and with several or virtual ones (ABI 2.9.5,
/// `abi::__si_class_type_info`).
const ONE_BASE: &[u8] = b"N10__cxxabiv120__si_class_type_infoE";
const MANY_BASES: &[u8] = b"N10__cxxabiv121__vmi_class_type_infoE";
const POINTER: &[u8] = b"N10__cxxabiv119__pointer_type_infoE";

pub(crate) fn pointee(memory: &mut impl Memory, type_info: u64) -> Option<u64> {
    if !is_class_of_types(memory, type_info, POINTER) {
        return None;
    }
    // {virtual table, name, flags: u32, pointee}.
    memory.read_u64(type_info.wrapping_add(24)).ok()
}

/// Returns the address of the base with that mangled name in an object, or of the object itself if
/// it is of that class.
pub(crate) fn base(memory: &mut impl Memory, object: u64, type_info: u64, wanted: &[u8]) -> Option<u64> {
    let mut budget = 64;
    base_within(memory, object, type_info, wanted, 16, &mut budget)
}

fn base_within(
    memory: &mut impl Memory,
    object: u64,
    type_info: u64,
    wanted: &[u8],
    depth: u32,
    budget: &mut u32,
) -> Option<u64> {
    *budget = budget.checked_sub(1)?;
    let depth = depth.checked_sub(1)?;
    if is_named(memory, type_info, wanted) {
        return Some(object);
    }
    if is_class_of_types(memory, type_info, ONE_BASE) {
        let base = memory.read_u64(type_info.wrapping_add(16)).ok()?;
        return base_within(memory, object, base, wanted, depth, budget);
    }
    if !is_class_of_types(memory, type_info, MANY_BASES) {
        return None;
    }
    // {virtual table, name, flags: u32, base_count: u32, then {type, offset << 8 | flags} for
    // each}.
    let count = (memory.read_u64(type_info.wrapping_add(16)).ok()? >> 32).min(32);
    for index in 0..count {
        let at = type_info.wrapping_add(24 + 16 * index);
        let (base, flags) = memory.read_pair(at).ok()?;
        let offset = (flags as i64) >> 8;
        // Bit 0: a virtual base, whose offset is in the virtual table, `offset` bytes from its
        // functions.
        let place = if flags & 1 == 0 {
            object.wrapping_add_signed(offset)
        } else {
            let functions = strip(memory.read_u64(object).ok()?);
            object.wrapping_add(memory.read_u64(functions.wrapping_add_signed(offset)).ok()?)
        };
        if let Some(found) = base_within(memory, place, base, wanted, depth, budget) {
            return Some(found);
        }
    }
    None
}
