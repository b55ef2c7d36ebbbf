//! Checks what the Linux kernel and the app's environment (container, seccomp, Yama) allow.

use std::fs;
use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::{Finding, Grade};

/// All checks, in the order in which a crash depends on them.
pub(super) const CHECKS: &[fn() -> Finding] = &[
    system,
    init_process,
    ignored_signals,
    signal_frame,
    real_time_signals,
    memory_reads,
    tracing,
    proc_files,
    seccomp,
    limits,
    core_dumps,
];

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| format!("`{path}`: {error}"))
}

/// Returns the value of a line `name: value` of `/proc/self/status`.
fn status(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns a resource's soft limit; `None` if it is unlimited.
fn soft_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY)
}

fn system() -> Finding {
    let found = match nix::sys::utsname::uname() {
        Ok(name) => {
            format!("{} {} on {}", name.sysname().display(), name.release().display(), name.machine().display())
        }
        Err(error) => format!("unknown: {error}"),
    };
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        Finding::works("system", found)
    } else {
        Finding::other(Grade::Fails, "system", found, "Coroner supports x86_64 and arm64 only.")
    }
}

fn init_process() -> Finding {
    const SUBJECT: &str = "process 1";
    if std::process::id() == 1 {
        Finding::other(
            Grade::Note,
            SUBJECT,
            "programs started this way are process 1 of a container",
            "The kernel drops fatal signals that process 1 sends to itself, so Coroner exits with status 128 + signal \
             instead. To avoid this, use `docker run --init`.",
        )
    } else {
        Finding::works(SUBJECT, format!("this is process {}; fatal signals work as usual", std::process::id()))
    }
}

/// Checks for inherited ignored signals, which a program keeps ignoring unless it sets them.
fn ignored_signals() -> Finding {
    const SUBJECT: &str = "inherited signals";
    const FATAL: [(u32, &str); 7] =
        [(4, "SIGILL"), (5, "SIGTRAP"), (6, "SIGABRT"), (7, "SIGBUS"), (8, "SIGFPE"), (11, "SIGSEGV"), (31, "SIGSYS")];
    let set = |name| status(name).and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    let (ignored, blocked) = (set("SigIgn"), set("SigBlk"));
    let named = |mask: u64| -> Vec<&str> {
        FATAL.iter().filter(|(number, _)| mask >> (number - 1) & 1 == 1).map(|(_, name)| *name).collect()
    };
    match (named(ignored).join(", "), named(blocked).join(", ")) {
        (ignored, blocked) if ignored.is_empty() && blocked.is_empty() => {
            Finding::works(SUBJECT, "no crash signal is ignored or blocked by the parent process")
        }
        (ignored, blocked) => Finding::other(
            Grade::Note,
            SUBJECT,
            format!("ignored: {}; blocked: {}", none_if_empty(&ignored), none_if_empty(&blocked)),
            "Signals ignored by the parent process stay ignored after a report. Start the app from a shell that doesn't ignore them.",
        ),
    }
}

fn none_if_empty(list: &str) -> &str {
    if list.is_empty() { "none" } else { list }
}

/// Checks the size of a signal frame against the 8 KiB alternate stack that Rust gives its threads.
///
/// Coroner gives threads larger stacks, sized for this processor's frame.
fn signal_frame() -> Finding {
    const SUBJECT: &str = "signal frame";
    // SAFETY: `getauxval` only reads the vector that the kernel set up at start.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    match frame {
        0 => Finding::other(Grade::Note, SUBJECT, "unknown: the kernel doesn't report the size of a signal frame", ""),
        bytes if bytes > 6 * 1024 => Finding::other(
            Grade::Note,
            SUBJECT,
            format!("{bytes} bytes on this processor, which fit in the alternate stacks that Coroner provides"),
            "Rust's own alternate stacks are too small. Where Coroner can't replace them (musl, `crt-static`, loaded by `dlopen`, \
             or without the feature `interpose-pthread-create`), call `coroner::attach_current_thread` on each thread.",
        ),
        bytes => Finding::works(SUBJECT, format!("{bytes} bytes, which fit in a Rust thread's 8 KiB alternate stack")),
    }
}

/// Checks the real-time signals, one of which stops all other threads.
fn real_time_signals() -> Finding {
    const SUBJECT: &str = "thread capture";
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    match soft_limit(Resource::RLIMIT_SIGPENDING) {
        Some(most) if most < 64 => Finding::other(
            Grade::Limited,
            SUBJECT,
            format!("at most {most} signals can be pending (RLIMIT_SIGPENDING)"),
            "In an app with more threads, some are captured by the ptrace helper or not at all.",
        ),
        _ if last - first < 1 => Finding::other(
            Grade::Limited,
            SUBJECT,
            "no real-time signals available",
            "Threads are captured by the ptrace helper instead.",
        ),
        _ => Finding::works(SUBJECT, format!("real-time signals {first} to {last}")),
    }
}

/// Checks whether the kernel can copy memory, which reads memory without risking a second fault.
fn memory_reads() -> Finding {
    const SUBJECT: &str = "guarded reads";
    let source = [0x5a_u8; 16];
    let mut target = [0_u8; 16];
    let remote = RemoteIoVec { base: source.as_ptr() as usize, len: source.len() };
    let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut target)], &[remote]);
    match read {
        Ok(_) if target == source => Finding::works(SUBJECT, "process_vm_readv"),
        _ => Finding::other(
            Grade::Limited,
            SUBJECT,
            format!("process_vm_readv is not allowed here: {}", read.err().unwrap_or(Errno::EFAULT)),
            "Memory is read by loads whose faults Coroner's handler catches instead. (In old Docker versions, use \
             `--cap-add SYS_PTRACE` or a newer seccomp profile.)",
        ),
    }
}

/// Checks whether a child can attach to this process, by doing it.
///
/// A helper process that attaches to the app reads the threads that don't respond to a signal.
fn tracing() -> Finding {
    const SUBJECT: &str = "ptrace helper";
    const CONSEQUENCE: &str = "Threads that block all signals or hang in the kernel are reported without frames.";
    let yama = read("/proc/sys/kernel/yama/ptrace_scope");
    let scope = match yama.as_deref() {
        Ok("0") => "; allowed by Yama",
        Ok("1") => "; allowed by Yama for the tracer set with PR_SET_PTRACER (Coroner sets it)",
        Ok("2") => "; allowed by Yama for administrators only",
        Ok("3") => "; forbidden by Yama",
        _ => "",
    };
    match attach_from_child() {
        Ok(0) => Finding::works(SUBJECT, format!("a child process can attach{scope}")),
        Ok(errno) => {
            let error = std::io::Error::from_raw_os_error(errno);
            Finding::other(
                Grade::Limited,
                SUBJECT,
                format!("a child process can't attach: {error}{scope}"),
                CONSEQUENCE,
            )
        }
        Err(error) => {
            Finding::other(Grade::Limited, SUBJECT, format!("can't create a child process: {error}"), CONSEQUENCE)
        }
    }
}

/// Forks a child that attaches to this process with `PTRACE_SEIZE` and exits with the error number.
fn attach_from_child() -> std::io::Result<i32> {
    let parent = Pid::this();
    let (mut reader, mut writer) = std::io::pipe()?;
    // SAFETY: the child calls only `read`, `ptrace` and `_exit`, which are async-signal-safe, so
    // locks that other threads held at the fork don't matter.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let mut byte = [0_u8; 1];
            let _ = std::io::Read::read(&mut reader, &mut byte);
            // Attaching doesn't stop the parent, and ends when this child exits.
            let errno = ptrace::seize(parent, ptrace::Options::empty()).map_or_else(|errno| errno as i32, |()| 0);
            // SAFETY: exits the child immediately, without running the parent's exit handlers.
            unsafe { libc::_exit(errno) }
        }
        ForkResult::Parent { child } => {
            // SAFETY: allows the child to trace this process; harmless without Yama. (nix has no
            // wrapper.)
            unsafe { libc::prctl(libc::PR_SET_PTRACER, child.as_raw()) };
            let _ = std::io::Write::write_all(&mut writer, b"!");
            match waitpid(child, None)? {
                WaitStatus::Exited(_, code) => Ok(code),
                _ => Err(std::io::Error::other("the child process didn't exit normally")),
            }
        }
    }
}

fn proc_files() -> Finding {
    const SUBJECT: &str = "/proc";
    let missing: Vec<&str> = ["/proc/self/task", "/proc/self/maps", "/proc/self/status"]
        .into_iter()
        .filter(|path| fs::metadata(path).is_err())
        .collect();
    if missing.is_empty() {
        Finding::works(SUBJECT, "threads and mappings can be listed")
    } else {
        Finding::other(
            Grade::Limited,
            SUBJECT,
            format!("missing: {}", missing.join(", ")),
            "Only the crashed thread is reported. Mount /proc in the container.",
        )
    }
}

fn seccomp() -> Finding {
    const SUBJECT: &str = "seccomp";
    match status("Seccomp").as_deref() {
        Some("0") => Finding::works(SUBJECT, "no filter"),
        Some("1") => Finding::other(Grade::Fails, SUBJECT, "strict mode", "No file can be written after a crash."),
        Some("2") => Finding::other(
            Grade::Note,
            SUBJECT,
            "a filter is active (usually the container's)",
            "The other checks show what it denies. A filter that kills the process on a denied call can prevent a report.",
        ),
        _ => Finding::other(Grade::Note, SUBJECT, "unknown: the kernel doesn't report it", ""),
    }
}

/// Checks resource limits that affect the capture of a crash.
fn limits() -> Finding {
    let text = |resource| soft_limit(resource).map_or("unlimited".to_owned(), |most| most.to_string());
    let found = format!(
        "address space {}, processes {}, open files {}, file size {}",
        text(Resource::RLIMIT_AS),
        text(Resource::RLIMIT_NPROC),
        text(Resource::RLIMIT_NOFILE),
        text(Resource::RLIMIT_FSIZE)
    );
    match soft_limit(Resource::RLIMIT_FSIZE) {
        Some(most) if most < 4 << 20 => Finding::other(
            Grade::Limited,
            "resource limits",
            found,
            "The file size limit truncates reports. Raise it with `ulimit -f`.",
        ),
        _ => Finding::works("resource limits", found),
    }
}

/// Checks what else happens when a process crashes; Coroner doesn't change it.
fn core_dumps() -> Finding {
    const SUBJECT: &str = "core dumps";
    let limit = soft_limit(Resource::RLIMIT_CORE);
    match (read("/proc/sys/kernel/core_pattern"), limit) {
        (Ok(pattern), _) if pattern.starts_with('|') => {
            let program = pattern.trim_start_matches('|').split_whitespace().next().unwrap_or("").to_owned();
            Finding::other(Grade::Note, SUBJECT, format!("passed to `{program}`"), "Coroner doesn't change this.")
        }
        (Ok(_), Some(0)) => Finding::works(SUBJECT, "not written (the limit is 0); Coroner doesn't need them"),
        (Ok(pattern), _) => {
            let found = format!("written as `{pattern}`");
            Finding::other(Grade::Note, SUBJECT, found, "Coroner doesn't change this.")
        }
        (Err(error), _) => Finding::other(Grade::Note, SUBJECT, format!("unknown: {error}"), ""),
    }
}
