//! `backtrace-bench`: compares live backtraces with those of other implementations.
//!
//! These are the `backtrace` crate, `std::backtrace` and glibc. All walk the same stack in the same
//! process. Prints one JSON object per line; `cargo xtask bench backtrace` runs it.

#[allow(dead_code)]
#[path = "../../unwind-bench/src/stack.rs"]
mod stack;

mod other_thread;

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::Instant;

use coroner::backtrace::{Backtrace, CaptureOptions};

unsafe extern "C" {
    fn backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int;
    fn backtrace_symbols(buffer: *const *mut c_void, size: c_int) -> *mut *mut i8;
}

/// Returns the minimum time of one call, over `rounds` rounds of `calls`, in nanoseconds.
fn least(rounds: u32, calls: u32, mut call: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..calls {
            call();
        }
        least = least.min(began.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
    }
    least
}

fn print(name: &str, nanoseconds: f64, frames: usize) {
    println!("{}", serde_json::json!({ "name": name, "ns": nanoseconds, "frames": frames }));
}

fn main() {
    let store = tempfile::tempdir().expect("a directory");
    let config = coroner::Config::new("backtrace-bench").store_dir(store.path());
    let _coroner = coroner::install(config).expect("installed");
    let rounds: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(30);

    stack::deep(&mut || {
        // All are asked for the first 64 frames.
        let options = CaptureOptions { depth: 64, ..CaptureOptions::default() };
        let capture = || Backtrace::current_with(&options);
        let first = Instant::now();
        let taken = capture();
        print("ours: first capture", first.elapsed().as_secs_f64() * 1e9, taken.addresses().len());
        let named = Instant::now();
        let frames = taken.names().frames().len();
        print("ours: first names (miss)", named.elapsed().as_secs_f64() * 1e9, frames);
        assert_eq!(frames, 64, "64 frames of the 64 functions below");

        let mut buffer = [std::ptr::null_mut(); 64];
        let time = least(rounds, 200, || {
            black_box(capture());
        });
        print("ours: capture", time, 64);
        let time = least(rounds, 50, || {
            // SAFETY: the buffer has room for 64 addresses.
            black_box(unsafe { backtrace(buffer.as_mut_ptr(), 64) });
        });
        print("glibc backtrace: capture", time, 64);
        let time = least(rounds, 50, || {
            let mut count = 0;
            backtrace::trace(|frame| {
                buffer[count] = frame.ip();
                count += 1;
                count < 64
            });
            black_box(&buffer);
        });
        print("backtrace crate: capture", time, 64);
        let time = least(rounds, 50, || {
            let _ = black_box(std::backtrace::Backtrace::force_capture());
        });
        print("std::backtrace: capture", time, 64);

        let time = least(rounds, 200, || {
            black_box(taken.names());
        });
        print("ours: names (hit)", time, 64);
        let time = least(rounds, 200, || {
            black_box(capture().names());
        });
        print("ours: capture and names (hit)", time, 64);
        let time = least(3, 3, || {
            // SAFETY: the buffer was filled above; the result is one allocation.
            unsafe { libc::free(backtrace_symbols(buffer.as_ptr(), 64).cast()) };
        });
        print("glibc backtrace_symbols: names", time, 64);
        let time = least(3, 3, || {
            let mut taken = backtrace::Backtrace::new_unresolved();
            taken.resolve();
            black_box(taken.frames().len());
        });
        print("backtrace crate: capture and names (warm)", time, 64);
        let time = least(3, 3, || {
            black_box(std::backtrace::Backtrace::force_capture().to_string());
        });
        print("std::backtrace: capture and names (warm)", time, 64);
    });
    other_thread::run(rounds as usize * 20);
}
