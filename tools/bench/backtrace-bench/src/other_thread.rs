//! Captures of another thread, compared with the system's minimum.
//!
//! The minimum is a bare signal whose handler stores a word.
//!
//! Ours, this floor and a peer take turns with the same thread, so that other load on the machine
//! affects all equally.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use coroner::backtrace::{Backtrace, CaptureOptions, thread_id};

use crate::stack;

/// Signals of the floor and the peer; Coroner takes the highest free one between 44 and 62.
const FLOOR: c_int = 45;
const PEER: c_int = 46;

/// The state of a captured thread.
#[derive(Clone, Copy)]
struct Cell {
    name: &'static str,
    sleeps: bool,
    /// The processors for both threads: any, a different one for each, or the same one.
    place: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Anywhere,
    OtherProcessor,
    SameProcessor,
}

const CELLS: [Cell; 6] = [
    Cell { name: "sleeps, anywhere", sleeps: true, place: Place::Anywhere },
    Cell { name: "sleeps, another processor", sleeps: true, place: Place::OtherProcessor },
    Cell { name: "sleeps, same processor", sleeps: true, place: Place::SameProcessor },
    Cell { name: "runs, anywhere", sleeps: false, place: Place::Anywhere },
    Cell { name: "runs, another processor", sleeps: false, place: Place::OtherProcessor },
    Cell { name: "runs, same processor", sleeps: false, place: Place::SameProcessor },
];

/// The floor's word: 0, asked, awaited by a sleeping asker, answered.
static STATE: AtomicU32 = AtomicU32::new(0);
const ASKED: u32 = 1;
const AWAITED: u32 = 2;
const ANSWERED: u32 = 3;
/// The start of the floor's handler, in nanoseconds of `CLOCK_MONOTONIC`.
static BEGAN: AtomicU64 = AtomicU64::new(0);
/// Frames that the peer's handler found.
static PEER_FRAMES: AtomicUsize = AtomicUsize::new(0);
static PEER_DONE: AtomicU32 = AtomicU32::new(0);

fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn futex(word: &AtomicU32, operation: c_int, value: u32) {
    // SAFETY: waits for, or wakes, a static word.
    unsafe {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, std::ptr::null::<c_void>());
    }
}

/// Sleeps while `word` is `value`.
fn sleep_while(word: &AtomicU32, value: u32) {
    while word.load(SeqCst) == value {
        futex(word, libc::FUTEX_WAIT, value);
    }
}

extern "C" fn on_floor(_signal: c_int) {
    BEGAN.store(now(), Relaxed);
    if STATE.swap(ANSWERED, SeqCst) == AWAITED {
        futex(&STATE, libc::FUTEX_WAKE, 1);
    }
}

/// The common approach: glibc's `backtrace` in the handler, which then wakes the asker.
extern "C" fn on_peer(_signal: c_int) {
    let mut buffer = [std::ptr::null_mut(); 66];
    // SAFETY: the buffer has room for 66 addresses. (The unwinder is loaded before the first
    // signal: see `run`.)
    let frames = unsafe { super::backtrace(buffer.as_mut_ptr(), 66) };
    PEER_FRAMES.store(frames as usize, SeqCst);
    PEER_DONE.store(1, SeqCst);
    futex(&PEER_DONE, libc::FUTEX_WAKE, 1);
}

fn install(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: the handlers use atomics, system calls and glibc's unwinder, as is common practice.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn send(thread: c_int, signal: c_int) {
    // SAFETY: sends a signal that has a handler to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
}

/// Measures one capture by the floor, in nanoseconds since the signal was sent.
///
/// Returns the times at which the call returned, the handler started, and the asker saw the word.
/// The asker polls for `longest` nanoseconds and then sleeps.
fn floor(thread: c_int, longest: u64) -> [u64; 3] {
    STATE.store(ASKED, SeqCst);
    let began = now();
    send(thread, FLOOR);
    let sent = now();
    while STATE.load(SeqCst) != ANSWERED && now() - sent < longest {
        std::hint::spin_loop();
    }
    if STATE.compare_exchange(ASKED, AWAITED, SeqCst, SeqCst).is_ok() {
        sleep_while(&STATE, AWAITED);
    }
    let seen = now();
    [sent - began, BEGAN.load(Relaxed).saturating_sub(began), seen - began]
}

fn peer(thread: c_int) -> u64 {
    let began = now();
    PEER_DONE.store(0, SeqCst);
    send(thread, PEER);
    sleep_while(&PEER_DONE, 0);
    let time = now() - began;
    assert!(PEER_FRAMES.load(SeqCst) >= 64, "the peer has the frames");
    time
}

/// Returns the processors that this process may use.
fn processors() -> Vec<usize> {
    // SAFETY: plain data, filled in by the kernel.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: the number is within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) }).collect()
}

/// Binds a thread (0: the calling one) to processors.
fn bind(thread: c_int, processors: &[usize]) {
    // SAFETY: plain data, read by the kernel.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for processor in processors {
            libc::CPU_SET(*processor, &mut set);
        }
        assert_eq!(libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Measures all cells; prints one JSON object for each.
pub(crate) fn run(calls: usize) {
    static ID: AtomicI32 = AtomicI32::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    let all = processors();
    let mut buffer = [std::ptr::null_mut(); 4];
    // SAFETY: the buffer has room for 4 addresses; the first call loads the unwinder, which a
    // handler must not do.
    unsafe { super::backtrace(buffer.as_mut_ptr(), 4) };
    install(FLOOR, on_floor);
    install(PEER, on_peer);
    for cell in CELLS {
        let (asker, target) = match (cell.place, all.as_slice()) {
            (Place::Anywhere, _) => (all.clone(), all.clone()),
            (Place::SameProcessor, [first, ..]) => (vec![*first], vec![*first]),
            (Place::OtherProcessor, [first, second, ..]) => (vec![*first], vec![*second]),
            _ => continue,
        };
        ID.store(0, SeqCst);
        STOP.store(false, SeqCst);
        let sleeps = cell.sleeps;
        let thread = std::thread::spawn(move || {
            stack::deep(&mut || {
                ID.store(thread_id(), SeqCst);
                while !STOP.load(SeqCst) {
                    if sleeps {
                        std::thread::park_timeout(Duration::from_secs(5));
                    } else {
                        std::hint::spin_loop();
                    }
                }
            });
        });
        while ID.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let id = ID.load(SeqCst);
        bind(0, &asker);
        bind(id, &target);
        let options = CaptureOptions { depth: 64, ..CaptureOptions::default() };
        let (mut ours, mut peers, mut bare_signals) = (Vec::new(), Vec::new(), [const { Vec::new() }; 3]);
        // If the other thread runs on another processor, polling is fastest; if it runs on this
        // one, sleeping is. If it may run anywhere, either can be.
        let longest = match cell.place {
            Place::Anywhere => None,
            Place::OtherProcessor => Some(10_000_000),
            Place::SameProcessor => Some(0),
        };
        let mut frames = 0;
        for _ in 0..calls {
            pause();
            let began = Instant::now();
            let taken = black_box(Backtrace::of_thread(id, &options));
            ours.push(began.elapsed().as_nanos() as u64);
            frames = taken.map_or(0, |taken| taken.addresses().len());
            pause();
            if let Some(longest) = longest {
                for (times, time) in bare_signals.iter_mut().zip(floor(id, longest)) {
                    times.push(time);
                }
            }
            pause();
            peers.push(peer(id));
        }
        STOP.store(true, SeqCst);
        thread.thread().unpark();
        thread.join().expect("the thread ends");
        bind(0, &all);
        let [sent, began, seen] = &mut bare_signals;
        let floor =
            longest.map(|_| serde_json::json!({ "sent": median(sent), "began": median(began), "seen": median(seen) }));
        let (ours, peer) = (median(&mut ours), median(&mut peers));
        let printed =
            serde_json::json!({ "name": cell.name, "ns": ours, "frames": frames, "peer": peer, "floor": floor });
        println!("{printed}");
    }
}

/// Waits for the other thread to fall asleep.
///
/// This thread polls the clock meanwhile: if it slept, its processor would have to wake up for each
/// call.
fn pause() {
    let until = Instant::now() + Duration::from_micros(100);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}
