//! A program for Apple's systems whose threads wait for each other: `lock_program STORE ACT`.
//!
//! `crash`: the threads in [`waiting`] wait, and the main thread, which owns some of their locks,
//! crashes. `hang`: the main thread and another one wait for each other, and the program ends when
//! the hang has been reported. `flush`: delivers all reports. Each thread's name describes what it
//! waits for.

#[cfg(not(target_os = "macos"))]
fn main() {
    eprintln!("this program requires the locks of Apple's systems");
    std::process::exit(2);
}

#[cfg(target_os = "macos")]
fn main() {
    use coroner::{Config, Delivery, HangWatch};
    use coroner_tests::hang;
    use std::time::Duration;

    let mut arguments = std::env::args().skip(1);
    let (store, act) = (arguments.next().expect("a store"), arguments.next().expect("an act"));
    let store = std::path::PathBuf::from(store);
    let config = Config::new("lock-program").version("1.0").store_dir(&store);
    // The watchdog thread waits, too.
    let config = if act == "hang" { config.hang_threshold(Duration::from_millis(200)) } else { config };
    let coroner = coroner::install(config.delivery(Delivery::new().at_install(false))).expect("installed");
    match act.as_str() {
        "crash" => {
            waiting::begin();
            (coroner_faults::find("null-store").expect("a fault").run)();
        }
        "hang" => {
            let run = store.join("runs").join(coroner.run_id().to_string());
            let watch = HangWatch::new();
            waiting::for_each_other("partner", waiting::lock_unfair, |take| {
                std::thread::spawn(move || {
                    hang::wait_until("a report", || !hang::reports(&run).is_empty());
                    std::process::exit(0);
                });
                watch.beat();
                take();
            });
        }
        "flush" => println!("flushed: {}", coroner.flush(Duration::from_mins(1))),
        other => panic!("unknown act: {other}"),
    }
}

#[cfg(target_os = "macos")]
mod waiting {
    use std::cell::UnsafeCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    unsafe extern "C" {
        /// <os/lock.h>.
        fn os_unfair_lock_lock(lock: *mut u32);
        /// <mach/thread_act.h>.
        fn thread_get_state(thread: u32, flavor: i32, state: *mut u64, count: *mut u32) -> i32;
    }

    /// A lock's memory, which is never freed: all zero, with the signature of a statically
    /// initialized mutex or read-write lock.
    pub(crate) struct Lock(UnsafeCell<[u64; 25]>);

    // SAFETY: only accessed by lock functions, which synchronize.
    unsafe impl Sync for Lock {}

    const MUTEX: u64 = 0x32aa_aba7;
    const READ_WRITE: u64 = 0x2da8_b3b4;
    const CONDITION: u64 = 0x3cb0_b1bb;

    fn lock(signature: u64) -> &'static Lock {
        let mut words = [0; 25];
        words[0] = signature;
        Box::leak(Box::new(Lock(UnsafeCell::new(words))))
    }

    pub(crate) fn lock_unfair(lock: &Lock) {
        // SAFETY: a word that is 0 until it is locked. (A mutex has its signature there.)
        unsafe { os_unfair_lock_lock(lock.0.get().cast::<u32>().add(48)) };
    }

    fn lock_mutex(lock: &Lock) {
        // SAFETY: a mutex.
        assert_eq!(unsafe { libc::pthread_mutex_lock(lock.0.get().cast()) }, 0);
    }

    fn lock_to_read(lock: &Lock) {
        // SAFETY: a read-write lock.
        assert_eq!(unsafe { libc::pthread_rwlock_rdlock(lock.0.get().cast()) }, 0);
    }

    fn lock_to_write(lock: &Lock) {
        // SAFETY: a read-write lock.
        assert_eq!(unsafe { libc::pthread_rwlock_wrlock(lock.0.get().cast()) }, 0);
    }

    /// Starts a thread with that name that is about to wait; returns its `pthread_t`.
    fn spawn(name: &str, waits: impl FnOnce() + Send + 'static) -> libc::pthread_t {
        use std::os::unix::thread::JoinHandleExt;
        static BEGUN: AtomicU32 = AtomicU32::new(0);
        let before = BEGUN.load(Ordering::SeqCst);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            BEGUN.fetch_add(1, Ordering::SeqCst);
            waits();
            unreachable!("the thread did not wait");
        });
        let thread = thread.expect("a thread");
        while BEGUN.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        thread.into_pthread_t()
    }

    /// Waits until the thread is in one of the waiting system calls, according to its registers.
    fn until_it_waits(thread: libc::pthread_t) {
        let (flavor, words, register) = if cfg!(target_arch = "x86_64") { (4, 21, 0) } else { (6, 34, 16) };
        loop {
            let mut state = [0; 34];
            let mut count = words * 2;
            // SAFETY: the thread doesn't end; the kernel writes at most `count` words of 4 bytes.
            let got = unsafe {
                thread_get_state(libc::pthread_mach_thread_np(thread), flavor, state.as_mut_ptr(), &raw mut count)
            };
            assert_eq!(got, 0);
            if matches!(state[register] & 0xff_ffff, 301 | 305 | 306 | 307 | 515 | 544) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Takes a lock on this thread and another one on a thread with that name, which then waits for
    /// this thread's. `last` receives a function that makes this thread wait for the other's.
    pub(crate) fn for_each_other(name: &str, take: fn(&Lock), last: impl FnOnce(Box<dyn FnOnce()>)) {
        let (mine, other) = (lock(MUTEX), lock(MUTEX));
        take(mine);
        let partner = spawn(name, move || {
            take(other);
            take(mine);
        });
        until_it_waits(partner);
        last(Box::new(move || take(other)));
    }

    /// Starts two threads `name-1` and `name-2` that wait for each other.
    fn two(name: &'static str, take: fn(&Lock)) -> libc::pthread_t {
        let ready = Arc::new(AtomicU32::new(0));
        let first = {
            let ready = Arc::clone(&ready);
            spawn(&format!("{name}-1"), move || {
                for_each_other(&format!("{name}-2"), take, |take| {
                    ready.store(1, Ordering::SeqCst);
                    take();
                });
            })
        };
        while ready.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        until_it_waits(first);
        first
    }

    fn wait_for_condition(seconds: Option<i64>) {
        let (condition, mutex) = (lock(CONDITION), lock(MUTEX));
        lock_mutex(mutex);
        let time = libc::timespec { tv_sec: 4_000_000_000, tv_nsec: 0 };
        loop {
            // SAFETY: a condition variable with a mutex that this thread owns.
            unsafe {
                if seconds.is_some() {
                    libc::pthread_cond_timedwait(condition.0.get().cast(), mutex.0.get().cast(), &raw const time);
                } else {
                    libc::pthread_cond_wait(condition.0.get().cast(), mutex.0.get().cast());
                }
            }
        }
    }

    /// Starts threads that wait; the calling thread owns the locks of those whose names end with
    /// its own.
    pub(crate) fn begin() {
        two("unfair", lock_unfair);
        let joined = two("mutex", lock_mutex);
        let [mutex, abandoned, unfair, changed] = [(); 4].map(|()| lock(MUTEX));
        let [written, read] = [(); 2].map(|()| lock(READ_WRITE));
        lock_mutex(mutex);
        lock_mutex(abandoned);
        lock_unfair(unfair);
        lock_unfair(changed);
        lock_to_write(written);
        lock_to_read(read);
        let threads = [
            spawn("mutex of main", || lock_mutex(mutex)),
            spawn("mutex of an ended thread", || lock_mutex(abandoned)),
            spawn("unfair of main", || lock_unfair(unfair)),
            spawn("unfair that changed", || lock_unfair(changed)),
            spawn("reads what main writes", || lock_to_read(written)),
            spawn("writes what main reads", || lock_to_write(read)),
            spawn("condition", || wait_for_condition(None)),
            spawn("timed condition", || wait_for_condition(Some(1))),
            spawn("joins mutex-1", move || {
                // SAFETY: only this thread joins it.
                unsafe { libc::pthread_join(joined, std::ptr::null_mut()) };
            }),
        ];
        threads.into_iter().for_each(until_it_waits);

        // These two locks change after the threads have started to wait.
        let ended = std::thread::spawn(|| {
            let mut id = 0;
            // SAFETY: writes one word.
            unsafe { libc::pthread_threadid_np(0, &raw mut id) };
            id
        });
        let ended = ended.join().expect("can't join the thread");
        // SAFETY: words in locks that this thread owns: `m_tid` of libpthread's
        // src/types_internal.h, and the unfair lock itself.
        unsafe {
            AtomicU64::from_ptr(abandoned.0.get().cast::<u64>().add(3)).store(ended, Ordering::SeqCst);
            AtomicU32::from_ptr(changed.0.get().cast::<u32>().add(48)).fetch_add(0x100, Ordering::SeqCst);
        }
    }
}
