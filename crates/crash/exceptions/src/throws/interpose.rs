//! Definitions of `__cxa_throw` and `__cxa_rethrow` (Itanium C++ ABI: Exception Handling, 2.4.3 and
//! 2.5.4).
//!
//! Each saves the caller's registers, calls [`super::thrown`], and jumps on into the C++ runtime
//! with the stack unchanged: the runtime sees its own caller, and there is no frame of Coroner to
//! be unwound.
//!
//! There are two ways to intercept the calls, chosen by a feature:
//! * `interpose-cxa-throw`: a definition of the names themselves. The dynamic linker binds every
//!   image's calls to it, and it finds the runtime's own as the next definition (`RTLD_NEXT`), or,
//!   if the dynamic linker has none in its global scope (a plugin of a C program), as that of the
//!   image that throws (`runtime_of_caller`). If libstdc++ is linked into the program or a library
//!   (`-static-libstdc++`), the linker takes these definitions and omits the runtime's:
//!   `libstdcxx_throw` does what they do. In a program whose calls are bound to another definition,
//!   throws are not intercepted, which [`prepare`] reports.
//! * `wrap-cxa-throw`: the names by which the linker's `--wrap=__cxa_throw --wrap=__cxa_rethrow`
//!   replaces them, for a runtime that is linked into the program with its own definitions
//!   (libc++abi): two definitions of one name can't be linked. (On Apple's systems the runtime is
//!   always a shared library, and this is the same as the other.)
//!
//! On Apple's systems a definition only affects the calls of its own image; those of others are
//! redirected here through their symbol pointers (`symbol_pointers`).

#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
use coroner_process::registers::Registers;

/// Whether this build intercepts throws.
pub(super) const IS_BUILT_IN: bool = cfg!(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"));

/// Finds the runtime's own functions (not async-signal-safe), so that no throw has to. Returns
/// `false` if throws are not intercepted.
pub(super) fn prepare() -> bool {
    #[cfg(any(
        all(feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")),
        all(feature = "wrap-cxa-throw", target_vendor = "apple")
    ))]
    return next::prepare();
    #[cfg(not(any(
        all(feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")),
        all(feature = "wrap-cxa-throw", target_vendor = "apple")
    )))]
    true
}

/// Caller state that the definitions below save: its callee-saved registers, stack pointer and
/// program counter.
#[cfg(all(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"), target_arch = "x86_64"))]
#[derive(Debug)]
#[repr(C)]
struct Caller {
    rbx: u64,
    rbp: u64,
    rsp: u64,
    r12_to_r15: [u64; 4],
    pc: u64,
}

/// Caller state that the definitions below save: its callee-saved registers, stack pointer and
/// program counter.
#[cfg(all(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"), target_arch = "aarch64"))]
#[derive(Debug)]
#[repr(C)]
struct Caller {
    x19_to_x29: [u64; 11],
    pc: u64,
    sp: u64,
}

#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
impl Caller {
    #[cfg(target_arch = "x86_64")]
    fn registers(&self) -> Registers {
        let [r12, r13, r14, r15] = self.r12_to_r15;
        let gpr = [0, 0, 0, self.rbx, 0, 0, self.rbp, self.rsp, 0, 0, 0, 0, r12, r13, r14, r15];
        Registers { gpr, pc: self.pc, flags: 0 }
    }

    #[cfg(target_arch = "aarch64")]
    fn registers(&self) -> Registers {
        let mut registers = Registers { sp: self.sp, pc: self.pc, ..Registers::default() };
        for (to, from) in registers.x.iter_mut().skip(19).zip(self.x19_to_x29) {
            *to = from;
        }
        registers
    }
}

/// Replaces the terminate handler again if the app has set its own since.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
fn take_terminate_place_again() {
    #[cfg(not(target_vendor = "apple"))]
    if super::is_on() {
        crate::terminate::take_place_again();
    }
}

/// Handles a call of `__cxa_throw` with its arguments; returns the address at which it continues.
///
/// # Safety
/// Must only be called by the definitions below.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
unsafe extern "C" fn coroner_cxa_thrown(object: u64, type_info: u64, caller: &Caller) -> usize {
    take_terminate_place_again();
    super::thrown(object, type_info, &caller.registers());
    next::throw(caller.pc)
}

/// Handles a call of `__cxa_rethrow`; returns the address at which it continues.
///
/// # Safety
/// Must only be called by the definitions below.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
unsafe extern "C" fn coroner_cxa_rethrown(_: u64, _: u64, caller: &Caller) -> usize {
    if let Some((object, type_info)) = crate::itanium::current_object() {
        take_terminate_place_again();
        super::thrown_again(object, type_info, &caller.registers());
    }
    next::rethrow(caller.pc)
}

/// Defines a function that saves its caller's state, calls `$hook` with its first two arguments and
/// the caller's state, and jumps to the returned address with all arguments and the stack
/// unchanged.
#[cfg(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
macro_rules! forwarding {
    ($(#[$doc:meta])* $name:ident => $hook:ident $(, $directive:literal)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the ABI says.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case)]
        pub(super) unsafe extern "C-unwind" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                $($directive,)*
                "endbr64",
                ".cfi_startproc",
                // Three arguments, and the caller in 64 bytes: rsp is a multiple of 16 again.
                "push rdi",
                "push rsi",
                "push rdx",
                "sub rsp, 64",
                ".cfi_def_cfa_offset 96",
                "mov [rsp], rbx",
                "mov [rsp + 8], rbp",
                "lea rax, [rsp + 96]",
                "mov [rsp + 16], rax",
                "mov [rsp + 24], r12",
                "mov [rsp + 32], r13",
                "mov [rsp + 40], r14",
                "mov [rsp + 48], r15",
                "mov rax, [rsp + 88]",
                "mov [rsp + 56], rax",
                "mov rdx, rsp",
                "call {hook}",
                "add rsp, 64",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_def_cfa_offset 8",
                "jmp rax",
                ".cfi_endproc",
                hook = sym $hook,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                $($directive,)*
                "hint #34", // bti c
                ".cfi_startproc",
                // Three arguments and a word of padding, then the caller in 104 bytes, padded to
                // 112.
                "sub sp, sp, #144",
                ".cfi_def_cfa_offset 144",
                "stp x19, x20, [sp]",
                "stp x21, x22, [sp, #16]",
                "stp x23, x24, [sp, #32]",
                "stp x25, x26, [sp, #48]",
                "stp x27, x28, [sp, #64]",
                "stp x29, x30, [sp, #80]",
                ".cfi_offset x29, -64",
                ".cfi_offset x30, -56",
                "add x9, sp, #144",
                "str x9, [sp, #96]",
                "stp x0, x1, [sp, #112]",
                "str x2, [sp, #128]",
                "mov x2, sp",
                "bl {hook}",
                "mov x16, x0",
                "ldp x29, x30, [sp, #80]",
                "ldp x0, x1, [sp, #112]",
                "ldr x2, [sp, #128]",
                "add sp, sp, #144",
                ".cfi_def_cfa_offset 0",
                "br x16",
                ".cfi_endproc",
                hook = sym $hook,
            );
        }
    };
}

#[cfg(any(
    all(feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")),
    all(feature = "wrap-cxa-throw", target_vendor = "apple")
))]
mod next {
    //! The runtime's own definitions, after ours.

    use core::ffi::CStr;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::{coroner_cxa_rethrown, coroner_cxa_thrown};

    // With a second name, by which it is identified even if the first is another definition's.
    #[cfg(not(target_vendor = "apple"))]
    forwarding! {
        /// `void __cxa_throw(void *object, std::type_info *type, void (*destructor)(void *))`.
        __cxa_throw => coroner_cxa_thrown,
        ".globl coroner_cxa_throw",
        ".hidden coroner_cxa_throw",
        "coroner_cxa_throw:"
    }
    #[cfg(target_vendor = "apple")]
    forwarding! {
        /// `void __cxa_throw(void *object, std::type_info *type, void (*destructor)(void *))`.
        __cxa_throw => coroner_cxa_thrown
    }
    forwarding! {
        /// `void __cxa_rethrow()`.
        __cxa_rethrow => coroner_cxa_rethrown
    }
    // libstdc++ has it in the same object file as the two above, which would be linked for it
    // (`std::make_exception_ptr`), and define them twice.
    #[cfg(not(target_vendor = "apple"))]
    forwarding! {
        /// `void *__cxa_init_primary_exception(void *object, std::type_info *type, void
        /// (*destructor)(void *))`.
        __cxa_init_primary_exception => coroner_cxa_initialising
    }

    /// Handles a call of `__cxa_init_primary_exception`; returns the address at which it continues.
    ///
    /// # Safety
    /// Must only be called by the definition above.
    #[cfg(not(target_vendor = "apple"))]
    unsafe extern "C" fn coroner_cxa_initialising(_: u64, _: u64, caller: &super::Caller) -> usize {
        let ours = __cxa_init_primary_exception as *const () as usize;
        INITIALISE.find(ours, libstdcxx_throw::initialise(), caller.pc)
    }

    static THROW: Next = Next::new(c"__cxa_throw");
    static RETHROW: Next = Next::new(c"__cxa_rethrow");
    #[cfg(not(target_vendor = "apple"))]
    static INITIALISE: Next = Next::new(c"__cxa_init_primary_exception");

    /// The definition of a function after ours.
    struct Next {
        name: &'static CStr,
        /// Its address, once it is known to be the same for all callers; before that 0.
        found: AtomicUsize,
    }

    impl Next {
        const fn new(name: &'static CStr) -> Next {
            Next { name, found: AtomicUsize::new(0) }
        }

        /// Returns the address of the definition that all callers share: the runtime's, or `raise`,
        /// which does its work, if the linker has omitted it for ours. Returns 0 if there is none.
        fn find_shared(&self, ours: usize, raise: usize) -> usize {
            let mut found = self.found.load(Ordering::Acquire);
            if found == 0 {
                found = if is_linked_in() { raise } else { find_behind(self.name, ours) };
                self.found.store(found, Ordering::Release);
            }
            found
        }

        /// Returns the address of the definition for a caller, which is never 0: a runtime that is
        /// linked into a shared library is that library's own.
        #[cfg(not(target_vendor = "apple"))]
        fn find(&self, ours: usize, raise: usize, caller: u64) -> usize {
            use crate::throws::runtime_of_caller::{Reach, find_symbol};

            let shared = self.find_shared(ours, raise);
            if shared != 0 {
                return shared;
            }
            match find_symbol(caller, self.name, ours, Reach::Scope) {
                0 if libstdcxx_throw::has_runtime(caller) => raise,
                0 => match find_symbol(caller, self.name, ours, Reach::Anywhere) {
                    0 => raise,
                    found => found,
                },
                found => found,
            }
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    fn find_behind(name: &CStr, ours: usize) -> usize {
        // SAFETY: a NUL-terminated name. Not async-signal-safe: the program is throwing, or
        // installing.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        if next == ours { 0 } else { next }
    }

    #[cfg(target_vendor = "apple")]
    fn find_behind(name: &CStr, ours: usize) -> usize {
        /// C++ runtimes that may have been loaded after the program.
        const RUNTIMES: [&CStr; 3] =
            [c"/usr/lib/libc++abi.dylib", c"/usr/lib/libc++.1.dylib", c"/usr/lib/libSystem.B.dylib"];
        let is_other = |found: usize| (found != 0 && found != ours).then_some(found);
        // SAFETY: NUL-terminated names. Not async-signal-safe: the program is throwing, or
        // installing.
        unsafe {
            let next = is_other(libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize);
            let in_runtime = |runtime: &CStr| {
                let library = libc::dlopen(runtime.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                let found = if library.is_null() { 0 } else { libc::dlsym(library, name.as_ptr()) as usize };
                is_other(found)
            };
            next.or_else(|| RUNTIMES.into_iter().find_map(in_runtime)).unwrap_or(0)
        }
    }

    fn find_throw() -> usize {
        THROW.find_shared(__cxa_throw as *const () as usize, libstdcxx_throw::throw())
    }

    fn find_rethrow() -> usize {
        RETHROW.find_shared(__cxa_rethrow as *const () as usize, libstdcxx_throw::rethrow())
    }

    /// Looks both functions up, if a runtime is loaded. Returns `false` if another definition is
    /// the first one.
    pub(super) fn prepare() -> bool {
        #[cfg(not(target_vendor = "apple"))]
        {
            unsafe extern "C" {
                fn coroner_cxa_throw();
            }
            let [first, ours] = core::hint::black_box([__cxa_throw as *const (), coroner_cxa_throw as *const ()]);
            if first != ours {
                return false;
            }
        }
        let _ = (find_throw(), find_rethrow());
        #[cfg(target_vendor = "apple")]
        crate::throws::symbol_pointers::begin(functions);
        true
    }

    /// Whether the C++ runtime is linked into the image that contains this code, without its own
    /// definitions of these functions.
    #[cfg(not(target_vendor = "apple"))]
    fn is_linked_in() -> bool {
        let runtime = crate::itanium::function(crate::itanium::Function::GetGlobals) as u64;
        let here = is_linked_in as *const () as u64;
        let images = coroner_walk::LiveReader::new().and_then(coroner_walk::LiveImages::current);
        runtime != 0
            && images.is_some_and(|images| images.find(here).is_some_and(|image| image.range.contains(runtime)))
    }

    #[cfg(target_vendor = "apple")]
    fn is_linked_in() -> bool {
        false
    }

    /// Returns both functions, with the names by which images are bound to them.
    #[cfg(target_vendor = "apple")]
    fn functions() -> [crate::throws::symbol_pointers::Function; 2] {
        [
            crate::throws::symbol_pointers::Function {
                name: c"___cxa_throw",
                original: find_throw(),
                ours: __cxa_throw as *const () as usize,
            },
            crate::throws::symbol_pointers::Function {
                name: c"___cxa_rethrow",
                original: find_rethrow(),
                ours: __cxa_rethrow as *const () as usize,
            },
        ]
    }

    #[cfg(not(target_vendor = "apple"))]
    pub(super) fn throw(caller: u64) -> usize {
        THROW.find(__cxa_throw as *const () as usize, libstdcxx_throw::throw(), caller)
    }

    #[cfg(not(target_vendor = "apple"))]
    pub(super) fn rethrow(caller: u64) -> usize {
        RETHROW.find(__cxa_rethrow as *const () as usize, libstdcxx_throw::rethrow(), caller)
    }

    #[cfg(target_vendor = "apple")]
    pub(super) fn throw(_caller: u64) -> usize {
        or_die(find_throw())
    }

    #[cfg(target_vendor = "apple")]
    pub(super) fn rethrow(_caller: u64) -> usize {
        or_die(find_rethrow())
    }

    /// Ends the process if no runtime is loaded that could throw: the object can't be a C++
    /// exception, since the system has only one runtime.
    #[cfg(target_vendor = "apple")]
    fn or_die(found: usize) -> usize {
        if found == 0 {
            // SAFETY: ends the process.
            unsafe { libc::abort() };
        }
        found
    }

    #[cfg(not(target_vendor = "apple"))]
    use crate::throws::libstdcxx_throw;
    #[cfg(target_vendor = "apple")]
    mod libstdcxx_throw {
        //! The runtime is always a shared library.

        pub(super) fn throw() -> usize {
            0
        }

        pub(super) fn rethrow() -> usize {
            0
        }
    }
}

#[cfg(all(feature = "wrap-cxa-throw", not(target_vendor = "apple")))]
mod next {
    //! The runtime's own definitions, by the names that the linker gives them.

    use super::{coroner_cxa_rethrown, coroner_cxa_thrown};

    unsafe extern "C" {
        fn __real___cxa_throw();
        fn __real___cxa_rethrow();
    }

    forwarding! {
        /// `void __cxa_throw(void *object, std::type_info *type, void (*destructor)(void *))`; the
        /// linker redirects all its calls here.
        __wrap___cxa_throw => coroner_cxa_thrown
    }
    forwarding! {
        /// `void __cxa_rethrow()`; the linker redirects all its calls here.
        __wrap___cxa_rethrow => coroner_cxa_rethrown
    }

    pub(super) fn throw(_caller: u64) -> usize {
        __real___cxa_throw as *const () as usize
    }

    pub(super) fn rethrow(_caller: u64) -> usize {
        __real___cxa_rethrow as *const () as usize
    }
}
