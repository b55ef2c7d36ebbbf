//! The end of the process's output on stderr and stdout, if those are regular files: it may contain
//! a last message that is stored nowhere else.
//!
//! Nothing is placed between the app and its output: no pipe, no thread, no replaced descriptor. A
//! pipe would block the app if nobody drains it, kill with SIGPIPE the children that have inherited
//! it and outlive the app, and hide a terminal from the app. Instead, a file is read again when the
//! process crashes, through a descriptor that was opened for it during normal operation; the output
//! to a terminal, a pipe or a socket, which can't be read again, is not kept.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files::{Descriptor, open, read_at, status};
use coroner_report::wire::AppMemory;

#[cfg(not(target_vendor = "apple"))]
const STDERR: &core::ffi::CStr = c"/proc/self/fd/2";
#[cfg(not(target_vendor = "apple"))]
const STDOUT: &core::ffi::CStr = c"/proc/self/fd/1";
#[cfg(target_vendor = "apple")]
const STDERR: &core::ffi::CStr = c"/dev/fd/2";
#[cfg(target_vendor = "apple")]
const STDOUT: &core::ffi::CStr = c"/dev/fd/1";
/// The two outputs that are kept, each with its descriptor, path and name.
const OUTPUTS: [(i32, &core::ffi::CStr, &[u8]); COUNT] = [(2, STDERR, b"stderr"), (1, STDOUT, b"stdout")];
/// Number of outputs.
pub(crate) const COUNT: usize = 2;

/// Descriptors for reading the outputs, -1 for none.
static KEPT: [AtomicI32; COUNT] = [const { AtomicI32::new(-1) }; COUNT];
/// Lengths of the outputs at install, in bytes, if the process appends to them: what is before that
/// may be an earlier process's.
static BEFORE: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// Adds the ends of stderr and stdout to each report from now on, if those are regular files now
/// (not async-signal-safe).
pub fn keep_output() {
    for (((number, path, _), kept), before) in OUTPUTS.iter().zip(&KEPT).zip(&BEFORE) {
        if kept.load(Ordering::Relaxed) == -1
            && let Ok(status) = status(borrow(number))
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && let Ok(file) =
                open(Descriptor::WORKING_DIRECTORY, path, libc::O_RDONLY, 0).and_then(OwnedDescriptor::adopt)
        {
            // SAFETY: no memory is touched.
            let flags = unsafe { libc::fcntl(*number, libc::F_GETFL) };
            let appends = flags != -1 && flags & libc::O_APPEND != 0;
            before.store(if appends { status.st_size as u64 } else { 0 }, Ordering::Relaxed);
            kept.store(file.opened_at().number(), Ordering::Release);
        }
    }
}

/// Borrows a descriptor of the app's, or one that the app may have replaced.
fn borrow(number: &i32) -> &Descriptor {
    // SAFETY: used only to get a file's status, and to read at an offset, which changes nothing.
    unsafe { Descriptor::borrow_raw(number) }
}

/// Reads the end of output `number` into `into`, and returns it with the output's total size.
/// Returns `None` if the output isn't kept, or is a different file by now: an app that closes all
/// descriptors may have replaced ours.
pub(crate) fn read(number: usize, into: &mut [u8]) -> Option<AppMemory<'_>> {
    let (output, _, name) = OUTPUTS.get(number)?;
    let kept = KEPT.get(number)?.load(Ordering::Acquire);
    let kept = borrow(&kept);
    let (file, now) = (status(kept).ok()?, status(borrow(output)).ok()?);
    if (file.st_dev, file.st_ino) != (now.st_dev, now.st_ino) {
        return None;
    }
    let whole = u64::try_from(file.st_size).ok()?;
    // A file that is shorter by now was truncated, and contains nothing from before.
    let before = Some(BEFORE.get(number)?.load(Ordering::Relaxed)).filter(|before| *before <= whole).unwrap_or(0);
    let size = whole - before;
    let from = whole - size.min(into.len() as u64);
    let length = read_at(kept, into, from).ok().filter(|length| *length > 0)?;
    Some(AppMemory { name, bytes: into.get(..length)?, address: None, size: Some(size) })
}
