//! Live backtraces: where a thread is now.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::{MaybeUninit, align_of, offset_of, size_of};

use coroner::Backtrace;
use coroner::backtrace::{CaptureOptions as Wanted, NotCaptured, ThreadId};

use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};
use crate::text::text;

/// The addresses of a thread's stack at one moment, innermost first. The memory is the caller's, on its stack or elsewhere, and need not be
/// initialised; the functions that fill it in allocate nothing. What is in it is released by coroner_backtrace_release, once.
#[repr(C)]
#[derive(Debug)]
pub struct StoredBacktrace {
    /// Coroner's own: what there is today, and room for more.
    pub reserved: [u64; 144],
}

const _: () = assert!(size_of::<Backtrace>() <= size_of::<StoredBacktrace>());
const _: () = assert!(align_of::<Backtrace>() <= align_of::<StoredBacktrace>());

/// What to capture. Zero in all fields but `size` is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CaptureOptions {
    /// `sizeof(coroner_capture_options)`: which fields the caller knows. Those after it are 0.
    pub size: usize,
    /// The greatest number of frames, at most 128; 0 for 128.
    pub depth: u32,
    /// Frames left out at the innermost end.
    pub skip: u32,
    /// Only frames of the app's own images: the program, and those of coroner_set_in_app_images.
    pub in_app_only: bool,
    /// At an async function of Swift's the walk goes to the executor that runs it, and not to those that wait for it.
    pub without_swift_async: bool,
    /// Another thread is stopped by ptrace, from a helper process, so that none of its system calls ends with EINTR. It takes longer.
    /// Linux only: elsewhere no call ends.
    pub by_ptrace: bool,
}

/// A frame of coroner_backtrace_names.
#[repr(C)]
#[derive(Debug)]
pub struct NamedFrame {
    /// The frame's address: after a call, but for the innermost of another thread and those that a signal interrupted.
    pub address: u64,
    /// The file name of the image that it is in; NULL if it is in none.
    pub image: *const c_char,
    /// The address relative to the image's first byte.
    pub image_offset: u64,
    /// The function, demangled; NULL if it is not known.
    pub function: *const c_char,
    /// The address relative to the function's first byte.
    pub function_offset: u64,
    /// Whether it is the app's own code: its image is, and the function is no runtime's.
    pub in_app: bool,
}

/// Called with each frame, innermost first. Its texts are valid until it returns.
pub type EachFrame = Option<unsafe extern "C" fn(context: *mut c_void, frame: *const NamedFrame)>;

/// Called with each thread; `backtrace` is NULL if it did not answer, and is released when this returns.
pub type EachThread =
    Option<unsafe extern "C" fn(context: *mut c_void, thread: u64, backtrace: *const StoredBacktrace)>;

// SAFETY: its size comes first, and numbers and flags may be 0.
unsafe impl SizedStruct for CaptureOptions {
    const NAME: &'static str = "coroner_capture_options";
    const LEAST: usize = offset_of!(CaptureOptions, skip);
}

/// # Safety
/// `options` is null or points to as many bytes as its `size` says.
unsafe fn options_of(options: *const CaptureOptions) -> Result<Wanted, Status> {
    if options.is_null() {
        return Ok(Wanted::default());
    }
    // SAFETY: as the caller promises.
    let known = unsafe { sized::read(options) }?;
    let default = Wanted::default();
    Ok(Wanted {
        depth: if known.depth == 0 { default.depth } else { known.depth as usize },
        skip: known.skip as usize,
        in_app_only: known.in_app_only,
        swift_async: default.swift_async && !known.without_swift_async,
        by_ptrace: known.by_ptrace,
    })
}

/// # Safety
/// `backtrace` is null, or was filled in and not released.
unsafe fn captured<'a>(backtrace: *const StoredBacktrace) -> Result<&'a Backtrace, Status> {
    // SAFETY: large enough and aligned (the assertions above), and a `Backtrace`, as the caller promises.
    let backtrace = unsafe { backtrace.cast::<Backtrace>().as_ref() };
    backtrace.ok_or_else(|| fail(Status::InvalidArgument, "`backtrace` is NULL"))
}

fn thread_of(thread: u64) -> Result<ThreadId, Status> {
    let number = ThreadId::try_from(thread).ok().filter(|number| *number != 0);
    number.ok_or_else(|| fail(Status::InvalidArgument, format!("{thread} is no thread's number")))
}

fn not_captured(thread: u64, reason: NotCaptured) -> Status {
    let status = match reason {
        NotCaptured::ThreadGone => Status::InvalidArgument,
        _ => Status::System,
    };
    fail(status, format!("thread {thread} could not be captured: {reason}"))
}

/// The calling thread's number, as coroner_backtrace_of_thread takes it: gettid on Linux, pthread_threadid_np on Apple's systems.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_thread_id() -> u64 {
    coroner::backtrace::thread_id() as u64
}

/// Captures the calling thread's stack, beginning with the caller of this function. It takes addresses only: no allocation, no lock,
/// some nanoseconds a frame. It works before coroner_install, too. `options` may be NULL.
///
/// # Safety
/// `into` is NULL or points to memory for it. `options` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_current(
    into: *mut StoredBacktrace,
    options: *const CaptureOptions,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { options_of(options) }?;
        // SAFETY: null, or memory for it, large and aligned enough, as the caller promises.
        let Some(into) = (unsafe { into.cast::<MaybeUninit<Backtrace>>().as_mut() }) else {
            return Err(fail(Status::InvalidArgument, "`into` is NULL"));
        };
        into.write(Backtrace::above_with(&registers, &options));
        Ok(())
    })
}

/// Captures the stack of a thread of this process, by the number that coroner_thread_id gives on that thread. Another one is stopped for the
/// microseconds that this takes: CORONER_STATUS_NOT_INSTALLED before coroner_install, CORONER_STATUS_INVALID_ARGUMENT if there is
/// no such thread, CORONER_STATUS_SYSTEM if it does not answer; then there is nothing to release. The calling thread's is captured as by
/// coroner_backtrace_current, before coroner_install, too. `options` may be NULL.
///
/// # Safety
/// `into` is NULL or points to memory for it. `options` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_of_thread(
    into: *mut StoredBacktrace,
    thread: u64,
    options: *const CaptureOptions,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { options_of(options) }?;
        // SAFETY: null, or memory for it, large and aligned enough, as the caller promises.
        let Some(into) = (unsafe { into.cast::<MaybeUninit<Backtrace>>().as_mut() }) else {
            return Err(fail(Status::InvalidArgument, "`into` is NULL"));
        };
        let id = thread_of(thread)?;
        if id == coroner::backtrace::thread_id() {
            into.write(Backtrace::above_with(&registers, &options));
            return Ok(());
        }
        crate::install::installed()?;
        into.write(Backtrace::of_thread(id, &options).map_err(|reason| not_captured(thread, reason))?);
        Ok(())
    })
}

/// Captures the stacks of all threads of this process, one after another, and calls `each` with them when all have been captured.
/// CORONER_STATUS_NOT_INSTALLED before coroner_install. `options` may be NULL.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its `size` says. `each` unwinds into nobody, and keeps no pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_of_all_threads(
    each: EachThread,
    context: *mut c_void,
    options: *const CaptureOptions,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { options_of(options) }?;
        let each = each.ok_or_else(|| fail(Status::InvalidArgument, "`each` is NULL"))?;
        crate::install::installed()?;
        for (thread, captured) in Backtrace::of_all_threads(&options) {
            let mut memory = MaybeUninit::<StoredBacktrace>::uninit();
            let given = match captured {
                Ok(backtrace) => {
                    // SAFETY: large and aligned enough (the assertions above).
                    unsafe { memory.as_mut_ptr().cast::<Backtrace>().write(backtrace) };
                    memory.as_mut_ptr()
                }
                Err(_) => std::ptr::null_mut(),
            };
            // SAFETY: as the caller promises of `each`; what it gets is valid.
            unsafe { each(context, thread as u64, given) };
            // SAFETY: null, or filled in above, and released here alone.
            unsafe { coroner_backtrace_release(given) };
        }
        Ok(())
    })
}

/// Releases what a backtrace holds; the memory stays the caller's. Does nothing with NULL.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_release(backtrace: *mut StoredBacktrace) {
    guarded(|| {
        if !backtrace.is_null() {
            // SAFETY: a `Backtrace` that is used no more, as the caller promises.
            unsafe { backtrace.cast::<Backtrace>().drop_in_place() };
        }
        Ok(())
    });
}

/// The addresses of a backtrace, and in `count` how many they are. They are valid until it is released. NULL if `backtrace` is.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released; `count` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_addresses(
    backtrace: *const StoredBacktrace,
    count: *mut usize,
) -> *const u64 {
    // SAFETY: as the caller promises.
    let addresses = unsafe { captured(backtrace) }.map(Backtrace::addresses).ok();
    // SAFETY: null, or can be written, as the caller promises.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = addresses.map_or(0, <[u64]>::len);
    }
    addresses.map_or(std::ptr::null(), <[u64]>::as_ptr)
}

/// A number that identical stacks share and others, for all practical purposes, do not; not the same in another run. 0 for NULL.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_hash(backtrace: *const StoredBacktrace) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { captured(backtrace) }.map_or(0, Backtrace::hash)
}

/// Whether there were more frames than were wanted.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_is_truncated(backtrace: *const StoredBacktrace) -> bool {
    // SAFETY: as the caller promises.
    unsafe { captured(backtrace) }.is_ok_and(Backtrace::is_truncated)
}

/// Calls `each` with the frames of a backtrace and their names, innermost first. They are found by one pass over the symbols of each
/// image, and kept: a stack that was named before costs nearly nothing. Names hold though a library was unloaded since.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released. `each` unwinds into nobody, and keeps no pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_names(
    backtrace: *const StoredBacktrace,
    each: EachFrame,
    context: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let backtrace = unsafe { captured(backtrace) }?;
        let each = each.ok_or_else(|| fail(Status::InvalidArgument, "`each` is NULL"))?;
        for frame in backtrace.names().frames() {
            let (image, function) = (c_text(frame.image.as_deref()), c_text(frame.function.as_deref()));
            let pointer = |text: &Option<CString>| text.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            let &coroner::backtrace::NamedFrame { address, image_offset, function_offset, in_app, .. } = frame;
            let (image, function) = (pointer(&image), pointer(&function));
            let given = NamedFrame { address, image, image_offset, function, function_offset, in_app };
            // SAFETY: as the caller promises; the texts live until it returns.
            unsafe { each(context, &raw const given) };
        }
        Ok(())
    })
}

/// A text for C, up to its first NUL if it has one.
fn c_text(text: Option<&str>) -> Option<CString> {
    let text = text?.split('\0').next().unwrap_or_default();
    CString::new(text).ok()
}

/// Writes a backtrace as text, one line a frame, into the `size` bytes at `into`, with a NUL at its end; what does not fit is cut off. With
/// `lines` each inlined call has a line, and each line its source file where there is debug information, which is read each time and may take a second;
/// without, it is image, function and offset. Returns the number of bytes of the whole text without the NUL, as snprintf does; 0 for NULL.
///
/// # Safety
/// `backtrace` is NULL or was filled in, and has not been released. `into` can be written for `size` bytes; it may be NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_text(
    backtrace: *const StoredBacktrace,
    lines: bool,
    into: *mut c_char,
    size: usize,
) -> usize {
    let mut length = 0;
    guarded(|| {
        // SAFETY: as the caller promises.
        let backtrace = unsafe { captured(backtrace) }?;
        let text = if lines {
            backtrace.to_string()
        } else {
            backtrace.names().frames().iter().map(|frame| format!("{frame}\n")).collect()
        };
        length = text.len();
        if !into.is_null() && size > 0 {
            let fits = text.floor_char_boundary(size - 1);
            // SAFETY: `size` bytes can be written, as the caller promises, of which these are fewer.
            unsafe {
                into.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits);
                into.add(fits).write(0);
            }
        }
        Ok(())
    });
    length
}

/// Says which images are the app's own, beside the program itself: those whose path begins with one of these `count` texts.
///
/// # Safety
/// `prefixes` points to `count` texts that end with a NUL; it may be NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_in_app_images(prefixes: *const *const c_char, count: usize) -> Status {
    guarded(|| {
        let given = match (prefixes.is_null(), count) {
            (_, 0) => &[][..],
            (true, _) => return Err(fail(Status::InvalidArgument, "`prefixes` is NULL")),
            // SAFETY: not null, and so many as the caller promises.
            (false, count) => unsafe { std::slice::from_raw_parts(prefixes, count) },
        };
        // SAFETY: as the caller promises.
        let texts = given.iter().map(|prefix| unsafe { text(*prefix, "prefixes") }).collect::<Result<Vec<_>, _>>()?;
        coroner::backtrace::set_in_app(texts);
        Ok(())
    })
}
