//! Conditions on Apple's systems: earlier exception ports, and locks held by other threads.

use std::ffi::CString;

use super::{Condition, PLAIN};
use crate::exception_port::{Answer, Earlier, Form};

pub(super) static CONDITIONS: &[Condition] = &[
    Condition {
        name: "accepting-port",
        before_install: || Earlier { form: Form::Default, answer: Answer::Repaired }.install(),
        ..PLAIN
    },
    Condition {
        name: "accepting-port-with-state",
        before_install: || Earlier { form: Form::StateIdentity, answer: Answer::Repaired }.install(),
        ..PLAIN
    },
    Condition {
        name: "refusing-port",
        before_install: || Earlier { form: Form::Default, answer: Answer::Refused }.install(),
        ..PLAIN
    },
    Condition {
        name: "refusing-port-with-state",
        before_install: || Earlier { form: Form::StateIdentity, answer: Answer::Refused }.install(),
        ..PLAIN
    },
    Condition { name: "loading-images", before_fault: load_images, ..PLAIN },
    Condition { name: "held-locks", before_fault: hold_locks, ..PLAIN },
];

/// Environment variable with the library that `loading-images` loads.
const LIBRARY: &str = "CORONER_TEST_LIBRARY";

/// Starts a thread that loads and unloads an image endlessly. Returns after it has done so a few
/// times.
fn load_images() {
    let path = std::env::var(LIBRARY).expect("CORONER_TEST_LIBRARY names a library");
    let path = CString::new(path).expect("a path without NUL");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for round in 0_u64.. {
            // SAFETY: the library has no initializers.
            unsafe {
                let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
                assert!(!library.is_null(), "can't load the library");
                libc::dlclose(library);
            }
            if round == 10 {
                let _ = sender.send(());
            }
        }
    });
    receiver.recv().expect("the loading thread ended");
}

/// Holds malloc's, dyld's and the pthread list's locks from here on (a darwin-host service for
/// tests).
fn hold_locks() {
    // SAFETY: a function without arguments, if it exists.
    unsafe {
        let hold = libc::dlsym(libc::RTLD_DEFAULT, c"darwin_host_hold_locks".as_ptr());
        assert!(!hold.is_null(), "this condition requires darwin-host");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(hold)();
    }
}
