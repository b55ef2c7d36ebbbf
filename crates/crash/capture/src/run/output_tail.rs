//! The end of what the process wrote to stderr and stdout, where those are regular files: a message that is printed before the end, and kept nowhere else.
//!
//! Nothing is put between the app and its output: no pipe, no thread, no other descriptor in the place of its own. A pipe would block the app when
//! nobody empties it, kill with SIGPIPE the children that have inherited it and outlive the app, and make a terminal none. So a file is read again when the process
//! crashes, by a descriptor that was opened for it while the process was well; of a terminal, a pipe or a socket, which can't be read again, nothing is kept.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files::{open, read_at, status};
use coroner_report::wire::AppMemory;

#[cfg(not(target_vendor = "apple"))]
const STDERR: &core::ffi::CStr = c"/proc/self/fd/2";
#[cfg(not(target_vendor = "apple"))]
const STDOUT: &core::ffi::CStr = c"/proc/self/fd/1";
#[cfg(target_vendor = "apple")]
const STDERR: &core::ffi::CStr = c"/dev/fd/2";
#[cfg(target_vendor = "apple")]
const STDOUT: &core::ffi::CStr = c"/dev/fd/1";
/// Each of the two that are kept, by its descriptor.
const OUTPUTS: [(i32, &core::ffi::CStr, &[u8]); COUNT] = [(2, STDERR, b"stderr"), (1, STDOUT, b"stdout")];
/// How many there are.
pub(crate) const COUNT: usize = 2;

/// Descriptors by which they can be read, -1 for none.
static KEPT: [AtomicI32; COUNT] = [const { AtomicI32::new(-1) }; COUNT];
/// How long they were at install, where the process appends to them: what stands before that may be an earlier process's.
static BEFORE: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// From now on the ends of stderr and stdout go with each report, as far as those are regular files now (not async-signal-safe).
pub fn keep_output() {
    for (((number, path, _), kept), before) in OUTPUTS.iter().zip(&KEPT).zip(&BEFORE) {
        if kept.load(Ordering::Relaxed) == -1
            && let Ok(status) = status(*number)
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && let Ok(file) = open(libc::AT_FDCWD, path, libc::O_RDONLY, 0).and_then(OwnedDescriptor::adopt)
        {
            // SAFETY: no memory is touched.
            let flags = unsafe { libc::fcntl(*number, libc::F_GETFL) };
            let appends = flags != -1 && flags & libc::O_APPEND != 0;
            before.store(if appends { status.st_size as u64 } else { 0 }, Ordering::Relaxed);
            kept.store(file.opened_at(), Ordering::Release);
        }
    }
}

/// The end of the output of that number, read into `into`, with the size of all of it. `None` if it is not kept, or is another file by now, as may be what an
/// app that closes all descriptors has put in the place of ours.
pub(crate) fn read(number: usize, into: &mut [u8]) -> Option<AppMemory<'_>> {
    let (output, _, name) = OUTPUTS.get(number)?;
    let kept = KEPT.get(number)?.load(Ordering::Acquire);
    let (file, now) = (status(kept).ok()?, status(*output).ok()?);
    if kept < 0 || (file.st_dev, file.st_ino) != (now.st_dev, now.st_ino) {
        return None;
    }
    let whole = u64::try_from(file.st_size).ok()?;
    // One that is shorter by now was emptied, and has nothing of before.
    let before = Some(BEFORE.get(number)?.load(Ordering::Relaxed)).filter(|before| *before <= whole).unwrap_or(0);
    let size = whole - before;
    let from = whole - size.min(into.len() as u64);
    let length = read_at(kept, into, from).ok().filter(|length| *length > 0)?;
    Some(AppMemory { name, bytes: into.get(..length)?, address: None, size: Some(size) })
}
