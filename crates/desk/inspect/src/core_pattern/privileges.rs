//! Drops root privileges and limits resources.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{CollectError, Owner};

/// Maximum wall-clock time and CPU time, in seconds.
const MAX_SECONDS: u32 = 120;
const MAX_CPU_SECONDS: u64 = 60;
/// Maximum bytes of private memory; mapped files don't count.
const MAX_MEMORY: u64 = 1 << 30;
/// Maximum bytes of a file that it writes.
const MAX_FILE_SIZE: u64 = 64 << 20;
const MAX_OPEN_FILES: u64 = 512;

/// Becomes the owner permanently, without any capability, and limits time and memory.
///
/// A process that isn't root keeps its user.
pub(super) fn drop_privileges(owner: Owner) -> Result<(), CollectError> {
    let bounds = [
        (Resource::Cpu, MAX_CPU_SECONDS),
        (Resource::Data, MAX_MEMORY),
        (Resource::Fsize, MAX_FILE_SIZE),
        (Resource::Nofile, MAX_OPEN_FILES),
    ];
    for (resource, most) in bounds {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .map_err(CollectError::system("can't set resource limits"))?;
    }
    // SAFETY: it takes a number. SIGALRM has its default action, which ends the process.
    unsafe { libc::alarm(MAX_SECONDS) };
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let failed = |what| {
            move || CollectError::system(format!("can't drop root privileges ({what})"))(std::io::Error::last_os_error())
        };
        // SAFETY: they take numbers and an empty list. glibc changes all threads.
        let (groups, group) =
            unsafe { (libc::setgroups(0, std::ptr::null()), libc::setresgid(owner.group, owner.group, owner.group)) };
        (groups == 0).then_some(()).ok_or_else(failed("setgroups"))?;
        (group == 0).then_some(()).ok_or_else(failed("setresgid"))?;
        // SAFETY: as above. The kernel drops all capabilities when the last of the user ids stops
        // being root.
        let user = unsafe { libc::setresuid(owner.user, owner.user, owner.user) };
        (user == 0).then_some(()).ok_or_else(failed("setresuid"))?;
        // SAFETY: it takes a number, and must fail now.
        if unsafe { libc::setuid(0) } == 0 {
            return Err(CollectError::StillRoot);
        }
    }
    // Child processes can't gain privileges, and a crash of this process must not start the handler
    // again.
    rustix::thread::set_no_new_privs(true).map_err(CollectError::system("can't set no_new_privs"))?;
    // SAFETY: `PR_SET_DUMPABLE` takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    Ok(())
}
