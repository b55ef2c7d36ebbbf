//! Times throws and catches: `throw-bench STORE DEPTH THREADS ROUNDS same|varied|moved`.
//!
//! The way to capture a throw's stack is selected at build time: `coroner`, `backtrace` (glibc's),
//! or none. Prints the nanoseconds that a round took, and how many throws were captured.

unsafe extern "C" {
    fn throw_and_catch(depth: i32, rounds: i64, stacks: i32) -> i64;
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, store, depth, threads, rounds, stacks] = &arguments[..] else {
        eprintln!("usage: throw-bench STORE DEPTH THREADS ROUNDS same|varied|moved");
        std::process::exit(2);
    };
    let depth: i32 = depth.parse().expect("a depth");
    let threads: usize = threads.parse().expect("a number of threads");
    let rounds: i64 = rounds.parse().expect("a number of rounds");
    let stacks = match stacks.as_str() {
        "same" => 0,
        "varied" => 1,
        "moved" => 2,
        other => panic!("unknown kind of stacks `{other}`"),
    };
    install(store);
    let run = |rounds: i64| {
        // SAFETY: throws and catches its own exceptions.
        let caught = unsafe { throw_and_catch(depth, rounds, stacks) };
        assert_eq!(caught, rounds, "every throw is caught");
    };
    let started = std::sync::Barrier::new(threads);
    let mut times: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    run(200);
                    started.wait();
                    // The thread's processor time, because a machine with few processors runs eight
                    // threads in turns.
                    let began = thread_time();
                    run(rounds);
                    thread_time() - began
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    times.sort_unstable();
    let total: u64 = times.iter().sum();
    println!("{} {}", total as f64 / (threads as f64 * rounds as f64), captured());
}

/// Returns the nanoseconds that this thread has run.
fn thread_time() -> u64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    /// `CLOCK_THREAD_CPUTIME_ID`.
    const THREAD: i32 = 3;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: writes one `timespec`.
    unsafe { clock_gettime(THREAD, &raw mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

#[cfg(feature = "coroner")]
fn install(store: &str) {
    let store = std::ffi::CString::new(store).expect("a path");
    coroner_capture::install(&store, &coroner_capture::InstallOptions::DEFAULT).expect("Coroner can be installed");
    coroner_exceptions::install(&coroner_exceptions::Options::default());
}

#[cfg(not(feature = "coroner"))]
fn install(_store: &str) {}

#[cfg(feature = "coroner")]
fn captured() -> u64 {
    coroner_exceptions::throws_captured()
}

#[cfg(not(feature = "coroner"))]
fn captured() -> u64 {
    0
}
