//! Measures the cost of stopping all threads, interrupting or tracing one, and listing images.
//!
//! `cargo run --release -p coroner-process --example stop_the_world_cost`: median and range of 31
//! runs, in microseconds.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use coroner_process::images::Images;
use coroner_process::memory::{KernelCopy, LoadGuarded};
use coroner_process::stop_the_world::{Config, ThreadStopper};
use coroner_process::threads::{TaskDirectory, monotonic_now};
use coroner_process::tracer::Tracer;

const RUNS: usize = 31;
const SECOND: u64 = 1_000_000_000;

fn main() {
    let stopper = ThreadStopper::prepare(Config::default()).expect("stopper");
    let tasks = TaskDirectory::open().expect("/proc/self/task");
    images();
    single(&stopper);
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let waiting = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    for count in [1, 10, 100, 1000] {
        while threads.len() < count {
            let (gate, waiting) = (gate.clone(), waiting.clone());
            let run = move || wait_deep(10, &gate, &waiting);
            threads.push(Builder::new().stack_size(512 << 10).spawn(run).expect("thread"));
        }
        while waiting.load(Ordering::SeqCst) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        stop(&stopper, &tasks, count);
    }
    *gate.0.lock().expect("gate") = true;
    gate.1.notify_all();
    for thread in threads {
        thread.join().expect("join");
    }
    traced(&stopper, &tasks);
}

#[inline(never)]
fn wait_deep(depth: u32, gate: &(Mutex<bool>, Condvar), waiting: &AtomicUsize) -> u32 {
    if depth == 0 {
        let open = gate.0.lock().expect("gate");
        waiting.fetch_add(1, Ordering::SeqCst);
        drop(gate.1.wait_while(open, |open| !*open).expect("gate"));
        return 1;
    }
    std::hint::black_box(wait_deep(depth - 1, gate, waiting)) + 1
}

/// Prints the median and the range of measured times in nanoseconds.
fn show(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let us = |index: usize| Duration::from_nanos(times[index]).as_secs_f64() * 1e6;
    println!("{what:<44} {:>9.1} [{:.1} .. {:.1}]", us(times.len() / 2), us(0), us(times.len() - 1));
}

/// Returns this process's processor time so far in nanoseconds, which other load doesn't affect.
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

fn stop(stopper: &ThreadStopper, tasks: &TaskDirectory, count: usize) {
    let (mut sent, mut captured, mut released, mut spent) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let before = processor_time();
        let begun = monotonic_now();
        let mut stop = stopper.begin(tasks, &[]).expect("no other stop");
        sent.push(monotonic_now() - begun);
        let progress = stop.wait(SECOND, 5 * SECOND);
        captured.push(monotonic_now() - begun);
        spent.push(processor_time() - before);
        assert_eq!((progress.captured, progress.silent), (count, 0));
        let begun = monotonic_now();
        stop.release();
        released.push(monotonic_now() - begun);
        std::thread::sleep(Duration::from_millis(20));
    }
    show(&format!("{count} threads: signals sent"), sent);
    show(&format!("{count} threads: all captured"), captured);
    show(&format!("{count} threads: processor time of that"), spent);
    show(&format!("{count} threads: release returned"), released);
}

fn single(stopper: &ThreadStopper) {
    static TID: AtomicI32 = AtomicI32::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    for (what, busy) in [("one running thread: interrupt and release", true), ("one sleeping thread: the same", false)]
    {
        TID.store(0, Ordering::SeqCst);
        STOP.store(false, Ordering::SeqCst);
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid has no arguments and no effects.
            TID.store(unsafe { libc::syscall(libc::SYS_gettid) } as i32, Ordering::SeqCst);
            while !STOP.load(Ordering::Relaxed) {
                if busy {
                    std::hint::spin_loop();
                } else {
                    std::thread::park();
                }
            }
        });
        while TID.load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
        let tid = TID.load(Ordering::SeqCst);
        let mut times = Vec::new();
        for _ in 0..1001 {
            let begun = Instant::now();
            let interrupted = stopper.interrupt(tid, SECOND).expect("interrupted");
            std::hint::black_box(interrupted.context().registers());
            drop(interrupted);
            times.push(begun.elapsed().as_nanos() as u64);
            std::thread::sleep(Duration::from_micros(20));
        }
        show(what, times);
        STOP.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        thread.join().expect("join");
    }
}

fn traced(stopper: &ThreadStopper, tasks: &TaskDirectory) {
    let tracer = Tracer::prepare(4096, 4096).expect("tracer");
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for count in [1, 10, 100] {
        let ready = Arc::new(AtomicUsize::new(threads.len()));
        while threads.len() < count {
            let (stop, ready) = (stop.clone(), ready.clone());
            threads.push(std::thread::spawn(move || {
                // SAFETY: blocks all signals for this thread.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigfillset(&raw mut set);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                }
                ready.fetch_add(1, Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            }));
        }
        while ready.load(Ordering::SeqCst) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut stopped, mut released) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let mut stop = stopper.begin(tasks, &[]).expect("no other stop");
            stop.wait(1_000_000, SECOND);
            let begun = monotonic_now();
            let progress = stop.trace(&tracer, begun + SECOND);
            stopped.push(monotonic_now() - begun);
            if progress.captured < count {
                println!("tracing does not work here: {:?}", stop.threads().next().map(|thread| format!("{thread:?}")));
                return;
            }
            let begun = monotonic_now();
            stop.release();
            released.push(monotonic_now() - begun);
        }
        show(&format!("{count} silent threads: traced"), stopped);
        show(&format!("{count} silent threads: released"), released);
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.thread().unpark();
        thread.join().expect("join");
    }
}

fn images() {
    // SAFETY: the images are mapped and no other thread unloads one, so no load faults.
    let mut loads = unsafe { LoadGuarded::new() };
    let (mut first, mut again, mut copied, mut prepared) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut count = 0;
    for _ in 0..RUNS {
        let begun = monotonic_now();
        let mut images = Images::map(1024).expect("table");
        images.refresh(&mut loads);
        images.touch();
        prepared.push(monotonic_now() - begun);
        let begun = monotonic_now();
        count = images.refresh(&mut loads).images;
        again.push(monotonic_now() - begun);
        if let Some(mut kernel) = KernelCopy::new() {
            let begun = monotonic_now();
            images.refresh(&mut kernel);
            copied.push(monotonic_now() - begun);
        }
        images.unmap();
        let mut images = Images::map(1024).expect("table");
        let begun = monotonic_now();
        images.refresh(&mut loads);
        first.push(monotonic_now() - begun);
        images.unmap();
    }
    show(&format!("{count} images: table made, read, touched"), prepared);
    show(&format!("{count} images: read anew by loads"), first);
    show(&format!("{count} images: refreshed by loads"), again);
    if !copied.is_empty() {
        show(&format!("{count} images: refreshed by kernel copies"), copied);
    }
}
