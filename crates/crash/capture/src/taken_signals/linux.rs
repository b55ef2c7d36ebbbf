//! Linux-specific part: the kernel's record of Coroner's handler, and handlers of interposed
//! `sigaction`s.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use coroner_process::deadline;
use coroner_process::signals::{EXPOSE_TAGS, SignalAction, bit};
use coroner_process::stop_the_world::action;
use coroner_process::syscall::Errno;
use coroner_walk::loaded_image::{self, Holder};

#[cfg(target_arch = "x86_64")]
use super::DYING;
use super::{OURS, TAKEN};
use crate::previous_handler::{self, MARKER};

/// Disposition with which the kernel has Coroner's handler, for any taken signal: flags and
/// restorer are the same for all. Kept for the crash path, which restores it if an app's handler
/// was installed later and chained to Coroner's. It is read from the kernel only if `sigaction` may
/// be interposed, since then the handler's return path may be, too; otherwise the flags are 0.
static DISPOSITION: Disposition =
    Disposition { flags: AtomicU64::new(0), restorer: AtomicUsize::new(0), held: AtomicU64::new(0) };

struct Disposition {
    flags: AtomicU64,
    restorer: AtomicUsize,
    /// The signal that stops threads, as a set.
    held: AtomicU64,
}

/// Signals that the crash path itself may raise or be interrupted by: never blocked while it runs.
pub(crate) const CRASH_PATH_SIGNALS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(deadline::SIGNAL);

/// Highest signal number.
pub(super) const LAST_SIGNAL: i32 = 64;

/// Sets the signal that is blocked while the handlers run: the one that stops threads, so that a
/// thread that crashes on its own isn't stopped on the way. Must be called before an install.
pub(crate) fn hold(signal: i32) {
    DISPOSITION.held.store(bit(signal), Ordering::Release);
}

pub(super) fn take(signal: i32, handler: usize) -> Result<(), Errno> {
    // glibc returns everything that the kernel has; an interposer, and musl for the restorer, may
    // not.
    let asks_kernel = !cfg!(target_env = "gnu") || may_be_interposed();
    let before = if asks_kernel { Some(SignalAction::of(signal)?) } else { None };
    // The C library's sigaction, so that an interposer (ART's libsigchain, sanitizers) sees the
    // handler and the library's own signal return is used.
    let mut action = action_blocking(handler, DISPOSITION.held.load(Ordering::Acquire));
    // SAFETY: all-zero is valid; both pointers are valid; `handler` is async-signal-safe.
    let (failed, replaced) = unsafe {
        let mut replaced: libc::sigaction = core::mem::zeroed();
        (libc::sigaction(signal, &raw const action, &raw mut replaced) != 0, replaced)
    };
    if failed {
        return Err(Errno(libc::EINVAL));
    }
    let before = before.unwrap_or_else(|| of_library(&replaced));
    let mut earlier = before;
    // Usually nobody had it.
    if !asks_kernel {
        OURS.store(handler, Ordering::Release);
    } else if before.is_function() || OURS.load(Ordering::Acquire) != handler {
        let now = SignalAction::of(signal)?;
        if now.handler == handler {
            DISPOSITION.flags.store(now.flags, Ordering::Relaxed);
            DISPOSITION.restorer.store(now.restorer, Ordering::Relaxed);
            OURS.store(now.handler, Ordering::Release);
        } else {
            earlier = take_from_interposer(signal, handler, &action, &replaced, &now)?;
        }
    }
    // After an uninstall that had to leave the handler in place, the earlier disposition is already
    // stored.
    if before.handler != handler {
        previous_handler::remember(signal, &earlier);
    }
    let mask = mask_of_handler(signal);
    if mask != DISPOSITION.held.load(Ordering::Acquire) {
        action = action_blocking(handler, mask);
        // SAFETY: as above; the earlier disposition is not requested.
        unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) };
    }
    Ok(())
}

/// Returns the signals blocked while Coroner's handler of `signal` runs. That is little, since the
/// crash path sets its own mask, once for all monitors; plus what the earlier handler blocks. The
/// earlier handler relies on its mask from the fault to its return: a garbage collector's write
/// barrier (Boehm's) blocks the signal that stops threads, which would find the thread on its
/// alternate stack and scan from there.
fn mask_of_handler(signal: i32) -> u64 {
    let before = previous_handler::of(signal);
    let of_before = if before.is_function() { before.mask & !CRASH_PATH_SIGNALS & !bit(MARKER) } else { 0 };
    DISPOSITION.held.load(Ordering::Acquire) | of_before
}

/// Returns Coroner's handler for the C library, with the signals that are blocked while it runs.
fn action_blocking(handler: usize, mask: u64) -> libc::sigaction {
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | EXPOSE_TAGS;
    for number in (1..=64).filter(|number| mask & bit(*number) != 0) {
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, number) };
    }
    action
}

/// Whether `sigaction` may not be the C library's: it is the library's if it lies in the same image
/// as one of that library's functions.
fn may_be_interposed() -> bool {
    let library = loaded_image::holder_of(libc::getpid as *const () as u64);
    !matches!(library, Holder::Image(_)) || loaded_image::holder_of(libc::sigaction as *const () as u64) != library
}

/// Converts the kernel's disposition, as glibc returned it.
fn of_library(action: &libc::sigaction) -> SignalAction {
    let restorer = action.sa_restorer.map_or(0, |restorer| restorer as usize);
    // SAFETY: the kernel's set of signals is the first word of the library's, which is larger.
    let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
    SignalAction { handler: action.sa_sigaction, flags: u64::from(action.sa_flags as u32), restorer, mask }
}

/// Takes a signal that an interposer of `sigaction` has kept: `now` is the kernel's disposition,
/// `replaced` what the caller received in its place. Returns the disposition that must receive the
/// signal after Coroner.
fn take_from_interposer(
    signal: i32,
    handler: usize,
    action: &libc::sigaction,
    replaced: &libc::sigaction,
    now: &SignalAction,
) -> Result<SignalAction, Errno> {
    // SAFETY: an all-zero sigaction is valid; the pointer is.
    let seen = unsafe {
        let mut seen: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut seen);
        seen.sa_sigaction
    };
    if seen == handler {
        // The interposer itself calls Coroner's handler for faults that aren't its own (ART's
        // libsigchain).
        return Ok(SignalAction { handler: replaced.sa_sigaction, flags: replaced.sa_flags as u64, ..*now });
    }
    // The interposer refuses silently (AddressSanitizer with handle_segv=2), and is called after
    // the report like any other handler.
    let ours = SignalAction { handler, flags: action.sa_flags as u64 | now.flags & RESTORER, ..*now };
    // SAFETY: `handler` is async-signal-safe, and returns where the other handler does, by the C
    // library's function.
    unsafe { ours.set(signal)? };
    Ok(*now)
}

/// `SA_RESTORER` of asm/signal.h.
const RESTORER: u64 = 0x0400_0000;

/// Returns Coroner's disposition for that signal.
pub(crate) fn ours(signal: i32) -> SignalAction {
    let (handler, mask) = (OURS.load(Ordering::Acquire), mask_of_handler(signal));
    match DISPOSITION.flags.load(Ordering::Relaxed) {
        // It returns as the C library's handlers do, through Coroner's own code.
        0 => {
            let plain = action(handler);
            SignalAction { flags: plain.flags | EXPOSE_TAGS as u64, mask, ..plain }
        }
        flags => SignalAction { handler, flags, restorer: DISPOSITION.restorer.load(Ordering::Relaxed), mask },
    }
}

/// Takes the signals back that [`give_back`](super::give_back) gave back: the process has survived.
/// A handler that was installed in the meantime stays.
#[cfg(target_arch = "x86_64")]
pub(crate) fn take_again() {
    for signal in (1..=LAST_SIGNAL).filter(|signal| super::is_taken(*signal)) {
        let before = previous_handler::of(signal).handler;
        let is_free = |now: SignalAction| now.handler == before || now.handler == libc::SIG_DFL;
        if SignalAction::of(signal).is_ok_and(is_free) {
            super::take_back(signal);
        }
    }
    DYING.store(0, Ordering::Release);
}

/// Returns the handler that recovers guarded loads, if it handles SIGSEGV and SIGBUS.
pub(crate) fn recovers_loads() -> Option<usize> {
    let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
    (TAKEN.load(Ordering::Acquire) & faults == faults).then(|| OURS.load(Ordering::Acquire))
}

/// The dispositions that [`displace`] replaced, for [`replace`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Displaced([Option<SignalAction>; 7]);

/// The signals that [`displace`] takes.
const HELD: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, deadline::SIGNAL];

/// Makes Coroner's handler the first one for every signal that the crash path relies on, while the
/// report is written: an app's handler that was installed later and chained here must not receive
/// the crash path's own faults.
///
/// Not inlined, so that `xtask signal-safety` sees that its loop has a bound.
#[inline(never)]
pub(crate) fn displace() -> Displaced {
    let mut displaced = Displaced::default();
    for (place, signal) in displaced.0.iter_mut().zip(HELD) {
        let ours = ours(signal);
        if let Ok(now) = SignalAction::of(signal)
            && now.handler != ours.handler
            // SAFETY: the handler is Coroner's own.
            && unsafe { ours.set(signal) }.is_ok()
        {
            *place = Some(now);
        }
    }
    displaced
}

/// Restores the dispositions that [`displace`] replaced.
pub(crate) fn replace(displaced: &Displaced) {
    for (place, signal) in displaced.0.iter().zip(HELD) {
        if let Some(action) = place {
            // SAFETY: the app had installed it.
            let _ = unsafe { action.set(signal) };
        }
    }
}
