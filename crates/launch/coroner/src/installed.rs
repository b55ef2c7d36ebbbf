//! [`Coroner`], the handle to the installed crash reporter.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use coroner_report::model::Id;
use coroner_report::run_state::ExitKind;

use crate::delivery::Deliverer;
use crate::delivery_thread::DeliveryThread;
use crate::feedback::Feedback;
use crate::hang::Watchdog;
use crate::install_error::InstallError;
use crate::last_run::LastRun;
use crate::locked::locked;
use crate::outcome::Outcome;
#[cfg(feature = "panics")]
use crate::panic;
#[cfg(all(supported, target_vendor = "apple"))]
use crate::run_id_stack::thread::RunIdThread;
use crate::scope::{Scope, ScopeError};
#[cfg(supported)]
use crate::signal_watch;
use crate::store::directory::Directory;
use crate::store::{CLEAN, RUNS};
use crate::system::capture::{self, InstallLimits};
use crate::system_report::SystemReport;
use crate::system_report::hand_over::hand_over;
use crate::{fork_locks, own_run};

/// Maximum size of an attachment in a run's directory, in bytes.
const MAX_KEPT: usize = 20 << 20;

/// A handle to the Coroner that is installed in this process.
///
/// It can be cloned and dropped freely: dropping it doesn't uninstall Coroner.
#[derive(Clone)]
pub struct Coroner {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) run: Id,
    pub(crate) limits: InstallLimits,
    pub(crate) is_on_disk: bool,
    pub(crate) scope: Scope,
    pub(crate) deliverer: Arc<Deliverer>,
    pub(crate) thread: Arc<DeliveryThread>,
    /// Whether files were kept in the run's directory.
    pub(crate) keeps: AtomicBool,
    /// Set if a clean exit of this run has to be recorded immediately, because the store has no
    /// such record yet and nothing else waits in it.
    ///
    /// Contains a time before the run began, so that a later crash in a destructor takes
    /// precedence.
    pub(crate) notes_end: Option<SystemTime>,
    /// Taken by `uninstall`.
    pub(crate) watchdog: Mutex<Option<Watchdog>>,
    /// Taken by `uninstall`.
    #[cfg(supported)]
    pub(crate) signal_watch: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Taken by `uninstall`.
    #[cfg(all(supported, target_vendor = "apple"))]
    pub(crate) run_id_thread: Mutex<Option<RunIdThread>>,
}

/// The installed Coroner.
pub(crate) static INSTALLED: Mutex<Option<Coroner>> = Mutex::new(None);

/// Locks and returns [`INSTALLED`].
pub(crate) fn lock_installed() -> MutexGuard<'static, Option<Coroner>> {
    fork_locks::lock(&INSTALLED)
}

/// Sets `run` as the run for this process's non-fatal reports.
///
/// Returns the thread that delivers them with `deliverer`.
pub(crate) fn activate_delivery(
    deliverer: &Arc<Deliverer>,
    run: &capture::Run,
    at_install: bool,
) -> Arc<DeliveryThread> {
    let work: Arc<Deliverer> = Arc::clone(deliverer);
    let thread = Arc::new(DeliveryThread::new(work, deliverer.waiters(), at_install));
    own_run::activate(own_run::OwnRun {
        id: Id(run.id),
        pid: run.pid,
        state: run.state,
        store: deliverer.store().clone(),
        thread: at_install.then(|| Arc::clone(&thread)),
    });
    thread
}

/// Returns the installed Coroner, for code that did not install it.
pub fn installed() -> Option<Coroner> {
    lock_installed().clone()
}

/// Delivers user feedback, usually about the last crash.
///
/// It goes to the sinks that support it ([`Sink::feedback`](crate::Sink::feedback)). Returns
/// `false` if no sink accepted the feedback, or if Coroner is not installed.
///
/// ```no_run
/// # let coroner = coroner::installed().unwrap();
/// let feedback = coroner::Feedback::new("I was only saving the document").event_id(coroner.last_run().event_id);
/// coroner::feedback(&feedback);
/// ```
pub fn feedback(feedback: &Feedback) -> bool {
    installed().is_some_and(|coroner| coroner.inner.deliverer.take_feedback(feedback))
}

/// Gives this process its own run, if it is a child created by `fork` that continues on its own.
///
/// For daemons and the workers of a pre-forking server. The child's run has its own session,
/// outcome and lock, like that of any other process of the app, and a copy of the scope at the
/// fork. Returns `true` if there is a new run, and `false` in a process that installed Coroner
/// itself or if Coroner is not installed.
///
/// Coroner calls this function when such a child first uses a scope function of this crate, such as
/// [`set_tag`](crate::set_tag), or forks as a daemon, except with
/// [`ForkPolicy::Silent`](crate::ForkPolicy::Silent). A child that never does should call it after
/// `fork` or `daemon`, before it starts threads. If the parent has ended by then, as after
/// `daemon`, its run counts as a clean exit.
///
/// A crash of a child without a run is still reported, in a run that is created at the crash, but
/// other ends of the child are not recorded. This function does nothing on macOS, where a child has
/// no crash reporter, and where faults are not caught ([`InstallLimits::no_faults`]).
///
/// ```no_run
/// // In the child, after `fork`:
/// coroner::after_fork()?;
/// # Ok::<(), coroner::InstallError>(())
/// ```
///
/// # Errors
/// [`InstallError::CrashPath`] if the run can't be created. The child then has no run.
pub fn after_fork() -> Result<bool, InstallError> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fork_locks::release_own();
    #[cfg(all(supported, not(target_vendor = "apple")))]
    // A thread of the parent may have held the lock at the fork; it doesn't exist here to release
    // it.
    if let Ok(mut installed) = INSTALLED.try_lock()
        && let Some(parent) = installed.clone()
    {
        let run = coroner_capture::after_fork();
        coroner_capture::settle_parent();
        let Some(run) = run? else { return Ok(false) };
        let Inner { scope, deliverer, thread, .. } = &*parent.inner;
        let id = Id(run.id);
        scope.begin_session(id);
        let deliverer = Arc::new(deliverer.for_child(id, run.state));
        let inner = Inner {
            run: id,
            limits: run.limits,
            is_on_disk: true,
            scope: *scope,
            thread: activate_delivery(&deliverer, &run, thread.repeats()),
            deliverer,
            keeps: AtomicBool::new(false),
            notes_end: None,
            watchdog: Mutex::new(None),
            signal_watch: Mutex::new(signal_watch::continue_in_child()),
        };
        *installed = Some(Coroner { inner: Arc::new(inner) });
        return Ok(true);
    }
    Ok(false)
}

impl Coroner {
    /// Returns the id of this process's run.
    pub fn run_id(&self) -> Id {
        self.inner.run
    }

    /// Returns what could not be set up at install, so that reports contain less. It is also
    /// logged.
    pub fn limits(&self) -> InstallLimits {
        self.inner.limits
    }

    /// Returns the store's directory.
    pub fn store_dir(&self) -> &Path {
        self.inner.deliverer.store().path()
    }

    /// Adds the system's records of how earlier processes died, and starts delivery.
    ///
    /// For records that become available after install; otherwise use
    /// [`Config::system_report`](crate::Config::system_report). They don't change the last run's
    /// outcome if it has already been determined.
    ///
    /// # Errors
    /// An I/O error if the store can't be read or written.
    pub fn add_system_reports(&self, reports: Vec<SystemReport>) -> io::Result<()> {
        let Inner { run, deliverer, thread, .. } = &*self.inner;
        hand_over(deliverer.store(), *run, reports)?;
        thread.start();
        Ok(())
    }

    /// Returns how the last run ended. It waits neither for names nor for a server.
    pub fn last_run(&self) -> LastRun {
        self.inner.deliverer.last_run()
    }

    /// Delivers all reports in the store; waits at most `timeout`. Returns whether none is left.
    ///
    /// For short-lived apps, and for apps that choose when to deliver
    /// ([`Delivery::at_install`](crate::Delivery::at_install)).
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.thread.flush(timeout)
    }

    /// Marks the run as cleanly exited.
    ///
    /// For apps that end neither by `exit` nor by returning from `main`: by `_exit`, or killed by
    /// the system, like mobile apps.
    pub fn mark_clean_exit(&self) {
        self.inner.scope.note_exit(ExitKind::CLEAN);
    }

    /// Leaves the files of this run, which exits cleanly, to the next run if they are empty.
    ///
    /// The process keeps the lock until it ends, and a later crash in a destructor is written to
    /// these files.
    pub(crate) fn leave_clean(&self) {
        let Inner { run, is_on_disk, deliverer, keeps, notes_end, scope, .. } = &*self.inner;
        let store = deliverer.store().path();
        // Files that can't be locked are never reused.
        let may = *is_on_disk && !coroner_process::directory_owner::forbids_locks(store.as_os_str().as_encoded_bytes());
        if may && !keeps.load(Ordering::Acquire) && !deliverer.follows_runs() && capture::is_unused() {
            // If two processes exit at once, the directory may already exist. The next launch then
            // removes this run's.
            let renamed = std::fs::rename(store.join(RUNS).join(run.to_string()), store.join(CLEAN));
            // Otherwise the next launch records it, and later launches have less to do.
            if notes_end.is_some() && renamed.is_ok() {
                let (outcome, began) = (Outcome::CleanExit, *notes_end);
                let last = LastRun { outcome, run: Some(*run), began, ..LastRun::FIRST_LAUNCH };
                scope.set_clean_exit_noted(last.write_in_place(store, deliverer.app()).is_ok());
            }
        }
    }

    /// Copies `bytes` into this run's directory, to attach them to its reports under `name`.
    ///
    /// For a screenshot or a view tree of the app's last moment. Replaces an attachment with the
    /// same name.
    ///
    /// # Errors
    /// [`ScopeError::InvalidName`], [`ScopeError::TooLarge`] above 20 MiB,
    /// [`ScopeError::NotWritten`], and those of [`Scope::add_attachment`].
    pub fn keep_attachment(&self, name: &str, bytes: &[u8], content_type: Option<&str>) -> Result<(), ScopeError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !name.bytes().all(is_plain) || !name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
            return Err(ScopeError::InvalidName);
        }
        if bytes.len() > MAX_KEPT {
            return Err(ScopeError::TooLarge);
        }
        // From now on, no other run may reuse the directory.
        self.inner.keeps.store(true, Ordering::Release);
        let Inner { run, deliverer, scope, .. } = &*self.inner;
        let directory = deliverer.store().path().join(RUNS).join(run.to_string());
        let file = format!("attachment-{name}");
        // Until the rename, a crash finds the previous file.
        let written = Directory::open(&directory).and_then(|run| run.write_quickly(file.as_ref(), bytes));
        written.map_err(|error| {
            log::warn!("coroner: can't store the attachment `{name}`: {error}");
            ScopeError::NotWritten
        })?;
        scope.add_attachment(name, &directory.join(file), content_type)
    }

    /// Returns this run's scope: tags, user, contexts, breadcrumbs.
    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// Restores the previous signal handlers and ends this run.
    ///
    /// Coroner can be installed again afterwards. The call waits for a report that is being
    /// written; a thread that is delivering reports finishes its work.
    pub fn uninstall(self) {
        let mut installed = lock_installed();
        let ours = installed.as_ref().is_some_and(|other| Arc::ptr_eq(&other.inner, &self.inner));
        if ours {
            let watchdog = locked(&self.inner.watchdog).take();
            if let Some(watchdog) = watchdog {
                watchdog.stop();
            }
            #[cfg(supported)]
            signal_watch::end(locked(&self.inner.signal_watch).take());
            Scope::deactivate();
            own_run::deactivate();
            #[cfg(feature = "panics")]
            panic::uninstall();
            #[cfg(all(feature = "exceptions", supported))]
            coroner_exceptions::uninstall();
            capture::uninstall();
            #[cfg(all(supported, target_vendor = "apple"))]
            drop(locked(&self.inner.run_id_thread).take());
            *installed = None;
        }
    }
}

#[cfg(feature = "panics")]
impl Drop for Coroner {
    fn drop(&mut self) {
        panic::dropped();
    }
}

impl fmt::Debug for Coroner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Coroner")
            .field("run", &self.inner.run)
            .field("store", &self.store_dir())
            .finish_non_exhaustive()
    }
}
