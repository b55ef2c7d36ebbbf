//! Faults in a process whose program or stack is no longer readable: the report has signal and
//! registers, and the rest if possible. They are not in `coroner_faults::FAULTS`, whose reports are
//! complete.

#[cfg(any(target_os = "linux", target_os = "android"))]
use coroner_faults::{Ending, Thread, Top, chain};
use coroner_faults::{FAULTS, Fault};

#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::{blocked_page, overrun, overwritten_image, passing_faults};

/// Returns the fault with that name, from any table: of a damaged process, a passing one, or any
/// other.
pub fn find_fault(name: &str) -> Option<&'static Fault> {
    let all = FAULTS.iter().chain(DAMAGED);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let all = all.chain(passing_faults::FAULTS);
    all.into_iter().find(|fault| fault.name == name)
}

/// There are no such faults on this system.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub const DAMAGED: &[Fault] = &[];

/// A null store in a program with an overwritten part.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OVERWRITTEN: Fault = Fault {
    name: "",
    about: "stores to address 0 after overwriting a part of the program",
    ending: Ending::Signal(libc::SIGSEGV),
    // `SEGV_MAPERR`.
    code: Some(1),
    address: Some(0),
    mach: None,
    thread: Thread::Main,
    top: Top::Function,
    frames: &["overwrite_and_store", "chain_c", "chain_b", "chain_a"],
    run: || {},
};

/// The faults.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub static DAMAGED: &[Fault] = &[
    Fault {
        name: "blocked-stack-page",
        about: "stores to address 0 while the page at the stack pointer blocks every reader (userfaultfd)",
        frames: &["blocked_stack_page", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(blocked_page::blocked_stack_page),
        ..OVERWRITTEN
    },
    Fault {
        name: "overrun",
        about: "writes upwards from its own memory until a fault",
        code: None,
        address: None,
        frames: &["overrun", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(overrun::overrun),
        ..OVERWRITTEN
    },
    // Function addresses.
    Fault { name: "overwritten-got", run: || chain::here(overwritten_image::global_offset_table), ..OVERWRITTEN },
    // Constants that contain addresses.
    Fault { name: "overwritten-relro", run: || chain::here(overwritten_image::relocated_constants), ..OVERWRITTEN },
    Fault { name: "overwritten-rodata", run: || chain::here(overwritten_image::constants), ..OVERWRITTEN },
    Fault { name: "overwritten-eh-frame", run: || chain::here(overwritten_image::unwind_information), ..OVERWRITTEN },
    // Data that the dynamic linker reads.
    Fault { name: "overwritten-dynamic", run: || chain::here(overwritten_image::dynamic_linking), ..OVERWRITTEN },
    // The dynamic linker's list of images.
    Fault { name: "cut-link-map", run: || chain::here(overwritten_image::link_map), ..OVERWRITTEN },
    // The whole program except its code and variables.
    Fault { name: "overwritten-image", run: || chain::here(overwritten_image::all), ..OVERWRITTEN },
];
