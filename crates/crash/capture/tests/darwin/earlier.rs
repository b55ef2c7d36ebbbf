//! Other code in the process: earlier owners of the exception ports, handlers before and after
//! Coroner's, and an app's acts outside a signal handler.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(feature = "fault-injection")]
use coroner_capture::InstallOptions;
use mach2::kern_return::{KERN_FAILURE, KERN_SUCCESS};
use mach2::mach_port::{mach_port_allocate, mach_port_destroy, mach_port_insert_right};
use mach2::message::{mach_msg, mach_msg_header_t};
use mach2::task::task_set_exception_ports;
use mach2::thread_act::{thread_get_state, thread_set_state};
use mach2::traps::mach_task_self;

use crate::{forged, host};

/// Whether an earlier owner of the port let the thread continue.
pub(crate) static MENDED: AtomicBool = AtomicBool::new(false);

/// Number of exceptions that the earlier owner received.
static ASKED: AtomicU32 = AtomicU32::new(0);

#[cfg(target_arch = "x86_64")]
mod machine {
    /// `x86_THREAD_STATE64`: its flavour, number of words, and index of the instruction pointer.
    pub(super) const FLAVOR: i32 = 4;
    pub(super) const WORDS: usize = 42;
    pub(super) const PC: usize = 16;
}
#[cfg(target_arch = "aarch64")]
mod machine {
    /// `ARM_THREAD_STATE64`.
    pub(super) const FLAVOR: i32 = 6;
    pub(super) const WORDS: usize = 68;
    pub(super) const PC: usize = 32;
}

/// The function at which a repaired thread continues; it exits.
extern "C" fn goes_on() {
    std::process::exit(if MENDED.load(Ordering::SeqCst) { 0 } else { 3 });
}

/// The form of the messages and answers of a port's owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Refuses,
    Accepts,
    AcceptsWithState,
    /// `EXCEPTION_STATE`: a message without any port.
    AcceptsWithStateAlone,
    /// `EXCEPTION_STATE_IDENTITY_PROTECTED`: a token of the task, the thread's id, its state.
    AcceptsWithProtectedState,
}

impl Answer {
    /// Returns the behaviour for registration: `EXCEPTION_DEFAULT` and the protected one with
    /// 64-bit codes, those with states without.
    fn behavior(self) -> i32 {
        match self {
            Answer::AcceptsWithProtectedState => 5 | i32::MIN,
            Answer::AcceptsWithState => 3,
            Answer::AcceptsWithStateAlone => 2,
            Answer::Refuses | Answer::Accepts => 1 | i32::MIN,
        }
    }

    /// Returns the id of the messages that the owner receives.
    fn request(self) -> u32 {
        match self {
            Answer::AcceptsWithProtectedState => 2410,
            Answer::AcceptsWithState => 2403,
            Answer::AcceptsWithStateAlone => 2402,
            Answer::Refuses | Answer::Accepts => 2405,
        }
    }

    /// Returns the offsets of the exception's number and of the state's flavour in the messages.
    /// The header is followed by a count and port descriptors (12 bytes each) if there are any, NDR
    /// (8) and the thread's id (8) if it is sent; the exception by a count and two codes.
    fn places(self) -> (usize, usize) {
        match self {
            Answer::AcceptsWithProtectedState => (24 + 4 + 12 + 8 + 8, 80),
            Answer::AcceptsWithStateAlone => (24 + 8, 48),
            Answer::Refuses | Answer::Accepts | Answer::AcceptsWithState => (24 + 4 + 24 + 8, 76),
        }
    }
}

/// Takes `EXC_BAD_ACCESS`, as an app's own earlier crash handler would.
fn hold_port(answer: Answer) -> u32 {
    let mut port = 0;
    // SAFETY: a port of our own.
    unsafe {
        assert_eq!(mach_port_allocate(mach_task_self(), 1, &raw mut port), KERN_SUCCESS);
        assert_eq!(mach_port_insert_right(mach_task_self(), port, port, 20), KERN_SUCCESS);
        let set = task_set_exception_ports(mach_task_self(), 1 << 1, port, answer.behavior(), machine::FLAVOR);
        assert_eq!(set, KERN_SUCCESS);
    }
    std::thread::Builder::new().name("holder".into()).spawn(move || serve(port, answer)).unwrap();
    port
}

/// Sets the state to a call of `goes_on` without a caller: with the stack as the ABI requires it at
/// a function's first instruction.
fn mend(state: &mut [u64]) {
    state[machine::PC] = goes_on as *const () as u64;
    #[cfg(target_arch = "x86_64")]
    {
        state[7] = (state[7] & !15) - 8 - 128;
    }
}

/// The thread that `main` runs on.
fn main_thread() -> u32 {
    let (mut list, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: the kernel maps a list, the oldest thread first.
    unsafe {
        assert_eq!(mach2::task::task_threads(mach_task_self(), &raw mut list, &raw mut count), KERN_SUCCESS);
        *list
    }
}

fn serve(port: u32, answer: Answer) {
    #[repr(C, align(8))]
    struct Message([u32; 512]);
    let mut message = Message([0; 512]);
    let at = |index: usize| index / 4;
    loop {
        // SAFETY: the kernel writes at most the buffer's size.
        let received = unsafe { mach_msg((&raw mut message).cast(), 2, 0, 2048, port, 0, 0) };
        assert_eq!(received, KERN_SUCCESS);
        ASKED.fetch_add(1, Ordering::SeqCst);
        let id = message.0[5];
        assert_eq!(id, answer.request(), "in the form that was asked for");
        let (exception, flavor) = answer.places();
        assert_eq!(message.0[at(exception)], 1, "EXC_BAD_ACCESS");
        let mut reply = Message([0; 512]);
        let mut size = 36;
        reply.0[at(32)] = KERN_SUCCESS as u32;
        match answer {
            Answer::Refuses => reply.0[at(32)] = KERN_FAILURE as u32,
            Answer::Accepts => {
                MENDED.store(true, Ordering::SeqCst);
                let mut state = [0_u64; machine::WORDS / 2];
                let mut count = machine::WORDS as u32;
                // The message's port may not allow setting the state.
                let thread = main_thread();
                // SAFETY: a thread that waits for this reply, and a state of the flavour's size.
                unsafe {
                    let place = state.as_mut_ptr().cast();
                    assert_eq!(thread_get_state(thread, machine::FLAVOR, place, &raw mut count), KERN_SUCCESS);
                    mend(&mut state);
                    assert_eq!(thread_set_state(thread, machine::FLAVOR, place, count), KERN_SUCCESS);
                }
            }
            Answer::AcceptsWithState | Answer::AcceptsWithStateAlone | Answer::AcceptsWithProtectedState => {
                assert_eq!(message.0[at(exception + 8)], 1, "KERN_INVALID_ADDRESS");
                // Flavour, count, state.
                assert_eq!(message.0[at(flavor)] as i32, machine::FLAVOR);
                assert_eq!(message.0[at(flavor + 4)] as usize, machine::WORDS);
                MENDED.store(true, Ordering::SeqCst);
                let mut state = [0_u64; machine::WORDS / 2];
                for (word, place) in state.iter_mut().enumerate() {
                    let low = at(flavor + 8) + word * 2;
                    *place = u64::from(message.0[low]) | u64::from(message.0[low + 1]) << 32;
                }
                mend(&mut state);
                reply.0[at(36)] = machine::FLAVOR as u32;
                reply.0[at(40)] = machine::WORDS as u32;
                for (word, value) in state.iter().enumerate() {
                    let low = at(44) + word * 2;
                    (reply.0[low], reply.0[low + 1]) = (*value as u32, (*value >> 32) as u32);
                }
                size = 44 + machine::WORDS * 4;
            }
        }
        // The header: the right moved back, size, the reply port, no local port, no voucher, the
        // id, NDR.
        reply.0[..6].copy_from_slice(&[message.0[0] & 0x1f, size as u32, message.0[2], 0, 0, id + 100]);
        reply.0[at(28)] = 1;
        reply.0[at(24)] = 0;
        // SAFETY: the kernel reads `size` bytes of the reply.
        let sent = unsafe { mach_msg((&raw mut reply).cast::<mach_msg_header_t>(), 1, size as u32, 0, 0, 0, 0) };
        assert_eq!(sent, KERN_SUCCESS);
    }
}

/// An app's signal handler, which must get the original signal, and exits with its own status.
extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: arguments from the kernel, or from Coroner in its place.
    let right = unsafe { (*info).si_signo == signal } && !context.is_null();
    let expected = [libc::SIGSEGV, libc::SIGABRT].contains(&signal);
    // SAFETY: ends the process.
    unsafe { libc::_exit(if right && expected { 42 } else { 41 }) };
}

fn handle_signals() {
    for signal in [libc::SIGSEGV, libc::SIGABRT] {
        let action =
            libc::sigaction { sa_sigaction: handler as *const () as usize, sa_mask: 0, sa_flags: libc::SA_SIGINFO };
        // SAFETY: the handler only ends the process.
        assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
    }
}

fn default_dispositions() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action runs no code.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

pub(crate) fn before_install(with: &str) {
    let (later, with) = with.strip_prefix("later").map_or((false, with), |rest| (true, rest.trim_start_matches('-')));
    if later {
        host::be_later(with == "enforced");
    }
    match with {
        "debugger" => host::be_traced(),
        "port-with-state-alone" => drop(hold_port(Answer::AcceptsWithStateAlone)),
        "port-refuses" => drop(hold_port(Answer::Refuses)),
        "port-accepts" => drop(hold_port(Answer::Accepts)),
        "port-with-state" => drop(hold_port(Answer::AcceptsWithState)),
        "port-dead" => {
            let port = hold_port(Answer::Refuses);
            // The owner's thread panics when its port dies; the process continues.
            // SAFETY: this process owns the port.
            unsafe { mach_port_destroy(mach_task_self(), port) };
        }
        "handler" => handle_signals(),
        "default" => default_dispositions(),
        "port-alone-accepts" => {
            default_dispositions();
            hold_port(Answer::Accepts);
        }
        "port-with-protected-state" => {
            default_dispositions();
            hold_port(Answer::AcceptsWithProtectedState);
        }
        _ => {}
    }
}

pub(crate) fn after_install(with: &str) {
    match with.strip_prefix("later-").unwrap_or(with) {
        "debugger" => assert!(!has_exception_port(), "a debugger's exceptions are its own"),
        "forged" => forged::send_all(),
        "abort-in-flight" => {
            let all = u32::MAX;
            // SAFETY: reads one set. Does what abort() does first on all threads, and is then
            // interrupted for a long time.
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
        }
        "handler-after" => handle_signals(),
        "ignore" => assert!(coroner_capture::ignore_next_signal(libc::SIGSEGV)),
        "uninstall" => assert!(coroner_capture::uninstall()),
        // SAFETY: the process is expected to end here.
        "sigterm" => unsafe {
            libc::raise(libc::SIGTERM);
        },
        "fork" => child_dies(),
        "faulting-loads" => fault_in_loads(),
        "repair" => repair(),
        "repair-beside-loads" => {
            fault_in_loads();
            repair();
        }
        "live" => {
            live_reads();
            std::process::exit(0);
        }
        _ => {}
    }
}

/// Whether the task's port for bad accesses has an owner.
fn has_exception_port() -> bool {
    let (mut mask, mut port, mut behavior, mut flavor, mut count) = (0, 0, 0, 0, 1);
    // SAFETY: results are local, one of each.
    let status = unsafe {
        mach2::task::task_get_exception_ports(
            mach_task_self(),
            1 << 1,
            &raw mut mask,
            &raw mut count,
            &raw mut port,
            &raw mut behavior,
            &raw mut flavor,
        )
    };
    status == KERN_SUCCESS && count > 0 && port != 0
}

/// Makes an install fail at each step, and uninstalls a complete one: neither leaves a port.
#[cfg(feature = "fault-injection")]
pub(crate) fn install_in_vain(store: &std::ffi::CStr, setup: &InstallOptions) {
    use coroner_capture::{InstallError, fault_injection};
    // Not in the store that is checked.
    let store = [store.to_bytes(), b"/in-vain\0"].concat();
    let store = std::ffi::CStr::from_bytes_with_nul(&store).expect("a path");
    // The first install creates what a process creates once.
    coroner_capture::install(store, setup).expect("installed");
    assert!(coroner_capture::uninstall());
    let before = host::port_names();
    for place in 1..=2 {
        fault_injection::fail_install(place);
        let failed = coroner_capture::install(store, setup);
        assert!(matches!(failed, Err(InstallError::Memory(_))), "place {place}: {failed:?}");
        assert_eq!(host::port_names(), before, "an install that fails at place {place} leaves ports behind");
    }
    fault_injection::fail_install(0);
    coroner_capture::install(store, setup).expect("installed");
    assert!(coroner_capture::uninstall());
    assert_eq!(host::port_names(), before, "an uninstall leaves ports behind");
}

/// Crashes in a forked child: the parent continues and has no report.
fn child_dies() {
    // SAFETY: the child calls nothing but the death.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        crate::deaths::call_death(crate::deaths::named("abort"));
    }
    let mut status = 0;
    // SAFETY: writes one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status & 0x7f, libc::SIGABRT, "the child dies as it would have");
    std::process::exit(0);
}

/// Guarded loads outside a signal handler: bad addresses are errors, on any thread, and no report
/// is written.
fn live_reads() {
    use coroner_process::memory::Memory;
    use coroner_walk::LiveReader;
    let read = || {
        let Some(LiveReader::Loads(mut memory)) = LiveReader::new() else {
            panic!("loads are guarded while Coroner is installed")
        };
        let words = [1_u64, 2];
        assert_eq!(memory.read_u64(words.as_ptr() as u64), Ok(1));
        assert!(memory.read_u64(0x18).is_err());
        assert!(memory.read_pair(u64::MAX - 100).is_err());
        assert!(memory.read(0x7_dead_0000, &mut [0; 100]).is_err());
    };
    read();
    std::thread::spawn(read).join().unwrap();
    own_threads_are_left_alone();
}

/// Coroner's own threads are neither listed nor stopped: guarded loads depend on them.
fn own_threads_are_left_alone() {
    use coroner_process::threads::{ThreadList, activity, facts, this_thread};
    use coroner_walk::stop_thread::{for_each_thread, stop};
    let list = ThreadList::take().expect("a list");
    let is_own = |port: &u32| activity(*port).is_some_and(|thread| thread.name.as_bytes().starts_with(b"coroner."));
    let own: Vec<_> = list.ports().iter().filter(|port| is_own(port)).filter_map(|port| facts(*port)).collect();
    assert_eq!(own.len(), 2, "Coroner's threads by name");
    let mut listed = Vec::new();
    assert!(for_each_thread(&mut |tid| listed.push(tid)));
    assert!(listed.contains(&this_thread()));
    for thread in own {
        assert!(!listed.contains(&thread.tid), "it is listed");
        assert!(stop(thread.tid).is_err(), "it is stopped");
    }
}

/// Starts threads whose loads all fault until the process exits, so that usually several exceptions
/// are pending. Threads that throw and walk their stacks behave like this.
fn fault_in_loads() {
    use coroner_process::memory::Memory;
    use coroner_walk::LiveReader;
    const THREADS: usize = 4;
    static FAULTS: [AtomicU32; THREADS] = [const { AtomicU32::new(0) }; THREADS];
    for faults in &FAULTS {
        std::thread::spawn(|| {
            let Some(LiveReader::Loads(mut memory)) = LiveReader::new() else { panic!("loads are not guarded") };
            loop {
                assert!(memory.read_u64(0xffff_ffff_ffff_fff8).is_err());
                faults.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while FAULTS.iter().any(|faults| faults.load(Ordering::SeqCst) < 10) {
        std::thread::yield_now();
    }
}

/// The signals that a thread of the app blocks: SIGBUS, as in apps that leave signals to one
/// thread.
static BLOCKED_BY_WORKER: AtomicU32 = AtomicU32::new(0);

/// Installs the app's SIGBUS handler, which makes the page of the fault writable, and starts a
/// thread that blocks SIGBUS.
fn repair() {
    extern "C" fn on_bus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: arguments from the kernel, or from Coroner in its place; the page is the
        // program's constant.
        let made = unsafe {
            let page = (*info).si_addr() as usize & !0x3fff;
            libc::mprotect(page as *mut libc::c_void, 0x4000, libc::PROT_READ | libc::PROT_WRITE)
        };
        if made != 0 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(43) };
        }
    }
    let action = libc::sigaction { sa_sigaction: on_bus as *const () as usize, sa_mask: 0, sa_flags: libc::SA_SIGINFO };
    // SAFETY: the handler only calls mprotect.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);
    std::thread::Builder::new()
        .name("worker".into())
        .spawn(|| {
            let mask = 1_u32 << (libc::SIGBUS - 1);
            let mut now = 0;
            // SAFETY: sets of this stack.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
                loop {
                    libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now);
                    BLOCKED_BY_WORKER.store(now, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        })
        .expect("a thread");
    while BLOCKED_BY_WORKER.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

/// Checks after the repaired fault that all threads have their earlier masks.
pub(crate) fn check_masks() {
    use coroner_process::threads::{ThreadList, activity};
    let bus = 1_u32 << (libc::SIGBUS - 1);
    let (mut own, mut workers) = (0, 0);
    let list = ThreadList::take().expect("a list");
    for port in list.ports() {
        let Some(thread) = activity(*port) else { continue };
        let blocks = host::mask_of(*port) & bus != 0;
        match thread.name.as_bytes() {
            b"worker" => {
                workers += 1;
                assert!(blocks, "the worker's SIGBUS was opened");
            }
            name if name.starts_with(b"coroner.") => {
                own += 1;
                assert!(blocks, "SIGBUS is open on {}", String::from_utf8_lossy(name));
            }
            _ => assert!(!blocks, "SIGBUS is blocked on a thread that had it open"),
        }
    }
    assert_eq!((own, workers), (2, 1), "the threads by name");
    assert!(BLOCKED_BY_WORKER.load(Ordering::SeqCst) & bus != 0, "by the worker itself");
}
