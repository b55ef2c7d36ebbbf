//! System call filters (seccomp), like those of sandboxes and service managers.

/// The kernel's action for a filtered call (<linux/seccomp.h>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The thread gets SIGSYS.
    Trap,
    /// The whole process is killed with SIGSYS, even if it has a handler.
    Kill,
    /// The call fails with this error number.
    Fail(u16),
}

impl Action {
    fn number(self) -> u32 {
        match self {
            Self::Trap => libc::SECCOMP_RET_TRAP,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Self::Fail(errno) => libc::SECCOMP_RET_ERRNO | u32::from(errno),
        }
    }
}

/// Filters at most 250 system calls of this process, for all current and future threads.
///
/// The process can never gain privileges again.
///
/// # Errors
/// An error if the system doesn't support filters (qemu's user mode), or another thread has filters
/// that this thread doesn't have.
pub fn filter(system_calls: &[libc::c_long], action: Action) -> std::io::Result<()> {
    // From <linux/bpf_common.h>; the libc crate doesn't define them for Android.
    /// `seccomp_data.nr` is the first field.
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    // A jump can skip at most 255 instructions.
    let count = u8::try_from(system_calls.len()).ok().filter(|count| *count <= 250);
    let count = count.ok_or_else(|| std::io::Error::other("too many system calls for one filter"))?;
    let mut program = vec![libc::sock_filter { code: LOAD_NUMBER, jt: 0, jf: 0, k: 0 }];
    let jumps = system_calls.iter().zip((1..=count).rev());
    program.extend(jumps.map(|(call, left)| libc::sock_filter {
        code: JUMP_IF_EQUAL,
        jt: left,
        jf: 0,
        k: *call as u32,
    }));
    program.extend([
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: action.number() },
    ]);
    install(&mut program)
}

/// Installs this filter program for all current and future threads.
///
/// # Errors
/// Same as [`filter`].
pub fn install(program: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls; the kernel checks it. (nix has no `prctl` for
    // Android.)
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) != 0
    };
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
