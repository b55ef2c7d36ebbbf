//! Scenarios of an app's actions before, during and after a report, by name, for
//! `src/bin/session_program.rs`.
//!
//! Each scenario runs with and without Coroner, and prints what the test can't observe from
//! outside.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::{descriptors, recoverable};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: &'static str,
    /// Runs before Coroner is installed.
    pub before_install: fn(),
    /// Runs afterwards, with the store's directory and the number from the command line.
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

/// Returns the monotonic clock in nanoseconds, which is the same in all processes.
pub fn now() -> u64 {
    // SAFETY: the kernel fills a local structure.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Prints `name: value` for the test.
fn print_value(name: &str, value: u64) {
    println!("{name}: {value}");
    let _ = std::io::stdout().flush();
}

/// The actual crash of a scenario.
fn crash() {
    (coroner_faults::find("null-store").expect("not in the table of faults").run)();
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn handle_faults(handler: Handler) {
    // SAFETY: the action is fully initialized; the handlers below are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Restores the default disposition, for a fault that a handler doesn't know: the repeated fault
/// then has the default action.
fn not_ours() {
    // SAFETY: sets the default disposition; async-signal-safe.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

// An app that closes descriptors.

fn close_and_wait(store: &Path, _: u64) {
    descriptors::close_range();
    descriptors::open_files(&descriptors::app_files(store));
    print_value("ready", 1);
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
    print_value("lost", descriptors::lost_descriptors(&descriptors::app_files(store), uninstall) as u64);
}

// Children that share this process's memory.

/// On each of 8 threads, `children` processes created by `vfork` crash at once, then the process
/// crashes.
fn vfork_children_together(_: &Path, children: u64) {
    let child = coroner_faults::find("vfork-child").expect("not in the table of faults").run;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..children).for_each(|_| child()));
        }
    });
    crash();
}

/// A child with this process's memory and handlers (`CLONE_VM | CLONE_SIGHAND`) crashes, then the
/// process crashes. Prints whether the signal still had its handler.
fn child_with_same_handlers(_: &Path, _: u64) {
    let handler = || {
        // SAFETY: all-zero is valid; the kernel fills it.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now);
            now.sa_sigaction
        }
    };
    let before = handler();
    (coroner_faults::find("sighand-child").expect("not in the table of faults").run)();
    // It is restored after the child has ended, by a process that can't be waited for.
    let until = Instant::now() + Duration::from_secs(10);
    while handler() != before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    print_value("kept", u64::from(handler() == before));
    crash();
}

// Unmapped code.

/// A function calls another one, which unmaps its caller's code and crashes, as after a library was
/// unloaded too early. Prints the code's address.
fn caller_unloaded(_: &Path, _: u64) {
    extern "C" fn unload_and_crash(page: usize) {
        // SAFETY: the page of `caller_unloaded`, which is never returned to.
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
    // SAFETY: a new mapping, filled with code of a function with that signature.
    unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let page = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
        assert!(page != libc::MAP_FAILED, "can't map memory");
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        assert_eq!(libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
        print_value("code", page as u64);
        let caller: extern "C" fn(usize, extern "C" fn(usize)) = std::mem::transmute(page);
        caller(page as usize, unload_and_crash);
    }
}

// A thread's end.

/// The destructor of a thread-specific value, with a key created after Coroner's, overflows its
/// thread's stack.
fn overflow_in_destructor(_: &Path, _: u64) {
    extern "C" fn destroy(_: *mut libc::c_void) {
        (coroner_faults::find("stack-overflow").expect("not in the table of faults").run)();
    }
    extern "C" fn start(key: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: a key of this process; the value is never read.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, key.wrapping_add(1)) };
        std::ptr::null_mut()
    }
    // SAFETY: key and thread are initialized by the preceding calls.
    unsafe {
        let mut key: libc::pthread_key_t = 0;
        let mut thread: libc::pthread_t = std::mem::zeroed();
        assert_eq!(libc::pthread_key_create(&raw mut key, Some(destroy)), 0);
        let argument = key as usize as *mut libc::c_void;
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, argument), 0);
        libc::pthread_join(thread, std::ptr::null_mut());
    }
}

// A child with two signals.

/// Forked children abort and receive a SIGSEGV from outside after `microseconds`, each with a
/// slightly longer delay. Prints how many die of neither.
fn second_signal_in_child(_: &Path, microseconds: u64) {
    let signals = (0..8).map(|child| second_signal(microseconds + child * 10));
    print_value("hung", signals.filter(|signal| ![libc::SIGABRT, libc::SIGSEGV].contains(signal)).count() as u64);
}

/// Runs one of them; returns the signal that killed it, or 0.
fn second_signal(microseconds: u64) -> i32 {
    // SAFETY: a new mapping, shared with the child and never unmapped.
    let aborts = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON);
        let word = libc::mmap(std::ptr::null_mut(), 8, protection, flags, -1, 0);
        assert!(word != libc::MAP_FAILED, "can't map shared memory");
        &*word.cast::<AtomicU64>()
    };
    // SAFETY: the child only aborts.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "can't fork: {}", std::io::Error::last_os_error());
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
    // SAFETY: a signal to the child, which hasn't been waited for yet.
    unsafe { libc::kill(child, libc::SIGSEGV) };
    let begun = Instant::now();
    let mut status = 0;
    // SAFETY: a local status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(15) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

// A handler left by a jump.

extern "C" fn jump(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    recoverable::leave();
    not_ours();
}

fn leave_by_jump() {
    handle_faults(jump);
}

extern "C" fn fault() {
    let null = std::hint::black_box(std::ptr::null_mut::<u32>());
    // SAFETY: none: the store faults on purpose, and the handler leaves it. In assembly, because
    // debug builds check pointers first.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov dword ptr [{null}], 1", null = in(reg) null);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("str wzr, [{null}]", null = in(reg) null);
    }
}

/// A thread faults, its handler leaves by a jump, and the thread ends; the main thread measures how
/// long it is stopped.
fn jump_and_end(_: &Path, _: u64) {
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    let thread = std::thread::spawn(move || {
        assert!(recoverable::call(fault), "the handler did not leave by a jump");
        end.store(true, Ordering::SeqCst);
    });
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !ended.load(Ordering::SeqCst) || !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    // A thread that is still stopped would have been released by now.
    std::thread::sleep(Duration::from_millis(10));
    longest = longest.max(last.elapsed());
    print_value("milliseconds stopped", longest.as_millis() as u64);
    crash();
}

/// A thread whose handler left by a jump crashes later.
fn jump_and_crash(_: &Path, _: u64) {
    let thread = std::thread::spawn(|| {
        assert!(recoverable::call(fault), "the handler did not leave by a jump");
        crash();
    });
    let _ = thread.join();
}

/// Prints how many of two one-second sleeps after the report end early: the faulting thread's and
/// another's.
fn jump_and_sleep(_: &Path, _: u64) {
    let left = Arc::new(Barrier::new(2));
    let go = Arc::clone(&left);
    let thread = std::thread::spawn(move || {
        assert!(recoverable::call(fault), "the handler did not leave by a jump");
        go.wait();
        is_sleep_interrupted()
    });
    left.wait();
    let own = is_sleep_interrupted();
    let other = thread.join().expect("it sleeps");
    print_value("interrupted", u64::from(own) + u64::from(other));
}

fn is_sleep_interrupted() -> bool {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: the kernel reads a local structure. Async-signal-safe.
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

/// Prints whether a one-second sleep in the app's own handler ends early.
fn sleep_in_handler(_: &Path, _: u64) {
    assert!(recoverable::call(fault), "the handler did not leave by a jump");
    print_value("interrupted", INTERRUPTED.load(Ordering::SeqCst) as u64);
}

// A handler that repairs the fault.

const PAGE: usize = 1 << 16;

/// The repairable pages by thread; 0 for none.
static PAGES: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

extern "C" fn make_writable(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: handlers with SA_SIGINFO receive it.
    let page = unsafe { (*info).si_addr() as usize } & !(PAGE - 1);
    let known = page != 0 && PAGES.iter().any(|of| of.load(Ordering::SeqCst) == page);
    // SAFETY: the scenario's own mapping.
    if !known || unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        not_ours();
    }
}

fn repair() {
    handle_faults(make_writable);
}

/// Maps a thread's read-only memory, aligned to its size.
fn map_page(thread: usize) -> usize {
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0)
    };
    assert!(memory != libc::MAP_FAILED, "can't map memory");
    let page = (memory as usize).next_multiple_of(PAGE);
    PAGES[thread].store(page, Ordering::SeqCst);
    page
}

/// Makes the page read-only, stores to it, and returns the time until the store was done.
fn repaired_fault(page: usize) -> Duration {
    // SAFETY: the thread's own page, and a store of a word to it, which the handler allows.
    unsafe {
        assert_eq!(libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ), 0);
        let begun = Instant::now();
        (page as *mut u64).write_volatile(1);
        begun.elapsed()
    }
}

/// Four threads have `faults` repaired faults each, then the process crashes.
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
    print_value("milliseconds", begun.elapsed().as_millis() as u64);
    crash();
}

/// Six threads repeatedly have a repaired fault, `microseconds` apart. Prints the longest.
fn repair_together(_: &Path, microseconds: u64) {
    let pages: Vec<usize> = (0..FAULTING).map(map_page).collect();
    together(microseconds, &|thread| repaired_fault(pages[thread]));
}

/// The same with a handler that leaves by a jump.
fn jump_together(_: &Path, microseconds: u64) {
    together(microseconds, &|_| {
        let begun = Instant::now();
        assert!(recoverable::call(fault), "the handler did not leave by a jump");
        begun.elapsed()
    });
}

/// Number of threads that fault together.
const FAULTING: usize = 6;

/// Runs `act` on threads, `microseconds` apart, in rounds. Prints the longest time.
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
    print_value("milliseconds", longest.into_inner());
}

// A crashing coroutine.

extern "C" fn coroutine() {
    crash();
}

/// Crashes on the stack of a coroutine created by this thread.
fn crash_on_coroutine(_: &Path, _: u64) {
    let stack = vec![0_u8; 1 << 18].leak();
    // SAFETY: the contexts live as long as this function, which doesn't return; only the coroutine
    // uses the stack.
    unsafe {
        let (mut made, mut own): (libc::ucontext_t, libc::ucontext_t) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(libc::getcontext(&raw mut made), 0);
        made.uc_stack.ss_sp = stack.as_mut_ptr().cast();
        made.uc_stack.ss_size = stack.len();
        made.uc_link = &raw mut own;
        libc::makecontext(&raw mut made, coroutine, 0);
        print_value("stack begins", stack.as_ptr() as u64);
        print_value("stack ends", stack.as_ptr() as u64 + stack.len() as u64);
        libc::swapcontext(&raw mut own, &raw const made);
    }
}

// Several crashing threads.

/// Threads crash, `microseconds` apart. Prints the time of the first crash.
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
    print_value("crashes at", at);
    begin.store(at, Ordering::SeqCst);
    loop {
        std::thread::park();
    }
}

/// With two hundred threads, crashes observably for another process: the word in the store's file
/// `crashes` becomes 1 one instruction before the fault, and is 2 or more while this process
/// prepares.
fn crash_and_be_killed(store: &Path, _: u64) {
    let word = descriptors::shared_word(&crash_word(store));
    coroner_faults::threads::park(200);
    // Between the fault and the handler's first store the crash is not recorded anywhere. If the
    // thread was preempted there, a kill a tenth of a millisecond later came first (1 of 800 on a
    // busy machine), so prevent preemption if permitted.
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one structure.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    print_value("thread", std::process::id().into());
    let address = word.as_ptr();
    // SAFETY: the first store is to a shared word; the second one is the intended crash.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov qword ptr [{word}], 1", "mov dword ptr [{null}], 1", word = in(reg) address, null = in(reg) 0_usize);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("str {one}, [{word}]", "str wzr, [{null}]", word = in(reg) address, null = in(reg) 0_usize, one = in(reg) 1_u64);
    }
}

/// Returns the file with which `crash-and-be-killed` announces its crash.
pub fn crash_word(store: &Path) -> std::path::PathBuf {
    store.with_extension("crashes")
}
