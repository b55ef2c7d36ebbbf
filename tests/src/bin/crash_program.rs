//! A program that installs Coroner and dies in the requested way: `crash_program STORE FAULT
//! THREADS [CONDITION]…`.
//!
//! With the store `-`, it runs without Coroner, to show how the process ends then. Other values of
//! FAULT: `exit` exits cleanly, `terminate` sends SIGTERM, `handled-errors` reports errors and
//! `live-backtraces` captures threads by ptrace while threads wait in system calls, `deliver` is
//! the next launch, which delivers to the folder `reports` in the store.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::Ordering;

use coroner::{Crashes, Delivery, Limits};
use coroner_tests::conditions::{self, POISONED, POISONED_EXIT};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("missing argument: {what}"));
    let (store, fault) = (next("store"), next("fault"));
    let threads: usize = next("number of threads").parse().expect("a number of threads");
    let mut chain_first = false;
    let (mut silent_fork, mut reinstall, mut stack_memory) = (false, false, 2048);
    let mut conditions = Vec::new();
    for name in arguments {
        match name.as_str() {
            "chain-first" => chain_first = true,
            "silent-fork" => silent_fork = true,
            "reinstall-handlers" => reinstall = true,
            "stack-memory" => stack_memory = 32_768,
            name => conditions.push(conditions::find(name).unwrap_or_else(|| panic!("unknown condition {name:?}"))),
        }
    }

    for condition in &conditions {
        (condition.before_install)();
    }
    if store == "-" {
        let _ = conditions::DISK.set(std::env::temp_dir());
    } else {
        let _ = conditions::DISK.set(store.clone().into());
        let fork = if silent_fork { coroner::ForkPolicy::Silent } else { coroner::ForkPolicy::Report };
        let config = coroner::Config::new("crash-program").version("1.0").store_dir(&store);
        let config = if fault == "deliver" { config } else { config.no_sinks() };
        let crashes = Crashes::new().chain_first(chain_first).reinstall_handlers(reinstall).fork(fork);
        let crashes = crashes.stack_memory(stack_memory);
        let config = config.delivery(Delivery::new().symbolicate(false));
        // Under full emulation, a hundred thousand frames take too long, and no names are found in
        // the half second that a crashing process has for them: the report would be incomplete.
        let emulated = std::env::var_os("CORONER_TEST_EMULATED").is_some();
        let limits = Limits::new();
        let (crashes, limits) = if emulated {
            (crashes.symbol_names(false), limits.deadline(std::time::Duration::from_mins(1)))
        } else {
            (crashes, limits)
        };
        if let Err(error) = coroner::install(config.crashes(crashes).limits(limits)) {
            panic!("can't install Coroner: {error}");
        }
        coroner::set_tag("weather", "rain").expect("can't set a tag");
    }
    if conditions::DEAF.load(Ordering::SeqCst) {
        block_signals(libc::SIG_BLOCK);
    }
    coroner_faults::threads::park(threads);
    if conditions::DEAF.load(Ordering::SeqCst) {
        block_signals(libc::SIG_UNBLOCK);
    }
    for condition in &conditions {
        (condition.before_fault)();
    }
    match fault.as_str() {
        "exit" => {}
        #[cfg(target_env = "gnu")]
        "quick-exit" => {
            // glibc, quick_exit(3).
            unsafe extern "C" {
                fn quick_exit(status: i32) -> !;
            }
            // SAFETY: ends the process.
            unsafe { quick_exit(0) }
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        "handled-errors" => handled_errors(),
        #[cfg(target_os = "linux")]
        "live-backtraces" => live_backtraces(),
        "deliver" => {
            let coroner = coroner::installed().expect("installed above");
            assert!(coroner.flush(std::time::Duration::from_mins(1)), "reports are left undelivered");
            let last = coroner.last_run();
            println!("the last run {}", last.outcome);
            last.signals_taken.inspect(|taken| println!("{taken}"));
        }
        // SAFETY: a signal to this process.
        "terminate" => unsafe {
            libc::kill(libc::getpid(), libc::SIGTERM);
            libc::sleep(5);
        },
        name => (coroner_tests::damaged::find_fault(name).unwrap_or_else(|| panic!("unknown fault {name:?}")).run)(),
    }
}

/// Reports errors, and checks that waiting threads are not disturbed.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn handled_errors() {
    let waiting = coroner_tests::calls::WaitingThreads::start();
    for _ in 0..10 {
        assert!(coroner::report_error(&std::io::Error::other("the fridge is empty")), "the error was not reported");
    }
    let failed = waiting.end();
    assert!(failed.is_empty(), "system calls interrupted by a report: {failed:?}");
}

/// Captures other threads' backtraces, and checks that waiting threads are not disturbed.
#[cfg(target_os = "linux")]
fn live_backtraces() {
    use coroner::backtrace::{Backtrace, CaptureOptions, thread_id};
    let waiting = coroner_tests::calls::WaitingThreads::start();
    let options = CaptureOptions { by_ptrace: true, ..CaptureOptions::default() };
    for _ in 0..10 {
        for (thread, taken) in Backtrace::of_all_threads(&options) {
            let frames = taken.as_ref().map_or(0, |taken| taken.addresses().len());
            assert!(frames > 1 || thread == thread_id(), "{thread}: {taken:?}");
        }
    }
    let failed = waiting.end();
    assert!(failed.is_empty(), "system calls interrupted by a backtrace: {failed:?}");
}

/// Blocks or unblocks every signal on this thread; threads inherit it.
fn block_signals(how: i32) {
    // SAFETY: a local signal set.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(how, &raw const all, std::ptr::null_mut());
    }
}

/// Ends the process if memory is allocated when only the crash path may run.
fn check() {
    if POISONED.load(Ordering::Relaxed) {
        let message = b"malloc or free on the crash path\n";
        // SAFETY: async-signal-safe calls.
        unsafe {
            libc::write(2, message.as_ptr().cast(), message.len());
            libc::_exit(POISONED_EXIT);
        }
    }
}

/// Rust's allocator with the check.
struct Checked;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Checked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        check();
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Checked = Checked;

/// The C library's functions: these definitions take precedence over its own for every image of the
/// process.
#[cfg(target_env = "gnu")]
mod interposed {
    use libc::{c_void, size_t};

    unsafe extern "C" {
        fn __libc_malloc(size: size_t) -> *mut c_void;
        fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
        fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
        fn __libc_free(block: *mut c_void);
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
        super::check();
        // SAFETY: glibc's own malloc.
        unsafe { __libc_malloc(size) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
        super::check();
        // SAFETY: glibc's own calloc.
        unsafe { __libc_calloc(count, size) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
        super::check();
        // SAFETY: glibc's own realloc.
        unsafe { __libc_realloc(block, size) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn free(block: *mut c_void) {
        super::check();
        // SAFETY: glibc's own free.
        unsafe { __libc_free(block) }
    }
}
