//! Uncaught Objective-C exceptions: `NSSetUncaughtExceptionHandler`.
//!
//! Foundation calls the handler for an uncaught `NSException` at the place where its runtime gives
//! up: at that point no frame without a handler was unwound, and the exception itself contains the
//! return addresses of its throw. The exception's description is read before any thread is stopped,
//! by messages of the runtime; then the report is written, with the stack of the throw as the
//! exception's and that of this handler as the crashed thread's; then the earlier handler is
//! called.
//!
//! No Apple library is linked: the runtime and Foundation are looked up (`dlsym`) at install, and
//! if they are not in the process nothing is done. Functions and methods are those of
//! <objc/runtime.h>, <objc/message.h> and <Foundation/NSException.h>.
//!
//! A thrown object that isn't an `NSException` never gets here: the terminate handler recognizes it
//! by its type ([`is_reported_here`]).
//!
//! AppKit itself catches exceptions of event handlers and passes them to
//! `-[NSApplication reportException:]`, which logs them. On request that method is replaced: the
//! exceptions are reported as ones that the process survives, and the earlier method is called.
//!
//! # Limits
//! 128 return addresses. `-description` of the user info is the app's own code: if it throws,
//! control returns here, and the report is written without it; if it faults, that is reported as a
//! crash.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use coroner_capture::exception::{self, Ending};
use coroner_process::memory::Memory;
use coroner_process::threads::{process_id, this_thread};
use coroner_report::wire::{AddressKind, Exception, FoundBy, Frame, Language, Monitor};
use coroner_walk::{LiveReader, current_registers};

use crate::itanium;

/// Maximum length in bytes of the name, the reason and the user info.
const NAME: usize = 256;
const REASON: usize = 2048;
const USER_INFO: usize = 4096;
/// Maximum number of return addresses.
const FRAMES: usize = 128;

type Id = *mut c_void;
type Selector = *const c_void;
/// `NSUncaughtExceptionHandler`.
type Handler = extern "C" fn(Id);
/// `objc_msgSend` for methods without arguments, and with one.
type Send = extern "C" fn(Id, Selector) -> Id;
type SendIndex = extern "C" fn(Id, Selector, usize) -> Id;
/// A method such as `reportException:`.
type Method = extern "C" fn(Id, Selector, Id);

/// The functions that are called, by name, in the order of [`ADDRESSES`].
const NAMES: [&CStr; 9] = [
    c"NSSetUncaughtExceptionHandler",
    c"NSGetUncaughtExceptionHandler",
    c"objc_msgSend",
    c"objc_getClass",
    c"sel_registerName",
    c"class_getSuperclass",
    c"class_getInstanceMethod",
    c"method_setImplementation",
    c"objc_ehtype_vtable",
];
/// Addresses of the functions; all 0 while there is no runtime.
static ADDRESSES: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// A function of [`NAMES`].
#[derive(Clone, Copy, Debug)]
enum Function {
    SetHandler,
    GetHandler,
    Send,
    GetClass,
    RegisterName,
    GetSuperclass,
    GetMethod,
    SetImplementation,
    ThrownVtable,
}

fn address(function: Function) -> usize {
    ADDRESSES.get(function as usize).map_or(0, |place| place.load(Ordering::Acquire))
}

/// The earlier handler.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);
/// The original `-[NSApplication reportException:]`; 0 while it is not replaced.
static APPKIT: AtomicUsize = AtomicUsize::new(0);
/// Function that is called after a report of an exception from AppKit; 0 for none.
static SURVIVED: AtomicUsize = AtomicUsize::new(0);

/// Replaces the handler of uncaught exceptions (not async-signal-safe), and on request AppKit's
/// method. Does nothing in a process without Foundation.
pub(crate) fn install(appkit: bool, on_survived: Option<fn()>) {
    SURVIVED.store(on_survived.map_or(0, |survived| survived as usize), Ordering::Release);
    for (place, name) in ADDRESSES.iter().zip(NAMES) {
        // SAFETY: a name that ends in NUL.
        place.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize, Ordering::Release);
    }
    let (set, get) = (address(Function::SetHandler), address(Function::GetHandler));
    if set == 0 || get == 0 || address(Function::Send) == 0 || address(Function::RegisterName) == 0 {
        return;
    }
    // SAFETY: `NSUncaughtExceptionHandler *NSGetUncaughtExceptionHandler(void)`, and `void
    // NSSetUncaughtExceptionHandler(…)`.
    unsafe {
        let before = core::mem::transmute::<usize, extern "C" fn() -> usize>(get)();
        if before != ours() {
            PREVIOUS.store(before, Ordering::Release);
            core::mem::transmute::<usize, extern "C" fn(usize)>(set)(ours());
        }
    }
    if appkit {
        replace_appkits();
    }
}

/// Restores the earlier handler, unless another one was installed later (not async-signal-safe).
/// AppKit's method stays replaced, and calls the original one.
pub(crate) fn uninstall() {
    let (set, get) = (address(Function::SetHandler), address(Function::GetHandler));
    if set == 0 || get == 0 {
        return;
    }
    // SAFETY: as in `install`.
    unsafe {
        if core::mem::transmute::<usize, extern "C" fn() -> usize>(get)() == ours() {
            core::mem::transmute::<usize, extern "C" fn(usize)>(set)(PREVIOUS.load(Ordering::Acquire));
        }
    }
}

fn ours() -> usize {
    on_uncaught as *const () as usize
}

/// Returns a class by name; 0 if there is none.
fn class(name: &CStr) -> usize {
    match address(Function::GetClass) {
        0 => 0,
        // SAFETY: `Class objc_getClass(const char *)`.
        get => unsafe {
            core::mem::transmute::<usize, extern "C" fn(*const libc::c_char) -> usize>(get)(name.as_ptr())
        },
    }
}

fn selector(name: &CStr) -> Selector {
    // SAFETY: `SEL sel_registerName(const char *)`, which `install` has found.
    unsafe {
        core::mem::transmute::<usize, extern "C" fn(*const libc::c_char) -> Selector>(address(Function::RegisterName))(
            name.as_ptr(),
        )
    }
}

/// Sends a message without arguments; a message to nil returns nil.
fn send(object: Id, name: &CStr) -> Id {
    if object.is_null() {
        return object;
    }
    // SAFETY: an object, and a method of it without arguments.
    unsafe { core::mem::transmute::<usize, Send>(address(Function::Send))(object, selector(name)) }
}

fn replace_appkits() {
    let (get, set) = (address(Function::GetMethod), address(Function::SetImplementation));
    let application = class(c"NSApplication");
    if application == 0 || get == 0 || set == 0 || APPKIT.load(Ordering::Acquire) != 0 {
        return;
    }
    // SAFETY: `Method class_getInstanceMethod(Class, SEL)` and
    // `IMP method_setImplementation(Method, IMP)`.
    unsafe {
        let get = core::mem::transmute::<usize, extern "C" fn(usize, Selector) -> usize>(get);
        let method = get(application, selector(c"reportException:"));
        if method != 0 {
            let set = core::mem::transmute::<usize, extern "C" fn(usize, usize) -> usize>(set);
            APPKIT.store(set(method, on_appkits as *const () as usize), Ordering::Release);
        }
    }
}

/// Returns `true` if an uncaught C++ object of that type is an `NSException`, which is reported by
/// this handler.
pub(crate) fn is_reported_here(memory: &mut impl Memory, type_info: u64) -> bool {
    let base = class(c"NSException");
    let superclass = address(Function::GetSuperclass);
    if !is_object(memory, type_info) || base == 0 || superclass == 0 || address(Function::SetHandler) == 0 {
        return false;
    }
    // `struct objc_typeinfo {vtable, name, class}`.
    let mut class = memory.read_u64(type_info.wrapping_add(16)).unwrap_or(0) as usize;
    // SAFETY: `Class class_getSuperclass(Class)`.
    let superclass = unsafe { core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(superclass) };
    for _ in 0..64 {
        if class == base || class == 0 {
            break;
        }
        class = superclass(class);
    }
    class == base
}

/// Returns `true` if a type is that of a thrown Objective-C object: its virtual table is the
/// runtime's own for these.
pub(crate) fn is_object(memory: &mut impl Memory, type_info: u64) -> bool {
    let table = address(Function::ThrownVtable) as u64;
    table != 0 && memory.read_u64(type_info).is_ok_and(|functions| itanium::strip(functions) == table.wrapping_add(16))
}

/// Storage for the description of an exception.
struct Description {
    /// [`thread_word`](coroner_capture::thread_word) of the describing thread; 0 for none.
    owner: AtomicU64,
    said: UnsafeCell<Said>,
}

struct Said {
    name: Text<NAME>,
    reason: Text<REASON>,
    user_info: Text<USER_INFO>,
    frames: [Frame; FRAMES],
    count: usize,
}

struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    const EMPTY: Text<N> = Text { bytes: [0; N], length: 0 };

    /// Copies the text of an `NSString`.
    fn take(&mut self, memory: &mut impl Memory, string: Id) {
        let text = send(string, c"UTF8String");
        self.length = if text.is_null() { 0 } else { itanium::copy_text(memory, text as u64, &mut self.bytes) };
    }

    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length).filter(|text| !text.is_empty())
    }
}

// SAFETY: the cell is the owner's alone.
unsafe impl Sync for Description {}

const NO_FRAME: Frame = Frame { pc: 0, found_by: FoundBy(0), address_kind: AddressKind(0), sp: None, cfa: None };
static DESCRIPTION: Description = Description {
    owner: AtomicU64::new(0),
    said: UnsafeCell::new(Said {
        name: Text::EMPTY,
        reason: Text::EMPTY,
        user_info: Text::EMPTY,
        frames: [NO_FRAME; FRAMES],
        count: 0,
    }),
};

impl Said {
    /// Reads the exception's description, starting with what is least likely to go wrong.
    fn ask(&mut self, memory: &mut impl Memory, object: Id) {
        (self.name.length, self.reason.length, self.user_info.length, self.count) = (0, 0, 0, 0);
        self.name.take(memory, send(object, c"name"));
        let addresses = send(object, c"callStackReturnAddresses");
        let count = send(addresses, c"count") as usize;
        for (index, place) in self.frames.iter_mut().enumerate().take(count) {
            // SAFETY: `-[NSArray objectAtIndex:]` below its count.
            let number = unsafe {
                core::mem::transmute::<usize, SendIndex>(address(Function::Send))(
                    addresses,
                    selector(c"objectAtIndex:"),
                    index,
                )
            };
            let pc = itanium::strip(send(number, c"unsignedIntegerValue") as u64);
            // The runtime's own walk follows frame records.
            let (found_by, address_kind) = (FoundBy::FRAME_POINTER, AddressKind::RETURN);
            *place = Frame { pc, found_by, address_kind, sp: None, cfa: None };
            self.count = index + 1;
        }
        self.reason.take(memory, send(object, c"reason"));
        self.user_info.take(memory, send(send(object, c"userInfo"), c"description"));
    }

    fn exception(&self) -> Exception<'_> {
        Exception {
            language: Language::OBJC,
            type_name: self.name.get(),
            message: self.reason.get(),
            tid: this_thread(),
            frames: self.frames.get(..self.count).unwrap_or_default(),
            user_info: self.user_info.get(),
            ..Exception::default()
        }
    }
}

/// Describes and reports an `NSException`.
fn report(registers: &coroner_process::registers::Registers, object: Id, ending: Ending) -> bool {
    let me = coroner_capture::thread_word(process_id(), this_thread());
    let owner = &DESCRIPTION.owner;
    let is_mine = owner.load(Ordering::Acquire) == me;
    if !is_mine && owner.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread is describing an exception now.
        let undescribed = Exception { language: Language::OBJC, tid: this_thread(), ..Exception::default() };
        return exception::report(registers, Monitor::NS_EXCEPTION, &[undescribed], ending);
    }
    let said = DESCRIPTION.said.get();
    // SAFETY: this thread is the owner. Where it describes already, what it asked for has thrown
    // and led here: that call never continues, and what it had learned is reported.
    let said = unsafe { &mut *said };
    if !is_mine && let Some(mut memory) = LiveReader::new() {
        said.ask(&mut memory, object);
    }
    let reported = exception::report(registers, Monitor::NS_EXCEPTION, &[said.exception()], ending);
    owner.store(0, Ordering::Release);
    reported
}

extern "C" fn on_uncaught(object: Id) {
    let registers = current_registers();
    let reported = crate::is_on() && report(&registers, object, Ending::Fatal);
    if reported {
        // And so is the runtime's own end.
        exception::calls_earlier_handler(registers.sp());
        exception::dies();
    }
    let before = PREVIOUS.load(Ordering::Acquire);
    if before != 0 {
        // SAFETY: the app had installed it.
        unsafe { core::mem::transmute::<usize, Handler>(before)(object) };
    }
}

/// Replacement for `-[NSApplication reportException:]`.
extern "C" fn on_appkits(application: Id, name: Selector, object: Id) {
    let registers = current_registers();
    if crate::is_on() && report(&registers, object, Ending::NonFatal) {
        let survived = SURVIVED.load(Ordering::Acquire);
        if survived != 0 {
            // SAFETY: such a function was stored.
            unsafe { core::mem::transmute::<usize, fn()>(survived)() };
        }
    }
    let before = APPKIT.load(Ordering::Acquire);
    if before != 0 {
        // SAFETY: the method that was there.
        unsafe { core::mem::transmute::<usize, Method>(before)(application, name, object) };
    }
}
