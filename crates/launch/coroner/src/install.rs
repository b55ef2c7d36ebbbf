//! Installing Coroner into the running process, and what an app can do with it afterwards.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coroner_report::model::Id;
use coroner_report::run_state::ExitKind;

use crate::config::Config;
use crate::config::Crashes;
#[cfg(all(feature = "exceptions", supported))]
use crate::config::Exceptions;
use crate::data_dir::default_store_dir;
use crate::delivery::{Deliverer, own_run};
use crate::facts;
use crate::fork_locks;
use crate::hang::Watchdog;
use crate::install_error::InstallError;
use crate::last_run::{LastRun, app_number};
use crate::locked::locked;
use crate::outcome::Outcome;
use crate::scope::{Scope, ScopeError, set_before_breadcrumb};
use crate::sink::{FolderSink, Sink};
use crate::store::directory::Directory;
use crate::store::{CLEAN, REPORTS, RUNS, Store};
use crate::system::capture::{self, InstallLimits, InstallOptions, SignalSet};
use crate::system_report::SystemReport;
use crate::system_report::hand_over::hand_over;

/// A crash this soon after install may come again at each launch, before a thread in the background gets its report out: it is
/// delivered before install returns, for [`MAX_START`] at most (develop.sentry.dev, *Start-up crash detection*).
const STARTUP: Duration = Duration::from_secs(2);
/// How long install waits at most for the report of a crash at the start.
const MAX_START: Duration = Duration::from_secs(5);
/// The largest attachment that is kept in a run's directory.
const MAX_KEPT: usize = 20 << 20;
/// How long install stores reports at most that wait in the store; the one that it is at by then is the last.
const MAX_INTAKE: Duration = Duration::from_millis(4);

/// The installed Coroner of this process. It can be cloned and dropped freely: dropping it uninstalls nothing.
#[derive(Clone)]
pub struct Coroner {
    inner: Arc<Inner>,
}

struct Inner {
    run: Id,
    limits: InstallLimits,
    store: PathBuf,
    is_on_disk: bool,
    scope: Scope,
    deliverer: Arc<Deliverer>,
    /// Files were kept in the run's directory.
    keeps: AtomicBool,
    /// A clean end of this run is to be noted at once: nothing says so yet, and nothing else waits in the store. With a time before the run
    /// began, so that if it crashes in a destructor after all, that is the later word.
    notes_end: Option<SystemTime>,
    /// Taken out by `uninstall`.
    watchdog: Mutex<Option<Watchdog>>,
    /// And this.
    #[cfg(all(supported, target_vendor = "apple"))]
    run_id_thread: Mutex<Option<crate::run_id_stack::thread::RunIdThread>>,
}

pub(crate) static INSTALLED: Mutex<Option<Coroner>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<Coroner>> {
    fork_locks::lock(&INSTALLED)
}

/// The signals to note, without SIGINT where a Python that has not begun is in the process: it takes the signal only where it finds the default,
/// and without it Ctrl-C ends the process and raises no `KeyboardInterrupt`.
#[cfg(unix)]
fn leaving_interrupt_to_python(endings: SignalSet) -> SignalSet {
    // SAFETY: the name ends with a NUL; nothing is called but what Python's C API has: `int Py_IsInitialized(void)`, which may be called at
    // any time.
    let is_waiting = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr());
        !found.is_null() && std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::c_int>(found)() == 0
    };
    if is_waiting { endings.without(libc::SIGINT) } else { endings }
}

/// No signal is noted.
#[cfg(not(unix))]
fn leaving_interrupt_to_python(endings: SignalSet) -> SignalSet {
    endings
}

/// What the crash path does.
fn install_options(config: &Config) -> InstallOptions {
    // Whole, so that no option is left out.
    let Crashes {
        signals,
        endings,
        chain_first,
        reinstall_handlers,
        fork,
        alternate_stacks,
        all_threads,
        stack_memory,
        stack_memory_all,
        symbol_names,
    } = config.crashes;
    InstallOptions {
        signals,
        endings: leaving_interrupt_to_python(endings),
        chain_first,
        reinstall_handlers,
        fork,
        alternate_stacks,
        all_threads,
        stack_memory,
        stack_memory_all,
        symbol_names,
        deadline_ms: u32::try_from(config.limits.deadline.as_millis()).unwrap_or(u32::MAX),
        non_fatal_per_hour: config.limits.reports_per_hour,
        ..InstallOptions::DEFAULT
    }
}

/// Has uncaught exceptions of C++ and Objective-C reported, and the stacks of their throws taken.
#[cfg(all(feature = "exceptions", supported))]
fn report_exceptions(exceptions: &Exceptions, deadline_ms: u32) {
    let stacks = coroner_exceptions::install(&coroner_exceptions::Options {
        cpp: exceptions.cpp,
        objc: exceptions.objc,
        appkit: exceptions.appkit,
        zombies: exceptions.zombies,
        deadline_ms,
        on_survived: Some(own_run::survived),
    });
    if stacks == coroner_exceptions::ThrowStacks::OwnedByRuntime {
        log::warn!(
            "coroner: C++ exceptions have no stacks of their throws: the C++ runtime is linked into this program with its own \
             __cxa_throw (build with the feature wrap-cxa-throw and link with -Wl,--wrap=__cxa_throw,--wrap=__cxa_rethrow)"
        );
    }
}

/// Installs Coroner: from here on a crash of this process leaves a report in the store. Call it once, as early in `main` as
/// can be.
///
/// It takes well under a millisecond, and starts a thread only if there is something of an earlier run to deliver, or a sink
/// follows runs; that thread ends when that is done. What waits is stored by sinks that can ([`Sink::store_early`]) before install returns,
/// in some milliseconds, however short the launch is; where ten launches were too short to be done with a report, one waits for that for a
/// tenth of a second at most. With [`Config::hang_threshold`] there is one that watches for hangs. Only where the last run crashed within two seconds of its own start does it
/// wait for that report to be delivered, for five seconds at most.
///
/// # Errors
/// See [`InstallError`]. Nothing is changed in the process then.
pub fn install(mut config: Config) -> Result<Coroner, InstallError> {
    let mut installed = slot();
    if installed.is_some() {
        return Err(InstallError::AlreadyInstalled);
    }
    let directory = match &config.store_dir {
        Some(directory) => directory.clone(),
        None => default_store_dir(&config.app).ok_or(InstallError::NoStoreDirectory)?,
    };
    // A crash opens further reports by it, wherever the app's working directory is by then.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let (store, runs) = Store::open_with_runs(&directory).map_err(InstallError::Store)?;
    let began = SystemTime::now();
    let options = install_options(&config);
    let run = crate::system::begin_run(&directory, &options)?;
    #[cfg(all(feature = "exceptions", supported))]
    report_exceptions(&config.exceptions, options.deadline_ms);
    if config.keep_output {
        capture::keep_output();
    }
    for sentence in run.limits.sentences() {
        log::warn!("coroner: {sentence}");
    }
    facts::write(&run, &config);
    if run.previous.is_none() {
        crate::device_state::note_storage(&run.state, &directory);
        crate::vitals::note(&run.state);
    }
    crate::vitals::begin();
    let scope = Scope::new(run.state);
    scope.begin_session(Id(run.id));
    scope.activate();
    set_before_breadcrumb(config.before_breadcrumb.as_ref().map(|hook| Arc::clone(&hook.0)));
    #[cfg(feature = "panics")]
    if config.exceptions.panics {
        crate::panic::install(config.exceptions.panic_policy);
    }

    let sinks: Vec<Arc<dyn Sink>> = match &config.sinks {
        Some(sinks) => sinks.clone(),
        None => vec![Arc::new(FolderSink::new(directory.join(REPORTS)))],
    };
    sinks.iter().for_each(|sink| sink.opened(store.path()));
    #[cfg(feature = "sentry-client")]
    crate::sink::beside_sentry_client(
        config.exceptions.panics && sinks.iter().any(|sink| sink.name().starts_with("sentry")),
    );
    let watchdog =
        config.hang_threshold.filter(|_| cfg!(supported)).and_then(|threshold| Watchdog::start(threshold, run.state));
    let id = Id(run.id);
    #[cfg(all(supported, target_vendor = "apple"))]
    let run_id_thread = config.run_id_thread.then(|| crate::run_id_stack::thread::RunIdThread::start(id)).flatten();
    let deliver = config.delivery.at_install;
    let said = std::mem::take(&mut config.system_reports);
    // The store has `runs` and, where files are used again, had `clean`: who counted them counts well.
    let is_alone = runs == Some(0) && run.previous.is_some() && said.is_empty();
    if !said.is_empty()
        && let Err(error) = hand_over(&store, id, said)
    {
        log::warn!("coroner: what the system says of earlier runs can't be put to them: {error}");
    }
    let pending = !is_alone && store.has_other_runs(id);
    let hurry = deliver && pending && store.crashed_within(STARTUP, id);
    let app = app_number(&config.app);
    let mut is_noted = false;
    let previous = run.previous.and_then(|clean| {
        let began = (clean.began > 0).then(|| UNIX_EPOCH + Duration::from_nanos(clean.began));
        let last = LastRun { outcome: Outcome::CleanExit, run: Some(Id(clean.id)), began, ..LastRun::FIRST_LAUNCH };
        if clean.app != app {
            // The files were those of another app that has this store: it is that one's last run.
            if !clean.is_noted
                && let Err(error) = last.write_in_place(&directory, clean.app)
            {
                log::warn!("coroner: the end of another app's run can't be noted: {error}");
            }
            return None;
        }
        // For another process of the app that starts while this one runs, and finds neither that run nor its files. If there was
        // none since the last note that a run ended by itself, that one says the same.
        is_noted = clean.is_noted && !pending;
        is_noted = is_noted || last.write_in_place(&directory, app).is_ok() && !pending;
        scope.set_clean_exit_noted(is_noted);
        Some(last)
    });
    let deliverer = Deliverer::new(store, id, sinks, config).announcing(run.state, run.pid).after(previous, pending);
    let deliverer = Arc::new(deliverer);
    own_run::activate(&deliverer);
    let watchdog = Mutex::new(watchdog);
    let is_on_disk = !run.limits.in_memory;
    let inner = Inner {
        #[cfg(all(supported, target_vendor = "apple"))]
        run_id_thread: Mutex::new(run_id_thread),
        run: id,
        limits: run.limits,
        store: directory,
        is_on_disk,
        scope,
        deliverer,
        keeps: AtomicBool::new(false),
        notes_end: (!is_noted && !pending).then_some(began),
        watchdog,
    };
    let coroner = Coroner { inner: Arc::new(inner) };
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
    fork_locks::hold_over_forks([
        (&INSTALLED, fork_locks::MAX_TRIES_OF_APP),
        (&crate::scope::CHANGE, fork_locks::MAX_TRIES_OF_APP),
        (&crate::scope::FLAGS, fork_locks::MAX_TRIES),
        (&crate::backtrace::images::IN_APP, fork_locks::MAX_TRIES),
    ]);
    *installed = Some(coroner.clone());
    drop(installed);
    register_exit_handler();
    let deliverer = &coroner.inner.deliverer;
    let (mut unstored, mut waits) = (false, None);
    let mut left = deliverer.follows_runs();
    if deliver && pending {
        let intake = deliverer.intake(Instant::now() + MAX_INTAKE);
        left |= intake.left;
        (unstored, waits) = (intake.unstored, intake.waits);
    }
    if deliver && left {
        deliverer.start();
    }
    if let Some(time) = waits {
        deliverer.wait(time);
    }
    if hurry && unstored {
        let begin = Instant::now();
        if !coroner.flush(MAX_START) {
            let waited = begin.elapsed();
            log::warn!(
                "coroner: the report of a crash at the start is not delivered yet, after {waited:.1?}; it is kept"
            );
        }
        // The wait is none of the app's time: a crash right after it is one at the start, too.
        capture::begin_anew();
    }
    Ok(coroner)
}

/// The Coroner that is installed in this process, for code that did not install it.
pub fn installed() -> Option<Coroner> {
    slot().clone()
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
        let Inner { store, scope, deliverer, .. } = &*parent.inner;
        scope.begin_session(Id(run.id));
        let inner = Inner {
            limits: run.limits,
            run: Id(run.id),
            store: store.clone(),
            is_on_disk: true,
            scope: *scope,
            deliverer: Arc::new(deliverer.of_child(Id(run.id), run.state)),
            keeps: AtomicBool::new(false),
            notes_end: None,
            watchdog: Mutex::new(None),
        };
        own_run::activate(&inner.deliverer);
        *installed = Some(Coroner { inner: Arc::new(inner) });
        return Ok(true);
    }
    Ok(false)
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported. Only for threads that did
/// not get one by themselves: with [`AlternateStacks::Everywhere`](crate::AlternateStacks::Everywhere) all threads made by
/// Rust or by `pthread_create` have one.
///
/// # Errors
/// The system's: no memory, or the thread is running on its alternate stack right now.
pub fn attach_current_thread() -> std::io::Result<()> {
    #[cfg(supported)]
    return coroner_capture::attach_current_thread().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
    #[cfg(not(supported))]
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Leaves the next signal with number `signal` of the calling thread to the handlers that were there before Coroner: for a
/// managed runtime that is about to raise it on purpose. `false` if Coroner is not installed, or 64 threads have asked for
/// it at once.
pub fn ignore_next_signal(signal: i32) -> bool {
    crate::system::capture::ignore_next_signal(signal)
}

/// Registers, once in a process, what is done at its end by `exit`, `quick_exit` or the return of `main`.
fn register_exit_handler() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        extern "C" fn at_exit() {
            // `try_lock`: `exit` may be called in a signal handler that interrupted an install.
            if let Ok(installed) = INSTALLED.try_lock()
                && let Some(coroner) = installed.as_ref()
            {
                // A child made by fork that ends says nothing of its parent, and after a panic of `main` the process ends by `exit`, too.
                if capture::exit::ends_clean(crate::hang::end) {
                    coroner.inner.scope.note_exit(ExitKind::CLEAN);
                    coroner.leave_clean();
                }
            }
        }
        // C11's, which Apple's systems have not, nor all of Windows' C libraries.
        #[cfg(all(unix, not(target_vendor = "apple")))]
        unsafe extern "C" {
            fn at_quick_exit(function: extern "C" fn()) -> libc::c_int;
        }
        // SAFETY: registers a function without arguments that does not unwind. Where no more can be registered, clean exits
        // count as unexplained ends.
        unsafe {
            libc::atexit(at_exit);
            #[cfg(all(unix, not(target_vendor = "apple")))]
            at_quick_exit(at_exit);
        }
        #[cfg(windows)]
        crate::process_end::call_at_end(at_exit);
        #[cfg(all(supported, not(target_vendor = "apple")))]
        coroner_process::immediate_exit::before_immediate_exit(own_run::note_immediate_exit);
    });
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
    pub fn store_dir(&self) -> &std::path::Path {
        &self.inner.store
    }

    /// Takes what the system says of deaths of the app that it tells only by and by, as
    /// [`Config::system_report`] does at install, and starts delivery. How the last run ended may be known by then, and stays so.
    ///
    /// # Errors
    /// The store can't be read or written.
    pub fn add_system_reports(&self, reports: Vec<SystemReport>) -> std::io::Result<()> {
        self.inner.deliverer.hand_over(reports)
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
        self.inner.deliverer.flush(timeout)
    }

    /// Notes that the app has ended well, for apps that then leave otherwise than by `exit` or the end of `main`: by `_exit`
    /// or by being killed by their system, as mobile apps are.
    pub fn mark_clean_exit(&self) {
        self.inner.scope.note_exit(ExitKind::CLEAN);
    }

    /// Leaves the files of this run, which ends by itself, to the next one, if nothing is in them. The lock stays with this process
    /// until its end, and a crash in a destructor that is still to come goes into these files.
    fn leave_clean(&self) {
        let Inner { run, store, is_on_disk, deliverer, keeps, notes_end, scope, .. } = &*self.inner;
        // Where no file may be locked none is used again.
        let may = *is_on_disk && !coroner_process::hold::forbids_locks(store.as_os_str().as_encoded_bytes());
        if may && !keeps.load(Ordering::Acquire) && !deliverer.follows_runs() && capture::is_unused() {
            // Another one is there already if two end at once: this one's is removed by the next launch.
            let renamed = std::fs::rename(store.join(RUNS).join(run.to_string()), store.join(CLEAN));
            // Or the next launch notes it, and all after that have less to do.
            if notes_end.is_some() && renamed.is_ok() {
                let (outcome, began) = (Outcome::CleanExit, *notes_end);
                let last = LastRun { outcome, run: Some(*run), began, ..LastRun::FIRST_LAUNCH };
                scope.set_clean_exit_noted(last.write_in_place(store, deliverer.app).is_ok());
            }
        }
    }

    pub(crate) fn take_feedback(&self, feedback: &crate::Feedback) -> bool {
        self.inner.deliverer.take_feedback(feedback)
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
        let Inner { run, store, scope, .. } = &*self.inner;
        let directory = store.join(RUNS).join(run.to_string());
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
        let mut installed = slot();
        let ours = installed.as_ref().is_some_and(|other| Arc::ptr_eq(&other.inner, &self.inner));
        if ours {
            let watchdog = locked(&self.inner.watchdog).take();
            if let Some(watchdog) = watchdog {
                watchdog.stop();
            }
            Scope::deactivate();
            own_run::deactivate();
            #[cfg(feature = "panics")]
            crate::panic::uninstall();
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
        crate::panic::dropped();
    }
}

impl fmt::Debug for Coroner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Coroner")
            .field("run", &self.inner.run)
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}
