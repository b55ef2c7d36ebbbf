//! Uncaught C++ exceptions: `std::terminate`.
//!
//! A terminate handler (`std::set_terminate`) that describes the exception, writes a report and
//! calls the earlier handler. The stack of the throw comes from [`crate::throws`]; the report also
//! contains the crashed thread's own stack, which is that of the call of `std::terminate`.
//!
//! | cause of death | type | message |
//! |---|---|---|
//! | an object of a class derived from `std::exception`, or a pointer to one | its type | `what()` |
//! | `std::string`, `const char *`, `char *` | its type | the text |
//! | an integer, `bool` | its type | the number |
//! | anything else | its type | none |
//! | an exception of another language | `foreign exception` and its class | none |
//! | no exception | none | that there was none |
//!
//! Causes (`std::nested_exception`) follow, up to [`MAX_COUNT`] exceptions in total. Type names are
//! mangled, as in the process; the next launch demangles them.
//!
//! # `what()` is the app's own code
//! It runs before any thread is stopped, with a time limit. If it faults, aborts, throws or hangs,
//! it is left where it was ([`guarded_call`]) and the report has no message. One thread describes
//! at a time; another one that gets here in the meantime waits for the process to die of the first.
//!
//! # Limits
//! A handler that the app sets after the install, and before an exception that it does not throw
//! through Coroner's `__cxa_throw`, is not replaced again; nor is one after [`HANDLERS`] others.
//!
//! Supports only a runtime that is linked into the program, or loaded with its symbols for all,
//! when Coroner is installed (on Apple's systems also later). Of two runtimes, the one that the
//! program's own calls are bound to.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_capture::exception::{self, Ending};
use coroner_capture::guarded_call;
use coroner_process::memory::Memory;
use coroner_process::registers::Registers;
use coroner_process::threads::{process_id, this_thread};
use coroner_report::wire::{AddressKind, Exception, FoundBy, Frame, Language, Monitor};
use coroner_walk::{LiveReader, current_registers};

use crate::itanium::{self, Current, Function};
#[cfg(target_vendor = "apple")]
use crate::objective_c;
use crate::throws;

/// Maximum number of exceptions that are described: the uncaught one and its causes.
const MAX_COUNT: usize = 4;
/// Maximum length in bytes of a type's name, and of a message.
const TYPE: usize = 512;
const MESSAGE: usize = 2048;
/// Maximum time for `what()` in milliseconds, if the deadline of a report is not shorter.
const TIMEOUT_MS: u32 = 2000;

/// Deadline of a report, in milliseconds.
static DEADLINE_MS: AtomicU32 = AtomicU32::new(0);

/// Maximum number of terminate handlers that call an earlier one.
const HANDLERS: usize = 4;

/// The handlers that [`ours`] call next; 0 for one that is not in use.
///
/// An app may set a handler of its own after the install. If throws are intercepted, Coroner's
/// takes its place again at the next throw, as another function: the app may restore the one that
/// it got from `std::set_terminate`, or call it.
static EARLIER: [AtomicUsize; HANDLERS] = [const { AtomicUsize::new(0) }; HANDLERS];

/// [`word`] of the thread whose report is written, and on which an earlier handler may call one of
/// [`ours`]; 0 for none.
static NESTED: AtomicU64 = AtomicU64::new(0);

type Handler = extern "C" fn();

/// Replaces the terminate handler (not async-signal-safe). Does nothing in a process without a C++
/// runtime.
pub(crate) fn install(deadline_ms: u32) {
    DEADLINE_MS.store(deadline_ms, Ordering::Release);
    take_place();
}

/// Replaces the terminate handler, unless it is one of ours.
fn take_place() {
    let (set, get) = (itanium::function(Function::SetTerminate), itanium::function(Function::GetTerminate));
    if set != 0 && get != 0 {
        // SAFETY: the functions by these names.
        unsafe { replace(set, get) };
    }
}

/// # Safety
/// The arguments must be the addresses of `std::set_terminate` and `std::get_terminate`.
unsafe fn replace(set: usize, get: usize) {
    // SAFETY: `std::terminate_handler std::get_terminate()`; a handler is a plain function pointer.
    let before = unsafe { core::mem::transmute::<usize, extern "C" fn() -> usize>(get)() };
    if ours().contains(&before) {
        return;
    }
    // The one that calls this handler, or the next.
    let holds = |value: usize| EARLIER.iter().position(|earlier| earlier.load(Ordering::Acquire) == value);
    let Some(index) = holds(before).or_else(|| holds(0)) else { return };
    let (Some(earlier), Some(handler)) = (EARLIER.get(index), ours().get(index).copied()) else { return };
    earlier.store(before, Ordering::Release);
    // SAFETY: `std::terminate_handler std::set_terminate(std::terminate_handler)`.
    unsafe { core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(set)(handler) };
}

/// Replaces the terminate handler again if the app has set its own since, at a throw. Only for a
/// runtime to which the program is bound, since no name is looked up.
#[cfg(all(not(target_vendor = "apple"), any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
pub(crate) fn take_place_again() {
    let (set, get) = (itanium::bound(Function::SetTerminate), itanium::bound(Function::GetTerminate));
    if set != 0 && get != 0 {
        // SAFETY: the functions by these names.
        unsafe { replace(set, get) };
    }
}

/// Replaces the terminate handler if the C++ runtime was loaded after the install.
#[cfg(all(target_vendor = "apple", any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
pub(crate) fn install_if_absent() {
    if EARLIER[0].load(Ordering::Acquire) == 0 {
        take_place();
    }
}

/// Restores the earlier handler, unless another one was installed later (not async-signal-safe).
pub(crate) fn uninstall() {
    let (set, get) = (itanium::function(Function::SetTerminate), itanium::function(Function::GetTerminate));
    if set == 0 || get == 0 {
        return;
    }
    // SAFETY: `std::terminate_handler std::get_terminate()`, and as in `replace`.
    unsafe {
        let now = core::mem::transmute::<usize, extern "C" fn() -> usize>(get)();
        let index = ours().iter().position(|handler| *handler == now);
        if let Some(earlier) = index.and_then(|index| EARLIER.get(index)) {
            core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(set)(earlier.load(Ordering::Acquire));
        }
    }
}

/// Returns Coroner's handlers.
fn ours() -> [usize; HANDLERS] {
    [
        on_terminate::<0> as *const () as usize,
        on_terminate::<1> as *const () as usize,
        on_terminate::<2> as *const () as usize,
        on_terminate::<3> as *const () as usize,
    ]
}

/// The terminate handler that calls the earlier one with that index.
extern "C" fn on_terminate<const INDEX: usize>() {
    let registers = current_registers();
    let me = word();
    // `what()` itself may have got here.
    guarded_call::leave();
    let is_nested = NESTED.load(Ordering::Acquire) == me;
    #[cfg(target_vendor = "apple")]
    let reported = !is_nested && !is_left_to_objc() && describe_and_report(&registers, me);
    #[cfg(not(target_vendor = "apple"))]
    let reported = !is_nested && describe_and_report(&registers, me);
    let before = EARLIER[INDEX].load(Ordering::Acquire);
    if reported {
        NESTED.store(me, Ordering::Release);
        exception::calls_earlier_handler(registers.sp());
    }
    if before != 0 {
        // SAFETY: the app or the runtime had installed it.
        unsafe { core::mem::transmute::<usize, Handler>(before)() };
    }
    // It must not return, and there is nothing to return to.
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Description of one exception. All zero is an empty one.
struct Described {
    language: Language,
    kind: [u8; TYPE],
    kind_length: usize,
    message: [u8; MESSAGE],
    message_length: usize,
    frames: [Frame; throws::FRAMES],
    count: usize,
}

/// The only description that can be in progress.
struct Description {
    /// [`word`] of the describing thread; 0 for none.
    owner: AtomicU64,
    exceptions: UnsafeCell<[Described; MAX_COUNT]>,
}

// SAFETY: the cell is the owner's alone.
unsafe impl Sync for Description {}

const NO_FRAME: Frame = Frame { pc: 0, found_by: FoundBy(0), address_kind: AddressKind(0), sp: None, cfa: None };
/// All zero, so that it takes no room in the file; [`Described::clear`] sets the language.
const NOTHING: Described = Described {
    language: Language(0),
    kind: [0; TYPE],
    kind_length: 0,
    message: [0; MESSAGE],
    message_length: 0,
    frames: [NO_FRAME; throws::FRAMES],
    count: 0,
};
static DESCRIPTION: Description =
    Description { owner: AtomicU64::new(0), exceptions: UnsafeCell::new([NOTHING; MAX_COUNT]) };

/// Returns the calling thread with its process, as one word.
fn word() -> u64 {
    coroner_capture::thread_word(process_id(), this_thread())
}

/// Returns `true` if the exception is an `NSException`: the earlier handler is the Objective-C
/// runtime's, which calls the handler of uncaught exceptions.
#[cfg(target_vendor = "apple")]
fn is_left_to_objc() -> bool {
    let Some(mut memory) = LiveReader::new() else { return false };
    match itanium::current(&mut memory) {
        Some(Current::Cpp { type_info, .. }) => objective_c::is_reported_here(&mut memory, type_info),
        _ => false,
    }
}

/// Acquires the description for the calling thread. If another thread of this process has it, the
/// process dies of that thread's exception: this thread waits to die, and is in that report with
/// its stack. Returns `false` if it still lives after a timeout, or the owner belongs to another
/// process.
fn own(me: u64, deadline_ms: u32) -> bool {
    const STEP_MS: u32 = 10;
    let owner = &DESCRIPTION.owner;
    let process = coroner_capture::thread_word(process_id(), 0) >> 40;
    let Err(mut other) = owner.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) else { return true };
    if other == me {
        // The earlier handler has got here.
        return true;
    }
    // The report's deadline, that of `what()`, and a second for the earlier handler.
    let mut left = deadline_ms.saturating_add(TIMEOUT_MS).saturating_add(1000);
    while (other == 0 || other >> 40 == process) && left > 0 {
        let time = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(STEP_MS) * 1_000_000 };
        // SAFETY: reads one timespec.
        unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
        left = left.saturating_sub(STEP_MS);
        other = owner.load(Ordering::Acquire);
    }
    owner.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Describes and reports the exception that the thread is handling. Returns `true` if there is a
/// report of it.
fn describe_and_report(registers: &Registers, me: u64) -> bool {
    if !crate::is_on() {
        return false;
    }
    let deadline_ms = DEADLINE_MS.load(Ordering::Acquire);
    let tid = this_thread() as u64;
    if !own(me, deadline_ms) {
        // A child made by fork while its parent's thread was describing, or a thread whose earlier
        // handler takes its time.
        let undescribed = Exception { language: Language::CPP, tid, ..Exception::default() };
        return exception::report(registers, Monitor::CPP_EXCEPTION, &[undescribed], Ending::Fatal);
    }
    // SAFETY: this thread is the owner.
    let all = unsafe { &mut *DESCRIPTION.exceptions.get() };
    let mut count = 0;
    if let Some(mut memory) = LiveReader::new() {
        count = describe(all, &mut memory, deadline_ms.min(TIMEOUT_MS));
    }
    let mut exceptions = [Exception::default(); MAX_COUNT];
    for (exception, described) in exceptions.iter_mut().zip(all.iter()).take(count) {
        let text = |bytes: &'static [u8], length: usize| bytes.get(..length).filter(|text| !text.is_empty());
        // SAFETY: nothing is written to it any more; shared from here on.
        let described: &'static Described = unsafe { &*core::ptr::from_ref(described) };
        *exception = Exception {
            language: described.language,
            type_name: text(&described.kind, described.kind_length),
            message: text(&described.message, described.message_length),
            tid,
            frames: described.frames.get(..described.count).unwrap_or_default(),
            ..Exception::default()
        };
    }
    let exceptions = exceptions.get(..count.max(1)).unwrap_or_default();
    let reported = exception::report(registers, Monitor::CPP_EXCEPTION, exceptions, Ending::Fatal);
    // Once there is a report this thread keeps the description: from here to the end of the process
    // it may take as long as it likes, and another thread that waits would report a second death.
    if !reported {
        DESCRIPTION.owner.store(0, Ordering::Release);
    }
    reported
}

/// Describes the exception that the thread is handling and its causes; returns their number.
fn describe(all: &mut [Described; MAX_COUNT], memory: &mut LiveReader, timeout_ms: u32) -> usize {
    let [first, ..] = all;
    let mut next = match itanium::current(memory) {
        Some(Current::Cpp { object, type_info }) => Some((object, type_info)),
        Some(Current::Foreign { class }) => {
            first.clear();
            first.kind_length = put(&mut first.kind, 0, b"foreign exception ");
            for letter in class {
                let letter = if letter.is_ascii_graphic() { letter } else { b' ' };
                first.kind_length = put(&mut first.kind, first.kind_length, &[letter]);
            }
            return 1;
        }
        None => {
            first.clear();
            first.message_length = put(&mut first.message, 0, b"terminate called without an active exception");
            return 1;
        }
    };
    let mut count = 0;
    for described in all {
        let Some((object, type_info)) = next else { break };
        described.clear();
        described.kind_length = itanium::type_name(memory, type_info, &mut described.kind);
        #[cfg(target_vendor = "apple")]
        if objective_c::is_object(memory, type_info) {
            // Thrown by `@throw`, and not an `NSException`. The type's name is that of its class.
            described.language = Language::OBJC;
            described.count = throws::find(object, type_info, &mut described.frames);
            return count + 1;
        }
        described.count = throws::find(object, type_info, &mut described.frames);
        next = cause(memory, object, type_info);
        described.say(memory, object, type_info, timeout_ms);
        count += 1;
    }
    count
}

/// Returns the exception that an exception is nested around (`std::nested_exception`), and its
/// type.
fn cause(memory: &mut LiveReader, object: u64, type_info: u64) -> Option<(u64, u64)> {
    let nested = itanium::base(memory, object, type_info, b"St16nested_exception")?;
    // {virtual table, std::exception_ptr}, the latter one pointer to the object.
    let inner = memory.read_u64(nested.wrapping_add(8)).ok().filter(|inner| *inner != 0)?;
    match itanium::read_object(inner, memory)? {
        Current::Cpp { object, type_info } => Some((object, type_info)),
        Current::Foreign { .. } => None,
    }
}

/// Appends as much of `text` as fits after `length`; returns the new length.
fn put(into: &mut [u8], length: usize, text: &[u8]) -> usize {
    let mut at = length;
    for (place, byte) in into.iter_mut().skip(length).zip(text) {
        *place = *byte;
        at += 1;
    }
    at
}

impl Described {
    fn clear(&mut self) {
        (self.kind_length, self.message_length, self.count) = (0, 0, 0);
        self.language = Language::CPP;
    }

    /// Fills in the message.
    fn say(&mut self, memory: &mut LiveReader, object: u64, type_info: u64, timeout_ms: u32) {
        let name: &[u8] = self.kind.get(..self.kind_length).unwrap_or_default();
        if let Some(length) = put_value(name, memory, object, &mut self.message) {
            self.message_length = length;
        } else {
            // Programs ported from other languages throw pointers to exceptions.
            let (object, type_info) = match itanium::pointee(memory, type_info) {
                Some(pointee) => (memory.read_u64(object).unwrap_or(0), pointee),
                None => (object, type_info),
            };
            if let Some(base) = itanium::base(memory, object, type_info, b"St9exception")
                && let Some(text) = what(memory, base, timeout_ms)
            {
                self.message_length = itanium::copy_text(memory, text, &mut self.message);
            }
        }
    }
}

/// Writes the value of a thrown number or text, by the mangled name of its type; returns the length
/// in bytes. `None` for another type.
pub(crate) fn put_value(name: &[u8], memory: &mut impl Memory, object: u64, into: &mut [u8]) -> Option<usize> {
    if let Some(value) = integer(name, memory, object) {
        return Some(put_decimal(into, value));
    }
    if matches!(name, b"PKc" | b"Pc") {
        return Some(memory.read_u64(object).map_or(0, |text| itanium::copy_text(memory, text, into)));
    }
    let (text, length) = string(name, memory, object)?;
    let length = (length as usize).min(into.len());
    let is_read = into.get_mut(..length).is_some_and(|into| memory.read(text, into).is_ok());
    Some(if is_read { length } else { 0 })
}

/// Returns the value of a thrown integer, by the mangled name of its type (ABI 5.1.5, builtin
/// types).
fn integer(name: &[u8], memory: &mut impl Memory, object: u64) -> Option<i128> {
    let mut bytes = [0_u8; 8];
    let mut load = |size: usize| {
        memory.read(object, bytes.get_mut(..size)?).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    Some(match name {
        b"a" => i128::from(load(1)? as i8),
        b"b" | b"h" => i128::from(load(1)?),
        // Plain `char` is signed on x86_64 and on Darwin, and unsigned on arm64 Linux; letters have
        // the same value on all.
        b"c" => i128::from(load(1)? as core::ffi::c_char),
        b"s" => i128::from(load(2)? as i16),
        b"t" => i128::from(load(2)?),
        b"i" => i128::from(load(4)? as i32),
        b"j" => i128::from(load(4)?),
        b"l" | b"x" => i128::from(load(8)? as i64),
        b"m" | b"y" => i128::from(load(8)?),
        _ => return None,
    })
}

fn put_decimal(into: &mut [u8], value: i128) -> usize {
    let mut digits = [0_u8; 40];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs() as u64;
    loop {
        at -= 1;
        if let Some(place) = digits.get_mut(at) {
            *place = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let sign: &[u8] = if value < 0 { b"-" } else { b"" };
    let length = put(into, 0, sign);
    put(into, length, digits.get(at..).unwrap_or_default())
}

/// Returns the text of a thrown `std::string` and its length, by the layouts of the runtimes.
fn string(name: &[u8], memory: &mut impl Memory, object: u64) -> Option<(u64, u64)> {
    match name {
        // libstdc++ since 5: {text, length, …}.
        b"NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE" => memory.read_pair(object).ok(),
        // libstdc++'s older layout (`_GLIBCXX_USE_CXX11_ABI=0`): {text}, with {length, capacity,
        // references} before the text.
        b"Ss" | b"SsE" => {
            let text = memory.read_u64(object).ok()?;
            Some((text, memory.read_u64(text.checked_sub(24)?).ok()?))
        }
        // libc++, and Android's in another namespace. Short texts are in the object.
        b"NSt3__112basic_stringIcNS_11char_traitsIcEENS_9allocatorIcEEEE"
        | b"NSt6__ndk112basic_stringIcNS_11char_traitsIcEENS_9allocatorIcEEEE" => {
            let (first, second) = memory.read_pair(object).ok()?;
            let third = memory.read_u64(object.wrapping_add(16)).ok()?;
            // Apple's arm64 has them in reverse order (`_LIBCPP_ABI_ALTERNATE_STRING_LAYOUT`):
            // {text, length, capacity} with the mark in the last byte; elsewhere {capacity, length,
            // text} with the mark in the first.
            if cfg!(all(target_vendor = "apple", target_arch = "aarch64")) {
                let last = third >> 56;
                Some(if last & 0x80 != 0 { (first, second) } else { (object, last) })
            } else {
                Some(if first & 1 != 0 { (third, second) } else { (object + 1, (first & 0xff) >> 1) })
            }
        }
        _ => None,
    }
}

type What = extern "C" fn(*const c_void) -> *const c_char;

/// A call of `what()`.
struct Call {
    object: *const c_void,
    function: What,
    text: *const c_char,
}

/// # Safety
/// `call` must point to a [`Call`].
unsafe extern "C" fn call_what(call: *mut c_void) {
    // SAFETY: by the contract.
    let call = unsafe { &mut *call.cast::<Call>() };
    call.text = (call.function)(call.object);
}

/// Returns the result of `what()` of an object of class `std::exception`; `None` if it can't be
/// called, or was left.
fn what(memory: &mut LiveReader, exception: u64, timeout_ms: u32) -> Option<u64> {
    let functions = itanium::strip(memory.read_u64(exception).ok()?);
    // Two destructors, then `what()` (ABI 2.5.2).
    let function = itanium::strip(memory.read_u64(functions.wrapping_add(16)).ok()?);
    if function == 0 {
        return None;
    }
    let mut call = Call {
        object: exception as *const c_void,
        // SAFETY: the third virtual function of `std::exception` is `const char *what() const`. If
        // the object is broken and it is something else, its effects are ended by the guard. (It is
        // `noexcept`: what it throws ends in `std::terminate`.)
        function: unsafe { core::mem::transmute::<usize, What>(function as usize) },
        text: core::ptr::null(),
    };
    // SAFETY: the call is this thread's own; frames that are left are those of the app's `what()`,
    // in a process that dies.
    let ended = unsafe { guarded_call::run(call_what, (&raw mut call).cast(), timeout_ms) };
    (ended && !call.text.is_null()).then_some(call.text as u64)
}

#[cfg(test)]
mod tests;
