//! Signal handlers from before Coroner's, and calling them as if Coroner were not there.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use coroner_process::context::{SignalContext, SignalInfo};
#[cfg(not(target_vendor = "apple"))]
use coroner_process::signals::EXPOSE_TAGS;
use coroner_process::signals::{SignalAction, bit, block_exactly};

use crate::handler_kind::HandlerKind;

/// A signal's earlier disposition. It outlives an uninstall, since another reporter that was
/// installed later may have kept Coroner's handler as *its* previous one.
struct Slot {
    is_set: AtomicBool,
    kind: AtomicU8,
    handler: AtomicUsize,
    flags: AtomicU64,
    #[cfg(not(target_vendor = "apple"))]
    restorer: AtomicUsize,
    mask: AtomicU64,
}

/// Selects one of the handlers that aren't Coroner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The handler that had the signal last.
    Latest,
    /// The handler from before the install, unless it is also the latest: the latest has chained to
    /// Coroner's.
    Original,
}

/// Signal that is blocked while an earlier handler runs, so that the context of a signal that
/// interrupts the handler shows where it was. A jump out of the handler (`siglongjmp`) removes it
/// along with the rest of the handler's mask. If the marker is sent in the meantime, it is
/// delivered after the handler has returned. On Linux it is a rarely used real-time signal.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const MARKER: i32 = 61;
/// The same on Darwin: the signal of a terminal's status key, ignored by default; no crash handler
/// needs it.
#[cfg(target_vendor = "apple")]
pub(crate) const MARKER: i32 = libc::SIGINFO;

/// Number of signal slots; no system has more signals.
const SIGNALS: usize = 65;

impl Slot {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use of it is a slot of its own")]
    const NONE: Slot = Slot {
        is_set: AtomicBool::new(false),
        kind: AtomicU8::new(HandlerKind::Unknown as u8),
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicU64::new(0),
        #[cfg(not(target_vendor = "apple"))]
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    };

    fn set(&self, action: &SignalAction, kind: HandlerKind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
        self.flags.store(action.flags as u64, Ordering::Relaxed);
        #[cfg(not(target_vendor = "apple"))]
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask as u64, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
        self.is_set.store(true, Ordering::Release);
    }

    fn action(&self) -> SignalAction {
        SignalAction {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed) as _,
            #[cfg(not(target_vendor = "apple"))]
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed) as _,
        }
    }
}

/// The signals' dispositions from before the install.
static PREVIOUS: [Slot; SIGNALS] = [const { Slot::NONE }; SIGNALS];
/// The dispositions that Coroner replaced again after the install. Such a handler may chain to
/// Coroner's.
static LATER: [Slot; SIGNALS] = [const { Slot::NONE }; SIGNALS];

/// Returns the slot of the requested handler; `None` for the original handler if it is also the
/// latest, since that one is already running.
fn slot(signal: i32, asked: Asked) -> Option<&'static Slot> {
    let later = LATER.get(signal as usize).filter(|slot| slot.is_set.load(Ordering::Acquire));
    match (asked, later) {
        (Asked::Latest, Some(later)) => Some(later),
        (Asked::Original, None) => None,
        _ => PREVIOUS.get(signal as usize),
    }
}

/// Stores a signal's disposition from before Coroner's (not async-signal-safe).
pub(crate) fn remember(signal: i32, action: &SignalAction) {
    if let Some(slot) = PREVIOUS.get(signal as usize) {
        slot.set(action, kind_of(action));
    }
}

/// Stores the disposition that Coroner replaces again (not async-signal-safe).
pub(crate) fn remember_later(signal: i32, action: &SignalAction) {
    if let Some(slot) = LATER.get(signal as usize) {
        slot.set(action, kind_of(action));
    }
}

fn kind_of(action: &SignalAction) -> HandlerKind {
    if action.is_function() { HandlerKind::of(action.handler) } else { HandlerKind::Unknown }
}

/// Returns the disposition that had a signal last, apart from Coroner's; the default for a signal
/// that Coroner never took.
pub(crate) fn of(signal: i32) -> SignalAction {
    slot(signal, Asked::Latest).map_or(SignalAction::DEFAULT, Slot::action)
}

/// Returns the address of [`of`]'s handler, and its kind.
pub(crate) fn known(signal: i32) -> (usize, HandlerKind) {
    let number = slot(signal, Asked::Latest).map_or(0, |slot| slot.kind.load(Ordering::Relaxed));
    (of(signal).handler, HandlerKind::of_number(number))
}

/// Calls the earlier handler, if it is a function, with the original signal, siginfo and ucontext,
/// and the mask that it was registered with. Returns `false` if there is none.
///
/// Not inlined, so that `xtask signal-safety` can identify its call through a pointer by name.
///
/// # Safety
/// The signal, `info` and `context` must be those of the signal that this thread is handling.
#[inline(never)]
pub(crate) unsafe fn call(info: &mut SignalInfo, context: &mut SignalContext, asked: Asked) -> bool {
    let signal = info.signo;
    let Some(slot) = slot(signal, asked) else { return false };
    let action = slot.action();
    if !action.is_function() {
        return false;
    }
    if action.has(libc::SA_RESETHAND) {
        slot.set(&SignalAction::DEFAULT, HandlerKind::Unknown);
    }
    let mut mask = context.signal_mask() | action.mask;
    if !action.has(libc::SA_NODEFER) {
        mask |= bit(signal);
    }
    // The marker identifies a signal that arrives while the handler runs as coming from it, see
    // `running_handlers`.
    let before = block_exactly(mask | bit(MARKER));
    // SAFETY: the app installed this function as a handler of this signal. One that takes only the
    // number gets two more arguments, which both calling conventions allow.
    let handler: unsafe extern "C" fn(i32, *mut SignalInfo, *mut SignalContext) =
        unsafe { core::mem::transmute(action.handler as *const ()) };
    // Coroner's handler requests tagged addresses from the kernel; a handler that did not gets no
    // tags.
    #[cfg(not(target_vendor = "apple"))]
    let tagged = (!action.has(EXPOSE_TAGS)).then(|| info.hide_tag());
    // SAFETY: it is called as the kernel would have, on the same stack rules and with the same
    // mask.
    unsafe { handler(signal, info, context) };
    #[cfg(not(target_vendor = "apple"))]
    if let Some(address) = tagged {
        info.set_address(address);
    }
    block_exactly(before);
    true
}
