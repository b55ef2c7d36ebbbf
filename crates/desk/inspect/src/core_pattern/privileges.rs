//! Drops root privileges and limits resources.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{CollectError, Owner};

/// Maximum wall-clock time and CPU time, in seconds.
const SECONDS: u32 = 120;
const PROCESSOR: u64 = 60;
/// Maximum bytes of private memory; mapped files don't count.
const MEMORY: u64 = 1 << 30;
/// Maximum bytes of a file that it writes.
const FILE: u64 = 64 << 20;
const FILES: u64 = 512;

/// Becomes the owner permanently, without any capability, and limits time and memory.
///
/// A process that isn't root keeps its user.
pub(super) fn give_up(owner: Owner) -> Result<(), CollectError> {
    let bounds =
        [(Resource::Cpu, PROCESSOR), (Resource::Data, MEMORY), (Resource::Fsize, FILE), (Resource::Nofile, FILES)];
    for (resource, most) in bounds {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .map_err(CollectError::system("can't bound itself"))?;
    }
    // SAFETY: it takes a number. SIGALRM has its default action, which ends the process.
    unsafe { libc::alarm(SECONDS) };
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let failed = |what| {
            move || CollectError::system(format!("can't give up root ({what})"))(std::io::Error::last_os_error())
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
    rustix::thread::set_no_new_privs(true).map_err(CollectError::system("can't give up new rights"))?;
    // SAFETY: `PR_SET_DUMPABLE` takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    Ok(())
}
