//! The process.

pub(crate) use coroner_machine::pointers::authentication_mask;

/// The parent process.
pub(crate) fn parent_pid() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe (sigaction(2)).
    unsafe { libc::getppid() }
}

/// Whether a debugger traces this process (normal life): `P_TRACED` of `kp_proc.p_flag` (<sys/sysctl.h>, <sys/proc.h>).
pub fn is_traced() -> bool {
    const P_TRACED: i32 = 0x800;
    /// Where `p_flag` stands in `struct kinfo_proc`.
    const FLAG_AT: usize = 32;
    information().and_then(|info| info.get(FLAG_AT..)?.first_chunk::<4>().copied()).map_or(0, i32::from_le_bytes)
        & P_TRACED
        != 0
}

/// When the process started, nanoseconds since the epoch: `p_starttime`, the first of `struct kinfo_proc`.
pub(crate) fn started() -> Option<u64> {
    let info = information()?;
    let seconds = i64::from_le_bytes(*info.first_chunk::<8>()?);
    let microseconds = i32::from_le_bytes(*info.get(8..)?.first_chunk::<4>()?);
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    Some(seconds.checked_mul(1_000_000_000)?.saturating_add(u64::try_from(microseconds).ok()?.saturating_mul(1000)))
}

/// `sizeof(struct kinfo_proc)`.
const KINFO_PROC: usize = 648;

fn information() -> Option<[u8; KINFO_PROC]> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PID, coroner_machine::threads::process_id()];
    let mut bytes = [0_u8; KINFO_PROC];
    let mut size = bytes.len();
    // SAFETY: the kernel reads four words and writes at most `size` bytes.
    let answer = unsafe {
        libc::sysctl(name.as_mut_ptr(), 4, bytes.as_mut_ptr().cast(), &raw mut size, core::ptr::null_mut(), 0)
    };
    (answer == 0).then_some(bytes)
}
