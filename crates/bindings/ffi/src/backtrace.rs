//! Live backtraces: the current stacks of the process's threads.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::{MaybeUninit, align_of, offset_of, size_of};

use coroner::Backtrace;
use coroner::backtrace::{CaptureOptions as Wanted, NotCaptured, ThreadId};

use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};
use crate::text::text;

/// The addresses of a thread's stack at one moment, innermost first.
///
/// The caller provides the memory, on its stack or elsewhere, and need not initialize it. The
/// functions that fill it in don't allocate. Call coroner_backtrace_release exactly once for each
/// backtrace that was filled in.
#[repr(C)]
#[derive(Debug)]
pub struct StoredBacktrace {
    /// Private to Coroner; larger than currently needed, to leave room for growth.
    pub reserved: [u64; 144],
}

const _: () = assert!(size_of::<Backtrace>() <= size_of::<StoredBacktrace>());
const _: () = assert!(align_of::<Backtrace>() <= align_of::<StoredBacktrace>());

/// Capture options. Set `size`; zero in any other field selects its default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CaptureOptions {
    /// `sizeof(coroner_capture_options)`. Fields beyond it are taken as 0.
    pub size: usize,
    /// Maximum number of frames, at most 128; 0 means 128.
    pub depth: u32,
    /// Number of innermost frames to leave out.
    pub skip: u32,
    /// Keep only frames in the app's own images: the program and coroner_set_in_app_images.
    pub in_app_only: bool,
    /// At a Swift async function, continue to its executor, not to the functions that await it.
    pub without_swift_async: bool,
    /// Stop another thread with ptrace, so that none of its system calls fails with EINTR.
    ///
    /// A helper process does the tracing. Slower than the default. Linux only: on other systems no
    /// call is interrupted anyway.
    pub by_ptrace: bool,
}

/// A frame, as passed to the callback of coroner_backtrace_names.
#[repr(C)]
#[derive(Debug)]
pub struct NamedFrame {
    /// The frame's address, usually a return address.
    ///
    /// It is an instruction's own address in another thread's innermost frame and in frames that a
    /// signal interrupted.
    pub address: u64,
    /// The file name of the image that contains the address; NULL if none does.
    pub image: *const c_char,
    /// The address relative to the image's first byte.
    pub image_offset: u64,
    /// The demangled function name; NULL if unknown.
    pub function: *const c_char,
    /// The address relative to the function's first byte.
    pub function_offset: u64,
    /// Whether the frame is the app's own code: the app's image, and not a runtime's function.
    pub in_app: bool,
}

/// Called for each frame, innermost first.
///
/// The frame's strings are valid until the callback returns.
pub type EachFrame = Option<unsafe extern "C" fn(context: *mut c_void, frame: *const NamedFrame)>;

/// Called for each thread. `backtrace` is NULL if the thread did not respond.
///
/// Coroner releases the backtrace when the callback returns.
pub type EachThread =
    Option<unsafe extern "C" fn(context: *mut c_void, thread: u64, backtrace: *const StoredBacktrace)>;

// SAFETY: the size is the first field, and 0 is valid for numbers and flags.
unsafe impl SizedStruct for CaptureOptions {
    const NAME: &'static str = "coroner_capture_options";
    const MIN_SIZE: usize = offset_of!(CaptureOptions, skip);
}

/// Converts the options; null means the defaults.
///
/// # Safety
/// `options` must be null or point to the number of bytes given by its `size`.
unsafe fn convert_options(options: *const CaptureOptions) -> Result<Wanted, Status> {
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

/// Returns the Rust backtrace in the caller's memory.
///
/// # Safety
/// `backtrace` must be null, or filled in and not released.
unsafe fn as_backtrace<'a>(backtrace: *const StoredBacktrace) -> Result<&'a Backtrace, Status> {
    // SAFETY: large enough and aligned (the assertions above), and a `Backtrace`, as the caller
    // promises.
    let backtrace = unsafe { backtrace.cast::<Backtrace>().as_ref() };
    backtrace.ok_or_else(|| fail(Status::InvalidArgument, "`backtrace` is NULL"))
}

fn parse_thread(thread: u64) -> Result<ThreadId, Status> {
    let number = ThreadId::try_from(thread).ok().filter(|number| *number != 0);
    number.ok_or_else(|| fail(Status::InvalidArgument, format!("invalid thread id {thread}")))
}

fn capture_error(thread: u64, reason: NotCaptured) -> Status {
    let status = match reason {
        NotCaptured::ThreadGone => Status::InvalidArgument,
        _ => Status::System,
    };
    fail(status, format!("can't capture thread {thread}: {reason}"))
}

/// Returns the calling thread's id: gettid on Linux, pthread_threadid_np on Apple systems.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_thread_id() -> u64 {
    coroner::backtrace::thread_id() as u64
}

/// Captures the calling thread's stack, starting at the caller of this function.
///
/// Captures addresses only: it doesn't allocate or lock, and takes some nanoseconds per frame. Can
/// be called before coroner_install.
///
/// # Safety
/// `into` must be NULL or point to memory for a coroner_backtrace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_current(
    into: *mut StoredBacktrace,
    options: *const CaptureOptions,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { convert_options(options) }?;
        // SAFETY: null, or memory for it, large and aligned enough, as the caller promises.
        let Some(into) = (unsafe { into.cast::<MaybeUninit<Backtrace>>().as_mut() }) else {
            return Err(fail(Status::InvalidArgument, "`into` is NULL"));
        };
        into.write(Backtrace::above_with(&registers, &options));
        Ok(())
    })
}

/// Captures the stack of a thread of this process.
///
/// `thread` is the id that coroner_thread_id returns on that thread.
///
/// Another thread is stopped for the microseconds that the capture takes. The calling thread can be
/// captured before coroner_install, too.
///
/// Returns CORONER_STATUS_NOT_INSTALLED before coroner_install, CORONER_STATUS_INVALID_ARGUMENT if
/// there is no such thread, CORONER_STATUS_SYSTEM if it does not respond. On failure there is
/// nothing to release.
///
/// # Safety
/// `into` must be NULL or point to memory for a coroner_backtrace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_of_thread(
    into: *mut StoredBacktrace,
    thread: u64,
    options: *const CaptureOptions,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { convert_options(options) }?;
        // SAFETY: null, or memory for it, large and aligned enough, as the caller promises.
        let Some(into) = (unsafe { into.cast::<MaybeUninit<Backtrace>>().as_mut() }) else {
            return Err(fail(Status::InvalidArgument, "`into` is NULL"));
        };
        let id = parse_thread(thread)?;
        if id == coroner::backtrace::thread_id() {
            into.write(Backtrace::above_with(&registers, &options));
            return Ok(());
        }
        crate::install::installed()?;
        into.write(Backtrace::of_thread(id, &options).map_err(|reason| capture_error(thread, reason))?);
        Ok(())
    })
}

/// Captures the stacks of all threads of this process, then calls `each` for each thread.
///
/// The threads are captured one after another. Returns CORONER_STATUS_NOT_INSTALLED before
/// coroner_install.
///
/// # Safety
/// The general rules apply. `each` must not keep a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_of_all_threads(
    each: EachThread,
    context: *mut c_void,
    options: *const CaptureOptions,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { convert_options(options) }?;
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
            // SAFETY: as the caller promises for `each`; its arguments are valid.
            unsafe { each(context, thread as u64, given) };
            // SAFETY: null, or filled in above, and released only here.
            unsafe { coroner_backtrace_release(given) };
        }
        Ok(())
    })
}

/// Releases a backtrace's resources, but not the memory that the caller provided.
///
/// Does nothing if `backtrace` is NULL.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_release(backtrace: *mut StoredBacktrace) {
    guarded(|| {
        if !backtrace.is_null() {
            // SAFETY: a `Backtrace` that is not used again, as the caller promises.
            unsafe { backtrace.cast::<Backtrace>().drop_in_place() };
        }
        Ok(())
    });
}

/// Returns a backtrace's addresses and stores their number in `*count`; NULL for a NULL backtrace.
///
/// The addresses are valid until the backtrace is released.
///
/// # Safety
/// `count` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_addresses(
    backtrace: *const StoredBacktrace,
    count: *mut usize,
) -> *const u64 {
    // SAFETY: as the caller promises.
    let addresses = unsafe { as_backtrace(backtrace) }.map(Backtrace::addresses).ok();
    // SAFETY: null or writable, as the caller promises.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = addresses.map_or(0, <[u64]>::len);
    }
    addresses.map_or(std::ptr::null(), <[u64]>::as_ptr)
}

/// Returns a hash of the stack; 0 if `backtrace` is NULL.
///
/// Identical stacks have the same hash; different stacks almost certainly have different hashes.
/// Hashes differ from run to run.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_hash(backtrace: *const StoredBacktrace) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { as_backtrace(backtrace) }.map_or(0, Backtrace::hash)
}

/// Returns true if the stack has more frames than the requested maximum.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_is_truncated(backtrace: *const StoredBacktrace) -> bool {
    // SAFETY: as the caller promises.
    unsafe { as_backtrace(backtrace) }.is_ok_and(Backtrace::is_truncated)
}

/// Calls `each` for a backtrace's frames, with their names, innermost first.
///
/// Names are found in one pass over each image's symbols and cached, so that naming the same stack
/// again costs almost nothing. Names stay correct even if a library was unloaded after the capture.
///
/// # Safety
/// The general rules apply. `each` must not keep a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_backtrace_names(
    backtrace: *const StoredBacktrace,
    each: EachFrame,
    context: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let backtrace = unsafe { as_backtrace(backtrace) }?;
        let each = each.ok_or_else(|| fail(Status::InvalidArgument, "`each` is NULL"))?;
        for frame in backtrace.names().frames() {
            let (image, function) = (c_text(frame.image.as_deref()), c_text(frame.function.as_deref()));
            let pointer = |text: &Option<CString>| text.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            let &coroner::backtrace::NamedFrame { address, image_offset, function_offset, in_app, .. } = frame;
            let (image, function) = (pointer(&image), pointer(&function));
            let given = NamedFrame { address, image, image_offset, function, function_offset, in_app };
            // SAFETY: as the caller promises; the strings live until it returns.
            unsafe { each(context, &raw const given) };
        }
        Ok(())
    })
}

/// Converts a string for C, up to its first NUL if it contains one.
fn c_text(text: Option<&str>) -> Option<CString> {
    let text = text?.split('\0').next().unwrap_or_default();
    CString::new(text).ok()
}

/// Writes a backtrace as text to the `size` bytes at `into`; returns the text's length.
///
/// The text has one line per frame, with image, function and offset, is NUL-terminated and
/// truncated to fit. With `lines`, inlined calls have lines of their own, and a line includes the
/// source position if debug information is available. Debug information is read on each such call,
/// which may take a second.
///
/// Like snprintf, it returns the number of bytes of the whole text without the NUL; 0 if
/// `backtrace` is NULL.
///
/// # Safety
/// `into` must be writable for `size` bytes; it may be NULL if `size` is 0.
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
        let backtrace = unsafe { as_backtrace(backtrace) }?;
        let text = if lines {
            backtrace.to_string()
        } else {
            backtrace.names().frames().iter().map(|frame| format!("{frame}\n")).collect()
        };
        length = text.len();
        if !into.is_null() && size > 0 {
            let fits = text.floor_char_boundary(size - 1);
            // SAFETY: `size` bytes are writable, as the caller promises, and this writes at most
            // that many.
            unsafe {
                into.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits);
                into.add(fits).write(0);
            }
        }
        Ok(())
    });
    length
}

/// Sets the path prefixes of the app's own images, besides the program.
///
/// # Safety
/// `prefixes` must point to `count` strings; it may be NULL if `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_in_app_images(prefixes: *const *const c_char, count: usize) -> Status {
    guarded(|| {
        let given = match (prefixes.is_null(), count) {
            (_, 0) => &[][..],
            (true, _) => return Err(fail(Status::InvalidArgument, "`prefixes` is NULL")),
            // SAFETY: not null, and `count` elements, as the caller promises.
            (false, count) => unsafe { std::slice::from_raw_parts(prefixes, count) },
        };
        // SAFETY: as the caller promises.
        let texts = given.iter().map(|prefix| unsafe { text(*prefix, "prefixes") }).collect::<Result<Vec<_>, _>>()?;
        coroner::backtrace::set_in_app(texts);
        Ok(())
    })
}
