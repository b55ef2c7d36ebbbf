//! A program that panics: `panic_program STORE ACT`. `tests/tests/panics.rs` runs it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

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
    let config = coroner::Config::new("com.example.panics").store_dir(store).deliver_at_install(false);
    let coroner = coroner::install(config).expect("Coroner can be installed");
    match act.as_str() {
        "main" => panics("cheese"),
        "caught" => drop(catch_unwind(|| panics("cheese"))),
        "caught-then-abort" => {
            drop(catch_unwind(|| panics("cheese")));
            std::process::abort();
        }
        "thread" => drop(named_thread("baker", || panics("bread"))),
        "thread-unwrapped" => named_thread("baker", || panics("bread")).unwrap(),
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
        "handled-as-another-crashes" => handled_as_another_crashes(),
        other => panic!("no act {other:?}"),
    }
}

/// An error is reported while a thread crashes that can't be stopped by a signal: it crashes while the report is written.
fn handled_as_another_crashes() {
    static REPORTS: AtomicBool = AtomicBool::new(false);
    let crash = || {
        block_real_time_signals();
        while !REPORTS.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
        // SAFETY: none; the process is to die of it.
        unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    };
    let crasher = std::thread::Builder::new().name("crasher".to_owned()).spawn(crash).expect("a thread");
    std::thread::sleep(std::time::Duration::from_millis(50));
    REPORTS.store(true, Ordering::Release);
    println!("reported: {}", coroner::report_error(&std::io::Error::other("the fridge is empty")));
    drop(crasher.join());
}

#[cfg(target_os = "linux")]
fn block_real_time_signals() {
    // SAFETY: a set of this frame, emptied before it is used; the mask is this thread's own.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// There are none, and threads are stopped without them.
#[cfg(not(target_os = "linux"))]
fn block_real_time_signals() {}

/// Runs `work` on a thread of that name, to its end.
fn named_thread(name: &str, work: fn()) -> std::thread::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread").join()
}
