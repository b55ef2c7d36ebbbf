//! Conditions on Linux: resources that are missing during the crash.

use std::ptr::null;
use std::sync::atomic::Ordering;

use coroner_faults::seccomp::{self, Action};

use super::{Condition, DEAF, DISK, PLAIN};
use crate::descriptors;

pub(super) static CONDITIONS: &[Condition] = &[
    Condition { name: "full-disk", before_fault: fill_disk, ..PLAIN },
    Condition { name: "room-again", before_fault: make_room, ..PLAIN },
    Condition { name: "no-inodes", before_fault: exhaust_inodes, ..PLAIN },
    Condition { name: "no-descriptors", before_fault: exhaust_descriptors, ..PLAIN },
    Condition { name: "no-address-space", before_fault: || limit(libc::RLIMIT_AS, 1 << 20), ..PLAIN },
    Condition { name: "no-file-size", before_fault: || limit(libc::RLIMIT_FSIZE, 0), ..PLAIN },
    Condition { name: "no-processes", before_fault: exhaust_processes, ..PLAIN },
    Condition { name: "no-proc", before_install: leave_proc, ..PLAIN },
    Condition { name: "unprivileged", before_fault: become_nobody, ..PLAIN },
    Condition { name: "queue-kills", before_fault: kill_for_queued_signals, ..PLAIN },
    Condition { name: "timers-trapped", before_fault: || filter_timers(Action::Trap), ..PLAIN },
    Condition { name: "timers-kill", before_fault: || filter_timers(Action::Kill), ..PLAIN },
    Condition { name: "dispositions-refused", before_fault: refuse_dispositions, ..PLAIN },
    Condition { name: "threads-unlisted", before_fault: refuse_lists, ..PLAIN },
    Condition { name: "timers-refused", before_fault: || filter_timers(Action::Fail(libc::EPERM as u16)), ..PLAIN },
    Condition { name: "descriptors-closed", before_fault: || with_files(descriptors::close_range), ..PLAIN },
    Condition { name: "descriptors-closed-in-a-loop", before_fault: || with_files(descriptors::close_each), ..PLAIN },
    Condition { name: "descriptors-replaced", before_fault: || descriptors::replace_by_files(&app_files()), ..PLAIN },
    Condition { name: "descriptors-replaced-by-pipes", before_fault: descriptors::replace_by_output, ..PLAIN },
    Condition { name: "state-cut", before_fault: cut_state, ..PLAIN },
    Condition { name: "store-removed", before_fault: remove_store, ..PLAIN },
    Condition { name: "nearly-all-refused", before_fault: refuse_nearly_all, ..PLAIN },
    Condition {
        name: "repeated-signals",
        before_install: handle_repeated_signals,
        before_fault: repeat_signals,
        ..PLAIN
    },
    Condition { name: "reinstalled-often", before_fault: reinstall_often, ..PLAIN },
    Condition { name: "uninstalled-meanwhile", before_fault: uninstall_meanwhile, ..PLAIN },
    Condition { name: "4-descriptors", before_install: || limit(libc::RLIMIT_NOFILE, 4), ..PLAIN },
    Condition { name: "5-descriptors", before_install: || limit(libc::RLIMIT_NOFILE, 5), ..PLAIN },
    Condition { name: "6-descriptors", before_install: || limit(libc::RLIMIT_NOFILE, 6), ..PLAIN },
    Condition { name: "9-descriptors", before_install: || limit(libc::RLIMIT_NOFILE, 9), ..PLAIN },
    Condition { name: "kernel-thread", before_install: make_kernel_thread, ..PLAIN },
    Condition { name: "deaf-threads", before_install: || DEAF.store(true, Ordering::SeqCst), ..PLAIN },
];

/// Installs and uninstalls Coroner repeatedly; it is installed at the end.
fn reinstall_often() {
    for _ in 0..20 {
        let Some(coroner) = coroner::installed() else { return };
        coroner.uninstall();
        let store = DISK.get().expect("set by the program");
        let config = coroner::Config::new("crash-program").version("1.0").store_dir(store);
        let config = config.no_sinks().delivery(coroner::Delivery::new().symbolicate(false));
        coroner::install(config).expect("can't install Coroner again");
    }
}

/// Uninstalls on another thread as soon as a report begins: the crash takes precedence.
fn uninstall_meanwhile() {
    let Some(coroner) = coroner::installed() else { return };
    let report = DISK.get().expect("set by the program").join("runs").join(coroner.run_id().to_string()).join("report");
    let file = std::fs::File::open(report).expect("the run has a report");
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping of a larger file.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), super::PAGE, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0) as usize
    };
    assert_ne!(start, libc::MAP_FAILED as usize, "can't map the report");
    std::thread::spawn(move || {
        // SAFETY: mapped above, and never unmapped.
        while unsafe { (start as *const u32).read_volatile() } == 0 {
            std::hint::spin_loop();
        }
        coroner.uninstall();
    });
}

/// Truncates the run state's file while the app runs and continues to update it, and forks.
fn cut_state() {
    let runs = DISK.get().expect("set by the program").join("runs");
    for run in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let state = std::fs::File::options().write(true).open(run.path().join("state")).expect("the run has a state");
        state.set_len(0).expect("can't truncate the run state");
    }
    for number in 0..40 {
        let _ = coroner::set_tag(&number.to_string(), "of the app");
    }
    // SAFETY: the child exits at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0), "can't fork");
    }
}

/// Removes the app's data, including the store, while the app runs.
fn remove_store() {
    let store = DISK.get().expect("set by the program");
    // Without Coroner there is no store, and the folder is shared.
    if *store == std::env::temp_dir() {
        return;
    }
    // Only the store's known entries.
    std::fs::remove_dir_all(store.join("runs")).expect("the store has runs");
    for entry in std::fs::read_dir(store).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("last_run-") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(store);
}

/// Installs a sandbox that allows a few system calls and refuses the rest, including getpid and
/// gettid.
fn refuse_nearly_all() {
    let allowed = [libc::SYS_write, libc::SYS_futex, libc::SYS_rt_sigreturn, libc::SYS_exit, libc::SYS_exit_group];
    let refused: Vec<libc::c_long> = (0..250).filter(|call| !allowed.contains(call)).collect();
    seccomp::filter(&refused, Action::Fail(libc::EPERM as u16)).expect("can't install a system call filter");
}

/// A sandbox that kills for a signal that is queued.
fn kill_for_queued_signals() {
    seccomp::filter(&[libc::SYS_rt_tgsigqueueinfo, libc::SYS_rt_sigqueueinfo], Action::Kill)
        .expect("the system takes a filter");
}

extern "C" fn ignore_signal(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// Installs handlers that return as if they had handled the signal.
fn handle_repeated_signals() {
    super::handle(libc::SIGSEGV, super::make_writable);
    super::handle(libc::SIGTRAP, ignore_signal);
    super::handle(libc::SIGFPE, ignore_signal);
}

/// Raises the same signals repeatedly from the same instructions: a write barrier, a counted
/// breakpoint, a sent signal.
fn repeat_signals() {
    // SAFETY: this function's own mapping; the handlers above allow the store and continue after
    // the others.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        let page = libc::mmap(std::ptr::null_mut(), super::PAGE, libc::PROT_READ, flags, -1, 0);
        assert!(page != libc::MAP_FAILED, "can't map memory");
        for _ in 0..20 {
            assert_eq!(libc::mprotect(page, super::PAGE, libc::PROT_READ), 0);
            page.cast::<u64>().write_volatile(1);
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("int3");
            libc::raise(libc::SIGFPE);
        }
    }
}

fn fill_disk() {
    use std::io::Write as _;
    let directory = DISK.get().expect("set by the program");
    let mut file = std::fs::File::create(directory.join("everything")).expect("can't create a file");
    for size in [1 << 16, 1 << 10, 1] {
        let block = vec![1_u8; size];
        while file.write_all(&block).is_ok() {}
    }
    // The file keeps its descriptor and its space.
    std::mem::forget(file);
}

/// Removes the file that filled the disk.
fn make_room() {
    std::fs::remove_file(DISK.get().expect("set by the program").join("everything"))
        .expect("can't remove the file that filled the disk");
}

/// Creates files until the file system has no inodes left.
fn exhaust_inodes() {
    let directory = DISK.get().expect("set by the program");
    let more = |number: &usize| std::fs::File::create(directory.join(format!("empty-{number}"))).is_ok();
    let made = (0..100_000).take_while(more).count();
    assert!(made < 100_000, "the file system doesn't run out of inodes");
}

fn exhaust_descriptors() {
    limit(libc::RLIMIT_NOFILE, 64);
    // SAFETY: opens descriptors and never closes them.
    while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } >= 0 {}
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Creates io_uring's polling thread; does nothing if the kernel has no io_uring or a sandbox
/// refuses it.
fn make_kernel_thread() {
    /// `struct io_uring_params` of linux/io_uring.h: 120 bytes; the third word has the flags.
    const WORDS: usize = 30;
    const IORING_SETUP_SQPOLL: u32 = 2;
    let mut parameters = [0_u32; WORDS];
    parameters[2] = IORING_SETUP_SQPOLL;
    // SAFETY: the kernel accesses the parameters; the descriptor stays open.
    unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
}

fn limit(resource: Resource, to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: the kernel reads one limit.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0, "can't lower the limit");
}

/// Refuses timers, which sandboxes often don't allow and a crash reporter's deadline uses.
fn filter_timers(action: Action) {
    seccomp::filter(&[libc::SYS_timer_create], action).expect("can't install a system call filter");
}

/// Starts a thread by the C library's own function, as libraries do that are loaded with a symbol
/// scope of their own: an interposed `pthread_create` is not called.
fn create_unannounced_thread() {
    extern "C" fn sleep(_argument: *mut libc::c_void) -> *mut libc::c_void {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: the signature of the C library's function.
    let create: Option<PthreadCreate> =
        unsafe { std::mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr())) };
    let mut thread = 0;
    // SAFETY: the thread uses nothing.
    let error = unsafe {
        create.unwrap_or(libc::pthread_create)(&raw mut thread, std::ptr::null(), sleep, std::ptr::null_mut())
    };
    assert_eq!(error, 0, "a thread can be created");
}

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    *mut libc::c_void,
) -> libc::c_int;

/// Installs a sandbox that refuses to list directories, that of the process's threads included.
fn refuse_lists() {
    // The ids that follow the process's are tried without a list.
    for _ in 0..64 {
        std::thread::spawn(|| {}).join().expect("the thread ends");
    }
    create_unannounced_thread();
    let refuse = Action::Fail(libc::EPERM as u16);
    seccomp::filter(&[libc::SYS_getdents64], refuse).expect("the system takes a filter");
}

/// Installs a sandbox that refuses to read or change signal dispositions.
fn refuse_dispositions() {
    let refuse = Action::Fail(libc::EPERM as u16);
    seccomp::filter(&[libc::SYS_rt_sigaction], refuse).expect("can't install a system call filter");
}

fn app_files() -> std::path::PathBuf {
    descriptors::app_files(DISK.get().expect("set by the program"))
}

/// Closes descriptors, and opens the app's files, which reuse their numbers.
fn with_files(close: fn()) {
    close();
    descriptors::open_files(&app_files());
}

/// Changes the user like a daemon started by root.
fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: changes only this process's user.
    if unsafe { libc::getuid() } == 0 {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(NOBODY) }, 0, "can't change to the user nobody");
    }
}

/// Removes `/proc` in a new mount namespace, like a `chroot` without it.
fn leave_proc() {
    // SAFETY: NUL-terminated strings that outlive the calls.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS);
        libc::mount(c"none".as_ptr(), c"/".as_ptr(), null(), libc::MS_REC | libc::MS_PRIVATE, null());
        // Several may be mounted on top of each other.
        while libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) == 0 {}
    }
    assert!(!std::path::Path::new("/proc/self").exists(), "/proc still exists");
}

/// Lowers RLIMIT_NPROC as another user, because it doesn't apply to root.
fn exhaust_processes() {
    become_nobody();
    limit(libc::RLIMIT_NPROC, 0);
}
