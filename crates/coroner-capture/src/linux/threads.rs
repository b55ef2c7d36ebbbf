//! Alternate signal stacks for all threads.
//!
//! Without one, a thread whose stack is full dies without a word: the kernel has nowhere to put the signal's frame. Rust's
//! standard library gives its threads 8 KiB, which is enough for the first steps of the handler; bionic gives one to every
//! thread; threads that C or C++ code makes with glibc or musl have none.
//!
//! How every thread gets one ([`crate::AlternateStacks::Everywhere`]):
//! * the installing thread, at install;
//! * threads that exist by then: each is interrupted once (by the signal that stops threads) and its context, which the kernel
//!   restores with the alternate stack that stands in it, is given one;
//! * later threads: on Linux with a shared glibc, Coroner defines `pthread_create`. The dynamic linker binds every image's
//!   calls to the program's definition, which gives the new thread its stack and starts it; the C library's own function
//!   does the rest. (Rust's std sees the stack and does not make its own.)
//!
//! Where a host forbids the interposition (feature `interpose-pthread-create` off, static or musl programs, a program in
//! which another definition comes first), threads are attached by hand: [`crate::attach_current_thread`] as the first thing
//! a thread does. `coroner doctor` and [`interposes`] tell which it is.

use coroner_process::stack::{Stack, alternate_stack};
use coroner_process::syscall::{Errno, Result};

use crate::alternate_stack::adopt;
pub(crate) use crate::alternate_stack::page_size;

/// Bytes that the handler uses before it goes on to Coroner's own stack, generously.
const HANDLER: usize = 4 << 10;

/// The size of an alternate stack: room for the kernel's frame (which is larger on processors with larger vector
/// registers: AT_MINSIGSTKSZ of getauxval(3)) and Coroner's handler, then for an app's handler that runs after it and may
/// raise a signal of its own. (Rust's handler of stack overflows prints a message and aborts; with Coroner's frames above
/// it, std's own 8 KiB would be too little.)
fn wanted_size() -> usize {
    2 * frame_size() + 6 * HANDLER
}

/// The least that an alternate stack that is there already must have to be left as it is.
fn least_size() -> usize {
    2 * frame_size() + 3 * HANDLER
}

/// Bytes of a signal's frame.
fn frame_size() -> usize {
    /// `AT_MINSIGSTKSZ` of linux/auxvec.h.
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: only reads the auxiliary vector (not async-signal-safe).
    let frame = unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize;
    frame.max(libc::MINSIGSTKSZ)
}

/// An alternate stack. Only the pages that the handler needs are touched: a thousand threads have one each.
fn new_stack() -> Result<Stack> {
    Stack::map(wanted_size(), page_size(), frame_size() + HANDLER)
}

/// Gives the calling thread an alternate stack unless it has a good one (not async-signal-safe). True if it has got one now, which
/// is freed when the thread ends.
///
/// # Errors
/// What the kernel answered: no memory, or the thread is running on its alternate stack.
pub(crate) fn attach_current() -> Result<bool> {
    let now = alternate_stack()?;
    if now.flags & libc::SS_DISABLE == 0 && now.size >= least_size() {
        return Ok(false);
    }
    let stack = new_stack()?;
    adopt(stack).map(|()| true)
}

/// Makes what frees stacks when threads end (not async-signal-safe, once).
pub(crate) fn prepare() {
    crate::alternate_stack::prepare();
    #[cfg(interpose)]
    interpose::prepare();
}

/// Whether threads that are made from now on get an alternate stack by themselves.
pub(crate) fn interposes() -> bool {
    #[cfg(interpose)]
    return interpose::is_first();
    #[cfg(not(interpose))]
    return cfg!(target_os = "android");
}

/// How long a thread may take to answer the sweep; one that does not (it blocks the signal) goes without.
const ANSWER_NS: u64 = 2_000_000;

/// Gives an alternate stack to each thread of this process that has none, by its context (not async-signal-safe). The stacks of
/// these threads are not freed when they end.
pub(crate) fn sweep(
    stopper: &coroner_process::stop_the_world::ThreadStopper,
    tasks: &coroner_process::threads::TaskDirectory,
) {
    if stopper.signal() == 0 || tasks.had_one_thread() {
        return;
    }
    let me = coroner_process::threads::this_thread();
    let mut tids = [0; 256];
    let mut count = 0;
    tasks.list(&mut |tid| {
        if tid != me
            && let Some(place) = tids.get_mut(count)
        {
            *place = tid;
            count += 1;
        }
    });
    for tid in tids.iter().take(count) {
        let Ok(stack) = new_stack() else { return };
        let wanted = stack.as_signal_stack();
        let least = least_size();
        let mut taken = false;
        if let Ok(mut interrupted) = stopper.interrupt(*tid, ANSWER_NS) {
            let now = interrupted.context_mut().alternate_stack();
            if now.flags & libc::SS_DISABLE != 0 || now.size < least {
                *now = wanted;
                taken = true;
            }
        }
        if !taken {
            stack.unmap();
        }
    }
}

#[cfg(interpose)]
mod interpose {
    //! The definition of `pthread_create`.

    use core::ffi::{c_int, c_void};
    use core::sync::atomic::{AtomicUsize, Ordering};

    use coroner_process::threads::announce_thread;

    use super::{Stack, adopt, new_stack, page_size};
    use crate::install_options::AlternateStacks;
    use crate::installed;

    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

    /// The C library's own function, once it was looked up.
    static REAL: AtomicUsize = AtomicUsize::new(0);

    fn real() -> Option<Create> {
        let mut found = REAL.load(Ordering::Acquire);
        if found == 0 {
            // SAFETY: a NUL-terminated name; looked up outside a signal handler (a thread is being made).
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize;
            REAL.store(found, Ordering::Release);
        }
        // SAFETY: the next definition of `pthread_create` has this signature.
        (found != 0).then(|| unsafe { core::mem::transmute::<usize, Create>(found) })
    }

    /// Looks the C library's function up, so that no thread creation has to.
    pub(super) fn prepare() {
        let _ = real();
    }

    /// Whether this definition is the one that the program's images are bound to.
    pub(super) fn is_first() -> bool {
        // SAFETY: a NUL-terminated name.
        let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_create".as_ptr()) } as usize;
        // A program that exports nothing is not found by name; its own calls are bound to its definition all the same.
        first == pthread_create as *const () as usize || first == REAL.load(Ordering::Acquire)
    }

    /// What a new thread starts with, at the top of its own alternate stack, which is not in use yet and has its pages there.
    #[repr(C)]
    struct Begin {
        start: Start,
        argument: *mut c_void,
        stack: Stack,
    }

    extern "C" fn begin(at: *mut c_void) -> *mut c_void {
        // SAFETY: `pthread_create` below put it there for this thread alone. Read before the stack can be used.
        let Begin { start, argument, stack } = unsafe { at.cast::<Begin>().read() };
        if adopt(stack).is_ok() {
            announce_thread();
        }
        start(argument)
    }

    /// pthread_create(3): as the C library's, but the new thread has an alternate signal stack while Coroner is installed.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: Start,
        argument: *mut c_void,
    ) -> c_int {
        let Some(real) = real() else { return libc::EAGAIN };
        let wanted =
            installed::get().is_some_and(|installed| installed.options.alternate_stacks == AlternateStacks::Everywhere);
        if wanted && let Ok(stack) = new_stack() {
            let at = (stack.top() as *mut Begin).wrapping_sub(1);
            let (address, size) = (stack.base(), stack.size());
            // SAFETY: the stack's highest bytes are ours and unused; its top is page-aligned.
            unsafe { at.write(Begin { start, argument, stack }) };
            // SAFETY: the caller's arguments, but for the start routine, which calls the caller's.
            let answer = unsafe { real(thread, attributes, begin, at.cast()) };
            if answer != 0 {
                Stack::from_parts(address, size, page_size()).unmap();
            }
            return answer;
        }
        // SAFETY: the caller's arguments.
        unsafe { real(thread, attributes, start, argument) }
    }
}

/// The error of attaching a thread.
pub(crate) fn attach() -> core::result::Result<(), Errno> {
    attach_current().map(|_| ())
}
