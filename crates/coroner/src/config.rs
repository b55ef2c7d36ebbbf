//! What an app decides before [`install`](crate::install).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coroner_capture::{AlternateStacks, ForkPolicy, SignalSet};
use coroner_report::model::Report;

use crate::last_run::LastRun;
use crate::panic::PanicPolicy;
use crate::sink::Sink;
use crate::store::Limits;

/// Sees each report before the sinks do: changes it, or drops it with `None`.
pub(crate) type BeforeDeliver = dyn Fn(Report) -> Option<Report> + Send + Sync;
/// Gives the text to stand in the place of one, which stands under a key.
pub(crate) type Scrub = dyn Fn(&str, &str) -> Option<String> + Send + Sync;
/// Is called if the last run crashed.
pub(crate) type OnCrashedLastRun = dyn FnOnce(&LastRun) + Send;

/// What an app decides. Only the app's name has no default.
///
/// ```
/// use coroner::{Config, FolderSink};
///
/// let config = Config::new("com.example.paint")
///     .version("2.1.0")
///     .environment("beta")
///     .sink(FolderSink::new("/var/crash/paint"))
///     .before_deliver(|report| Some(report));
/// ```
#[must_use = "a configuration does nothing until it is given to `install`"]
pub struct Config {
    pub(crate) app: String,
    pub(crate) version: Option<String>,
    pub(crate) environment: Option<String>,
    pub(crate) release: Option<String>,
    pub(crate) dist: Option<String>,
    pub(crate) store_dir: Option<PathBuf>,
    /// `None`: the default folder sink.
    pub(crate) sinks: Option<Vec<Arc<dyn Sink>>>,
    pub(crate) signals: SignalSet,
    pub(crate) watch_sigterm: bool,
    pub(crate) chain_first: bool,
    pub(crate) reinstall_handlers: bool,
    pub(crate) fork: ForkPolicy,
    pub(crate) panics: bool,
    pub(crate) panic_policy: PanicPolicy,
    pub(crate) cpp_exceptions: bool,
    pub(crate) objc_exceptions: bool,
    pub(crate) appkit_exceptions: bool,
    pub(crate) alternate_stacks: AlternateStacks,
    pub(crate) all_threads: bool,
    pub(crate) stack_memory: u32,
    pub(crate) symbol_names: bool,
    pub(crate) deadline: Duration,
    pub(crate) hang_threshold: Option<Duration>,
    pub(crate) limits: Limits,
    pub(crate) attempts: u32,
    pub(crate) symbolicate: bool,
    pub(crate) deliver_at_install: bool,
    pub(crate) scrub_secrets: bool,
    pub(crate) scrub: Option<Arc<Scrub>>,
    pub(crate) before_deliver: Option<Arc<BeforeDeliver>>,
    pub(crate) on_crashed_last_run: Option<Box<OnCrashedLastRun>>,
}

impl Config {
    /// The defaults for the app `app`: its name or, better, its identifier, such as `com.example.paint`. It names the
    /// default store, so it should stay the same from version to version.
    pub fn new(app: impl Into<String>) -> Self {
        Self {
            app: app.into(),
            version: None,
            environment: None,
            release: None,
            dist: None,
            store_dir: None,
            sinks: None,
            signals: SignalSet::CRASHES,
            watch_sigterm: true,
            chain_first: false,
            reinstall_handlers: false,
            fork: ForkPolicy::default(),
            panics: true,
            panic_policy: PanicPolicy::default(),
            cpp_exceptions: true,
            objc_exceptions: true,
            appkit_exceptions: false,
            alternate_stacks: AlternateStacks::default(),
            all_threads: true,
            stack_memory: 2048,
            symbol_names: cfg!(target_vendor = "apple"),
            deadline: Duration::from_secs(5),
            hang_threshold: None,
            limits: Limits::default(),
            attempts: 3,
            symbolicate: true,
            deliver_at_install: true,
            scrub_secrets: true,
            scrub: None,
            before_deliver: None,
            on_crashed_last_run: None,
        }
    }

    /// The app's version, such as `env!("CARGO_PKG_VERSION")`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Where the app runs, such as `production` or `beta`.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = Some(environment.into());
        self
    }

    /// The release, by which servers distinguish versions of an app. Default: the app's name and version, as in
    /// `com.example.paint@2.1.0`.
    pub fn release(mut self, release: impl Into<String>) -> Self {
        self.release = Some(release.into());
        self
    }

    /// The distribution: one of several builds of a release.
    pub fn dist(mut self, dist: impl Into<String>) -> Self {
        self.dist = Some(dist.into());
        self
    }

    /// The directory of the store, made at install for its owner only. All processes of one app may share it; two apps may
    /// not.
    ///
    /// Default ([`default_store_dir`](crate::default_store_dir)): `$STATE_DIRECTORY/<app>/coroner` in a service,
    /// `~/.local/state/<app>/coroner` or for root `/var/lib/<app>/coroner` on Linux,
    /// `~/Library/Application Support/<app>/Coroner` on macOS and iOS. On Android it must be given: a directory below
    /// `Context.getFilesDir()`.
    pub fn store_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.store_dir = Some(directory.into());
        self
    }

    /// Adds a sink. With the first, the default (a [`FolderSink`](crate::FolderSink) on `reports` in the store) is no longer
    /// there.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.get_or_insert_with(Vec::new).push(Arc::new(sink));
        self
    }

    /// Takes away all sinks, the default one too: reports stay in the store, within the [`limits`](Self::limits).
    pub fn no_sinks(mut self) -> Self {
        self.sinks = Some(Vec::new());
        self
    }

    /// The signals that are crashes. Default: [`SignalSet::CRASHES`] (SEGV, BUS, ILL, FPE, ABRT, TRAP, SYS).
    pub fn signals(mut self, signals: SignalSet) -> Self {
        self.signals = signals;
        self
    }

    /// Whether a SIGTERM is noted, so that the run's outcome is [`Outcome::Terminated`](crate::Outcome::Terminated) and not
    /// an unexplained end. It is not a crash, and ends the process as it would have. Default: yes.
    pub fn watch_sigterm(mut self, watch: bool) -> Self {
        self.watch_sigterm = watch;
        self
    }

    /// Whether the handlers that were installed before are asked first about every fault, and a crash is reported only if they don't
    /// take it. Default: no. Faults of code that a runtime compiled while the app runs (JVM, .NET, Node, wasmtime), of Go code, and
    /// system calls that a seccomp filter traps are left to their handlers without this: it is for code that a runtime compiled ahead of
    /// time. `docs/neighbours.md` says what order is best for which app.
    pub fn chain_first(mut self, chain_first: bool) -> Self {
        self.chain_first = chain_first;
        self
    }

    /// Whether a crash signal that another handler has taken after the install, without calling Coroner's, is taken back; that handler
    /// is called after the report. Coroner looks when it delivers and when a breadcrumb is left, at most once a second, and logs in
    /// any case who has the signal. Default: no.
    pub fn reinstall_handlers(mut self, reinstall_handlers: bool) -> Self {
        self.reinstall_handlers = reinstall_handlers;
        self
    }

    /// Whether panics of Rust are taken in: those that end the process or a thread are reported with message, place and stack,
    /// those that the app catches become breadcrumbs. The panic hook that was there before is still called. Default: yes.
    pub fn panics(mut self, panics: bool) -> Self {
        self.panics = panics;
        self
    }

    /// Which panics are reported: those that nobody catches, or all. Default: [`PanicPolicy::UncaughtOnly`].
    pub fn panic_policy(mut self, policy: PanicPolicy) -> Self {
        self.panic_policy = policy;
        self
    }

    /// Whether C++ exceptions that nobody catches are reported with type, message and causes. The stack of the throw is there
    /// where the feature `interpose-cxa-throw` or `wrap-cxa-throw` is on. The terminate handler that was there before is still
    /// called. Default: yes.
    pub fn cpp_exceptions(mut self, cpp_exceptions: bool) -> Self {
        self.cpp_exceptions = cpp_exceptions;
        self
    }

    /// Whether Objective-C exceptions that nobody catches are reported with name, reason, user info and the stack of the throw
    /// (macOS, iOS). The handler that was there before is still called. Default: yes.
    pub fn objc_exceptions(mut self, objc_exceptions: bool) -> Self {
        self.objc_exceptions = objc_exceptions;
        self
    }

    /// Whether exceptions that AppKit catches and only logs (`-[NSApplication reportException:]`) are reported, as ones that the
    /// process survives (macOS). It replaces that method by one that reports and goes on in it. Default: no.
    pub fn appkit_exceptions(mut self, appkit_exceptions: bool) -> Self {
        self.appkit_exceptions = appkit_exceptions;
        self
    }

    /// What a crash of a child made by `fork` does. Default: it is reported, under a run of its own.
    pub fn fork(mut self, policy: ForkPolicy) -> Self {
        self.fork = policy;
        self
    }

    /// Which threads get an alternate signal stack, without which a stack overflow can't be reported. Default: all.
    pub fn alternate_stacks(mut self, stacks: AlternateStacks) -> Self {
        self.alternate_stacks = stacks;
        self
    }

    /// Whether all threads are in a report, or only the crashed one. Default: all.
    pub fn all_threads(mut self, all: bool) -> Self {
        self.all_threads = all;
        self
    }

    /// How many bytes of the crashed thread's stack, from its stack pointer up, are in a report. They may hold what users
    /// typed. Default: 2048; 0 for none.
    pub fn stack_memory(mut self, bytes: u32) -> Self {
        self.stack_memory = bytes;
        self
    }

    /// Whether the dying process looks up names for the report's addresses in its own images, when everything else is on disk.
    /// They are used where no symbol file is found at the next launch or at a server: for the system's libraries, above all.
    /// It takes milliseconds, and longer in a large program. Default: only on Apple's systems, whose libraries have their
    /// symbols nowhere but in memory.
    pub fn symbol_names(mut self, names: bool) -> Self {
        self.symbol_names = names;
        self
    }

    /// How long writing a report may take before the process is ended with what there is. Default: 5 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// After what time a watched thread that does not answer hangs; at least 50 ms, and on phones 2 s are usual. Threads are watched
    /// that have a [`HangWatch`](crate::HangWatch), and on Apple's systems the main thread, where it works through its run loop
    /// or the main queue. Default: `None`, nothing is watched, and there is no thread for it.
    ///
    /// A hang is reported once, with the stacks of all threads at that time; the app goes on, and what the report says of its length is
    /// what it was at its end. If the process is ended while it hangs, the next launch finds that out: the run's outcome is
    /// [`Outcome::Hung`](crate::Outcome::Hung). Sixteen hangs of a run are reported.
    pub fn hang_threshold(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.hang_threshold = threshold.into();
        self
    }

    /// How many reports, and runs without one, the store keeps of those that can't be delivered, how old, and how large together.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How many times the processing of one run may end in a crash or a panic (of a sink, of a hook, of Coroner) before the run is
    /// set aside in `broken` in the store. A kill, or a crash of another thread meanwhile, does not count. At least 1. Default: 3.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Whether function names, files and lines are looked up on this machine, at the next launch. Default: yes. A server that
    /// has the app's debug files can do it as well, and reports are then a little smaller.
    pub fn symbolicate(mut self, symbolicate: bool) -> Self {
        self.symbolicate = symbolicate;
        self
    }

    /// Whether reports of earlier runs are delivered right from install on, in the background. Default: yes; if not, nothing
    /// leaves the store before [`Coroner::flush`](crate::Coroner::flush).
    pub fn deliver_at_install(mut self, deliver: bool) -> Self {
        self.deliver_at_install = deliver;
        self
    }

    /// Whether what is surely a secret by its form is hidden in texts of the app before the sinks get a report: see
    /// [`hide_secrets`](crate::hide_secrets). Default: yes.
    pub fn scrub_secrets(mut self, scrub: bool) -> Self {
        self.scrub_secrets = scrub;
        self
    }

    /// A function that gives the text to stand in the place of one that the app or a library wrote (tags, user, contexts, extra,
    /// breadcrumbs, messages), and `None` for those that may stay. Its first argument is the key under which the text stands, such as
    /// the tag's, or empty. It comes after [`scrub_secrets`](Self::scrub_secrets), at the next launch, before [`before_deliver`](Self::before_deliver).
    pub fn scrub(mut self, scrub: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.scrub = Some(Arc::new(scrub));
        self
    }

    /// A function that sees each report before the sinks: it may change it, or drop it with `None`. It runs at the next
    /// launch, in a healthy process: in install with what a sink stores early ([`Sink::store_early`](crate::Sink::store_early)), and
    /// on the delivery thread with names.
    pub fn before_deliver(mut self, hook: impl Fn(Report) -> Option<Report> + Send + Sync + 'static) -> Self {
        self.before_deliver = Some(Arc::new(hook));
        self
    }

    /// A function that is called, on the delivery thread, when the last run crashed and the app has not been notified yet.
    pub fn on_crashed_last_run(mut self, hook: impl FnOnce(&LastRun) + Send + 'static) -> Self {
        self.on_crashed_last_run = Some(Box::new(hook));
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Config")
            .field("app", &self.app)
            .field("version", &self.version)
            .field("environment", &self.environment)
            .field("store_dir", &self.store_dir)
            .field("sinks", &self.sinks)
            .field("signals", &self.signals)
            .field("chain_first", &self.chain_first)
            .field("reinstall_handlers", &self.reinstall_handlers)
            .field("fork", &self.fork)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
