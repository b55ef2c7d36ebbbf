//! A program whose threads call Coroner in a random order: `interleaving_program STORE SEED`.
//!
//! Eight threads install, uninstall, report, leave breadcrumbs, take backtraces, are watched for
//! hangs, fork and start threads. The seed decides everything but the order in which they run, and
//! how the program ends: it prints `plan: ` with that, and nothing else may end it. With an odd
//! seed nobody uninstalls, so that a crash is reported.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Duration;

    use coroner::backtrace::{CaptureOptions, thread_id};
    use coroner::{Backtrace, Breadcrumb, Config, Delivery, HandledException, HangWatch, Language};

    const THREADS: u64 = 8;
    const STEPS: u64 = 40;
    /// Seconds after which a program that hangs is killed by SIGALRM.
    const LIMIT_S: u32 = 60;

    /// Thread IDs, for backtraces of other threads.
    static IDS: Mutex<Vec<coroner::backtrace::ThreadId>> = Mutex::new(Vec::new());
    /// Exit status, or signal, of a child that ended otherwise than it should.
    static CHILD: AtomicI32 = AtomicI32::new(0);

    /// Numbers that depend only on the seed (Marsaglia, "Xorshift RNGs").
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    pub(crate) fn main() {
        let mut arguments = std::env::args().skip(1);
        let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("missing argument: {what}"));
        let (store, seed) = (next("store"), next("seed"));
        let seed: u64 = seed.parse().expect("a number");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        let crash = (random.below(2) == 0).then(|| (random.below(THREADS), random.below(STEPS)));
        println!("plan: {}", if crash.is_some() { "SIGSEGV" } else { "exit" });
        // SAFETY: no handler of this program.
        unsafe { libc::alarm(LIMIT_S) };
        // Its locks are held over forks from the first install on.
        coroner::install(config(&store)).expect("Coroner is installed");
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let random = Random(random.0.wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95)) | 1);
                let crash = crash.filter(|(thread, _)| *thread == number).map(|(_, step)| step);
                let store = &store;
                scope.spawn(move || act(random, store, seed % 2 == 1, crash));
            }
        });
        std::process::exit(CHILD.load(Ordering::Relaxed));
    }

    fn config(store: &str) -> Config {
        let config = Config::new("crash-program").version("1.0").store_dir(store).no_sinks();
        config.delivery(Delivery::new().symbolicate(false)).hang_threshold(Duration::from_millis(100))
    }

    fn act(mut random: Random, store: &str, stays: bool, crash: Option<u64>) {
        IDS.lock().unwrap().push(thread_id());
        let watch = HangWatch::new();
        for step in 0..STEPS {
            if crash == Some(step) {
                // SAFETY: not sound: the planned crash.
                unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
            }
            match random.below(if stays { 9 } else { 11 }) {
                0 => {
                    let _ = coroner::set_tag(&format!("key{}", random.below(20)), "value");
                }
                1 => coroner::add_breadcrumb(&Breadcrumb::new("a step")),
                2 => {
                    let _ = coroner::report_exception(&HandledException::new(Language::RUST, "Error", "a message"));
                }
                3 => drop(Backtrace::current()),
                4 => {
                    let other = {
                        let ids = IDS.lock().unwrap();
                        ids[random.below(ids.len() as u64) as usize]
                    };
                    let _ = Backtrace::of_thread(other, &CaptureOptions::default());
                }
                5 if random.below(4) == 0 => drop(Backtrace::of_all_threads(&CaptureOptions::default())),
                5 => watch.beat(),
                6 => watch.idle(),
                7 if random.below(4) == 0 => fork_child(random.below(2) == 0),
                7 => std::thread::yield_now(),
                8 => std::thread::spawn(|| coroner::add_breadcrumb(&Breadcrumb::new("a thread"))).join().unwrap(),
                9 => drop(coroner::install(config(store))),
                _ => {
                    if let Some(coroner) = coroner::installed() {
                        coroner.uninstall();
                    }
                }
            }
        }
    }

    /// Starts a child that uses Coroner and ends, and waits for it.
    fn fork_child(goes_on: bool) {
        // SAFETY: the child calls Coroner, which allows that, and ends without running exit
        // handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: as in `main`.
            unsafe { libc::alarm(LIMIT_S / 2) };
            if goes_on {
                let _ = coroner::after_fork();
            }
            let _ = coroner::set_tag("child", "yes");
            drop(Backtrace::current());
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes the status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited != child || status != 0 {
            let _ =
                CHILD.compare_exchange(0, if status == 0 { 99 } else { status }, Ordering::Relaxed, Ordering::Relaxed);
            eprintln!("a child ended with status {status:#x}");
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn main() {
    linux::main();
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() {}
