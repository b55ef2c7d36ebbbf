//! Rust panics: a hook that takes each panic in and then calls the hook that was there before.
//!
//! What a panic becomes depends on where it will end, which is known when it begins: the frames above are looked through for
//! the one that catches it ([`landing`]).
//!
//! | the panic | becomes |
//! |---|---|
//! | is caught by the app (`catch_unwind`) | a breadcrumb |
//! | reaches the top of the main thread | the cause of a crash, reported where it panicked: the process ends with it |
//! | reaches the top of another thread | a report that the process survives, of type `panic that ended its thread` |
//! | `panic = "abort"` | the cause of a crash |
//! | meets a function that can't unwind (`extern "C"`) | the cause of a crash, when the runtime gives up |
//! | leaves a destructor while another one unwinds | the cause of a crash, of type `panic while panicking`, with the first panic behind it |
//!
//! Whether anybody joins a thread that has panicked is not known when it does; its report says that it ended its thread, and a
//! thread that joins it and unwraps has a panic and a report of its own.
//!
//! The SIGABRT that follows is the same death and makes no report of its own.
//!
//! # Limits
//! A hook that the app sets later and that does not call the one before it takes panics away from Coroner: what aborts is then
//! reported as a SIGABRT. Payloads that are no text (`panic_any`) have no message.

mod landing;

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use coroner_capture::exception::{self, Ending};
use coroner_process::registers::Registers;
use coroner_report::run_state::Level;
use coroner_report::wire::{Exception, Frame, Language, Monitor};

use crate::exception::frames_above;
use crate::scope::{Breadcrumb, add_breadcrumb};
use landing::Landing;

/// Whether panics are taken in.
static ON: AtomicBool = AtomicBool::new(false);

/// Panics of a thread that are kept, since a later one may show that they were fatal.
const KEPT: usize = 4;

struct Panic {
    message: String,
    location: Option<String>,
    frames: Vec<Frame>,
}

/// A thread's last panics, the newest last.
#[derive(Default)]
struct Recent {
    panics: Vec<Panic>,
    /// One of them was reported as the end of the process.
    fatal: bool,
}

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent { panics: Vec::new(), fatal: false }) };
}

/// Takes panics in from now on. The hook is set once in a process and stays.
pub(crate) fn install() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if ON.load(Ordering::Acquire) {
                take_in(info, &coroner_walk::current_registers());
            }
            before(info);
        }));
    });
    ON.store(true, Ordering::Release);
}

/// Takes none in from now on.
pub(crate) fn uninstall() {
    ON.store(false, Ordering::Release);
}

/// Why the runtime gives up, where it says so by a panic of its own (`core::panicking`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivesUp {
    CannotUnwind,
    InCleanup,
}

/// Whether the message is one with which the runtime gives up.
fn gives_up(message: &str) -> Option<GivesUp> {
    match message {
        "panic in a function that cannot unwind" => Some(GivesUp::CannotUnwind),
        "panic in a destructor during cleanup" => Some(GivesUp::InCleanup),
        _ => None,
    }
}

fn take_in(info: &PanicHookInfo<'_>, registers: &Registers) {
    let message = info.payload_as_str().unwrap_or_default();
    // A thread whose thread-locals are gone keeps nothing from before.
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return };
        if let Some(why) = gives_up(message) {
            return report_end(&mut recent, why, registers);
        }
        if recent.panics.len() == KEPT {
            recent.panics.remove(0);
        }
        recent.panics.push(Panic {
            message: message.to_owned(),
            location: info.location().map(ToString::to_string),
            frames: frames_above(registers),
        });
        let landing = if cfg!(panic = "abort") { Landing::Nowhere } else { landing::of_this_panic() };
        match landing {
            Landing::Caught => {
                let text = format!("panic caught: {message}");
                add_breadcrumb(&Breadcrumb::new(&text).category("panic").level(Level::ERROR));
            }
            // The runtime says so itself when it gets there.
            Landing::CannotUnwind => {}
            Landing::Nowhere => report(&mut recent, &["panic"], Ending::Fatal, registers),
            Landing::Top if is_main_thread() => report(&mut recent, &["panic"], Ending::Fatal, registers),
            Landing::Top => report(&mut recent, &["panic that ended its thread"], Ending::NonFatal, registers),
        }
    });
}

/// The runtime gives up, because of the panics before.
fn report_end(recent: &mut Recent, why: GivesUp, registers: &Registers) {
    let kinds: &[&str] = match why {
        GivesUp::CannotUnwind => &["panic in a function that cannot unwind"],
        GivesUp::InCleanup => &["panic while panicking", "panic"],
    };
    report(recent, kinds, Ending::Fatal, registers);
}

/// Reports the newest panics, one for each kind, the newest first.
fn report(recent: &mut Recent, kinds: &[&str], ending: Ending, registers: &Registers) {
    let tid = coroner_process::threads::this_thread() as u64;
    let exceptions: Vec<Exception<'_>> = recent
        .panics
        .iter()
        .rev()
        .zip(kinds)
        .map(|(panic, kind)| Exception {
            language: Language::RUST,
            type_name: Some(kind.as_bytes()),
            message: Some(panic.message.as_bytes()).filter(|message| !message.is_empty()),
            tid,
            location: panic.location.as_ref().map(String::as_bytes),
            frames: &panic.frames,
            user_info: None,
        })
        .collect();
    // One that was fatal already has grown worse on its way up: still one death.
    let ending = if recent.fatal && ending == Ending::Fatal { Ending::FatalAgain } else { ending };
    let reported = exception::report(registers, Monitor::PANIC, &exceptions, ending);
    if reported && ending != Ending::NonFatal {
        recent.fatal = true;
        exception::dies();
    }
}

fn is_main_thread() -> bool {
    #[cfg(target_vendor = "apple")]
    // SAFETY: only asks.
    return unsafe { libc::pthread_main_np() } == 1;
    #[cfg(not(target_vendor = "apple"))]
    return coroner_process::threads::this_thread() == coroner_process::threads::process_id();
}
