//! Installing Coroner into the running process, and what an app can do with it afterwards.

use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use coroner_capture::{RunStep, Setup};
use coroner_report::model::Id;
use coroner_report::run_state::ExitKind;

use crate::config::Config;
use crate::data_dir::default_store_dir;
use crate::delivery::Deliverer;
use crate::facts;
use crate::hang::Watchdog;
use crate::last_run::LastRun;
use crate::scope::Scope;
use crate::sink::{FolderSink, Sink};
use crate::store::{Store, StoreError};

/// A crash this soon after install may come again at each launch, before a thread in the background gets its report out: it is
/// delivered before install returns, for [`LONGEST_START`] at most (develop.sentry.dev, *Start-up crash detection*).
const STARTUP: Duration = Duration::from_secs(2);
/// How long install waits at most for the report of a crash at the start.
const LONGEST_START: Duration = Duration::from_secs(5);

/// The folder in the store to which the default sink writes.
const REPORTS: &str = "reports";

/// The installed Coroner of this process. It can be cloned and dropped freely: dropping it uninstalls nothing.
#[derive(Clone)]
pub struct Coroner {
    inner: Arc<Inner>,
}

struct Inner {
    run: Id,
    store: PathBuf,
    /// The process that installed it: a child made by fork inherits this memory but is another process.
    process: u32,
    scope: Scope,
    deliverer: Arc<Deliverer>,
    /// Taken out by `uninstall`.
    watchdog: Mutex<Option<Watchdog>>,
}

/// The installed Coroner, if there is one.
static INSTALLED: Mutex<Option<Coroner>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<Coroner>> {
    // The slot is only ever set as a whole.
    INSTALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why Coroner could not be installed. The app runs on as if nothing had been asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum InstallError {
    /// It is installed already, in this process. One process has one crash reporter; [`installed`] gives it.
    AlreadyInstalled,
    /// No store was named, and there is no default: no home directory, or the system is Android.
    NoStoreDirectory,
    /// The store can't be used.
    Store(StoreError),
    /// A part of crash-time capture could not be prepared.
    Capture(coroner_capture::InstallError),
}

impl fmt::Display for InstallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use coroner_capture::InstallError as Capture;
        let system = |errno: coroner_machine::syscall::Errno| std::io::Error::from_raw_os_error(errno.0);
        match self {
            Self::AlreadyInstalled => out.write_str("Coroner is installed already in this process"),
            Self::NoStoreDirectory => out
                .write_str("there is no home directory to put the store in; name a directory with `Config::store_dir`"),
            Self::Store(error) => error.fmt(out),
            Self::Capture(Capture::Run(error)) => {
                let step = match error.step {
                    RunStep::Store => "open the store",
                    RunStep::Runs => "open `runs` in the store",
                    RunStep::Directory => "make the run's directory",
                    RunStep::Lock => "lock the run (the store must be on a file system with record locks)",
                    RunStep::Report => "reserve space for a report",
                    RunStep::State => "make the run state",
                };
                write!(out, "can't {step}: {}", system(error.errno))
            }
            Self::Capture(Capture::Memory(errno)) => write!(out, "no memory for the crash path: {}", system(*errno)),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Self::Capture(Capture::Proc(errno)) => write!(out, "can't list threads in /proc: {}", system(*errno)),
            Self::Capture(Capture::Signal { signal, errno }) => {
                write!(out, "signal {signal} can't be handled: {}", system(*errno))
            }
            #[cfg(target_vendor = "apple")]
            Self::Capture(Capture::Mach(code)) => {
                write!(out, "the task's exception ports can't be taken (kern_return_t {code})")
            }
            #[cfg(target_vendor = "apple")]
            Self::Capture(Capture::Thread(errno)) => {
                write!(out, "Coroner's threads can't be started: {}", system(*errno))
            }
            Self::Capture(other) => write!(out, "the crash path can't be prepared: {other:?}"),
        }
    }
}

impl std::error::Error for InstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// Installs Coroner: from here on a crash of this process leaves a report in the store. Call it once, as early in `main` as
/// can be.
///
/// It takes well under a millisecond, and starts a thread only if there is something of an earlier run to deliver, or a sink
/// follows runs; that thread ends when that is done. With [`Config::hang_threshold`] there is one that watches for hangs. Only where the last run crashed within two seconds of its own start does it
/// wait for that report to be delivered, for five seconds at most.
///
/// # Errors
/// See [`InstallError`]. Nothing is changed in the process then.
pub fn install(config: Config) -> Result<Coroner, InstallError> {
    let mut installed = slot();
    if installed.is_some() {
        return Err(InstallError::AlreadyInstalled);
    }
    let directory = match &config.store_dir {
        Some(directory) => directory.clone(),
        None => default_store_dir(&config.app).ok_or(InstallError::NoStoreDirectory)?,
    };
    let store = Store::open(&directory).map_err(InstallError::Store)?;
    // A path with a NUL in it could not have been opened.
    let path = CString::new(directory.as_os_str().as_bytes()).map_err(|_| InstallError::NoStoreDirectory)?;
    let setup = Setup {
        signals: config.signals,
        watch_sigterm: config.watch_sigterm,
        chain_first: config.chain_first,
        fork: config.fork,
        alternate_stacks: config.alternate_stacks,
        cpp_exceptions: config.cpp_exceptions,
        objc_exceptions: config.objc_exceptions,
        appkit_exceptions: config.appkit_exceptions,
        all_threads: config.all_threads,
        stack_memory: config.stack_memory,
        symbol_names: config.symbol_names,
        deadline_ms: u32::try_from(config.deadline.as_millis()).unwrap_or(u32::MAX),
        ..Setup::new(&path)
    };
    let run = coroner_capture::install(&setup).map_err(|error| match error {
        coroner_capture::InstallError::AlreadyInstalled => InstallError::AlreadyInstalled,
        other => InstallError::Capture(other),
    })?;
    facts::write(&run.state, &config);
    let scope = Scope::new(run.state);
    scope.begin_session(Id(run.id));
    scope.activate();
    if config.panics {
        crate::panic::install();
    }

    let sinks: Vec<Arc<dyn Sink>> = match &config.sinks {
        Some(sinks) => sinks.clone(),
        None => vec![Arc::new(FolderSink::new(directory.join(REPORTS)))],
    };
    let watchdog = config.hang_threshold.and_then(|threshold| Watchdog::start(threshold, run.state));
    let id = Id(run.id);
    let deliver = config.deliver_at_install;
    let pending = store.has_other_runs(Some(id));
    let hurry = deliver && pending && store.crashed_within(STARTUP, id);
    let deliverer = Arc::new(Deliverer::new(store, id, sinks, config).announcing(run.state));
    if deliver && (pending || deliverer.follows_runs()) {
        deliverer.start();
    }
    let watchdog = Mutex::new(watchdog);
    let inner = Inner { run: id, store: directory, process: std::process::id(), scope, deliverer, watchdog };
    let coroner = Coroner { inner: Arc::new(inner) };
    *installed = Some(coroner.clone());
    drop(installed);
    register_exit_handler();
    if hurry && !coroner.flush(LONGEST_START) {
        log::warn!("coroner: the report of a crash at the start could not be delivered in {LONGEST_START:?}");
    }
    Ok(coroner)
}

/// The Coroner that is installed in this process, for code that did not install it.
pub fn installed() -> Option<Coroner> {
    slot().clone()
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported. Only for threads that did
/// not get one by themselves: with [`AlternateStacks::Everywhere`](crate::AlternateStacks::Everywhere) all threads made by
/// Rust or by `pthread_create` have one.
///
/// # Errors
/// The system's: no memory, or the thread is running on its alternate stack right now.
pub fn attach_current_thread() -> std::io::Result<()> {
    coroner_capture::attach_current_thread().map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
}

/// Leaves the next signal with number `signal` of the calling thread to the handlers that were there before Coroner: for a
/// managed runtime that is about to raise it on purpose. `false` if Coroner is not installed, or 64 threads have asked for
/// it at once.
pub fn ignore_next_signal(signal: i32) -> bool {
    coroner_capture::ignore_next_signal(signal)
}

/// Registers, once in a process, what is done at its end by `exit` or by the return of `main`.
fn register_exit_handler() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        extern "C" fn at_exit() {
            // `try_lock`: `exit` may be called in a signal handler that interrupted an install.
            if let Ok(installed) = INSTALLED.try_lock()
                && let Some(coroner) = installed.as_ref()
                // A child made by fork that ends says nothing of its parent.
                && coroner.inner.process == std::process::id()
            {
                crate::hang::end();
                // After a panic of `main` the process ends by `exit`, too.
                if !coroner_capture::exception::is_reported_as_fatal() {
                    coroner.inner.scope.note_exit(ExitKind::CLEAN);
                }
                coroner.inner.deliverer.end();
            }
        }
        // SAFETY: registers a function without arguments that does not unwind. Where no more can be registered, clean exits
        // count as unexplained ends.
        unsafe { libc::atexit(at_exit) };
    });
}

impl Coroner {
    /// This process's run.
    pub fn run_id(&self) -> Id {
        self.inner.run
    }

    /// The store's directory.
    pub fn store_dir(&self) -> &std::path::Path {
        &self.inner.store
    }

    /// How the last run ended. The first call waits until the delivery thread has looked, if it is at it, which is a matter
    /// of milliseconds.
    pub fn last_run(&self) -> LastRun {
        self.inner.deliverer.last_run()
    }

    /// Delivers what is in the store, and waits for it, at most `timeout`. Says whether nothing is left to deliver.
    ///
    /// For apps that end soon, and for those that deliver at a time of their own choice
    /// ([`Config::deliver_at_install`](crate::Config::deliver_at_install)).
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.deliverer.flush(timeout)
    }

    /// Notes that the app has ended well, for apps that then leave otherwise than by `exit` or the end of `main`: by `_exit`,
    /// `quick_exit`, or by being killed by their system, as mobile apps are.
    pub fn mark_clean_exit(&self) {
        self.inner.scope.note_exit(ExitKind::CLEAN);
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
            let watchdog = self.inner.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(watchdog) = watchdog {
                watchdog.stop();
            }
            self.inner.scope.note_exit(ExitKind::UNINSTALLED);
            Scope::deactivate();
            crate::panic::uninstall();
            coroner_capture::uninstall();
            *installed = None;
        }
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
