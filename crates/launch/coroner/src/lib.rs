//! Records a crash with the stacks of all threads, and delivers the report at the next launch.
//!
//! ```no_run
//! let config = coroner::Config::new("com.example.paint").version(env!("CARGO_PKG_VERSION"));
//! match coroner::install(config) {
//!     Ok(coroner) => println!("the last run {}", coroner.last_run().outcome),
//!     Err(error) => eprintln!("crashes will not be reported: {error}"),
//! }
//! ```
//!
//! After [`install`], a crash of the process (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP,
//! SIGSYS) leaves a report in the [`Store`]. It contains all threads with their frames and
//! registers, the loaded images, and the data that the app recorded with [`set_tag`], [`set_user`],
//! [`set_context`] and [`add_breadcrumb`]. The process then dies as it would have without Coroner.
//!
//! At the next launch, `install` starts a thread that turns every ended run into a [`Report`],
//! looks up functions and lines, and passes the report to the [`Sink`]s. The default sink is a
//! folder with JSON files. [`Coroner::last_run`] returns how the last run ended, whether or not it
//! crashed.
//!
//! All code that runs at crash time is in the crate `coroner-capture`, none in this crate.
//!
//! # Systems
//! Linux, Android, macOS and iOS on x86_64 and arm64. On other systems (Windows, FreeBSD, 32-bit
//! Linux and others) faults are not caught ([`InstallLimits::no_faults`]). There Coroner reports
//! panics and handled errors with their thread's stack, and records how a run ended only as far as
//! the app reports it. On Windows on x86_64, the feature `windows-crashes` adds native crashes,
//! with the system's minidump (`docs/windows.md`).
#![deny(missing_docs)]
#![cfg_attr(
    not(supported),
    allow(dead_code, unused_imports, reason = "stacks are not walked and threads not watched on this system")
)]

mod app_memory;
mod background_thread;
pub mod backtrace;
mod bundle;
#[cfg(all(supported, not(target_vendor = "apple")))]
mod child_watch;
mod clock;
mod config;
mod crash_loop_guard;
mod data_dir;
mod delivery;
mod delivery_thread;
mod device_state;
mod exception;
mod exit_handler;
mod facts;
mod feedback;
mod foreign_exception;
mod fork_locks;
mod frame_text;
mod hang;
mod install;
mod install_error;
mod installed;
mod last_run;
mod level;
mod locked;
mod naming;
mod outcome;
mod own_report;
mod own_run;
#[cfg(feature = "panics")]
mod panic;
#[cfg(windows)]
mod process_end;
mod run_end;
mod run_id_stack;
mod run_reports;
mod scope;
#[cfg(supported)]
mod signal_owners;
#[cfg(supported)]
mod signal_watch;
mod sink;
mod store;
mod system;
mod system_report;
mod termination;
mod unwind_range;
mod vitals;

pub use app_memory::{CrashCallback, RegisterMemoryError, RegisteredMemory, register_memory, set_crash_callback};
pub use backtrace::Backtrace;
pub use config::{Config, Crashes, Delivery, Exceptions, Limits, PanicPolicy};
pub use coroner_capture::{AlternateStacks, ForkPolicy, InstallLimits};
/// Options and records of [`OtlpSink`].
#[cfg(feature = "otlp")]
pub use coroner_otlp as otlp;
pub use coroner_process::signal_set::SignalSet;
pub use coroner_report::model::{Id, Report, Termination, TerminationCertainty, TerminationReason, hide_secrets};
pub use coroner_report::reader::ReadError;
/// Events, envelopes, sessions and the outbox of [`SentrySink`].
#[cfg(feature = "sentry")]
pub use coroner_sentry as sentry;
pub use crash_loop_guard::StartupGuard;
pub use data_dir::default_store_dir;
pub use exception::{
    CodedError, HandledException, Language, ManagedException, report_coded_error, report_error, report_exception,
    report_managed_exception, report_uncaught_exception,
};
#[doc(hidden)]
pub use exception::{current_registers, report_coded_error_above, report_exception_above};
pub use feedback::Feedback;
#[doc(hidden)]
pub use foreign_exception::report_foreign_exception_above;
pub use foreign_exception::{ForeignException, ForeignFrame, report_foreign_exception};
pub use hang::{Busy, HangWatch};
pub use install::{attach_current_thread, ignore_next_signal, install};
pub use install_error::{CrashPathError, InstallError};
pub use installed::{Coroner, after_fork, feedback, installed};
pub use last_run::LastRun;
pub use level::Level;
pub use naming::NamingBudget;
#[cfg(feature = "symbolicate")]
pub use naming::SymbolSearch;
pub use outcome::Outcome;
pub use own_report::InvalidReport;
pub use scope::{
    Breadcrumb, Scope, ScopeError, User, add_attachment, add_breadcrumb, configure_scope, count_error,
    remove_attachment, remove_context, remove_extra, remove_tag, remove_trace, scope, set_context, set_environment,
    set_extra, set_fingerprint, set_flag, set_foreground, set_level, set_release, set_tag, set_trace, set_user,
};
#[cfg(feature = "otlp")]
pub use sink::OtlpSink;
#[cfg(feature = "sentry")]
pub use sink::SentrySink;
pub use sink::{BegunRun, FinishedRun, FolderSink, Sink, SinkAnswer, Submission};
#[cfg(feature = "sentry-client")]
pub use sink::{SentryClientSink, SentryIntegration, mirror_scope};
#[doc(hidden)]
pub use store::reread_progress;
pub use store::{RawRun, Retention, Store, StoreError, StoredRun};
#[doc(hidden)]
pub use system_report::complete_report;
pub use system_report::{ExitInfo, SystemEnd, SystemReport};
#[cfg(feature = "system-reports")]
pub use system_report::{MetricKitError, is_metric_kit, metric_kit_reports, read_metric_kit};
pub use unwind_range::{UnwindRange, UnwindRangeError, UnwindRule, register_unwind_range};

/// Compiles the examples of the README and of the documentation's pages with those of this crate.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct Package;
    #[doc = include_str!("../../../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../../../docs/command-line-tool.md")]
    struct CommandLineTool;
    #[doc = include_str!("../../../../docs/server.md")]
    struct Server;
    #[doc = include_str!("../../../../docs/desktop-app.md")]
    struct DesktopApp;
    #[doc = include_str!("../../../../docs/delivery.md")]
    struct Delivery;
    #[doc = include_str!("../../../../docs/outcomes.md")]
    struct Outcomes;
    #[doc = include_str!("../../../../docs/hangs.md")]
    struct Hangs;
    #[doc = include_str!("../../../../docs/troubleshooting.md")]
    struct Troubleshooting;
    #[cfg(feature = "sentry")]
    #[doc = include_str!("../../../../docs/privacy.md")]
    struct Privacy;
    #[cfg(feature = "sentry")]
    #[doc = include_str!("../../../../docs/sentry.md")]
    struct Sentry;
    #[cfg(feature = "sentry")]
    #[doc = include_str!("../../../../docs/migration.md")]
    struct Migration;
    #[cfg(feature = "otlp")]
    #[doc = include_str!("../../../../docs/otlp.md")]
    struct Otlp;
}
