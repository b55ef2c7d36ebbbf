//! The crashes, and the expected report of each.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;

use coroner_capture::InstallOptions;

use coroner_test_support::death_cases::{Ending, STORE};

/// Environment variables: the libraries that throw C++ exceptions and Objective-C's.
pub(crate) const THROWS: &str = "CORONER_TEST_THROWS";
pub(crate) const FOUNDATION: &str = "CORONER_TEST_FOUNDATION";
/// Environment variable: the library that a program with a sanitizer has.
pub(crate) const SANITIZER: &str = "CORONER_TEST_SANITIZER";

/// An exception as it must be in the report; types are mangled there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub kind: Option<&'static str>,
    pub message: Option<&'static str>,
    /// The frames of its throw, innermost first, without gaps.
    pub frames: &'static [&'static str],
}

/// The exception's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thrower {
    Cpp,
    ObjC,
}

impl Thrower {
    /// The variable that names its library.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Thrower::Cpp => THROWS,
            Thrower::ObjC => FOUNDATION,
        }
    }

    /// The library's function that dies.
    pub(crate) fn entry(self) -> &'static CStr {
        match self {
            Thrower::Cpp => c"die_of",
            Thrower::ObjC => c"die_of_object",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub thrower: Thrower,
    /// Begins with what is thrown.
    pub name: &'static str,
    /// The library is there before Coroner is installed.
    pub early: bool,
    pub place: Place,
    /// The uncaught one, then its causes.
    pub exceptions: &'static [Expected],
    /// The first exception's.
    pub user_info: Option<&'static str>,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Main,
    Thread,
    /// Two threads at once.
    Two,
}

const DOOR: &str = "N4shop9DoorErrorE";
const SHUT: Option<&str> = Some("the door is shut");
const PASSES: &[&str] = &["throws_here", "passes", "throws_anyhow", "die_of"];
const ON_THREAD: &[&str] = &["throws_here", "passes", "throws_anyhow", "on_pthread"];
const RETHROWN: &[&str] = &["throws_here", "passes", "rethrows", "throws_anyhow", "die_of"];

const fn door(frames: &'static [&'static str]) -> Expected {
    Expected { kind: Some(DOOR), message: SHUT, frames }
}

const ABORTED: Ending = Ending::Signal(libc::SIGABRT);

const fn case(name: &'static str, exceptions: &'static [Expected]) -> Case {
    let thrower = Thrower::Cpp;
    Case { thrower, name, early: false, place: Place::Main, exceptions, user_info: None, ending: ABORTED }
}

const fn ends(ending: Ending, case: Case) -> Case {
    Case { ending, ..case }
}

/// Foundation is there before Coroner.
const fn object(name: &'static str, user_info: Option<&'static str>, frames: &'static [Expected]) -> Case {
    Case { thrower: Thrower::ObjC, early: true, user_info, ..case(name, frames) }
}

const OBJECT_FRAMES: &[&str] = &["raise", "throws_object", "passes_object", "die_of_object"];
const OBJECT: &[Expected] =
    &[Expected { kind: Some("NSGenericException"), message: Some("the order failed"), frames: OBJECT_FRAMES }];
const OBJECT_ON_THREAD: &[Expected] = &[Expected {
    kind: Some("NSGenericException"),
    message: Some("the order failed"),
    frames: &["raise", "throws_object", "passes_object", "on_pthread"],
}];
const INFO: Option<&str> = Some("{ order = 7; }");

const fn early(case: Case) -> Case {
    Case { early: true, ..case }
}

const fn on(place: Place, case: Case) -> Case {
    Case { place, ..case }
}

const BAD: &[Expected] = &[Expected { kind: Some("N4shop7BadWhatE"), message: None, frames: PASSES }];
const ON_PTHREAD: &[Expected] = &[door(ON_THREAD)];

pub(crate) const CASES: &[Case] = &[
    case("door", &[door(PASSES)]),
    early(case("door-early", &[door(PASSES)])),
    on(Place::Thread, case("door-thread", ON_PTHREAD)),
    early(on(Place::Thread, case("door-early-thread", ON_PTHREAD))),
    case("after-many", &[door(PASSES)]),
    // 10,000 on the main thread, 10,000 on a pthread, and not one of them costs an exception of the
    // kernel's.
    case("counted", &[door(PASSES)]),
    // Lazy pointers that dyld has not bound yet.
    early(case("door-unbound", &[door(PASSES)])),
    early(case("rethrown-unbound", &[door(RETHROWN)])),
    // The hook is off, and the rest is there.
    early(case("sanitized", &[door(&[])])),
    // The stack that is left is not that of the throw.
    case("rethrown", &[door(RETHROWN)]),
    early(case("rethrown-early", &[door(RETHROWN)])),
    case(
        "nested",
        &[
            Expected { kind: Some("St8__nestedIN4shop10OrderErrorEE"), message: Some("the order failed"), frames: &[] },
            door(&["throws_here", "passes", "nests", "throws_anyhow", "die_of"]),
        ],
    ),
    case("int", &[Expected { kind: Some("i"), message: Some("-42"), frames: PASSES }]),
    case("literal", &[Expected { kind: Some("PKc"), message: Some("a literal"), frames: PASSES }]),
    case(
        "pointer",
        &[Expected { kind: Some("PN4shop10OrderErrorE"), message: Some("the order failed"), frames: PASSES }],
    ),
    case(
        "none",
        &[Expected { kind: None, message: Some("terminate called without an active exception"), frames: &[] }],
    ),
    case("what-faults", BAD),
    ends(Ending::Status(7), early(case("what-hangs-exits", BAD))),
    case("what-throws", BAD),
    ends(Ending::Status(7), early(case("door-exits", &[door(PASSES)]))),
    on(Place::Two, case("door-two", ON_PTHREAD)),
    // `@throw` of an object that is not an `NSException`.
    early(case("thrown-object", &[Expected { kind: Some("ShopOrder"), message: None, frames: PASSES }])),
    object("object", INFO, OBJECT),
    ends(Ending::Status(7), object("object-exits", INFO, OBJECT)),
    // By `std::terminate`, whose handler is the runtime's before it is Coroner's.
    on(Place::Thread, object("object-terminates", INFO, OBJECT_ON_THREAD)),
    // An object that throws when queried.
    object(
        "object-description-throws",
        None,
        &[Expected { kind: Some("NSGenericException"), message: Some("the order failed"), frames: OBJECT_FRAMES }],
    ),
    // AppKit continues.
    ends(
        Ending::Status(5),
        object(
            "appkit",
            INFO,
            &[Expected {
                kind: Some("NSGenericException"),
                message: Some("the order failed"),
                frames: &["die_of_object"],
            }],
        ),
    ),
];

/// Loads the library that throws.
pub(crate) fn library(thrower: Thrower) -> *mut libc::c_void {
    load(thrower.variable())
}

/// Loads the library that an environment variable names.
fn load(variable: &str) -> *mut libc::c_void {
    let path = CString::new(std::env::var_os(variable).expect("a library").as_bytes()).expect("a path");
    // SAFETY: a path that ends in NUL.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "the library can't be loaded");
    library
}

/// Returns the address of a function of the library.
pub(crate) fn function(library: *mut libc::c_void, name: &CStr) -> usize {
    // SAFETY: a handle from dlopen, and a name that ends in NUL.
    let function = unsafe { libc::dlsym(library, name.as_ptr()) } as usize;
    assert!(function != 0, "it has no {name:?}");
    function
}

/// Prepares a case before Coroner is installed.
fn prepare(name: &str, library: *mut libc::c_void) {
    if name.ends_with("unbound") {
        let unbind = function(library, c"unbinds_throws");
        // SAFETY: `int unbinds_throws(void)`.
        let unbound = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(unbind)() };
        assert_eq!(unbound, 2, "the linker makes lazy pointers of both");
    }
    if name.ends_with("terminates") {
        let runtime = function(library, c"with_cxx_runtime");
        // SAFETY: `void with_cxx_runtime(void)`.
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(runtime)() };
    }
    if name == "sanitized" {
        load(SANITIZER);
    }
}

/// Checks that walking the stacks of caught throws needs no load that faults. Each such load would
/// be an exception from the kernel, which darwin-host counts and a Mac doesn't.
fn throw_many(catches_a_thousand: usize) {
    // SAFETY: a NUL-terminated name.
    let counter = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"darwin_host_exceptions".as_ptr()) } as usize;
    let exceptions = move || {
        // SAFETY: the host's service has this type.
        let count: Option<extern "C" fn() -> u64> = unsafe { std::mem::transmute(counter) };
        count.map_or(0, |count| count())
    };
    let throw = move || {
        let before = (coroner_exceptions::throws_captured(), exceptions());
        for _ in 0..10 {
            // SAFETY: `int catches_a_thousand(void)`.
            let caught = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(catches_a_thousand)() };
            assert_eq!(caught, 1000);
        }
        assert_eq!(coroner_exceptions::throws_captured() - before.0, 10_000);
        assert_eq!(exceptions() - before.1, 0, "exceptions of the kernel's in 10,000 throws");
    };
    throw();
    std::thread::spawn(throw).join().expect("the same on a pthread");
}

/// Runs the child.
pub(crate) fn run(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is called {name}"));
    let exits = |library| {
        if name.ends_with("exits") {
            let name = if case.thrower == Thrower::Cpp { c"own_terminate_handler" } else { c"own_uncaught_handler" };
            let set = function(library, name);
            // SAFETY: `void own_…_handler(void)`.
            unsafe { std::mem::transmute::<usize, extern "C" fn()>(set)() };
        }
    };
    let before = case.early.then(|| library(case.thrower));
    before.into_iter().for_each(exits);
    before.into_iter().for_each(|library| prepare(name, library));
    let store = CString::new(std::env::var_os(STORE).expect("a store").as_bytes()).expect("a path");
    let mut setup = InstallOptions::DEFAULT;
    // Under an emulator on a busy machine.
    setup.deadline_ms = 60_000;
    coroner_capture::install(&store, &setup).expect("installed");
    let options = coroner_exceptions::Options { appkit: true, deadline_ms: setup.deadline_ms, ..Default::default() };
    coroner_exceptions::install(&options);
    let library = before.unwrap_or_else(|| library(case.thrower));
    if name.ends_with("unbound") || name == "sanitized" {
        // Under a sanitizer no throw comes by Coroner; by an unbound pointer every one does.
        let before = coroner_exceptions::throws_captured();
        let catch = function(library, c"catches_a_thousand");
        // SAFETY: `int catches_a_thousand(void)`.
        let caught = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(catch)() };
        let captured = coroner_exceptions::throws_captured() - before;
        assert_eq!((caught, captured), (1000, if name == "sanitized" { 0 } else { 1000 }));
    }
    if name == "counted" {
        throw_many(function(library, c"catches_a_thousand"));
    }
    let die = function(library, case.thrower.entry());
    let thrown = CString::new(name).expect("a name");
    let place = match case.place {
        Place::Main => 0,
        Place::Thread => 1,
        Place::Two => 2,
    };
    // SAFETY: `void die_of(const char *, int)`, which does not return.
    unsafe { std::mem::transmute::<usize, extern "C" fn(*const libc::c_char, i32)>(die)(thrown.as_ptr(), place) };
}
