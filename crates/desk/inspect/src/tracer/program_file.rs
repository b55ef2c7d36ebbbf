//! Properties of a program's file that affect tracing: sanitizers, privileges, other tracers.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getegid, geteuid};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ReadCache};

use crate::live_process::executable;

/// Names of LeakSanitizer's runtimes, which refuse to run when traced, and of functions in programs
/// that contain one.
const LEAK_SANITIZERS: [&str; 9] = [
    "libasan.so",
    "liblsan.so",
    "libhwasan.so",
    "libclang_rt.asan",
    "libclang_rt.lsan",
    "libclang_rt.hwasan",
    "__asan_init",
    "__lsan_init",
    "__hwasan_init",
];

/// Programs that trace others themselves.
const TRACERS: [&str; 11] = [
    "gdb",
    "gdbserver",
    "lldb",
    "lldb-server",
    "strace",
    "ltrace",
    "rr",
    "rust-gdb",
    "crashpad_handler",
    "chrome_crashpad_handler",
    "dlv",
];

/// A program, as far as tracing it is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramKind {
    /// LeakSanitizer refuses to run when traced.
    pub(super) has_leak_sanitizer: bool,
    /// The program would get privileges from its file if it were not traced.
    pub(super) loses_privileges: bool,
    /// The program traces others, which a traced process's children can't be.
    pub(super) is_tracer: bool,
}

/// The kinds of programs that were seen, by device, inode and modification time.
#[derive(Debug, Default)]
pub(super) struct ProgramKinds(HashMap<(u64, u64, i64), ProgramKind>);

impl ProgramKinds {
    /// Returns the path and the kind of the program that a process runs, and whether it is new.
    pub(super) fn look_up(&mut self, pid: Pid) -> (PathBuf, ProgramKind, bool) {
        let file = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = PathBuf::from(executable(pid).unwrap_or_default());
        let Ok(metadata) = std::fs::metadata(&file) else { return (path, ProgramKind::default(), false) };
        let key = (metadata.dev(), metadata.ino(), metadata.mtime());
        let is_new = !self.0.contains_key(&key);
        let kind = self.0.entry(key).or_insert_with(|| ProgramKind {
            has_leak_sanitizer: has_leak_sanitizer(&file).unwrap_or(false),
            loses_privileges: loses_privileges(&file, &metadata),
            is_tracer: path.file_name().is_some_and(|name| TRACERS.iter().any(|tracer| name == *tracer)),
        });
        let preloaded = || preloads_leak_sanitizer(pid).unwrap_or(false);
        let kind = ProgramKind { has_leak_sanitizer: kind.has_leak_sanitizer || preloaded(), ..*kind };
        (path, kind, is_new)
    }
}

/// Searches the names of the libraries and of the functions.
fn has_leak_sanitizer(file: &Path) -> Option<bool> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let is_named = |section: &str| {
        let names = elf.section_by_name(section).and_then(|section| section.data().ok()).unwrap_or_default();
        contains_name(names)
    };
    Some(is_named(".dynstr") || is_named(".strtab"))
}

fn preloads_leak_sanitizer(pid: Pid) -> Option<bool> {
    let variables = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let preload = variables.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"LD_PRELOAD="))?;
    Some(contains_name(preload))
}

fn contains_name(bytes: &[u8]) -> bool {
    LEAK_SANITIZERS.iter().any(|name| memchr::memmem::find(bytes, name.as_bytes()).is_some())
}

/// Whether the file has a set-user-ID or set-group-ID bit or capabilities that a tracer without
/// privileges takes from it (execve(2)).
fn loses_privileges(file: &Path, metadata: &std::fs::Metadata) -> bool {
    if geteuid().is_root() {
        return false;
    }
    let mode = metadata.permissions().mode();
    let changes_user = mode & 0o4000 != 0 && metadata.uid() != geteuid().as_raw();
    let changes_group = mode & 0o2010 == 0o2010 && metadata.gid() != getegid().as_raw();
    changes_user || changes_group || has_capabilities(file)
}

fn has_capabilities(file: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: both texts end with NUL; with a size of 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
