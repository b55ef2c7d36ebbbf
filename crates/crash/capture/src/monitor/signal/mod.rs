//! Signal monitor: handlers of the crash signals, and of those that end a process by default.
//!
//! # Order of the handler's steps
//! 1. Faults that aren't crashes are recovered: those of a guarded load, of the crash path itself,
//!    of a lost page of the run state.
//! 2. [`Caught::classify`] decides what happens with the signal ([`Disposition`]), and notes one
//!    that ends the process without a crash.
//! 3. A handler that must come first ([`crate::runtime_faults`]) is called; if it moves the thread
//!    or repairs the fault, nothing else happens.
//! 4. The report is written: on Linux by the handler itself, on Darwin by the primary thread, to
//!    which the crash is handed over.
//! 5. The signal goes to the handler from before ([`forward`]).

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
mod termination_signals;

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signal_set::SignalSet;
use coroner_process::signals::{SignalAction, bit, block_exactly, blocked};
use coroner_process::syscall::Errno;
use coroner_process::threads::Tid;

#[cfg(target_vendor = "apple")]
use darwin as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as system;

use crate::ForkPolicy;
use crate::crash_context::{Next, Reported};
use crate::forwarding::{Outcome, forward, ignores};
use crate::ignored_signals;
use crate::installed::{self, Installed};
use crate::monitor::exception;
use crate::previous_handler::{self, Asked};
use crate::report_lock::REPORT_LOCK;
use crate::running_handlers::HandledCrash;
use crate::runtime_faults::Fault;
use crate::taken_signals;

/// Takes the signals (not async-signal-safe).
///
/// # Errors
/// See [`taken_signals::take`].
pub(crate) fn install(signals: SignalSet, endings: SignalSet) -> Result<(), (i32, Errno)> {
    taken_signals::take(signals, endings, system::handler())
}

/// Decision about a signal.
enum Disposition {
    /// Nothing remains to be done: the signal is ignored, or the handler that has it now deals with
    /// it.
    Ignore,
    /// The signal goes to an earlier handler: it is not a crash, or is part of a crash that is
    /// reported.
    Forward(Asked),
    /// The earlier handler is called before a report is written. The number is that of the crash
    /// record, 0 for none.
    AskFirst(&'static Installed, u64),
    /// The signal is, or ends, a crash to be reported.
    Report(&'static Installed, Subject),
}

/// Subject of a report.
enum Subject {
    /// This signal. The number is that of the crash record from before the report, 0 for none.
    Signal(u64, Next),
    /// The exception that became this signal, which has its report (Darwin).
    Exception(Reported),
    /// The crash that a handler of this thread was called for first: that handler ends the process,
    /// or crashes itself.
    Unfinished(HandledCrash),
}

/// Result of a handler that was called first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The handler dealt with the signal: it moved the thread, or returned as from a signal that
    /// does not recur by itself, or from a fault that it has repaired, whose instruction must be
    /// retried.
    Handled,
    /// The handler did not deal with the signal.
    Refused,
    /// The handler did not deal with the signal, and crashed itself, so that there is a report of
    /// this crash.
    Reported,
}

/// Handles a signal, other than one that the system's part has recovered. `ids` must be in the
/// frame of Coroner's handler.
fn handle(info: &mut SignalInfo, context: &mut SignalContext, ids: &(i32, Tid)) {
    let mut caught = Caught { info, context, ids };
    match caught.classify() {
        Disposition::Ignore => {}
        Disposition::Forward(asked) => _ = caught.forward(false, asked),
        Disposition::AskFirst(installed, number) => caught.ask_first(installed, number),
        Disposition::Report(installed, subject) => caught.report(installed, subject),
    }
}

/// The signal that the calling thread is handling.
struct Caught<'a> {
    info: &'a mut SignalInfo,
    context: &'a mut SignalContext,
    /// The process and the thread, in the frame of Coroner's handler: the handlers that it calls
    /// use the stack below.
    ids: &'a (i32, Tid),
}

impl Caught<'_> {
    /// Decides what happens with the signal.
    fn classify(&mut self) -> Disposition {
        let (pid, tid) = *self.ids;
        if ignores(self.info) {
            return Disposition::Ignore;
        }
        let Some(installed) = installed::get() else { return Disposition::Forward(Asked::Latest) };
        let is_wanted = installed.options.signals.contains(self.info.signo);
        if !is_wanted && !termination_signals::note(installed, self.info, pid) {
            return Disposition::Ignore;
        }
        if is_wanted && let Some(reported) = system::became(installed, tid) {
            return Disposition::Report(installed, Subject::Exception(reported));
        }
        let running = self.running_handler(installed);
        let has_handler = previous_handler::of(self.info.signo).is_function();
        // On Darwin a child made by fork has none of Coroner's threads: it dies as it would have.
        let leaves_children = cfg!(target_vendor = "apple") || installed.options.fork == ForkPolicy::Silent;
        if !is_wanted
            || ignored_signals::take_ignored(tid, self.info.signo)
            || (leaves_children && !installed.is_own_process(pid))
            || taken_signals::is_dying(pid)
            || exception::is_dying(pid, tid)
            || self.is_sent_by_running_handler(installed)
        {
            return Disposition::Forward(Asked::Latest);
        }
        if let Some(crash) = running {
            return if self.frame() == crash.frame {
                Disposition::Forward(Asked::Original)
            } else if has_handler && self.is_asked_first(installed) {
                Disposition::Forward(Asked::Latest)
            } else {
                Disposition::Report(installed, Subject::Unfinished(crash))
            };
        }
        if !has_handler {
            return Disposition::Report(installed, Subject::Signal(0, Next::Dies));
        }
        // Before any handler is called or looked up: in a program whose image is overwritten, the
        // record may be all that succeeds. The process dies of the crash that is already being
        // reported: that crash's record stays.
        let records = !REPORT_LOCK.is_busy(pid);
        let number = if records { system::record(installed, self.info, self.context, *self.ids) } else { 0 };
        if self.is_asked_first(installed) {
            Disposition::AskFirst(installed, number)
        } else {
            Disposition::Report(installed, Subject::Signal(number, Next::AsksHandler))
        }
    }

    /// Returns the crash that the handler which this thread is inside was called for.
    ///
    /// If a handler of this thread never returned, it has left by a jump, and its crash is not
    /// fatal. Usually there is none, and before the crash record nothing is called whose address is
    /// in a table, see `crash_entry::record`.
    fn running_handler(&self, installed: &Installed) -> Option<HandledCrash> {
        let (tid, handlers) = (self.ids.1, &installed.platform.running_handlers);
        let (sp, mask) = if handlers.is_passed_on(tid, self.frame(), self.stack()) {
            (self.frame() - 1, blocked().into())
        } else {
            (self.context.machine().sp(), self.context.signal_mask().into())
        };
        let left = handlers.take_left(tid, sp, mask);
        if left != 0 {
            installed.run.state.set_crash_not_fatal(left);
        }
        handlers.is_by(tid, sp, mask)
    }

    /// Whether an earlier handler, which runs on another thread for a reported crash, may have sent
    /// the signal to the whole process: it is the same death, whichever thread gets it.
    ///
    /// `abort` and `raise` send signals to their own thread, and with another code.
    fn is_sent_by_running_handler(&self, installed: &Installed) -> bool {
        system::is_sent_to_process(self.info)
            && self.info.sender().is_some_and(|(sender, _)| sender == self.ids.0)
            && installed.platform.running_handlers.is_any_reported(self.ids.0)
    }

    /// Returns the address of the signal's siginfo, for [`HandledCrash`].
    fn frame(&self) -> u64 {
        core::ptr::from_ref::<SignalInfo>(self.info) as u64
    }

    /// Returns an address in the frame of Coroner's handler, for [`HandledCrash`].
    fn stack(&self) -> u64 {
        core::ptr::from_ref(self.ids) as u64
    }

    /// See [`Installed::asks_first`].
    fn is_asked_first(&self, installed: &Installed) -> bool {
        // A damaged list of images is read by loads whose faults come to this handler.
        let before = block_exactly(blocked() & !(bit(libc::SIGSEGV) | bit(libc::SIGBUS)));
        let fault = Fault::of(self.info, self.context.machine().pc(), self.context.machine().sp());
        let first = installed.asks_first(&fault, previous_handler::known(self.info.signo));
        block_exactly(before);
        first
    }

    /// Passes the signal to the handler from before. `called` means that this handler has already
    /// run.
    fn forward(&mut self, called: bool, asked: Asked) -> Outcome {
        // SAFETY: this thread is handling that signal.
        unsafe { forward(self.info, self.context, called, asked) }
    }

    /// Calls the earlier handler, and reports the crash unless that handler deals with it.
    fn ask_first(mut self, installed: &'static Installed, number: u64) {
        let reported = match self.ask(installed, number) {
            Answer::Handled => return,
            Answer::Reported => Reported::Elsewhere,
            Answer::Refused => system::report(installed, self.info, self.context, *self.ids, Next::Dies),
        };
        self.pass_on(installed, reported, number, true);
    }

    /// Calls the earlier handler. In the meantime the crash has record `number`: the handler may
    /// end the process.
    fn ask(&mut self, installed: &'static Installed, number: u64) -> Answer {
        let tid = self.ids.1;
        let (pc, sp) = (self.context.machine().pc(), self.context.machine().sp());
        let ours = SignalAction::of(self.info.signo).unwrap_or_default();
        let context = core::ptr::from_ref::<SignalContext>(self.context) as u64;
        let handlers = &installed.platform.running_handlers;
        let crash = HandledCrash { frame: self.frame(), stack: self.stack(), context, number };
        let before = handlers.begin(tid, &crash);
        // SAFETY: this thread is handling that signal.
        let called = unsafe { previous_handler::call(self.info, self.context, Asked::Latest) };
        let ended = handlers.end(tid, &before);
        let moved = self.context.machine().pc() != pc || self.context.machine().sp() != sp;
        let stayed = SignalAction::of(self.info.signo).unwrap_or_default() == ours;
        let handled = called && (moved || (stayed && system::is_dealt_with(installed, self.info, self.context, tid)));
        if handled {
            installed.run.state.set_crash_not_fatal(number);
        }
        match (handled, ended.context == 0) {
            (true, reported) => {
                if reported {
                    system::handler_returned(installed, *self.ids, number, Outcome::Continues);
                }
                Answer::Handled
            }
            (false, true) => Answer::Reported,
            (false, false) => Answer::Refused,
        }
    }

    /// Writes the report, unless there is one, then passes the signal to the handler from before.
    fn report(mut self, installed: &'static Installed, subject: Subject) {
        match subject {
            Subject::Signal(number, next) => {
                let reported = system::report(installed, self.info, self.context, *self.ids, next);
                self.pass_on(installed, reported, number, false);
            }
            Subject::Exception(reported) => self.pass_on(installed, reported, 0, false),
            Subject::Unfinished(crash) => {
                report_unfinished(installed, &crash, *self.ids);
                self.forward(false, Asked::Latest);
            }
        }
    }

    /// Passes the signal to the handler from before: whatever that handler raises on this thread is
    /// the same death. `number` is that of the crash record from before the report, 0 for none. For
    /// `called`, see [`Caught::forward`].
    fn pass_on(mut self, installed: &'static Installed, reported: Reported, number: u64, called: bool) {
        // If another thread's report has this crash, the record from before is this crash's only
        // own one.
        let number = if let Reported::Here(later) = reported { later } else { number };
        let (tid, handlers) = (self.ids.1, &installed.platform.running_handlers);
        let crash = HandledCrash { frame: self.frame(), stack: self.stack(), context: 0, number };
        let before = handlers.begin(tid, &crash);
        let outcome = self.forward(called, Asked::Latest);
        handlers.end(tid, &before);
        if outcome == Outcome::Continues {
            installed.run.state.set_crash_not_fatal(number);
        }
        system::handler_returned(installed, *self.ids, number, outcome);
    }
}

/// Writes the report of a crash that a handler of this thread was called for first: that handler
/// ends the process, or crashes itself.
fn report_unfinished(installed: &'static Installed, crash: &HandledCrash, ids: (i32, Tid)) {
    if crash.context == 0 {
        return;
    }
    installed.platform.running_handlers.note_reported(ids.1);
    // SAFETY: that handler is running, so what Coroner's own handler received for the first signal
    // lies above it, on the same stack.
    let (info, context) = unsafe { (&*(crash.frame as *const SignalInfo), &*(crash.context as *const SignalContext)) };
    system::report(installed, info, context, ids, Next::AsksHandler);
}

/// Writes the report of a crash whose first-called handler the calling thread is inside, when the
/// thread ends the process by `exit`.
pub(crate) fn report_before_exit(installed: &'static Installed, ids: (i32, Tid)) {
    let here = 0_u8;
    let handlers = &installed.platform.running_handlers;
    if let Some(crash) = handlers.is_by(ids.1, &raw const here as u64, blocked().into()) {
        report_unfinished(installed, &crash, ids);
    }
}

/// Settles the calling thread's crash, outside of any handler: if the thread left the handler by a
/// jump, the handler has dealt with the crash, which was not fatal.
pub(crate) fn settle(installed: &Installed, tid: Tid) {
    let here = 0_u8;
    let handlers = &installed.platform.running_handlers;
    let number = handlers.take_left(tid, &raw const here as u64, blocked().into());
    installed.run.state.set_crash_not_fatal(number);
}
