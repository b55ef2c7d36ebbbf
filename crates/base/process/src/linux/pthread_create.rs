//! Definitions of `pthread_create` and `thrd_create` that give each new thread an alternate signal
//! stack.
//!
//! The dynamic linker binds every image's calls to the program's definition, which gives the new
//! thread its stack and starts it; the C library's own function does the rest. (Rust's std detects
//! the stack and doesn't create its own.) A static program is bound to it by the linker.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::alternate_stack::new_stack_beside;
use super::threads::announce_thread;
use crate::alternate_stack::adopt;
use crate::stack::{Stack, page_size};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// The address of the C library's own function, once it has been looked up.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// Defines a function that returns the address of a symbol of the program itself, which no shared
/// library has; 0 if there is none. `$pull` is declared as undefined, but not used.
macro_rules! weak {
    ($(#[$doc:meta])* $name:ident: $symbol:literal $(, $pull:literal)?) => {
        $(#[$doc])*
        fn $name() -> usize {
            let address: usize;
            // SAFETY: it reads an address from the global offset table, which exists where this
            // code is.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    $(concat!(".globl ", $pull),)?
                    concat!("mov {address}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                    address = out(reg) address,
                    options(nostack, preserves_flags, pure, readonly),
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    $(concat!(".globl ", $pull),)?
                    concat!("adrp {address}, :got:", $symbol),
                    concat!("ldr {address}, [{address}, :got_lo12:", $symbol, "]"),
                    address = out(reg) address,
                    options(nostack, preserves_flags, pure, readonly),
                );
            }
            address
        }
    };
}
weak! {
    /// Returns the C library's own function in a program that is linked with `libc.a`; else 0.
    ///
    /// In such a program no function is found by name. There it has a second name,
    /// `__pthread_create_2_1`, which no shared library has, so the reference is weak. A weak
    /// reference alone links nothing, and nobody else needs the object that contains it, since
    /// `pthread_create` is defined here. So `timer_create`, whose object needs it and which a
    /// shared C library also has, is declared as undefined. No instruction uses that name: a linker
    /// that doesn't find it anywhere reports nothing. (glibc before 2.34 has it in librt, and its
    /// `pthread_join` needs the object.)
    linked_in: "__pthread_create_2_1", "timer_create"
}
weak! {
    /// Returns the interceptor of a sanitizer whose runtime is linked into the program, as clang
    /// does; else 0.
    ///
    /// The runtime defines `pthread_create` as a weak second name of it, which the definition here
    /// replaces.
    interceptor: "__interceptor_pthread_create"
}

fn real() -> Option<Create> {
    let mut found = REAL.load(Ordering::Acquire);
    if found == 0 {
        found = interceptor();
        if found == 0 {
            found = linked_in();
        }
        REAL.store(found, Ordering::Release);
    }
    if found == 0 {
        // SAFETY: a NUL-terminated name; looked up outside a signal handler (a thread is being
        // created).
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize;
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: the next definition of `pthread_create` has this signature.
    (found != 0).then(|| unsafe { core::mem::transmute::<usize, Create>(found) })
}

/// Whether threads that are created from now on get an alternate stack.
static NEW_THREADS: AtomicBool = AtomicBool::new(false);

/// Sets whether threads that are created from now on get an alternate stack.
///
/// The C library's function is looked up now, so that no thread creation has to.
pub(super) fn attach_new_threads(wants: bool) {
    let _ = real();
    NEW_THREADS.store(wants, Ordering::Relaxed);
}

/// Whether the program's images are bound to this definition.
pub(super) fn is_first() -> bool {
    if linked_in() != 0 {
        return true;
    }
    // SAFETY: a NUL-terminated name.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_create".as_ptr()) } as usize;
    // A program that exports nothing is not found by name, but its own calls are bound to its
    // definition anyway.
    first == pthread_create as *const () as usize || first == REAL.load(Ordering::Acquire)
}

/// The address of a function that is called before each thread is created; 0 for none.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Sets the function that is called before each thread is created, by the creating thread.
pub(super) fn call_before_creation(function: Option<extern "C" fn()>) {
    BEFORE.store(function.map_or(0, |function| function as usize), Ordering::Release);
}

fn before_creation() {
    let function = BEFORE.load(Ordering::Acquire);
    if function != 0 {
        // SAFETY: the address of such a function, from `call_before_creation`.
        let function = unsafe { core::mem::transmute::<usize, extern "C" fn()>(function) };
        function();
    }
}

/// A new thread's start data, at the top of its own alternate stack.
///
/// The stack is not in use yet, and its pages are present.
#[repr(C)]
struct Begin {
    start: Start,
    argument: *mut c_void,
    stack: Stack,
}

extern "C" fn begin(at: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below put it there for this thread alone. Read before the stack can
    // be used.
    let Begin { start, argument, stack } = unsafe { at.cast::<Begin>().read() };
    if adopt(stack, usize::MAX).is_ok() {
        announce_thread();
    }
    start(argument)
}

/// Returns the size of the stack of a thread with these attributes.
fn stack_size(attributes: *const libc::pthread_attr_t) -> usize {
    let mut size = usize::MAX;
    if !attributes.is_null() {
        // SAFETY: the attributes of the caller of `pthread_create`.
        unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut size) };
    }
    size
}

/// Calls `create` with a start routine and its argument: those of the caller or, if threads get an
/// alternate stack, [`begin`] with a stack for a thread with these attributes. Returns its result,
/// which is 0 if the thread was created.
fn create_with_stack(
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
    create: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    before_creation();
    if !NEW_THREADS.load(Ordering::Relaxed) {
        return create(start, argument);
    }
    let Ok(stack) = new_stack_beside(stack_size(attributes)) else { return create(start, argument) };
    let at = (stack.top() as *mut Begin).wrapping_sub(1);
    let (address, size) = (stack.base(), stack.size());
    // SAFETY: the stack's highest bytes are ours and unused; its top is page-aligned.
    unsafe { at.write(Begin { start, argument, stack }) };
    let answer = create(begin, at.cast());
    if answer != 0 {
        // SAFETY: the stack from above, whose value was moved to `at`: there is no thread.
        unsafe { Stack::from_parts(address, size, page_size()) }.unmap();
    }
    answer
}

/// pthread_create(3), like the C library's, with an alternate signal stack if enabled.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = real() else { return libc::EAGAIN };
    // SAFETY: the caller's arguments, except for the start routine, which calls the caller's.
    create_with_stack(attributes, start, argument, |start, argument| unsafe {
        real(thread, attributes, start, argument)
    })
}

// <threads.h> of glibc.
const THRD_SUCCESS: c_int = 0;
const THRD_ERROR: c_int = 2;
const THRD_NOMEM: c_int = 3;

/// thrd_create(3) of ISO C 11, like the C library's, with an alternate signal stack if enabled.
///
/// A thread's result is the same word in both interfaces, of which thrd_join(3) takes an `int`.
#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(thread: *mut libc::pthread_t, start: Start, argument: *mut c_void) -> c_int {
    // SAFETY: a NUL-terminated name; a thread is being created.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"thrd_create".as_ptr()) } as usize;
    if next != 0 {
        type Create = unsafe extern "C" fn(*mut libc::pthread_t, Start, *mut c_void) -> c_int;
        // SAFETY: the next definition of `thrd_create` has this signature.
        let next = unsafe { core::mem::transmute::<usize, Create>(next) };
        // SAFETY: as in `pthread_create`.
        return create_with_stack(core::ptr::null(), start, argument, |start, argument| unsafe {
            next(thread, start, argument)
        });
    }
    // A program that is linked with `libc.a`.
    // SAFETY: the caller's arguments. The start routine returns an `int`: nobody reads the
    // register's other half.
    match unsafe { pthread_create(thread, core::ptr::null(), start, argument) } {
        0 => THRD_SUCCESS,
        libc::ENOMEM => THRD_NOMEM,
        _ => THRD_ERROR,
    }
}
