//! Threads that wait in system calls which signals interrupt (`EINTR`), to check whether a nonfatal
//! report does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

type Call = fn(i32) -> i64;

static END: AtomicBool = AtomicBool::new(false);
static BEGUN: AtomicUsize = AtomicUsize::new(0);

struct Semaphore(std::cell::UnsafeCell<libc::sem_t>);
// SAFETY: a semaphore may be shared by threads.
unsafe impl Sync for Semaphore {}
// SAFETY: zeroes are a valid `sem_t` with value 0.
static SEMAPHORE: Semaphore = Semaphore(std::cell::UnsafeCell::new(unsafe { std::mem::zeroed() }));

/// The system calls: each waits until the descriptor is readable or the semaphore is posted.
const CALLS: [(&str, Call); 5] = [
    ("epoll_wait", |descriptor| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: a descriptor owned by this thread; the kernel accesses one event in its frame.
        unsafe {
            let epoll = libc::epoll_create1(0);
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event);
            libc::epoll_wait(epoll, &raw mut event, 1, -1).into()
        }
    }),
    ("poll", |descriptor| {
        let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel accesses one element in this frame.
        unsafe { libc::poll(&raw mut one, 1, -1).into() }
    }),
    ("recv with a time limit", |descriptor| {
        let limit = libc::timeval { tv_sec: 600, tv_usec: 0 };
        let size = size_of_val(&limit) as libc::socklen_t;
        // SAFETY: the kernel reads the limit and writes one byte in this frame.
        unsafe {
            libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
            libc::recv(descriptor, [0_u8; 1].as_mut_ptr().cast(), 1, 0) as i64
        }
    }),
    // SAFETY: the program's only semaphore.
    ("sem_wait", |_| unsafe { libc::sem_wait(SEMAPHORE.0.get()).into() }),
    ("nanosleep", |_| {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // SAFETY: the kernel reads the time.
        while unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) } == 0 {
            if END.load(Ordering::SeqCst) {
                return 0;
            }
        }
        -1
    }),
];

/// Threads in these calls.
#[derive(Debug)]
pub struct WaitingThreads {
    threads: Vec<(&'static str, JoinHandle<std::io::Result<()>>)>,
    ends: Vec<i32>,
}

impl WaitingThreads {
    /// Starts the threads, and waits until all are in their calls.
    ///
    /// # Panics
    /// If a socket or thread can't be created.
    pub fn start() -> WaitingThreads {
        let (mut threads, mut ends) = (Vec::new(), Vec::new());
        for (name, call) in CALLS {
            let mut pair = [0; 2];
            // SAFETY: the kernel writes two descriptors.
            let failed = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) };
            assert_eq!(failed, 0, "can't create a socket pair");
            let [one, other] = pair;
            ends.push(other);
            let run = move || {
                BEGUN.fetch_add(1, Ordering::SeqCst);
                if call(one) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            };
            threads.push((name, std::thread::spawn(run)));
        }
        while BEGUN.load(Ordering::SeqCst) < CALLS.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // They are about to enter their calls; a thread that has not entered its call yet isn't
        // disturbed either.
        std::thread::sleep(Duration::from_millis(50));
        WaitingThreads { threads, ends }
    }

    /// Ends the waits; returns the calls that failed.
    pub fn end(self) -> Vec<String> {
        END.store(true, Ordering::SeqCst);
        // SAFETY: the only semaphore, and writes to owned descriptors.
        unsafe {
            libc::sem_post(SEMAPHORE.0.get());
            for end in self.ends {
                libc::write(end, b"x".as_ptr().cast(), 1);
            }
        }
        let failed = self.threads.into_iter().filter_map(|(name, thread)| {
            let error = thread.join().ok()?.err()?;
            Some(format!("{name}: {error}"))
        });
        failed.collect()
    }
}
