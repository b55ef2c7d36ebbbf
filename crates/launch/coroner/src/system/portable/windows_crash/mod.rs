//! Native crashes on Windows (feature `windows-crashes`).
//!
//! These are unhandled exceptions and the C runtime's `abort`. The crashing thread does little,
//! because its stack may be full: it records the crash in the run state, wakes a thread that was
//! created at install, and waits for it, at most until the deadline. That thread writes the report,
//! section by section, into a file that install mapped, and then lets the system write a minidump,
//! unless the crashing thread holds a lock that this needs ([`locks`]). While the process exits,
//! there are no other threads, and the crashing thread writes the report itself. After that, the
//! previous exception filter gets the exception, and then the system, so that the process ends as
//! it would have without Coroner.
//!
//! If the writing thread faults, the same filter is called, and a second thread writes the rest of
//! the report. At crash time nothing allocates or waits without a limit.

mod dump;
mod invalid_parameter;
mod locks;
mod mappings;
mod memory;
mod modules;
mod record;
mod stack;

use std::fs::File;
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use coroner_capture::InstallOptions;
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::{Access, Monitor};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::{
    AddVectoredExceptionHandler, EXCEPTION_CONTINUE_EXECUTION, EXCEPTION_CONTINUE_SEARCH, EXCEPTION_POINTERS,
    EXCEPTION_RECORD, RtlCaptureContext, SetUnhandledExceptionFilter,
};
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleExW,
};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, SetEvent, SetThreadStackGuarantee, Sleep, WaitForSingleObject,
};

use super::process::threads::this_thread;
use super::run::Current;
use crate::clock::now_ns;
use crate::store::MINIDUMP;
use crate::store::directory::Directory;
use record::Target;
use stack::AlignedContext;

/// The file of the last fatal report. Panics don't use its number.
const REPORT: &str = "report-8";
/// Size of the report's file in bytes, less than the spare report (`store::raw_run`).
const REPORT_BYTES: usize = 120 << 10;
/// Stack size in bytes of the writing threads: dbghelp.dll needs most of it.
const STACK: usize = 512 << 10;
/// Stack space reserved for the filter when the stack is full, in bytes.
const GUARANTEE: u32 = 32 << 10;
/// Time in milliseconds to wait for another thread's crash after the deadline of its report.
const GRACE_MS: u64 = 1000;

/// From ntstatus.h.
const STATUS_ACCESS_VIOLATION: i32 = 0xc000_0005_u32.cast_signed();
const STATUS_GUARD_PAGE_VIOLATION: i32 = 0x8000_0001_u32.cast_signed();
const STATUS_IN_PAGE_ERROR: i32 = 0xc000_0006_u32.cast_signed();
const STATUS_STACK_OVERFLOW: i32 = 0xc000_00fd_u32.cast_signed();
const STATUS_HEAP_CORRUPTION: i32 = 0xc000_0374_u32.cast_signed();
const STATUS_INVALID_CRUNTIME_PARAMETER: i32 = 0xc000_0417_u32.cast_signed();
const STATUS_FATAL_APP_EXIT: i32 = 0x4000_0015;
/// Code that libgcc raises for a `throw` (`STATUS_GCC_THROW` of unwind-seh.c).
///
/// If it is not caught, mingw's filter continues the process, and the runtime calls
/// `std::terminate`.
const STATUS_GCC_THROW: i32 = 0x2047_4343;
/// The program counter is a return address (winnt.h, `EXCEPTION_SOFTWARE_ORIGINATE`): no
/// instruction faulted there.
const SOFTWARE_ORIGINATE: u32 = 0x80;
/// The C runtime's number.
const SIGABRT: i32 = 22;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SIG_ERR: usize = usize::MAX;

/// The prepared resources for a run's crash, created at install and never freed.
pub(super) struct Armed {
    run: &'static Current,
    event_id: [u8; 16],
    target: Target,
    dump: Option<HANDLE>,
    deadline_ms: u32,
    stack_memory: u32,
}

// SAFETY: its targets are used by the thread that owns the crash and those that it wakes, one at a
// time ([`OWNER`], events).
unsafe impl Send for Armed {}
// SAFETY: as above.
unsafe impl Sync for Armed {}

/// The resources that are created once per process.
struct Handlers {
    /// Events that wake the writing threads, by their numbers.
    wake: [usize; 2],
    /// Event that is set when the report was written or given up.
    done: usize,
}

static HANDLERS: OnceLock<Option<Handlers>> = OnceLock::new();
/// Addresses of the previous exception filter and of the previous SIGABRT handler.
static PREVIOUS_FILTER: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS_ABORT: AtomicUsize = AtomicUsize::new(SIG_DFL);
/// The run whose crashes are reported; null for none.
static ARMED: AtomicPtr<Armed> = AtomicPtr::new(null_mut());
/// The thread whose crash is being reported, or was; 0 for none.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// The thread ids of the writing threads.
static WRITERS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// The crash: the system's pointers to the owner's stack, the number that names the crash, and its
/// time.
static POINTERS: AtomicPtr<EXCEPTION_POINTERS> = AtomicPtr::new(null_mut());
static NUMBER: AtomicI32 = AtomicI32::new(0);
static TIME: AtomicU64 = AtomicU64::new(0);
/// The number of the crash record.
static RECORD: AtomicU64 = AtomicU64::new(0);
/// The current step of the first writing thread.
static STEP: AtomicU32 = AtomicU32::new(0);

fn armed() -> Option<&'static Armed> {
    // SAFETY: null, or from `Box::leak` in `install`, and never freed.
    unsafe { ARMED.load(Ordering::Acquire).as_ref() }
}

/// Prepares the report of the run's crash.
///
/// Returns `false` if that fails; crashes of this run are then not reported.
pub(super) fn install(run: &'static Current, options: &InstallOptions, event_id: [u8; 16]) -> bool {
    let armed = arm(run, options, event_id);
    let armed = armed.inspect_err(|error| log::warn!("coroner: crashes will not be reported: {error}"));
    let Ok(armed) = armed else { return false };
    ARMED.store(Box::leak(Box::new(armed)), Ordering::Release);
    OWNER.store(0, Ordering::Release);
    let is_taken = HANDLERS.get_or_init(|| take_handlers().ok()).is_some();
    if !is_taken {
        disarm();
    }
    is_taken
}

/// Disables crash reports.
///
/// The handlers stay and forward exceptions, because others may have been installed after them.
pub(super) fn disarm() {
    ARMED.store(null_mut(), Ordering::Release);
}

fn arm(run: &'static Current, options: &InstallOptions, event_id: [u8; 16]) -> io::Result<Armed> {
    let directory = Directory::open(&run.directory)?;
    directory.write_quickly(REPORT.as_ref(), &vec![0; REPORT_BYTES])?;
    let file = directory.file(REPORT.as_ref(), true)?;
    // SAFETY: a new file of this run, in a directory of this user only, which nothing truncates.
    let mapping = unsafe { memmap2::MmapMut::map_mut(&file) }?;
    // A minidump contains whole stacks, so there is none if reports should contain no stack memory.
    let dump =
        (options.stack_memory > 0).then(|| directory.new_file(MINIDUMP.as_ref()).map(leak_handle)).transpose()?;
    Ok(Armed {
        run,
        event_id,
        target: Target::new(Box::leak(Box::new(mapping))),
        dump,
        deadline_ms: options.deadline_ms,
        stack_memory: if options.stack_memory_all { u32::MAX } else { options.stack_memory },
    })
}

fn leak_handle(file: File) -> HANDLE {
    use std::os::windows::io::IntoRawHandle;
    file.into_raw_handle()
}

fn event() -> io::Result<usize> {
    // SAFETY: no attributes and no name; it resets automatically, and is not set.
    let event = unsafe { CreateEventW(std::ptr::null(), 0, 0, std::ptr::null()) };
    if event.is_null() { Err(io::Error::last_os_error()) } else { Ok(event as usize) }
}

/// Keeps the image with this code loaded until the process ends, because it contains handlers and
/// threads.
fn stay() -> io::Result<()> {
    let flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN;
    let mut image = null_mut();
    // SAFETY: an address in the image instead of a name, and one handle is written.
    let is_found = unsafe { GetModuleHandleExW(flags, (stay as *const ()).cast(), &raw mut image) };
    if is_found == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn take_handlers() -> io::Result<Handlers> {
    stay()?;
    let handlers = Handlers { wake: [event()?, event()?], done: event()? };
    for (number, (own, wake)) in WRITERS.iter().zip(handlers.wake).enumerate() {
        let done = handlers.done;
        let writer = std::thread::Builder::new().name("coroner-crash".to_owned()).stack_size(STACK);
        let (say, ready) = std::sync::mpsc::channel();
        writer.spawn(move || {
            own.store(this_thread(), Ordering::Release);
            let _ = say.send(());
            loop {
                // SAFETY: both events are never closed.
                unsafe { WaitForSingleObject(wake as HANDLE, INFINITE) };
                if let Some(armed) = armed() {
                    record::write(armed, number);
                }
                // SAFETY: as above.
                unsafe { SetEvent(done as HANDLE) };
            }
        })?;
        // Wait until the thread has stored its id.
        let _ = ready.recv_timeout(Duration::from_secs(10));
    }
    locks::install()?;
    let mut guarantee = GUARANTEE;
    // SAFETY: one number is read and written; a thread that has a larger guarantee keeps it.
    unsafe { SetThreadStackGuarantee(&raw mut guarantee) };
    // SAFETY: the functions have the required signatures, and stay loaded.
    unsafe {
        let previous = SetUnhandledExceptionFilter(Some(on_exception));
        PREVIOUS_FILTER.store(previous.map_or(0, |filter| filter as usize), Ordering::Release);
        AddVectoredExceptionHandler(1, Some(on_any_exception));
        match libc::signal(SIGABRT, on_abort as *const () as usize) {
            SIG_ERR => {}
            // An app that ignores the signal continues to.
            SIG_IGN => drop(libc::signal(SIGABRT, SIG_IGN)),
            previous => PREVIOUS_ABORT.store(previous, Ordering::Release),
        }
    }
    invalid_parameter::take();
    Ok(handlers)
}

/// The filter of unhandled exceptions.
unsafe extern "system" fn on_exception(pointers: *const EXCEPTION_POINTERS) -> i32 {
    // SAFETY: the system provides an exception and a context that live until this returns.
    let exception = unsafe { &*(*pointers).ExceptionRecord };
    let is_begun = exception.ExceptionCode != STATUS_GCC_THROW && report(pointers, exception.ExceptionCode);
    let previous = PREVIOUS_FILTER.load(Ordering::Acquire);
    if previous == 0 {
        return EXCEPTION_CONTINUE_SEARCH;
    }
    // SAFETY: a filter that `SetUnhandledExceptionFilter` returned.
    let answer = unsafe {
        std::mem::transmute::<usize, unsafe extern "system" fn(*const EXCEPTION_POINTERS) -> i32>(previous)(pointers)
    };
    if is_begun && answer == EXCEPTION_CONTINUE_EXECUTION {
        survived();
    }
    answer
}

/// Reports heap corruption, for which the filter of unhandled exceptions isn't called.
unsafe extern "system" fn on_any_exception(pointers: *mut EXCEPTION_POINTERS) -> i32 {
    // SAFETY: as in `on_exception`.
    let code = unsafe { (*(*pointers).ExceptionRecord).ExceptionCode };
    if code == STATUS_HEAP_CORRUPTION {
        report(pointers, code);
    }
    EXCEPTION_CONTINUE_SEARCH
}

/// Handles the C runtime's SIGABRT, from `abort`, a failed assertion, `std::terminate`, or a call
/// of a pure virtual function.
extern "C" fn on_abort(signal: i32) {
    report_call(STATUS_FATAL_APP_EXIT, SIGABRT);
    match PREVIOUS_ABORT.load(Ordering::Acquire) {
        // By now, the signal has its default action. In GNU's C runtime, it ends the process as
        // `abort` does; in Microsoft's universal one, `abort` does so in another way when this
        // returns.
        SIG_DFL => {
            #[cfg(all(target_env = "gnu", not(target_abi = "llvm")))]
            // SAFETY: it may be called anywhere.
            unsafe {
                unsafe extern "C" {
                    fn raise(signal: i32) -> i32;
                }
                raise(signal);
            }
        }
        // SAFETY: a handler that `signal` returned.
        previous => unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(previous)(signal) },
    }
}

/// Reports that the C runtime called its handler, and leaves out the handler's own frames.
///
/// Returns `false` if the report is another thread's.
#[inline(always)]
fn report_call(code: i32, number: i32) -> bool {
    let mut context = AlignedContext::default();
    // SAFETY: the context is aligned, and this thread's own.
    unsafe { RtlCaptureContext(context.get()) };
    // To the caller of the handler that this function is inlined into: the C runtime.
    stack::step(&mut context);
    let mut exception = EXCEPTION_RECORD {
        ExceptionCode: code,
        ExceptionFlags: SOFTWARE_ORIGINATE,
        ExceptionAddress: context.0.Rip as *mut _,
        ..EXCEPTION_RECORD::default()
    };
    let pointers = EXCEPTION_POINTERS { ExceptionRecord: &raw mut exception, ContextRecord: context.get() };
    report(&raw const pointers, number)
}

/// Reports a crash of the calling thread, named by `number`.
///
/// Returns `false` if the report is another thread's.
fn report(pointers: *const EXCEPTION_POINTERS, number: i32) -> bool {
    let (Some(armed), Some(Some(handlers))) = (armed(), HANDLERS.get()) else { return false };
    let tid = this_thread();
    if WRITERS.iter().any(|writer| writer.load(Ordering::Acquire) == tid) {
        handle_writer_fault(pointers, handlers);
    }
    if !own(tid, armed) {
        return false;
    }
    // SAFETY: as in `on_exception`.
    let (exception, context) = unsafe { (&*(*pointers).ExceptionRecord, &*(*pointers).ContextRecord) };
    let time_ns = now_ns();
    POINTERS.store(pointers.cast_mut(), Ordering::Release);
    NUMBER.store(number, Ordering::Release);
    TIME.store(time_ns, Ordering::Release);
    // Write the record first: if the report fails, the next launch creates one from the record.
    let record = armed.run.state.set_crash(&CrashRecord {
        monitor: Monitor::SEH,
        signal: number,
        address: fault(exception).1,
        tid,
        time_ns,
        pc: context.Rip,
        sp: context.Rsp,
        ..CrashRecord::default()
    });
    RECORD.store(record, Ordering::Release);
    armed.run.is_reported.store(true, Ordering::Release);
    if locks::is_process_exiting() {
        record::write(armed, 0);
        return true;
    }
    // SAFETY: the events are never closed.
    unsafe {
        SetEvent(handlers.wake[0] as HANDLE);
        WaitForSingleObject(handlers.done as HANDLE, armed.deadline_ms);
    }
    true
}

/// Whether the thread's crash is the one to report.
///
/// If it is another thread's, waits for it: the process ends with it.
fn own(tid: u64, armed: &Armed) -> bool {
    let mut left = u64::from(armed.deadline_ms) + GRACE_MS;
    loop {
        // A fatal panic, or a crash that is already being reported, contains more than its
        // consequence.
        match OWNER.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if armed.run.is_reported.load(Ordering::Acquire) => {
                OWNER.store(0, Ordering::Release);
                return false;
            }
            Ok(_) => return true,
            Err(owner) if owner == tid || left == 0 => return false,
            Err(_) => {}
        }
        let step = left.min(10);
        // SAFETY: it only waits.
        unsafe { Sleep(step as u32) };
        left -= step;
    }
}

/// Discards the report: the previous filter repaired the fault, so it was not a crash.
fn survived() {
    let Some(armed) = armed() else { return };
    armed.run.state.set_crash_not_fatal(RECORD.load(Ordering::Acquire));
    armed.target.wipe();
    if let Some(dump) = armed.dump {
        dump::empty(dump);
    }
    armed.run.is_reported.store(false, Ordering::Release);
    OWNER.store(0, Ordering::Release);
}

/// Handles a fault of a writing thread, which then stops for good. The other one writes the rest.
fn handle_writer_fault(pointers: *const EXCEPTION_POINTERS, handlers: &Handlers) -> ! {
    let is_first = WRITERS[0].load(Ordering::Acquire) == this_thread();
    // SAFETY: as in `on_exception`.
    let (exception, context) = unsafe { (&*(*pointers).ExceptionRecord, &*(*pointers).ContextRecord) };
    record::note_fault(exception.ExceptionCode, fault(exception).1, context.Rip);
    let next = if is_first { handlers.wake[1] } else { handlers.done };
    // The thread may have been stopped for the minidump.
    dump::resume(OWNER.load(Ordering::Acquire));
    dump::resume(WRITERS[1].load(Ordering::Acquire));
    // SAFETY: the events are never closed.
    unsafe { SetEvent(next as HANDLE) };
    loop {
        // SAFETY: it only waits, for the end of the process.
        unsafe { Sleep(INFINITE) };
    }
}

/// Returns a faulting instruction's access and its address (winnt.h, `EXCEPTION_RECORD`).
///
/// The system uses −1 for an address that is unknown.
fn fault(exception: &EXCEPTION_RECORD) -> (Option<Access>, Option<u64>) {
    let has =
        matches!(exception.ExceptionCode, STATUS_ACCESS_VIOLATION | STATUS_IN_PAGE_ERROR | STATUS_GUARD_PAGE_VIOLATION);
    if !has || exception.NumberParameters < 2 {
        return (None, None);
    }
    let [kind, address, ..] = exception.ExceptionInformation;
    let access = match kind {
        _ if address == exception.ExceptionAddress as usize => Access::EXECUTE,
        0 => Access::READ,
        1 => Access::WRITE,
        8 => Access::EXECUTE,
        _ => return (None, Some(address as u64)),
    };
    if address == usize::MAX { (None, None) } else { (Some(access), Some(address as u64)) }
}
