//! Deallocated Objective-C objects: Coroner intercepts `-dealloc` of `NSObject` and `NSProxy`,
//! notes the object's address and class ([`coroner_capture::zombies`]) and continues in the
//! original method. Every `-dealloc` ends in one of the two, and the runtime sends the message to
//! every object whose last reference is gone (objc4, `objc_object::rootRelease`), even if it has a
//! fast path.
//!
//! `-dealloc` of `NSException`, if that class has its own, stores the exception's name and reason:
//! those of the last one are in the report. They are read by the class's own methods, which a
//! subclass that has already released its parts can't override.
//!
//! No Apple library is linked, as in `objective_c`. Functions are those of <objc/runtime.h>.
//!
//! # Limits
//! Objects that the runtime of Swift or Core Foundation frees by itself have no `-dealloc`. A class
//! that is disposed of (`objc_disposeClassPair`) and another one that takes its place have one
//! name.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_capture::zombies::{self, MAX_TEXT, Runtime};
use coroner_walk::LiveReader;

use crate::itanium::copy_text;

type Id = *mut c_void;
type Selector = *const c_void;
/// A method without arguments.
type Method = extern "C" fn(Id, Selector) -> Id;

/// The original `-dealloc`, by class; 0 if it is not replaced.
static BEFORE: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
const CLASSES: [&CStr; 3] = [c"NSObject", c"NSProxy", c"NSException"];
const OURS: [extern "C" fn(Id, Selector); 3] = [on_object, on_proxy, on_exception];

static GET_CLASS: AtomicUsize = AtomicUsize::new(0);
static GET_NAME: AtomicUsize = AtomicUsize::new(0);
/// `-[NSException name]`, `-[NSException reason]`, and `-[NSString UTF8String]` through
/// `objc_msgSend`.
static EXCEPTION_NAME: AtomicUsize = AtomicUsize::new(0);
static EXCEPTION_REASON: AtomicUsize = AtomicUsize::new(0);
static SEND: AtomicUsize = AtomicUsize::new(0);
static UTF8: AtomicUsize = AtomicUsize::new(0);

fn look_up(name: &CStr) -> usize {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Functions of the runtime that are called at install.
struct Functions {
    class: extern "C" fn(*const c_char) -> usize,
    selector: extern "C" fn(*const c_char) -> Selector,
    method: extern "C" fn(usize, Selector) -> usize,
    implementation: extern "C" fn(usize) -> usize,
    set: extern "C" fn(usize, usize) -> usize,
}

impl Functions {
    fn find() -> Option<Functions> {
        let names = [
            c"objc_getClass",
            c"sel_registerName",
            c"class_getInstanceMethod",
            c"method_getImplementation",
            c"method_setImplementation",
        ];
        let found = names.map(look_up);
        if found.contains(&0) {
            return None;
        }
        let [class, selector, method, implementation, set] = found;
        // SAFETY: `Class objc_getClass(const char *)`, `SEL sel_registerName(const char *)`,
        // `Method class_getInstanceMethod(Class, SEL)`, `IMP method_getImplementation(Method)` and
        // `IMP method_setImplementation(Method, IMP)`; none is null.
        unsafe {
            Some(Functions {
                class: core::mem::transmute::<usize, extern "C" fn(*const c_char) -> usize>(class),
                selector: core::mem::transmute::<usize, extern "C" fn(*const c_char) -> Selector>(selector),
                method: core::mem::transmute::<usize, extern "C" fn(usize, Selector) -> usize>(method),
                implementation: core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(implementation),
                set: core::mem::transmute::<usize, extern "C" fn(usize, usize) -> usize>(set),
            })
        }
    }

    /// Returns the method of a class, which may be its superclass's; 0 for none.
    fn method_of(&self, class: &CStr, name: &CStr) -> usize {
        match (self.class)(class.as_ptr()) {
            0 => 0,
            class => (self.method)(class, (self.selector)(name.as_ptr())),
        }
    }
}

/// Replaces the methods (not async-signal-safe). Does nothing in a process without the runtime.
pub(crate) fn install() {
    let Some(functions) = Functions::find() else { return };
    let (get_class, get_name) = (look_up(c"object_getClass"), look_up(c"class_getName"));
    let mask = look_up(c"objc_debug_isa_class_mask") as *const u64;
    if get_class == 0 || get_name == 0 || mask.is_null() {
        return;
    }
    GET_CLASS.store(get_class, Ordering::Release);
    GET_NAME.store(get_name, Ordering::Release);
    let implementation = |name| match functions.method_of(c"NSException", name) {
        0 => 0,
        method => (functions.implementation)(method),
    };
    EXCEPTION_NAME.store(implementation(c"name"), Ordering::Release);
    EXCEPTION_REASON.store(implementation(c"reason"), Ordering::Release);
    UTF8.store((functions.selector)(c"UTF8String".as_ptr()) as usize, Ordering::Release);
    SEND.store(look_up(c"objc_msgSend"), Ordering::Release);
    zombies::enable(&Runtime {
        // SAFETY: `const uintptr_t objc_debug_isa_class_mask` (objc4, runtime/objc-gdb.h).
        isa_mask: unsafe { mask.read() },
        message_send: extent(look_up(c"objc_msgSend")),
        message_send_stret: extent(look_up(c"objc_msgSend_stret")),
    });
    let objects = functions.method_of(c"NSObject", c"dealloc");
    for ((class, ours), before) in CLASSES.iter().zip(OURS).zip(&BEFORE) {
        let method = functions.method_of(class, c"dealloc");
        // A class without its own method has that of `NSObject`.
        let is_inherited = method == objects && *class != c"NSObject";
        if method == 0 || is_inherited {
            continue;
        }
        let (now, known) = ((functions.implementation)(method), before.load(Ordering::Acquire));
        // If another component has replaced ours since, it still calls ours.
        if known == 0 || now == known {
            // Before the method is called for the first time.
            before.store(now, Ordering::Release);
            (functions.set)(method, ours as usize);
        }
    }
}

/// Restores the methods that nobody else has replaced since (not async-signal-safe); the others
/// call the original ones.
pub(crate) fn uninstall() {
    zombies::disable();
    let Some(functions) = Functions::find() else { return };
    for ((class, ours), before) in CLASSES.iter().zip(OURS).zip(&BEFORE) {
        let (method, before) = (functions.method_of(class, c"dealloc"), before.load(Ordering::Acquire));
        if method != 0 && before != 0 && (functions.implementation)(method) == ours as usize {
            (functions.set)(method, before);
        }
    }
}

/// Returns the start and end of a function: it ends at the next address that the dynamic linker
/// attributes to another one.
fn extent(function: usize) -> (u64, u64) {
    /// Maximum size of the function in bytes.
    const MAX_BYTES: usize = 4096;
    let is_it = |offset: usize| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; all zero is a value of the structure.
        let info = unsafe {
            let found = libc::dladdr((function + offset) as *const c_void, info.as_mut_ptr());
            (found != 0).then(|| info.assume_init())
        };
        info.is_some_and(|info| info.dli_saddr as usize == function)
    };
    if function == 0 || !is_it(0) {
        return (0, 0);
    }
    // All addresses below `first` are the function's, none from `last` on.
    let (mut first, mut last) = (1, MAX_BYTES);
    while first < last {
        let middle = first.midpoint(last);
        if is_it(middle) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    (function as u64, (function + first) as u64)
}

fn class_of(object: Id) -> usize {
    match GET_CLASS.load(Ordering::Acquire) {
        0 => 0,
        // SAFETY: `Class object_getClass(id)`.
        get => unsafe { core::mem::transmute::<usize, extern "C" fn(Id) -> usize>(get)(object) },
    }
}

fn name_of(class: usize) -> u64 {
    match GET_NAME.load(Ordering::Acquire) {
        0 => 0,
        // SAFETY: `const char *class_getName(Class)`.
        get => unsafe { core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(get)(class) as u64 },
    }
}

fn note(object: Id) {
    if crate::is_on() {
        let class = class_of(object);
        zombies::note(object as u64, class as u64, || name_of(class));
    }
}

fn go_on(number: usize, object: Id, selector: Selector) {
    let before = BEFORE.get(number).map_or(0, |before| before.load(Ordering::Acquire));
    if before != 0 {
        // SAFETY: the method that was there.
        unsafe { core::mem::transmute::<usize, extern "C" fn(Id, Selector)>(before)(object, selector) };
    }
}

extern "C" fn on_object(object: Id, selector: Selector) {
    note(object);
    go_on(0, object, selector);
}

extern "C" fn on_proxy(object: Id, selector: Selector) {
    note(object);
    go_on(1, object, selector);
}

extern "C" fn on_exception(object: Id, selector: Selector) {
    if crate::is_on() {
        let (mut name, mut reason) = ([0; MAX_TEXT], [0; MAX_TEXT]);
        let name = read_text(object, &EXCEPTION_NAME, &mut name);
        let reason = read_text(object, &EXCEPTION_REASON, &mut reason);
        let class = class_of(object);
        // For its name: `NSObject`'s method notes the object itself.
        zombies::note(object as u64, class as u64, || name_of(class));
        zombies::note_exception(object as u64, class as u64, name, reason);
    }
    go_on(2, object, selector);
}

/// Returns the text that one of `NSException`'s own methods returns.
fn read_text<'b>(object: Id, method: &AtomicUsize, into: &'b mut [u8; MAX_TEXT]) -> &'b [u8] {
    let (method, send) = (method.load(Ordering::Acquire), SEND.load(Ordering::Acquire));
    if method == 0 || send == 0 {
        return &[];
    }
    // SAFETY: the method of an `NSException`, which this is, and which is whole: its own `-dealloc`
    // begins; and a message to the string that it gives. Neither needs its selector but for its
    // name.
    let text = unsafe {
        let string = core::mem::transmute::<usize, Method>(method)(object, core::ptr::null());
        let utf8 = UTF8.load(Ordering::Acquire) as Selector;
        if string.is_null() { string } else { core::mem::transmute::<usize, Method>(send)(string, utf8) }
    };
    let length =
        LiveReader::new().filter(|_| !text.is_null()).map_or(0, |mut memory| copy_text(&mut memory, text as u64, into));
    into.get(..length).unwrap_or_default()
}
