//! The installed Coroner, and what an app can do with it.

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
use crate::store::directory::Directory;
use crate::store::{CLEAN, RUNS};
use crate::system::capture::{self, InstallLimits};
use crate::system_report::SystemReport;
use crate::system_report::hand_over::hand_over;
use crate::{fork_locks, own_run};

/// The largest attachment that is kept in a run's directory.
const MAX_KEPT: usize = 20 << 20;

/// The installed Coroner of this process. It can be cloned and dropped freely: dropping it uninstalls nothing.
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
    /// Files were kept in the run's directory.
    pub(crate) keeps: AtomicBool,
    /// A clean end of this run is to be noted at once: nothing says so yet, and nothing else waits in the store. With a time before the run
    /// began, so that if it crashes in a destructor after all, that is the later word.
    pub(crate) notes_end: Option<SystemTime>,
    /// Taken out by `uninstall`.
    pub(crate) watchdog: Mutex<Option<Watchdog>>,
    /// And this.
    #[cfg(all(supported, target_vendor = "apple"))]
    pub(crate) run_id_thread: Mutex<Option<RunIdThread>>,
}

/// Only ever set as a whole.
pub(crate) static INSTALLED: Mutex<Option<Coroner>> = Mutex::new(None);

/// Returns the place of the installed Coroner, locked.
pub(crate) fn lock_installed() -> MutexGuard<'static, Option<Coroner>> {
    fork_locks::lock(&INSTALLED)
}

/// Has `run`, whose reports `deliverer` delivers, take what this process survives from now on. Returns the thread that delivers.
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

/// The Coroner that is installed in this process, for code that did not install it.
pub fn installed() -> Option<Coroner> {
    lock_installed().clone()
}

/// Delivers what a user says, most often of the last crash, by the sinks that can ([`Sink::feedback`](crate::Sink::feedback)). `false` if
/// none took it, or Coroner is not installed.
///
/// ```no_run
/// # let coroner = coroner::installed().unwrap();
/// let said = coroner::Feedback::new("I was only saving the document").event_id(coroner.last_run().event_id);
/// coroner::feedback(&said);
/// ```
pub fn feedback(feedback: &Feedback) -> bool {
    installed().is_some_and(|coroner| coroner.inner.deliverer.take_feedback(feedback))
}

/// Gives this process, a child made by `fork` that goes on as a process of its own (a daemon, a worker of a pre-forking server), a run
/// of its own: with a session, an outcome and a lock like that of any other process of the app. The scope stays as it was at
/// the fork. Returns whether there is a new run: not in a process that installed Coroner itself, nor where that is not installed.
///
/// It is called by itself when such a child uses this crate's functions of the scope ([`set_tag`](crate::set_tag) and the like) for the first time, unless
/// children are to stay silent ([`ForkPolicy::Silent`](crate::ForkPolicy::Silent)). A child that never does calls it after `fork` or `daemon`, before it starts threads. Where the
/// parent is gone by then, as after `daemon`, its run counts as one that ended by itself.
///
/// Without a run a child that crashes is reported all the same, under one that it makes then; but how it ends otherwise is not known.
/// On macOS a child has no crash reporter, and this does nothing; neither does it where no fault is caught ([`InstallLimits::no_faults`]).
///
/// # Errors
/// [`InstallError::CrashPath`]: the run can't be made. The child stays without one.
pub fn after_fork() -> Result<bool, InstallError> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fork_locks::release_own();
    #[cfg(all(supported, not(target_vendor = "apple")))]
    // A thread of the parent may have held it at the fork, and is not here to let it go.
    if let Ok(mut installed) = INSTALLED.try_lock()
        && let Some(parent) = installed.clone()
    {
        let run = coroner_capture::after_fork();
        coroner_capture::settle_parent();
        let Some(run) = run? else { return Ok(false) };
        let Inner { scope, deliverer, thread, .. } = &*parent.inner;
        let id = Id(run.id);
        scope.begin_session(id);
        let deliverer = Arc::new(deliverer.of_child(id, run.state));
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
        };
        *installed = Some(Coroner { inner: Arc::new(inner) });
        return Ok(true);
    }
    Ok(false)
}

impl Coroner {
    /// This process's run.
    pub fn run_id(&self) -> Id {
        self.inner.run
    }

    /// What was missing at install: reports say less for it. It is logged as well.
    pub fn limits(&self) -> InstallLimits {
        self.inner.limits
    }

    /// The store's directory.
    pub fn store_dir(&self) -> &Path {
        self.inner.deliverer.store().path()
    }

    /// Takes what the system says of deaths of the app that it tells only by and by, as
    /// [`Config::system_report`] does at install, and starts delivery. How the last run ended may be known by then, and stays so.
    ///
    /// # Errors
    /// The store can't be read or written.
    pub fn add_system_reports(&self, reports: Vec<SystemReport>) -> io::Result<()> {
        let Inner { run, deliverer, thread, .. } = &*self.inner;
        hand_over(deliverer.store(), *run, reports)?;
        thread.start();
        Ok(())
    }

    /// How the last run ended. Waits for nothing: not for names of a report, nor for a server.
    pub fn last_run(&self) -> LastRun {
        self.inner.deliverer.last_run()
    }

    /// Delivers what is in the store, and waits for it, at most `timeout`. Says whether nothing is left to deliver.
    ///
    /// For apps that end soon, and for those that deliver at a time of their own choice
    /// ([`Delivery::at_install`](crate::Delivery::at_install)).
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.thread.flush(timeout)
    }

    /// Notes that the app has ended well, for apps that then leave otherwise than by `exit` or the end of `main`: by `_exit`
    /// or by being killed by their system, as mobile apps are.
    pub fn mark_clean_exit(&self) {
        self.inner.scope.note_exit(ExitKind::CLEAN);
    }

    /// Leaves the files of this run, which ends by itself, to the next one, if nothing is in them. The lock stays with this process
    /// until its end, and a crash in a destructor that is still to come goes into these files.
    pub(crate) fn leave_clean(&self) {
        let Inner { run, is_on_disk, deliverer, keeps, notes_end, scope, .. } = &*self.inner;
        let store = deliverer.store().path();
        // Where no file may be locked none is used again.
        let may = *is_on_disk && !coroner_process::directory_owner::forbids_locks(store.as_os_str().as_encoded_bytes());
        if may && !keeps.load(Ordering::Acquire) && !deliverer.follows_runs() && capture::is_unused() {
            // Another one is there already if two end at once: this one's is removed by the next launch.
            let renamed = std::fs::rename(store.join(RUNS).join(run.to_string()), store.join(CLEAN));
            // Or the next launch notes it, and all after that have less to do.
            if notes_end.is_some() && renamed.is_ok() {
                let (outcome, began) = (Outcome::CleanExit, *notes_end);
                let last = LastRun { outcome, run: Some(*run), began, ..LastRun::FIRST_LAUNCH };
                scope.set_clean_exit_noted(last.write_in_place(store, deliverer.app()).is_ok());
            }
        }
    }

    /// Keeps a file in this run's directory, to go with its reports: a screenshot or a view tree of the app's last moment. It replaces one
    /// with the same name, and is removed with the run.
    ///
    /// # Errors
    /// [`ScopeError::InvalidName`], [`ScopeError::TooLarge`] beyond 20 MiB, [`ScopeError::NotWritten`], and those of
    /// [`Scope::add_attachment`].
    pub fn keep_attachment(&self, name: &str, bytes: &[u8], content_type: Option<&str>) -> Result<(), ScopeError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !name.bytes().all(is_plain) || !name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
            return Err(ScopeError::InvalidName);
        }
        if bytes.len() > MAX_KEPT {
            return Err(ScopeError::TooLarge);
        }
        // From here on the directory is no other run's to use.
        self.inner.keeps.store(true, Ordering::Release);
        let Inner { run, deliverer, scope, .. } = &*self.inner;
        let directory = deliverer.store().path().join(RUNS).join(run.to_string());
        let file = format!("attachment-{name}");
        // Who crashes meanwhile has the one before.
        let written = Directory::open(&directory).and_then(|run| run.write_quickly(file.as_ref(), bytes));
        written.map_err(|error| {
            log::warn!("coroner: the attachment `{name}` can't be kept: {error}");
            ScopeError::NotWritten
        })?;
        scope.add_attachment(name, &directory.join(file), content_type)
    }

    /// Takes the scope of this run: tags, user, contexts, breadcrumbs.
    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// Gives the signals back to who had them before, and ends this run. Coroner can be installed again afterwards.
    ///
    /// Waits for a report that is being written. A thread that delivers reports goes on to its end.
    pub fn uninstall(self) {
        let mut installed = lock_installed();
        let ours = installed.as_ref().is_some_and(|other| Arc::ptr_eq(&other.inner, &self.inner));
        if ours {
            let watchdog = locked(&self.inner.watchdog).take();
            if let Some(watchdog) = watchdog {
                watchdog.stop();
            }
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
