//! What an app decides before [`install`](crate::install).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::system::capture::{AlternateStacks, ForkPolicy, InstallOptions, SignalSet};
use coroner_report::model::Report;

use crate::last_run::LastRun;
use crate::naming::NamingBudget;
use crate::scope::{BeforeBreadcrumb, Breadcrumb};
use crate::sink::Sink;
use crate::store::Limits;
use crate::system_report::SystemReport;

/// Sees each report before the sinks do: changes it, or drops it with `None`.
pub(crate) type BeforeDeliver = dyn Fn(Report) -> Option<Report> + Send + Sync;
/// Gives the text to stand in the place of one, which stands under a key.
pub(crate) type Scrub = dyn Fn(&str, &str) -> Option<String> + Send + Sync;
/// Is called if the last run crashed.
pub(crate) type OnCrashedLastRun = dyn FnOnce(&LastRun) + Send;

/// Which panics are reported, and not only left as breadcrumbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PanicPolicy {
    /// Those that nobody catches: they end the process or a thread.
    #[default]
    UncaughtOnly,
    /// Those that are caught, too, as reports that the process survives
    /// ([`Config::reports_per_hour`](crate::Config::reports_per_hour)): a server's handlers under a runtime that
    /// catches their panics, as tokio does.
    All,
}

/// Declares [`Config`]: the fields that have methods of their own, the texts, the options of crash time, which [`InstallOptions`] has with
/// their defaults, and the other options that one value sets. An option stands once, with what it is, its type and its default.
macro_rules! config {
    (
        $(#[$doc:meta])*
        fields { $($(#[$field_doc:meta])* $field:ident: $field_type:ty = $initial:expr,)* }
        texts { $($(#[$text_doc:meta])* $text:ident,)* }
        capture { $($(#[$capture_doc:meta])* $capture:ident: $capture_type:ty,)* }
        options { $($(#[$option_doc:meta])* $option:ident: $type:ty = $default:expr,)* }
    ) => {
        $(#[$doc])*
        // Without a feature its options are without effect.
        #[cfg_attr(not(all(feature = "exceptions", feature = "panics")), allow(dead_code))]
        pub struct Config {
            pub(crate) app: String,
            $($(#[$field_doc])* pub(crate) $field: $field_type,)*
            $(pub(crate) $text: Option<String>,)*
            $(pub(crate) $option: $type,)*
        }

        impl Config {
            /// The defaults for the app `app`: its name or, better, its identifier, such as `com.example.paint`. It names the
            /// default store, so it should stay the same from version to version.
            pub fn new(app: impl Into<String>) -> Self {
                Self { app: app.into(), $($field: $initial,)* $($text: None,)* $($option: $default,)* }
            }

            $($(#[$text_doc])* pub fn $text(mut self, $text: impl Into<String>) -> Self {
                self.$text = Some($text.into());
                self
            })*

            $($(#[$capture_doc])* pub fn $capture(mut self, $capture: $capture_type) -> Self {
                self.capture.$capture = $capture;
                self
            })*

            $($(#[$option_doc])* pub fn $option(mut self, $option: $type) -> Self {
                self.$option = $option;
                self
            })*
        }
    };
}

config! {
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
    fields {
        capture: InstallOptions =
            InstallOptions { symbol_names: cfg!(target_vendor = "apple"), ..InstallOptions::DEFAULT },
        store_dir: Option<PathBuf> = None,
        /// `None`: the default folder sink.
        sinks: Option<Vec<Arc<dyn Sink>>> = None,
        hang_threshold: Option<Duration> = None,
        attempts: u32 = 3,
        scrub: Option<Arc<Scrub>> = None,
        before_deliver: Option<Arc<BeforeDeliver>> = None,
        before_breadcrumb: Option<Arc<BeforeBreadcrumb>> = None,
        on_crashed_last_run: Option<Box<OnCrashedLastRun>> = None,
        system_reports: Vec<SystemReport> = Vec::new(),
    }
    texts {
        /// The app's version, such as `env!("CARGO_PKG_VERSION")`.
        version,
        /// Where the app runs, such as `production` or `beta`.
        environment,
        /// The release, by which servers distinguish versions of an app. Default: the app's name and version, as in
        /// `com.example.paint@2.1.0`.
        release,
        /// The distribution: one of several builds of a release.
        dist,
    }
    capture {
        /// The signals that are crashes. Default: [`SignalSet::CRASHES`] (SEGV, BUS, ILL, FPE, ABRT, TRAP, SYS).
        signals: SignalSet,
        /// The signals that are noted when they end the process, so that the run's outcome is
        /// [`Outcome::Terminated`](crate::Outcome::Terminated) (SIGTERM) or [`Outcome::EndedBySignal`](crate::Outcome::EndedBySignal), and not an
        /// unexplained end. They are no crashes, and end the process as they would have; a signal that is ignored, or has a handler, at install is
        /// left alone. Default: [`SignalSet::ENDINGS`] (TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU, XFSZ, USR1, USR2), without INT where Python is in the process and
        /// not initialised: it takes Ctrl-C only where nobody else has.
        endings: SignalSet,
        /// Whether the handlers that were installed before are asked first about every fault, and a crash is reported only if they don't
        /// take it. Default: no. Faults of code that a runtime compiled while the app runs (JVM, .NET, Node, wasmtime), of Go code, and
        /// system calls that a seccomp filter traps are left to their handlers without this: it is for code that a runtime compiled ahead of
        /// time. `docs/neighbours.md` says what order is best for which app.
        chain_first: bool,
        /// Whether a crash signal that another handler has taken after the install, without calling Coroner's, is taken back; that handler
        /// is called after the report. Coroner looks when it delivers and when a breadcrumb is left, at most once a second, and logs in
        /// any case who has the signal. Default: no.
        reinstall_handlers: bool,
        /// What a crash of a child made by `fork` does. Default: it is reported, under a run of its own.
        fork: ForkPolicy,
        /// Which threads get an alternate signal stack, without which a stack overflow can't be reported. Default: all.
        alternate_stacks: AlternateStacks,
        /// Whether all threads are in a report, or only the crashed one. Default: all.
        all_threads: bool,
        /// How many bytes of the crashed thread's stack, from its stack pointer up, are in a report. With them come 256 to 512 bytes around each
        /// address that is in one of its registers. They may hold what users typed. Default: 2048; 0 for neither.
        stack_memory: u32,
        /// Whether the used parts of all threads' stacks are in a report, so that a debugger or `minidump-stackwalk` can walk a minidump
        /// made of it as far as the report's own frames go: 64 KiB of the crashed thread, 16 KiB of each other, 448 KiB of the others together.
        /// They may hold what users typed. The reserved file is larger by 576 KiB. In the place of [`stack_memory`](Self::stack_memory).
        /// Default: no.
        stack_memory_all: bool,
        /// Whether the dying process looks up names for the report's addresses in its own images, when everything else is on disk.
        /// They are used where no symbol file is found at the next launch or at a server: for the system's libraries, above all.
        /// It takes milliseconds, and longer in a large program. Default: only on Apple's systems, whose libraries have their
        /// symbols nowhere but in memory.
        symbol_names: bool,
    }
    options {
        /// Whether panics of Rust are taken in: those that end the process or a thread are reported with message, place and stack,
        /// those that the app catches become breadcrumbs. The panic hook that was there before is still called. Default: yes. It needs the
        /// feature `panics`.
        panics: bool = true,
        /// Which panics are reported: those that nobody catches, or all. Default: [`PanicPolicy::UncaughtOnly`].
        panic_policy: PanicPolicy = PanicPolicy::default(),
        /// Whether C++ exceptions that nobody catches are reported with type, message and causes, and not as the abort that follows; it needs
        /// the feature `exceptions`. The stack of the throw is there
        /// where the feature `interpose-cxa-throw` or `wrap-cxa-throw` is on. The terminate handler that was there before is still
        /// called. Default: yes.
        cpp_exceptions: bool = true,
        /// Whether Objective-C exceptions that nobody catches are reported with name, reason, user info and the stack of the throw
        /// (macOS, iOS); it needs the feature `exceptions`. The handler that was there before is still called. Default: yes.
        objc_exceptions: bool = true,
        /// Whether exceptions that AppKit catches and only logs (`-[NSApplication reportException:]`) are reported, as ones that the
        /// process survives (macOS). It replaces that method by one that reports and goes on in it. Default: no.
        appkit_exceptions: bool = false,
        /// Whether Objective-C objects that are deallocated are remembered, by address and class, so that a report says of what class an object was
        /// that the crashed thread used after that, and which message was sent to it; and what the `NSException` said that was deallocated last (macOS, iOS). No
        /// object is kept. It replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException` by one that notes and goes on in it, and takes 576 KiB
        /// of memory; it needs the feature `exceptions`. Default: no.
        zombies: bool = false,
        /// Whether a thread is started whose stack says the run's id, so that what MetricKit, or the system's crash report, says of this process's death is
        /// known to be of this run (macOS, iOS): by the process id and the time it is known less well, and before iOS 17 and macOS 14 not at
        /// all. The thread waits for ever and costs some tens of KiB of memory; neither reports nor live backtraces have it. Default: no.
        run_id_thread: bool = false,
        /// How long writing a report may take before the process is ended with what there is. Default: 5 s.
        deadline: Duration = Duration::from_secs(5),
        /// How many reports, and runs without one, the store keeps of those that can't be delivered, how old, and how large together.
        limits: Limits = Limits::default(),
        /// Whether function names, files and lines are looked up on this machine, at the next launch. It needs the feature `symbolicate`. Default: yes. A server that
        /// has the app's debug files can do it as well, and reports are then a little smaller.
        symbolicate: bool = true,
        /// What naming one report may cost this app in memory and processor time. Default: 32 MiB and one second. What is left out, the
        /// report says, and `coroner show` adds.
        naming_budget: NamingBudget = NamingBudget::default(),
        /// Whether reports of earlier runs are delivered right from install on, in the background, and what this one survives within
        /// seconds. Default: yes; if not, nothing
        /// leaves the store before [`Coroner::flush`](crate::Coroner::flush).
        deliver_at_install: bool = true,
        /// How many reports of handled exceptions and of panics that the process survives it writes in an hour, as many of them at once;
        /// and as many of hangs. What is beyond is counted, and the next report says how many. Default: 16.
        reports_per_hour: u32 = 16,
        /// Whether the last 60 KiB that the process wrote to stderr and to stdout go with its reports, as attachments `stderr` and `stdout`, where
        /// those are regular files at install: a file is read again at the crash. Of a terminal, a pipe or a socket nothing is kept, since a pipe of
        /// Coroner's between could block or kill the app and its children. They may hold what users typed. What a C library or a runtime says there of its
        /// end (an assertion of musl or libc++) is the report's message. Default: no.
        keep_output: bool = false,
        /// Whether what is surely a secret by its form is hidden in texts of the app before the sinks get a report: see
        /// [`hide_secrets`](crate::hide_secrets). Default: yes.
        scrub_secrets: bool = true,
    }
}

impl Config {
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

    /// How many times the processing of one run may end in a crash or a panic (of a sink, of a hook, of Coroner) before the run is
    /// set aside in `broken` in the store. A kill, or a crash of another thread meanwhile, does not count. At least 1. Default: 3.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// What the system says of the death of an earlier process of the app, such as an [`ExitInfo`](crate::ExitInfo) of Android. It is
    /// joined with the report of that run and completes its outcome; a crash without a report becomes one. The same may be given at each
    /// launch.
    pub fn system_report(mut self, report: impl Into<SystemReport>) -> Self {
        self.system_reports.push(report.into());
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

    /// A function that sees each breadcrumb before it is kept, on the thread that leaves it: it may change it, or drop it with `None`.
    pub fn before_breadcrumb(
        mut self,
        hook: impl for<'a> Fn(Breadcrumb<'a>) -> Option<Breadcrumb<'a>> + Send + Sync + 'static,
    ) -> Self {
        self.before_breadcrumb = Some(Arc::new(hook));
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
            .field("signals", &self.capture.signals)
            .field("chain_first", &self.capture.chain_first)
            .field("reinstall_handlers", &self.capture.reinstall_handlers)
            .field("fork", &self.capture.fork)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
