//! A system call filter that behaves like the sandbox of Chromium's renderers (`BaselinePolicy` and
//! `RendererProcessPolicy` in Chromium's `sandbox/linux` and `sandbox/policy/linux`): calls that
//! are allowed, calls that are allowed with certain arguments, calls that fail, and SIGSYS for all
//! others. Among the others: `ptrace`, `process_vm_readv`, timers, most of `prctl`, `clone` except
//! for threads, `rt_sigqueueinfo`. The file system is not accessible.

use coroner_faults::seccomp;
use libc::sock_filter;

/// The result of a system call.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Allow,
    Fail(i32),
    /// SIGSYS unless that argument is one of these.
    OneOf(u32, &'static [u32]),
    /// The same with an error instead of the signal.
    OneOfOrFails(u32, &'static [u32]),
    /// SIGSYS if that argument has other bits.
    Bits(u32, u32),
    /// SIGSYS unless the first argument is this process.
    OwnProcess,
    /// Allowed for threads; an error for forks; otherwise SIGSYS.
    Thread,
}

use Rule::{Allow, Bits, Fail, OneOf, OneOfOrFails, OwnProcess, Thread};

const CLOCKS: Rule = OneOf(0, &[0, 1, 2, 3, 4, 5, 6, 7]);
const FILE_SYSTEM: Rule = Fail(libc::EPERM);
/// `FUTEX_WAIT` to `FUTEX_WAKE_BITSET` without priority inheritance, shared and private, and with
/// `FUTEX_CLOCK_REALTIME`.
const FUTEXES: Rule = OneOf(1, &[0, 1, 3, 4, 5, 9, 10, 128, 129, 131, 132, 133, 137, 138, 256 + 9, 256 + 128 + 9]);

/// The system calls that don't raise SIGSYS.
const POLICY: &[(libc::c_long, Rule)] = &[
    (libc::SYS_brk, Allow),
    (libc::SYS_capget, Allow),
    (libc::SYS_clock_getres, CLOCKS),
    (libc::SYS_clock_gettime, CLOCKS),
    (libc::SYS_clock_nanosleep, CLOCKS),
    (libc::SYS_clone, Thread),
    (libc::SYS_clone3, Fail(libc::ENOSYS)),
    (libc::SYS_close, Allow),
    (libc::SYS_dup, Allow),
    (libc::SYS_dup3, Allow),
    (libc::SYS_epoll_create1, Allow),
    (libc::SYS_epoll_ctl, Allow),
    (libc::SYS_epoll_pwait, Allow),
    (libc::SYS_eventfd2, Allow),
    (libc::SYS_exit, Allow),
    (libc::SYS_exit_group, Allow),
    (libc::SYS_fallocate, Fail(libc::EPERM)),
    // F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC,
    // F_GET_SEALS.
    (libc::SYS_fcntl, OneOf(1, &[0, 1, 2, 3, 4, 5, 6, 7, 1030, 1034])),
    (libc::SYS_fdatasync, Allow),
    (libc::SYS_fstat, Allow),
    (libc::SYS_fsync, Allow),
    (libc::SYS_ftruncate, Allow),
    (libc::SYS_futex, FUTEXES),
    (libc::SYS_getcwd, FILE_SYSTEM),
    (libc::SYS_getdents64, Fail(libc::EPERM)),
    (libc::SYS_getegid, Allow),
    (libc::SYS_geteuid, Allow),
    (libc::SYS_getgid, Allow),
    (libc::SYS_getpid, Allow),
    (libc::SYS_getppid, Allow),
    (libc::SYS_getrandom, Bits(2, libc::GRND_NONBLOCK)),
    (libc::SYS_getrlimit, Allow),
    (libc::SYS_gettid, Allow),
    (libc::SYS_gettimeofday, Allow),
    (libc::SYS_getuid, Allow),
    (libc::SYS_ioctl, OneOf(1, &[libc::TCGETS as u32, libc::FIONREAD as u32])),
    (libc::SYS_lseek, Allow),
    // MADV_NORMAL, _RANDOM, _DONTNEED, _FREE, _REMOVE.
    (libc::SYS_madvise, OneOfOrFails(2, &[0, 1, 4, 8, 9])),
    (libc::SYS_memfd_create, Allow),
    (libc::SYS_mincore, Allow),
    (libc::SYS_mkdirat, FILE_SYSTEM),
    (libc::SYS_mlock, Allow),
    (
        libc::SYS_mmap,
        Bits(
            3,
            (libc::MAP_SHARED
                | libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_STACK
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED
                | libc::MAP_DENYWRITE
                | libc::MAP_LOCKED) as u32,
        ),
    ),
    (libc::SYS_mprotect, Bits(2, (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32)),
    (libc::SYS_mremap, Allow),
    (libc::SYS_munlock, Allow),
    (libc::SYS_munmap, Allow),
    (libc::SYS_nanosleep, Allow),
    (libc::SYS_newfstatat, FILE_SYSTEM),
    (libc::SYS_openat, FILE_SYSTEM),
    (libc::SYS_pidfd_open, Fail(libc::ENOSYS)),
    (libc::SYS_pipe2, Allow),
    (libc::SYS_ppoll, Allow),
    (
        libc::SYS_prctl,
        OneOf(
            0,
            &[
                libc::PR_GET_NAME as u32,
                libc::PR_SET_NAME as u32,
                libc::PR_GET_DUMPABLE as u32,
                libc::PR_SET_DUMPABLE as u32,
            ],
        ),
    ),
    (libc::SYS_pread64, Allow),
    (libc::SYS_prlimit64, Allow),
    (libc::SYS_pselect6, Allow),
    (libc::SYS_pwrite64, Allow),
    (libc::SYS_read, Allow),
    (libc::SYS_readlinkat, FILE_SYSTEM),
    (libc::SYS_readv, Allow),
    (libc::SYS_recvfrom, Allow),
    (libc::SYS_recvmsg, Allow),
    (libc::SYS_renameat, FILE_SYSTEM),
    (libc::SYS_restart_syscall, Allow),
    (libc::SYS_rseq, Allow),
    (libc::SYS_rt_sigaction, Allow),
    (libc::SYS_rt_sigprocmask, Allow),
    (libc::SYS_rt_sigreturn, Allow),
    (libc::SYS_rt_sigtimedwait, Allow),
    (libc::SYS_rt_tgsigqueueinfo, OwnProcess),
    (libc::SYS_sched_getaffinity, Allow),
    (libc::SYS_sched_yield, Allow),
    (libc::SYS_sendmsg, Allow),
    (libc::SYS_sendto, Allow),
    (libc::SYS_set_robust_list, Fail(libc::EPERM)),
    (libc::SYS_sigaltstack, Allow),
    (libc::SYS_socket, Fail(libc::EPERM)),
    (libc::SYS_socketpair, OneOf(0, &[libc::AF_UNIX as u32])),
    (libc::SYS_statx, Fail(libc::ENOSYS)),
    (libc::SYS_sysinfo, Allow),
    (libc::SYS_tgkill, OwnProcess),
    (libc::SYS_kill, OwnProcess),
    (libc::SYS_times, Allow),
    (libc::SYS_uname, Allow),
    (libc::SYS_unlinkat, FILE_SYSTEM),
    (libc::SYS_wait4, Allow),
    (libc::SYS_waitid, Allow),
    (libc::SYS_write, Allow),
    (libc::SYS_writev, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_fork, Fail(libc::EPERM)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_getdents, Fail(libc::EPERM)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pause, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pipe, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_time, Allow),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, FILE_SYSTEM),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, Fail(libc::EPERM)),
];

const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const TRAP: sock_filter = answer(libc::SECCOMP_RET_TRAP);

const fn answer(k: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

const fn fail(errno: i32) -> sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Loads a word of `seccomp_data`.
const fn load(k: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k }
}

/// Loads the low half of an argument.
const fn argument(index: u32) -> sock_filter {
    load(16 + 8 * index)
}

/// Continues with the next instruction if the comparison holds, else skips `over` instructions.
const fn unless(comparison: u32, k: u32, over: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt: 0, jf: over, k }
}

fn compile_rule(rule: Rule) -> Vec<sock_filter> {
    match rule {
        Allow => vec![ALLOW],
        Fail(errno) => vec![fail(errno)],
        OneOf(index, values) => one_of(index, values, TRAP),
        OneOfOrFails(index, values) => one_of(index, values, fail(libc::EPERM)),
        Bits(index, bits) => vec![argument(index), unless(libc::BPF_JSET, !bits, 1), TRAP, ALLOW],
        OwnProcess => vec![argument(0), unless(libc::BPF_JEQ, std::process::id(), 1), ALLOW, TRAP],
        Thread => {
            let thread = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM
                | libc::CLONE_SETTLS
                | libc::CLONE_PARENT_SETTID
                | libc::CLONE_CHILD_CLEARTID;
            let shares = (libc::CLONE_VM | libc::CLONE_THREAD) as u32;
            vec![
                argument(0),
                unless(libc::BPF_JEQ, thread as u32, 1),
                ALLOW,
                unless(libc::BPF_JSET, shares, 1),
                unless(libc::BPF_JSET, libc::CLONE_VFORK as u32, 1),
                fail(libc::EPERM),
                TRAP,
            ]
        }
    }
}

fn one_of(index: u32, values: &[u32], otherwise: sock_filter) -> Vec<sock_filter> {
    let tests = values.iter().flat_map(|value| [unless(libc::BPF_JEQ, *value, 1), ALLOW]);
    std::iter::once(argument(index)).chain(tests).chain([otherwise]).collect()
}

/// Applies the policy to the process, permanently.
///
/// # Errors
/// See [`seccomp::filter`].
pub(crate) fn apply_policy() -> std::io::Result<()> {
    let mut program = vec![load(0)];
    for (call, rule) in POLICY {
        let rule = compile_rule(*rule);
        program.push(unless(libc::BPF_JEQ, *call as u32, rule.len() as u8));
        program.extend(rule);
    }
    program.push(TRAP);
    seccomp::install(&mut program)
}
