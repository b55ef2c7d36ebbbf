//! Giving up what root may do, and bounds for what is left.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{CollectError, Owner};

/// Most seconds in all, and of the processor's.
const SECONDS: u32 = 120;
const PROCESSOR: u64 = 60;
/// Most bytes of memory of its own: mapped files do not count.
const MEMORY: u64 = 1 << 30;
/// Most bytes of a file that it writes.
const FILE: u64 = 64 << 20;
const FILES: u64 = 512;

/// Becomes the owner for good, without any capability, and bounds time and memory. Who is not root stays who he is.
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
        // SAFETY: they take numbers, and an empty list. glibc changes all threads.
        let (groups, group) =
            unsafe { (libc::setgroups(0, std::ptr::null()), libc::setresgid(owner.group, owner.group, owner.group)) };
        (groups == 0).then_some(()).ok_or_else(failed("setgroups"))?;
        (group == 0).then_some(()).ok_or_else(failed("setresgid"))?;
        // SAFETY: as above. The kernel takes all capabilities away with the last user that is root.
        let user = unsafe { libc::setresuid(owner.user, owner.user, owner.user) };
        (user == 0).then_some(()).ok_or_else(failed("setresuid"))?;
        // SAFETY: it takes a number, and must be refused now.
        if unsafe { libc::setuid(0) } == 0 {
            return Err(CollectError::StillRoot);
        }
    }
    // Nothing that it starts has more rights, and its own end is no core dump that it would be started for.
    rustix::thread::set_no_new_privs(true).map_err(CollectError::system("can't give up new rights"))?;
    // SAFETY: `PR_SET_DUMPABLE` takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    Ok(())
}
