//! A program that panics: `panic_program STORE ACT`. `tests/tests/it/panics.rs` runs it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_in_drop();
    }
}

#[inline(never)]
fn panic_in_drop() {
    panic!("the second panic");
}

#[inline(never)]
fn panics(what: &str) {
    panic!("out of {what}");
}

#[inline(never)]
fn panics_twice() {
    let _bomb = Bomb;
    panics("cheese");
}

extern "C" fn cannot_unwind() {
    panics("hope");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (store, act) = (arguments.next().expect("a store"), arguments.next().expect("an act"));
    std::panic::set_hook(Box::new(|info| eprintln!("the hook before: {info}")));
    let config = coroner::Config::new("com.example.panics").store_dir(&store);
    let config = config.delivery(coroner::Delivery::new().at_install(false));
    // Enough time for a report on the slowest machine.
    let mut config = config.limits(coroner::Limits::new().deadline(std::time::Duration::from_mins(1)));
    if act == "caught-and-reported" {
        config = config.exceptions(coroner::Exceptions::new().panic_policy(coroner::PanicPolicy::All));
    }
    let coroner = coroner::install(config).expect("can't install Coroner");
    match act.as_str() {
        "main" => panics("cheese"),
        "caught" | "caught-and-reported" => drop(catch_unwind(|| panics("cheese"))),
        "caught-then-abort" => {
            drop(catch_unwind(|| panics("cheese")));
            std::thread::sleep(std::time::Duration::from_millis(1500));
            std::process::abort();
        }
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        "caught-then-asserts" => {
            unsafe extern "C" {
                fn __assert_fail(
                    what: *const std::ffi::c_char,
                    file: *const std::ffi::c_char,
                    line: u32,
                    function: *const std::ffi::c_char,
                ) -> !;
            }
            drop(catch_unwind(|| panics("cheese")));
            // SAFETY: NUL-terminated strings.
            unsafe { __assert_fail(c"pages > 0".as_ptr(), c"book.c".as_ptr(), 12, c"print".as_ptr()) };
        }
        "caught-by-another-then-abort" => {
            drop(named_thread("baker", || drop(catch_unwind(|| panics("cheese")))));
            std::process::abort();
        }
        // Like rayon with a panic in a spawned task.
        "aborts-for-it" => drop(named_thread("worker", || {
            if catch_unwind(|| panics("cheese")).is_err() {
                std::process::abort();
            }
        })),
        "thread" => drop(named_thread("baker", || panics("bread"))),
        "thread-unwrapped" => named_thread("baker", || panics("bread")).unwrap(),
        // Like rayon: a worker's panic is caught there and resumed where its result is awaited.
        "worker" | "worker-without-handle" => {
            let worker = || {
                named_thread("worker", || {
                    let caught = catch_unwind(|| panics("cheese")).expect_err("a panic");
                    std::panic::resume_unwind(caught);
                })
            };
            if act == "worker-without-handle" {
                drop(coroner);
            }
            std::panic::resume_unwind(worker().expect_err("a panic"));
        }
        "thread-resumed" => std::panic::resume_unwind(named_thread("baker", || panics("bread")).expect_err("a panic")),
        "scope" => std::thread::scope(|scope| {
            scope.spawn(|| panics("bread"));
        }),
        "caught-then-exit" => {
            drop(catch_unwind(|| panics("cheese")));
            std::process::exit(101);
        }
        "twice" => panics_twice(),
        "twice-caught" => drop(catch_unwind(AssertUnwindSafe(panics_twice))),
        "cannot-unwind" => cannot_unwind(),
        "uninstalled" => {
            coroner.uninstall();
            panics("cheese");
        }
        "handled" => {
            let error = std::io::Error::other("the fridge is empty");
            for _ in 0..20 {
                println!("reported: {}", coroner::report_error(&error));
            }
        }
        "handled-as-another-crashes" => handled_as_another_crashes(&store),
        other => panic!("unknown act {other:?}"),
    }
}

/// Reports an error, and crashes on another thread once that report has begun. That thread can't be
/// stopped: it blocks the signal, and under a system call filter threads are only traced after a
/// timeout.
fn handled_as_another_crashes(store: &str) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    coroner_faults::seccomp::filter(
        &[libc::SYS_lookup_dcookie],
        coroner_faults::seccomp::Action::Fail(libc::EPERM as u16),
    )
    .expect("can't install a system call filter");
    let run = std::fs::read_dir(Path::new(store).join("runs"))
        .expect("can't list the runs")
        .next()
        .expect("there is no run")
        .expect("can't read the run's directory entry");
    // Created in advance: while the other threads are stopped, the crashing thread must take no
    // lock.
    let report = run.path().join("report-9").into_os_string().into_encoded_bytes();
    let report = std::ffi::CString::new(report).expect("a path without NUL");
    let crash = move || {
        block_real_time_signals();
        // SAFETY: a NUL-terminated path.
        while unsafe { libc::access(report.as_ptr(), libc::F_OK) } != 0 {
            std::hint::spin_loop();
        }
        // SAFETY: none: this crashes on purpose.
        unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    };
    let crasher = std::thread::Builder::new().name("crasher".to_owned()).spawn(crash).expect("a thread");
    println!("reported: {}", coroner::report_error(&std::io::Error::other("the fridge is empty")));
    drop(crasher.join());
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn block_real_time_signals() {
    // SAFETY: a local set, emptied before it is used; only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Does nothing: there are no real-time signals, and stopping threads doesn't require them.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn block_real_time_signals() {}

/// Runs `work` on a thread with that name, and joins it.
fn named_thread(name: &str, work: fn()) -> std::thread::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread").join()
}
