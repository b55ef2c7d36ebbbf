//! Minidumps of running processes.

use std::io::Cursor;

use minidump_writer::minidump_writer::MinidumpWriterConfig;

/// A minidump of a process can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write a minidump of process {pid}: {why}")]
pub struct MinidumpError {
    /// The process id.
    pub pid: u32,
    /// The cause.
    pub why: String,
}

/// Writes a minidump of the process `pid`, with the whole stacks of all its threads.
///
/// The process is stopped meanwhile, and continues. A thread that doesn't stop, because it hangs in
/// the kernel, is waited for without a limit.
///
/// # Errors
/// [`MinidumpError`] if no such process exists, or this process may not trace it.
pub fn write_minidump(pid: u32) -> Result<Vec<u8>, MinidumpError> {
    let write = move || {
        // minidump-writer would send SIGSTOP and SIGCONT, which the process's parent sees: a shell
        // would take its terminal back. Its threads are stopped by ptrace all the same.
        deny_kill().map_err(|error| format!("can't filter `kill`: {error}"))?;
        let writer = MinidumpWriterConfig::new(pid as libc::pid_t, pid as libc::pid_t);
        writer.write(&mut Cursor::new(Vec::new())).map_err(|error| error.to_string())
    };
    // A thread of its own, because a filter lasts as long as its thread.
    let written = std::thread::Builder::new().spawn(write).map_err(|error| error.to_string());
    let written = written.and_then(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".to_owned())));
    written.map_err(|why| MinidumpError { pid, why })
}

/// Denies `kill` to the calling thread.
fn deny_kill() -> nix::Result<()> {
    // From <linux/bpf_common.h>.
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut filter = [
        // The call's number is the first field of `seccomp_data`.
        step(LOAD_WORD, 0, 0),
        step(JUMP_IF_EQUAL, 1, libc::SYS_kill as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs()?;
    // SAFETY: the kernel reads the program, which outlives the call. (nix has no wrapper.)
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    nix::errno::Errno::result(set).map(drop)
}
