//! Installs Coroner into the running process, step by step.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coroner_process::secure_execution::is_secure;
use coroner_report::model::Id;

#[cfg(all(supported, feature = "exceptions"))]
use crate::config::Exceptions;
use crate::config::{Config, Crashes};
use crate::data_dir::default_store_dir;
use crate::delivery::Deliverer;
use crate::hang::Watchdog;
use crate::install_error::InstallError;
use crate::installed::{Coroner, Inner, activate_delivery, after_fork, lock_installed};
use crate::last_run::{LastRun, app_number};
use crate::outcome::Outcome;
#[cfg(all(supported, feature = "exceptions"))]
use crate::own_run;
#[cfg(feature = "panics")]
use crate::panic;
#[cfg(all(supported, target_vendor = "apple"))]
use crate::run_id_stack::thread::RunIdThread;
use crate::scope::{Scope, set_before_breadcrumb};
#[cfg(supported)]
use crate::signal_watch;
use crate::sink::{FolderSink, Sink};
use crate::store::{REPORTS, Store};
use crate::system::capture::{self, InstallOptions, SignalSet};
use crate::system_report::SystemReport;
use crate::system_report::hand_over::hand_over;
use crate::{device_state, exit_handler, facts, system, vitals};

/// Time after install within which a crash is a crash at the start.
///
/// Such a crash may happen again at each launch before a background thread has sent its report. The
/// report is therefore delivered before install returns, within [`MAX_START`] (develop.sentry.dev,
/// *Start-up crash detection*).
const STARTUP: Duration = Duration::from_secs(2);
/// Maximum time that install waits for the delivery of a crash at the start.
const MAX_START: Duration = Duration::from_secs(5);
/// Time after which install stores no further waiting reports.
const MAX_INTAKE: Duration = Duration::from_millis(4);

/// Installs Coroner: from now on, a crash of this process leaves a report in the store.
///
/// Call it once, as early in `main` as possible. It takes well under a millisecond. It starts a
/// thread only if an earlier run left something to deliver, or a sink follows runs; that thread
/// ends when its work is done. With [`Config::hang_threshold`] there is also a watchdog thread, and
/// with [`Crashes::reinstall_handlers`] one that checks the signals.
///
/// Sinks that store reports early ([`Sink::store_early`]) get waiting reports before install
/// returns, which takes a few milliseconds, so that even a short launch stores them. If ten
/// launches were too short to finish a report, the next one waits for it, at most a tenth of a
/// second. If the last run crashed within two seconds of its install, install waits until that
/// report is delivered, at most five seconds.
///
/// ```no_run
/// let config = coroner::Config::new("com.example.paint").version(env!("CARGO_PKG_VERSION"));
/// let coroner = coroner::install(config)?;
/// println!("the last run {}", coroner.last_run().outcome);
/// # Ok::<(), coroner::InstallError>(())
/// ```
///
/// # Errors
/// See [`InstallError`]. The process is then unchanged.
pub fn install(mut config: Config) -> Result<Coroner, InstallError> {
    let mut installed = lock_installed();
    if installed.is_some() {
        return Err(InstallError::AlreadyInstalled);
    }
    let reserve = Reserve::take()?;
    let (store, count) = open_store(&config)?;
    let began = SystemTime::now();
    let run = begin_run(&store, &config)?;
    drop(reserve);
    write_facts(&run, &store, &config);
    let scope = begin_scope(&run, &config);
    #[cfg(feature = "panics")]
    if config.exceptions.panics {
        panic::install(config.exceptions.panic_policy);
    }
    let sinks = open_sinks(&store, &config);
    let watchdog = config.hang_threshold.filter(|_| cfg!(supported));
    let watchdog = watchdog.and_then(|threshold| Watchdog::start(threshold, run.state));
    let id = Id(run.id);
    #[cfg(all(supported, target_vendor = "apple"))]
    let run_id_thread = config.run_id_thread.then(|| RunIdThread::start(id)).flatten();

    // The store contains the directory `runs` and, if files are reused, contained `clean`, so the
    // count is reliable.
    let is_alone = count == Some(0) && run.previous.is_some() && config.system_reports.is_empty();
    put_system_reports(&store, id, std::mem::take(&mut config.system_reports));
    let pending = !is_alone && store.has_other_runs(id);
    let at_install = config.delivery.at_install;
    let hurry = at_install && pending && store.crashed_within(STARTUP, id);
    let Previous { last_run, is_noted } = note_previous(&run, &store, app_number(&config.app), pending);
    if last_run.is_some() {
        scope.set_clean_exit_noted(is_noted);
    }

    let deliverer = Deliverer::new(store, id, sinks, &config).announcing(run.state).after(last_run, pending);
    let deliverer = Arc::new(deliverer);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
    hold_locks_over_forks();
    let inner = Inner {
        run: id,
        limits: run.limits,
        is_on_disk: !run.limits.in_memory,
        scope,
        thread: activate_delivery(&deliverer, &run, at_install),
        deliverer,
        keeps: AtomicBool::new(false),
        notes_end: (!is_noted && !pending).then_some(began),
        watchdog: Mutex::new(watchdog),
        #[cfg(supported)]
        signal_watch: Mutex::new(config.crashes.reinstall_handlers.then(signal_watch::start).flatten()),
        #[cfg(all(supported, target_vendor = "apple"))]
        run_id_thread: Mutex::new(run_id_thread),
    };
    let coroner = Coroner { inner: Arc::new(inner) };
    *installed = Some(coroner.clone());
    drop(installed);
    exit_handler::register();
    if at_install {
        deliver(&coroner, pending, hurry);
    }
    Ok(coroner)
}

/// Memory for what install allocates piece by piece, so that it is there.
///
/// The standard library ends a process that can't allocate. The crash path's mappings, which are
/// made while this is held, return an error instead.
struct Reserve(#[allow(dead_code, reason = "held until it is dropped")] [Vec<u8>; Reserve::PIECES]);

impl Reserve {
    const PIECES: usize = 16;
    /// Bytes of a piece: small enough for the heap to grow, instead of a mapping of its own.
    const PIECE: usize = 64 << 10;

    fn take() -> Result<Reserve, InstallError> {
        let mut pieces = [const { Vec::new() }; Reserve::PIECES];
        for piece in &mut pieces {
            piece.try_reserve_exact(Reserve::PIECE).map_err(|_| InstallError::NoMemory)?;
        }
        Ok(Reserve(pieces))
    }
}

/// Opens the store. Also returns the number of runs in it, if known.
fn open_store(config: &Config) -> Result<(Store, Option<u64>), InstallError> {
    let directory = match &config.store_dir {
        Some(directory) => directory.clone(),
        None => default_store_dir(&config.app).ok_or(InstallError::NoStoreDirectory)?,
    };
    // Absolute, because a crash opens further reports by this path, and the app may change its
    // working directory.
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    Store::open_with_runs(&directory).map_err(InstallError::Store)
}

/// Begins the run. From now on, a crash is reported.
fn begin_run(store: &Store, config: &Config) -> Result<capture::Run, InstallError> {
    let options = install_options(config);
    let run = system::begin_run(store.path(), &options)?;
    #[cfg(all(feature = "exceptions", supported))]
    report_exceptions(&config.exceptions, options.deadline_ms);
    if config.keep_output {
        capture::keep_output();
    }
    for sentence in run.limits.sentences() {
        log::warn!("coroner: {sentence}");
    }
    Ok(run)
}

/// Returns the options for the crash path.
fn install_options(config: &Config) -> InstallOptions {
    // Destructured without `..`, so that no option is left out.
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

/// Returns the signals to record, without SIGINT if the process contains an uninitialized Python.
///
/// Python handles SIGINT only if the signal has its default action. Otherwise Ctrl-C would
/// terminate the process instead of raising `KeyboardInterrupt`.
#[cfg(unix)]
fn leaving_interrupt_to_python(endings: SignalSet) -> SignalSet {
    // SAFETY: the name ends with a NUL. The function is Python's `int Py_IsInitialized(void)`,
    // which may be called at any time.
    let is_waiting = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr());
        !found.is_null() && std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::c_int>(found)() == 0
    };
    if is_waiting { endings.without(libc::SIGINT) } else { endings }
}

/// Returns the signals unchanged, because none is recorded on this system.
#[cfg(not(unix))]
fn leaving_interrupt_to_python(endings: SignalSet) -> SignalSet {
    endings
}

/// Installs the handlers for uncaught C++ and Objective-C exceptions and for their throws' stacks.
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
            "coroner: can't record the stacks of C++ throws: the C++ runtime is linked into this program with its own \
             __cxa_throw (build with the feature wrap-cxa-throw and link with -Wl,--wrap=__cxa_throw,--wrap=__cxa_rethrow)"
        );
    }
}

/// Records the facts that can't be queried when the process dies.
fn write_facts(run: &capture::Run, store: &Store, config: &Config) {
    let (release_of_client, environment_of_client) = read_sentry_client();
    let release = config.release.clone().or_else(|| sentry_variable("SENTRY_RELEASE")).or(release_of_client);
    let environment = config.environment.clone().or_else(|| sentry_variable("SENTRY_ENVIRONMENT"));
    let environment = environment.or(environment_of_client);
    let app = facts::App {
        id: &config.app,
        version: config.version.as_deref(),
        release: release.as_deref(),
        dist: config.dist.as_deref(),
        environment: environment.as_deref(),
    };
    facts::write(run, &app);
    if run.previous.is_none() {
        device_state::note_storage(&run.state, store.path());
        vitals::note(&run.state);
    }
    vitals::begin();
}

/// Returns Sentry's environment variable `name`, which applies if the app doesn't set the value.
fn sentry_variable(name: &str) -> Option<String> {
    let value = if cfg!(feature = "sentry") { std::env::var(name).ok() } else { None };
    value.filter(|value| !value.is_empty() && !is_secure())
}

/// Returns the release and the environment of the `sentry` crate's client.
fn read_sentry_client() -> (Option<String>, Option<String>) {
    #[cfg(feature = "sentry-client")]
    return crate::sink::client_release_and_environment();
    #[cfg(not(feature = "sentry-client"))]
    (None, None)
}

/// Begins the run's session and its scope.
fn begin_scope(run: &capture::Run, config: &Config) -> Scope {
    let scope = Scope::new(run.state);
    scope.begin_session(Id(run.id));
    scope.activate(|| matches!(after_fork(), Ok(true)));
    set_before_breadcrumb(config.before_breadcrumb.as_ref().map(|hook| Arc::clone(&hook.0)));
    scope
}

/// Opens the app's sinks, or the default one.
fn open_sinks(store: &Store, config: &Config) -> Vec<Arc<dyn Sink>> {
    let sinks: Vec<Arc<dyn Sink>> = match &config.sinks {
        Some(sinks) => sinks.clone(),
        None => vec![Arc::new(FolderSink::new(store.path().join(REPORTS)))],
    };
    sinks.iter().for_each(|sink| sink.opened(store.path()));
    #[cfg(feature = "sentry-client")]
    crate::sink::note_sentry_sink(
        config.exceptions.panics && sinks.iter().any(|sink| sink.name().starts_with("sentry")),
    );
    sinks
}

/// Adds the system's records to the runs that they describe.
fn put_system_reports(store: &Store, own: Id, reports: Vec<SystemReport>) {
    if !reports.is_empty()
        && let Err(error) = hand_over(store, own, reports)
    {
        log::warn!("coroner: can't add the system's records to earlier runs: {error}");
    }
}

/// The previous run whose files this one reuses.
#[derive(Default)]
struct Previous {
    /// The previous run, if it was one of this app.
    last_run: Option<LastRun>,
    /// Whether the store already records a clean exit, so that this run need not record one again.
    is_noted: bool,
}

/// Records the clean exit of the run whose files this one reuses.
fn note_previous(run: &capture::Run, store: &Store, app: u64, pending: bool) -> Previous {
    let Some(clean) = &run.previous else { return Previous::default() };
    let began = (clean.began > 0).then(|| UNIX_EPOCH + Duration::from_nanos(clean.began));
    let last = LastRun { outcome: Outcome::CleanExit, run: Some(Id(clean.id)), began, ..LastRun::FIRST_LAUNCH };
    if clean.app != app {
        // The files belonged to another app that shares this store, so this was that app's last
        // run.
        if !clean.is_noted
            && let Err(error) = last.write_in_place(store.path(), clean.app)
        {
            log::warn!("coroner: can't record the end of another app's run: {error}");
        }
        return Previous::default();
    }
    // Another process of the app that starts while this one runs finds neither the previous run nor
    // its files, and needs the record. If every run since the last record ended cleanly, that
    // record is still valid.
    let is_noted = clean.is_noted && !pending;
    let is_noted = is_noted || last.write_in_place(store.path(), app).is_ok() && !pending;
    Previous { last_run: Some(last), is_noted }
}

/// Registers this crate's locks to be held across forks.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
fn hold_locks_over_forks() {
    use crate::fork_locks::{Around, MAX_TRIES, MAX_TRIES_OF_APP, hold_over_forks};
    use crate::{backtrace, installed, scope, signal_owners};

    #[cfg(all(supported, not(target_vendor = "apple")))]
    let around = {
        use crate::child_watch::{begin, forget, settle_master};
        Around { before: settle_master, in_parent: begin, in_child: forget }
    };
    #[cfg(not(all(supported, not(target_vendor = "apple"))))]
    let around = Around { before: || {}, in_parent: || {}, in_child: || {} };
    hold_over_forks(
        [
            (&installed::INSTALLED, MAX_TRIES_OF_APP),
            (&scope::CHANGE, MAX_TRIES_OF_APP),
            (&scope::FLAGS, MAX_TRIES),
            (&signal_owners::TAKEN, MAX_TRIES),
            (&backtrace::images::IN_APP, MAX_TRIES),
        ],
        around,
    );
}

/// Runs the first step of delivery, and starts the delivery thread if work is left for it.
///
/// With `hurry`, after a crash at the start of the last run, it waits until that report is
/// delivered.
fn deliver(coroner: &Coroner, pending: bool, hurry: bool) {
    let Inner { deliverer, thread, .. } = &*coroner.inner;
    let (mut unstored, mut waits) = (false, None);
    let mut left = deliverer.follows_runs();
    if pending {
        let intake = deliverer.intake(Instant::now() + MAX_INTAKE);
        left |= intake.left;
        (unstored, waits) = (intake.unstored, intake.waits);
    }
    if left {
        thread.start();
    }
    if let Some(time) = waits {
        thread.wait(time);
    }
    if hurry && unstored {
        let begin = Instant::now();
        if !coroner.flush(MAX_START) {
            let waited = begin.elapsed();
            log::warn!("coroner: the report of a crash at the start is still undelivered after {waited:.1?}");
        }
        // The wait doesn't count as running time, so that a crash right after it also counts as one
        // at the start.
        capture::begin_anew();
    }
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported.
///
/// Only needed for threads that did not get one automatically: with
/// [`AlternateStacks::Everywhere`](crate::AlternateStacks::Everywhere), all threads created by Rust
/// or by `pthread_create` have one.
///
/// # Errors
/// The system's error if there is no memory, or if the thread runs on its alternate stack.
pub fn attach_current_thread() -> std::io::Result<()> {
    #[cfg(supported)]
    return coroner_capture::attach_current_thread().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
    #[cfg(not(supported))]
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Passes this thread's next signal with this number to the earlier handlers.
///
/// No report is written for it. For a managed runtime that is about to raise the signal on purpose.
/// Returns `false` if Coroner is not installed, or if 64 other threads have requested this.
pub fn ignore_next_signal(signal: i32) -> bool {
    crate::system::capture::ignore_next_signal(signal)
}
