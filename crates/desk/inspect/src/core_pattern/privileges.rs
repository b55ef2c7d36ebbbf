//! Drops root privileges and limits resources.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, alarm, geteuid, setgroups, setresgid, setresuid, setuid};

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
        (Resource::RLIMIT_CPU, MAX_CPU_SECONDS),
        (Resource::RLIMIT_DATA, MAX_MEMORY),
        (Resource::RLIMIT_FSIZE, MAX_FILE_SIZE),
        (Resource::RLIMIT_NOFILE, MAX_OPEN_FILES),
    ];
    for (resource, most) in bounds {
        setrlimit(resource, most, most).map_err(CollectError::system("can't set resource limits"))?;
    }
    // SIGALRM has its default action, which ends the process.
    alarm::set(MAX_SECONDS);
    if geteuid().is_root() {
        let failed = |what| CollectError::system(format!("can't drop root privileges ({what})"));
        let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
        setgroups(&[]).map_err(failed("setgroups"))?;
        setresgid(group, group, group).map_err(failed("setresgid"))?;
        // The kernel drops all capabilities when the last of the user ids stops being root.
        setresuid(user, user, user).map_err(failed("setresuid"))?;
        if setuid(Uid::from_raw(0)).is_ok() {
            return Err(CollectError::StillRoot);
        }
    }
    // Child processes can't gain privileges, and a crash of this process must not start the handler
    // again.
    prctl::set_no_new_privs().map_err(CollectError::system("can't set no_new_privs"))?;
    let _ = prctl::set_dumpable(false);
    Ok(())
}
