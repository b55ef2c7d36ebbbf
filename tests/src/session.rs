//! What an app does while, before and after a report of it is written: by name, for `src/bin/session_program.rs`.
//!
//! Each scenario runs with Coroner and without it, and says on standard output what the test can't see from outside.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::{descriptors, recoverable};

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happens before Coroner is installed.
    pub before_install: fn(),
    /// What happens then: the store's directory, and the number on the command line.
    pub run: fn(&Path, u64),
}

/// All scenarios.
pub static SCENARIOS: &[Scenario] = &[
    Scenario { name: "close-and-wait", before_install: nothing, run: close_and_wait },
    Scenario { name: "close-and-uninstall", before_install: nothing, run: close_and_uninstall },
    Scenario { name: "second-signal-in-child", before_install: nothing, run: second_signal_in_child },
    Scenario { name: "jump-and-end", before_install: leave_by_jump, run: jump_and_end },
    Scenario { name: "jump-and-crash", before_install: leave_by_jump, run: jump_and_crash },
    Scenario { name: "jump-and-sleep", before_install: leave_by_jump, run: jump_and_sleep },
    Scenario { name: "sleep-in-handler", before_install: sleep_and_leave, run: sleep_in_handler },
    Scenario { name: "repair-for-ever", before_install: repair, run: repair_for_ever },
    Scenario { name: "repair-together", before_install: repair, run: repair_together },
    Scenario { name: "jump-together", before_install: leave_by_jump, run: jump_together },
    Scenario { name: "crash-on-coroutine", before_install: nothing, run: crash_on_coroutine },
    Scenario { name: "crash-together", before_install: nothing, run: crash_together },
    Scenario { name: "vfork-children-together", before_install: nothing, run: vfork_children_together },
    Scenario { name: "child-with-same-handlers", before_install: nothing, run: child_with_same_handlers },
    Scenario { name: "caller-unloaded", before_install: nothing, run: caller_unloaded },
    Scenario { name: "overflow-in-destructor", before_install: nothing, run: overflow_in_destructor },
    Scenario { name: "crash-and-be-killed", before_install: nothing, run: crash_and_be_killed },
];

fn nothing() {}

/// Nanoseconds of the monotonic clock, which all processes have in common.
pub fn now() -> u64 {
    // SAFETY: the kernel fills a structure of ours.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Says `name: value`, for the test.
fn say(name: &str, value: u64) {
    println!("{name}: {value}");
    let _ = std::io::stdout().flush();
}

/// The real crash of a scenario.
fn crash() {
    (coroner_faults::find("null-store").expect("it is in the table").run)();
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn handle_faults(handler: Handler) {
    // SAFETY: the action is fully initialised; the handlers below are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// What a handler does with a fault that it does not know: the default comes at the next one.
fn not_ours() {
    // SAFETY: the default disposition; async-signal-safe.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

// An app that closes descriptors.

fn close_and_wait(store: &Path, _: u64) {
    descriptors::close_range();
    descriptors::open_files(&descriptors::app_files(store));
    say("ready", 1);
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    crash();
}

fn close_and_uninstall(store: &Path, _: u64) {
    let uninstall = || {
        if let Some(coroner) = coroner::installed() {
            coroner.uninstall();
        }
    };
    say("lost", descriptors::lost_descriptors(&descriptors::app_files(store), uninstall) as u64);
}

// Children in the memory of this process.

/// So many children on each of 8 threads, as `vfork` makes them, crash at once, and then the process does.
fn vfork_children_together(_: &Path, children: u64) {
    let child = coroner_faults::find("vfork-child").expect("it is in the table").run;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..children).for_each(|_| child()));
        }
    });
    crash();
}

/// A child with this process's memory and handlers (`CLONE_VM | CLONE_SIGHAND`) crashes, and then the process does. Says whether the
/// signal still had its handler.
fn child_with_same_handlers(_: &Path, _: u64) {
    let handler = || {
        // SAFETY: all-zero is valid, and the kernel fills it.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now);
            now.sa_sigaction
        }
    };
    let before = handler();
    (coroner_faults::find("sighand-child").expect("it is in the table").run)();
    // It is put back when the child is gone, by a process that nobody can wait for.
    let until = Instant::now() + Duration::from_secs(10);
    while handler() != before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    say("kept", u64::from(handler() == before));
    crash();
}

// Code that goes away.

/// A function calls another one, which unmaps its caller's code and crashes: what is left of a library that was unloaded too early. Says where
/// the code was.
fn caller_unloaded(_: &Path, _: u64) {
    extern "C" fn unload_and_crash(page: usize) {
        // SAFETY: the page of `caller_unloaded`; it is not returned to.
        unsafe { libc::munmap(page as *mut libc::c_void, PAGE) };
        crash();
    }
    // push rbp; mov rbp, rsp; call rsi; pop rbp; ret
    #[cfg(target_arch = "x86_64")]
    const CODE: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3];
    // stp x29, x30, [sp, #-16]!; mov x29, sp; blr x1; ldp x29, x30, [sp], #16; ret
    #[cfg(target_arch = "aarch64")]
    const CODE: &[u8] = &[
        0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0x20, 0x00, 0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03,
        0x5f, 0xd6,
    ];
    // SAFETY: a new mapping, which gets code of a function with that signature.
    unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let page = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
        assert!(page != libc::MAP_FAILED, "memory for code");
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        assert_eq!(libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
        say("code", page as u64);
        let caller: extern "C" fn(usize, extern "C" fn(usize)) = std::mem::transmute(page);
        caller(page as usize, unload_and_crash);
    }
}

// A thread that ends.

/// The destructor of a thread-specific value, which is younger than Coroner's, overflows its thread's stack.
fn overflow_in_destructor(_: &Path, _: u64) {
    extern "C" fn destroy(_: *mut libc::c_void) {
        (coroner_faults::find("stack-overflow").expect("it is in the table").run)();
    }
    extern "C" fn start(key: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: a key of this process; the value is never read.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, key.wrapping_add(1)) };
        std::ptr::null_mut()
    }
    // SAFETY: key and thread are initialised by the calls that come first.
    unsafe {
        let mut key: libc::pthread_key_t = 0;
        let mut thread: libc::pthread_t = std::mem::zeroed();
        assert_eq!(libc::pthread_key_create(&raw mut key, Some(destroy)), 0);
        let argument = key as usize as *mut libc::c_void;
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, argument), 0);
        libc::pthread_join(thread, std::ptr::null_mut());
    }
}

// A child that dies of two signals.

/// Children made by `fork` that abort and get a SIGSEGV from outside so many microseconds later, each some more than the last. Says
/// how many die of neither.
fn second_signal_in_child(_: &Path, microseconds: u64) {
    let signals = (0..8).map(|child| second_signal(microseconds + child * 10));
    say("hung", signals.filter(|signal| ![libc::SIGABRT, libc::SIGSEGV].contains(signal)).count() as u64);
}

/// One of them; returns the signal of its end, or 0.
fn second_signal(microseconds: u64) -> i32 {
    // SAFETY: a new mapping, which the child has in common with this process, and which is never unmapped.
    let aborts = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON);
        let word = libc::mmap(std::ptr::null_mut(), 8, protection, flags, -1, 0);
        assert!(word != libc::MAP_FAILED, "memory to share");
        &*word.cast::<AtomicU64>()
    };
    // SAFETY: the child only aborts.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        aborts.store(1, Ordering::SeqCst);
        // SAFETY: abort may be called at any time.
        unsafe { libc::abort() };
    }
    while aborts.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    let until = now() + microseconds * 1000;
    while now() < until {
        std::hint::spin_loop();
    }
    // SAFETY: a signal to the child, which nobody has waited for yet.
    unsafe { libc::kill(child, libc::SIGSEGV) };
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: the status is ours.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(15) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

// A handler that is left by a jump.

extern "C" fn jump(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    recoverable::leave();
    not_ours();
}

fn leave_by_jump() {
    handle_faults(jump);
}

extern "C" fn fault() {
    let null = std::hint::black_box(std::ptr::null_mut::<u32>());
    // SAFETY: none is claimed; the store is meant to fault, and the handler leaves it. In assembly, since a debug build looks at
    // its pointers first.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov dword ptr [{null}], 1", null = in(reg) null);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("str wzr, [{null}]", null = in(reg) null);
    }
}

/// A thread faults, its handler leaves by a jump, the thread ends; the main thread looks at how long it is kept from going on.
fn jump_and_end(_: &Path, _: u64) {
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let thread = std::thread::spawn(move || {
        assert!(recoverable::call(fault), "the handler leaves by a jump");
        end.store(true, Ordering::SeqCst);
    });
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !ended.load(Ordering::SeqCst) || !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    // What is still held would be let go by now, or held for long.
    std::thread::sleep(Duration::from_millis(10));
    longest = longest.max(last.elapsed());
    say("milliseconds stopped", longest.as_millis() as u64);
    crash();
}

/// A thread whose handler leaves by a jump crashes later.
fn jump_and_crash(_: &Path, _: u64) {
    let thread = std::thread::spawn(|| {
        assert!(recoverable::call(fault), "the handler leaves by a jump");
        crash();
    });
    let _ = thread.join();
}

/// How many of two sleeps of a second, begun after the report, end early: of the thread that faulted, and of another.
fn jump_and_sleep(_: &Path, _: u64) {
    let left = Arc::new(Barrier::new(2));
    let go = Arc::clone(&left);
    let thread = std::thread::spawn(move || {
        assert!(recoverable::call(fault), "the handler leaves by a jump");
        go.wait();
        is_sleep_interrupted()
    });
    left.wait();
    let own = is_sleep_interrupted();
    let other = thread.join().expect("it sleeps");
    say("interrupted", u64::from(own) + u64::from(other));
}

fn is_sleep_interrupted() -> bool {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: the kernel reads a structure of ours. Async-signal-safe.
    unsafe { libc::nanosleep(&raw const second, std::ptr::null_mut()) != 0 }
}

static INTERRUPTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn sleep(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    INTERRUPTED.fetch_add(usize::from(is_sleep_interrupted()), Ordering::SeqCst);
    recoverable::leave();
    not_ours();
}

fn sleep_and_leave() {
    handle_faults(sleep);
}

/// Whether a sleep of a second in the app's own handler ends early.
fn sleep_in_handler(_: &Path, _: u64) {
    assert!(recoverable::call(fault), "the handler leaves by a jump");
    say("interrupted", INTERRUPTED.load(Ordering::SeqCst) as u64);
}

// A handler that repairs what was wrong.

const PAGE: usize = 1 << 16;

/// The pages that may be repaired, by thread; 0 for none.
static PAGES: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

extern "C" fn make_writable(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: a handler with SA_SIGINFO is given it.
    let page = unsafe { (*info).si_addr() as usize } & !(PAGE - 1);
    let known = page != 0 && PAGES.iter().any(|of| of.load(Ordering::SeqCst) == page);
    // SAFETY: the page is a scenario's own mapping.
    if !known || unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        not_ours();
    }
}

fn repair() {
    handle_faults(make_writable);
}

/// Memory of a thread that can't be written, at a multiple of its size.
fn map_page(thread: usize) -> usize {
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0)
    };
    assert!(memory != libc::MAP_FAILED, "memory to fault on");
    let page = (memory as usize).next_multiple_of(PAGE);
    PAGES[thread].store(page, Ordering::SeqCst);
    page
}

/// Takes the page's right away, stores to it, and returns how long it took until the store was done.
fn repaired_fault(page: usize) -> Duration {
    // SAFETY: the thread's own page, and a store of a word to it, which the handler lets happen.
    unsafe {
        assert_eq!(libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ), 0);
        let begun = Instant::now();
        (page as *mut u64).write_volatile(1);
        begun.elapsed()
    }
}

/// Four threads with so many repaired faults each, then a crash.
fn repair_for_ever(_: &Path, faults: u64) {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let page = map_page(thread);
                for _ in 0..faults {
                    repaired_fault(page);
                }
            });
        }
    });
    say("milliseconds", begun.elapsed().as_millis() as u64);
    crash();
}

/// Six threads that have a repaired fault, so many microseconds after one another, again and again. Says the longest.
fn repair_together(_: &Path, microseconds: u64) {
    let pages: Vec<usize> = (0..FAULTING).map(map_page).collect();
    together(microseconds, &|thread| repaired_fault(pages[thread]));
}

/// The same with a handler that leaves by a jump.
fn jump_together(_: &Path, microseconds: u64) {
    together(microseconds, &|_| {
        let begun = Instant::now();
        assert!(recoverable::call(fault), "the handler leaves by a jump");
        begun.elapsed()
    });
}

/// How many threads fault together.
const FAULTING: usize = 6;

/// Lets threads act, so many microseconds after one another, in rounds. Says how long the longest took.
fn together(microseconds: u64, act: &(dyn Fn(usize) -> Duration + Sync)) {
    const ROUNDS: usize = 40;
    let (ready, begin, longest) = (Barrier::new(FAULTING), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..FAULTING {
            let (ready, begin, longest) = (&ready, &begin, &longest);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if ready.wait().is_leader() {
                        begin.store(now() + 20_000, Ordering::SeqCst);
                    }
                    ready.wait();
                    while now() < begin.load(Ordering::SeqCst) + thread as u64 * microseconds * 1000 {
                        std::hint::spin_loop();
                    }
                    longest.fetch_max(act(thread).as_millis() as u64, Ordering::SeqCst);
                }
            });
        }
    });
    say("milliseconds", longest.into_inner());
}

// A coroutine that crashes.

extern "C" fn coroutine() {
    crash();
}

/// A crash on the stack of a coroutine that this thread has made.
fn crash_on_coroutine(_: &Path, _: u64) {
    let stack = vec![0_u8; 1 << 18].leak();
    // SAFETY: the contexts live as long as this function, which does not return; the stack is the coroutine's alone.
    unsafe {
        let (mut made, mut own): (libc::ucontext_t, libc::ucontext_t) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(libc::getcontext(&raw mut made), 0);
        made.uc_stack.ss_sp = stack.as_mut_ptr().cast();
        made.uc_stack.ss_size = stack.len();
        made.uc_link = &raw mut own;
        libc::makecontext(&raw mut made, coroutine, 0);
        say("stack begins", stack.as_ptr() as u64);
        say("stack ends", stack.as_ptr() as u64 + stack.len() as u64);
        libc::swapcontext(&raw mut own, &raw const made);
    }
}

// Several threads that crash.

/// Threads that crash so many microseconds after one another. Says when the first does.
fn crash_together(_: &Path, microseconds: u64) {
    let ready = Arc::new(Barrier::new(9));
    let begin = Arc::new(AtomicU64::new(u64::MAX));
    for thread in 0..8 {
        let (ready, begin) = (Arc::clone(&ready), Arc::clone(&begin));
        std::thread::spawn(move || {
            ready.wait();
            while now() < begin.load(Ordering::SeqCst).saturating_add(thread * microseconds * 1000) {
                std::thread::yield_now();
            }
            crash();
        });
    }
    ready.wait();
    let at = now() + 5_000_000;
    say("crashes at", at);
    begin.store(at, Ordering::SeqCst);
    loop {
        std::thread::park();
    }
}

/// Two hundred threads, and a crash that another process sees begin: the word in the file `crashes` in the store is 1 right before
/// the fault, with one instruction in between, and 2 and more while this process gets ready.
fn crash_and_be_killed(store: &Path, _: u64) {
    let word = descriptors::shared_word(&crash_word(store));
    coroner_faults::threads::park(200);
    // Between the fault and the first store of the handler nobody can know of the crash: the kill that comes a tenth of a millisecond later came
    // before that store where the thread was taken off its processor meanwhile (1 of 800 on a busy machine). So it isn't, if we may.
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads one structure.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    say("thread", std::process::id().into());
    let address = word.as_ptr();
    // SAFETY: the first store is to a word of our own; the second is meant to fault, and the process ends of it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov qword ptr [{word}], 1", "mov dword ptr [{null}], 1", word = in(reg) address, null = in(reg) 0_usize);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("str {one}, [{word}]", "str wzr, [{null}]", word = in(reg) address, null = in(reg) 0_usize, one = in(reg) 1_u64);
    }
}

/// The file by which `crash-and-be-killed` says that it crashes now.
pub fn crash_word(store: &Path) -> std::path::PathBuf {
    store.with_extension("crashes")
}
