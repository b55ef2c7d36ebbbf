//! Walks another thread: a signal stops it, its handler passes the registers on and waits during
//! the walk.
//!
//! `cargo run -p coroner-unwind --example another_thread`

use coroner_unwind::{Options, RuleCache, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, context_registers};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The stopped thread's context, while it is stopped.
static CONTEXT: AtomicPtr<libc::ucontext_t> = AtomicPtr::new(core::ptr::null_mut());
/// 1 lets the stopped thread continue.
static GO: AtomicU32 = AtomicU32::new(0);

extern "C" fn stop(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CONTEXT.store(context.cast(), Ordering::Release);
    while GO.load(Ordering::Acquire) == 0 {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn busy(depth: u32) -> u32 {
    if depth > 0 {
        return std::hint::black_box(busy(depth - 1)) + 1;
    }
    while GO.load(Ordering::Relaxed) == 0 {
        std::hint::spin_loop();
    }
    0
}

fn main() {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = stop as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler only waits.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()) };

    let thread = std::thread::spawn(|| busy(5));
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the thread is not joined yet.
    unsafe { libc::pthread_kill(std::os::unix::thread::JoinHandleExt::as_pthread_t(&thread), libc::SIGUSR1) };
    let context = loop {
        let context = CONTEXT.load(Ordering::Acquire);
        if !context.is_null() {
            break context;
        }
        std::thread::yield_now();
    };
    // SAFETY: the thread waits in its handler, so its context stays.
    let registers = context_registers(unsafe { &*context });

    let images = Loaded::now();
    let mut cache = Box::new(RuleCache::new());
    let mut walker =
        Walker::<Native, _, _>::new(&registers, ThisProcess::default(), &images, &mut cache, Options::default());
    while let Some(frame) = walker.next_frame() {
        println!("{:#014x} {}", frame.lookup_address(), frame.found.name());
    }
    println!("{:?}", walker.end());
    GO.store(1, Ordering::Release);
    assert_eq!(thread.join().ok(), Some(5));
}
