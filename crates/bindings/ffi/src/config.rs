//! The configuration, built step by step.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use coroner::{Crashes, Delivery, Exceptions, Limits};

use crate::app_pointer::AppPointer;
use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};
use crate::text::text;

/// The app's choices for coroner_install.
///
/// Created by coroner_config_new; passed to coroner_install or freed by coroner_config_free. Not
/// thread-safe: use it from one thread at a time.
#[derive(Debug)]
pub struct Config {
    // Each setter takes its part out and puts it back, because the Rust configuration is built by
    // value.
    app: Option<coroner::Config>,
    crashes: Option<Crashes>,
    exceptions: Option<Exceptions>,
    delivery: Option<Delivery>,
    limits: Option<Limits>,
}

impl Config {
    fn new(app: &str) -> Self {
        Self {
            app: Some(coroner::Config::new(app)),
            crashes: Some(Crashes::new()),
            exceptions: Some(Exceptions::new()),
            delivery: Some(Delivery::new()),
            limits: Some(Limits::new()),
        }
    }

    /// Returns the complete Rust configuration; `None` if a setter panicked.
    pub(crate) fn into_whole(self) -> Option<coroner::Config> {
        let Self { app, crashes, exceptions, delivery, limits } = self;
        Some(app?.crashes(crashes?).exceptions(exceptions?).delivery(delivery?).limits(limits?))
    }
}

/// A part of the configuration that setters change.
pub(crate) trait Part: Sized {
    fn in_config(config: &mut Config) -> &mut Option<Self>;
}

/// Implements [`Part`] for the type of a field.
macro_rules! part {
    ($($field:ident: $part:ty,)*) => {$(
        impl Part for $part {
            fn in_config(config: &mut Config) -> &mut Option<Self> {
                &mut config.$field
            }
        }
    )*};
}

part! {
    app: coroner::Config,
    crashes: Crashes,
    exceptions: Exceptions,
    delivery: Delivery,
    limits: Limits,
}

/// Creates a configuration with the defaults.
///
/// `app` is the app's identifier, such as "com.example.paint". It names the default store, so don't
/// change it between versions. Returns NULL if `app` is NULL or not UTF-8.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_new(app: *const c_char) -> *mut Config {
    let mut config = std::ptr::null_mut();
    guarded(|| {
        // SAFETY: as the caller promises.
        let app = unsafe { text(app, "app") }?;
        config = Box::into_raw(Box::new(Config::new(app)));
        Ok(())
    });
    config
}

/// Frees a configuration that was not passed to coroner_install. Does nothing if `config` is NULL.
///
/// # Safety
/// `config` must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_free(config: *mut Config) {
    if !config.is_null() {
        // SAFETY: from `Box::into_raw` in `coroner_config_new`, and freed once, as the caller
        // promises.
        let config = unsafe { Box::from_raw(config) };
        guarded(|| {
            drop(config);
            Ok(())
        });
    }
}

/// Applies `step` to one part of the configuration.
///
/// # Safety
/// `config` must be null or from `coroner_config_new` and not freed, and must not be used by
/// another thread meanwhile.
pub(crate) unsafe fn change<P: Part>(config: *mut Config, step: impl FnOnce(P) -> P) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let config = unsafe { config.as_mut() };
        let config = config.ok_or_else(|| fail(Status::InvalidArgument, "`config` is NULL"))?;
        let part = P::in_config(config);
        *part = part.take().map(step);
        Ok(())
    })
}

/// Applies `step` with a string, which messages call `what`, to the configuration.
///
/// # Safety
/// Same as [`change`]; `value` must be null or a NUL-terminated string.
unsafe fn change_text(
    config: *mut Config,
    value: *const c_char,
    what: &str,
    step: impl FnOnce(coroner::Config, &str) -> coroner::Config,
) -> Status {
    // SAFETY: as the caller promises.
    match unsafe { text(value, what) } {
        // SAFETY: as the caller promises.
        Ok(value) => unsafe { change(config, |app| step(app, value)) },
        Err(status) => status,
    }
}

/// Android's ApplicationExitInfo for an earlier process of the app.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ExitInfo {
    /// `sizeof(coroner_exit_info)`. Fields beyond it are taken as 0.
    pub size: usize,
    /// getPid.
    pub pid: u32,
    /// getReason.
    pub reason: i32,
    /// getStatus.
    pub status: i32,
    /// getImportance.
    pub importance: i32,
    /// getTimestamp: milliseconds since 1970.
    pub timestamp_ms: u64,
    /// getRss, in kilobytes.
    pub rss_kb: u64,
    /// getPss, in kilobytes.
    pub pss_kb: u64,
    /// getDescription, or NULL.
    pub description: *const c_char,
    /// All bytes of getTraceInputStream, or NULL.
    pub trace: *const u8,
    /// The number of bytes at `trace`.
    pub trace_length: usize,
}

// SAFETY: the size is the first field, and 0 is valid for numbers and pointers.
unsafe impl SizedStruct for ExitInfo {
    const NAME: &'static str = "coroner_exit_info";
    const MIN_SIZE: usize = std::mem::offset_of!(ExitInfo, rss_kb);
}

/// Adds Android's exit information about an earlier process.
///
/// It is merged into the report of that process's run and completes the run's outcome; for a crash
/// without a report it becomes the report. Adding the same information at each launch is harmless.
/// The data is copied.
///
/// # Safety
/// The description must be NULL or a string, the trace NULL or `trace_length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_exit_info(config: *mut Config, info: *const ExitInfo) -> Status {
    if info.is_null() {
        return fail(Status::InvalidArgument, "`info` is NULL");
    }
    // SAFETY: as the caller promises.
    let info = match unsafe { sized::read(info) } {
        Ok(info) => info,
        Err(status) => return status,
    };
    let mut description = "";
    if !info.description.is_null() {
        // SAFETY: as the caller promises.
        match unsafe { text(info.description, "description") } {
            Ok(text) => description = text,
            Err(status) => return status,
        }
    }
    let trace = if info.trace.is_null() {
        Vec::new()
    } else {
        // SAFETY: `trace_length` bytes, as the caller promises.
        unsafe { std::slice::from_raw_parts(info.trace, info.trace_length) }.to_vec()
    };
    let mut converted = coroner::ExitInfo::default();
    (converted.pid, converted.reason) = (info.pid, info.reason);
    (converted.status, converted.importance) = (info.status, info.importance);
    (converted.timestamp_ms, converted.rss_kb, converted.pss_kb) = (info.timestamp_ms, info.rss_kb, info.pss_kb);
    (converted.description, converted.trace) = (description.to_owned(), trace);
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.system_report(converted)) }
}

/// Sets the app's version, such as "2.1.0".
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_version(config: *mut Config, version: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, version, "version", |config, version| config.version(version)) }
}

/// Sets where the app runs, such as "production" or "beta".
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_environment(config: *mut Config, environment: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, environment, "environment", |config, environment| config.environment(environment)) }
}

/// Sets the release, by which servers distinguish an app's versions. Default: "APP@VERSION".
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_release(config: *mut Config, release: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, release, "release", |config, release| config.release(release)) }
}

/// Sets the distribution: one of several builds of a release.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_dist(config: *mut Config, dist: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, dist, "dist", |config, dist| config.dist(dist)) }
}

/// Sets the store's directory, which install creates with access for the owner only.
///
/// Default: ~/.local/state/APP/coroner on Linux, ~/Library/Application Support/APP/Coroner on macOS
/// and iOS. On Android it must be set: use a directory below Context.getFilesDir().
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_store_dir(config: *mut Config, directory: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, directory, "directory", |config, directory| config.store_dir(directory)) }
}

/// Adds a sink that writes each report to a folder, as JSON and in its original form.
///
/// Without any sink, reports are written to the folder "reports" in the store.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_folder_sink(config: *mut Config, folder: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, folder, "folder", |config, folder| config.sink(coroner::FolderSink::new(folder))) }
}

/// Adds a sink that delivers to a Sentry project, or to a server that implements Sentry's protocol.
///
/// `dsn` is the project's address with its key, "https://KEY@HOST/PROJECT". With `require_consent`,
/// nothing is sent before coroner_set_consent(true).
///
/// # Safety
/// The general rules apply.
#[cfg(feature = "sentry")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_sentry_sink(
    config: *mut Config,
    dsn: *const c_char,
    require_consent: bool,
) -> Status {
    let mut sink = None;
    let status = guarded(|| {
        // SAFETY: as the caller promises.
        let dsn = unsafe { text(dsn, "dsn") }?;
        // The message must not contain the DSN itself, because it includes a key.
        let created = coroner::SentrySink::new(dsn)
            .map_err(|error| fail(Status::InvalidArgument, format!("invalid `dsn`: {error}")))?;
        sink = Some(created.options(|options| options.require_consent = require_consent));
        Ok(())
    });
    let Some(sink) = sink else { return status };
    crate::consent::remember_sentry(&sink);
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.sink(sink)) }
}

/// Adds a sink that delivers over OTLP, as OpenTelemetry log records over HTTP.
///
/// `endpoint` is the Collector's address, such as "http://localhost:4318"; records go to "v1/logs"
/// below it. NULL uses OTEL_EXPORTER_OTLP_ENDPOINT; if that is not set, no sink is added. `headers`
/// are sent with each request, in the form "name=value,name=value", percent-encoded; NULL uses
/// OTEL_EXPORTER_OTLP_HEADERS. The other variables of OpenTelemetry's exporters always apply. With
/// `require_consent`, nothing is sent before coroner_set_consent(true).
///
/// # Safety
/// The general rules apply. `endpoint` and `headers` may be NULL.
#[cfg(feature = "otlp")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_otlp_sink(
    config: *mut Config,
    endpoint: *const c_char,
    headers: *const c_char,
    require_consent: bool,
) -> Status {
    use coroner::otlp::Options;
    let mut options = None;
    let status = guarded(|| {
        // SAFETY: as the caller promises.
        let given = |value: *const c_char, name| (!value.is_null()).then(|| unsafe { text(value, name) }).transpose();
        let (endpoint, headers) = (given(endpoint, "endpoint")?, given(headers, "headers")?);
        options = match endpoint {
            Some(endpoint) => Options::for_endpoint(endpoint, headers).map(Some),
            None => Options::from_env(),
        }
        .map_err(|error| fail(Status::InvalidArgument, error.to_string()))?;
        Ok(())
    });
    let Some(mut options) = options else { return status };
    options.require_consent = require_consent;
    let sink = coroner::OtlpSink::with_options(options);
    crate::consent::remember_otlp(&sink);
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.sink(sink)) }
}

/// Removes all sinks, including the default one: reports stay in the store, up to its limits.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_no_sinks(config: *mut Config) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, coroner::Config::no_sinks) }
}

/// Sets whether to hide obvious secrets in the app's strings from the sinks. Default: yes.
///
/// Secrets are recognized by their form: the user in a URL, an Authorization header, tokens.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_scrub_secrets(config: *mut Config, scrub: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.scrub_secrets(scrub)) }
}

/// Sets a function that hides additional data: if it returns true, the string becomes `[Filtered]`.
///
/// It is called at the next launch for each string that the app or a library wrote (tags, user,
/// contexts, extra, breadcrumbs, messages), with the string's key, which may be empty. It may be
/// called on several threads at once. NULL changes nothing.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_scrub(
    config: *mut Config,
    hides: Option<unsafe extern "C" fn(key: *const c_char, text: *const c_char, context: *mut c_void) -> bool>,
    context: *mut c_void,
) -> Status {
    let Some(hides) = hides else { return Status::Ok };
    let context = AppPointer(context);
    let scrub = move |key: &str, text: &str| {
        // A string that contains a NUL is passed up to it.
        let c_text = |text: &str| CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let (key, text) = (c_text(key), c_text(text));
        // SAFETY: as the caller promises; both strings are NUL-terminated.
        unsafe { hides(key.as_ptr(), text.as_ptr(), context.get()) }.then(|| "[Filtered]".to_owned())
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.scrub(scrub)) }
}

/// Sets whether earlier handlers are called first for every fault. Default: no.
///
/// If so, only faults that they don't handle are reported. For ahead-of-time compiled code of a
/// managed runtime. Otherwise they are called first only for faults that are known to be theirs.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_chain_first(config: *mut Config, chain_first: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.chain_first(chain_first)) }
}

/// Sets whether to take back crash signals whose handlers are replaced after install. Default: no.
///
/// The replacing handler is called after the report is written.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_reinstall_handlers(config: *mut Config, reinstall: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.reinstall_handlers(reinstall)) }
}

/// Sets whether to report crashes of children created by fork, each as its own run. Default: yes.
///
/// If not, such a crash is left to the earlier handlers.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_report_fork_children(config: *mut Config, report: bool) -> Status {
    let policy = if report { coroner::ForkPolicy::Report } else { coroner::ForkPolicy::Silent };
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.fork(policy)) }
}

/// Sets whether to report uncaught Objective-C exceptions. Default: yes.
///
/// Their reports have name, reason and the throw's stack. macOS and iOS only; no effect elsewhere.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_objc_exceptions(config: *mut Config, report: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.objc(report)) }
}

/// Sets whether to report, as non-fatal, exceptions that AppKit catches and only logs. Default: no.
///
/// Replaces `-[NSApplication reportException:]` with a method that reports and then calls the
/// original. macOS only; no effect elsewhere.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_appkit_exceptions(config: *mut Config, report: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.appkit(report)) }
}

/// Sets whether to remember deallocated Objective-C objects, by address and class. Default: no.
///
/// If the crashed thread used such an object, the report contains its class and the message that
/// was sent to it. Objects are not kept alive. Replaces `-dealloc` of `NSObject`, `NSProxy` and
/// `NSException`, and takes 576 KiB of memory. macOS and iOS only; no effect elsewhere.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_zombies(config: *mut Config, remember: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.zombies(remember)) }
}

/// Sets whether to start a thread whose stack encodes the run's id. Default: no.
///
/// MetricKit's diagnostics for this process can then be matched to this run. The thread waits
/// forever and costs some tens of KiB of memory. macOS and iOS only; no effect elsewhere.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_run_id_thread(config: *mut Config, start: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.run_id_thread(start)) }
}

/// Sets whether to attach the last 60 KiB of the process's stderr and of its stdout. Default: no.
///
/// The attachments are named `stderr` and `stdout`. This works for streams that are regular files
/// at install, not for terminals, pipes and sockets. The file is read at the crash; if the process
/// appends to it, what it contained before install is left out. The output may contain user input.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_keep_output(config: *mut Config, keep: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.keep_output(keep)) }
}

/// Sets whether a report contains the used parts of all threads' stacks. Default: no.
///
/// A debugger or `minidump-stackwalk` can then walk a minidump made from the report as far as the
/// report's own frames: 64 KiB of the crashed thread's stack, 16 KiB of each other thread's, 448
/// KiB of the others together. This memory may contain user input. The reserved file is 576 KiB
/// larger. Replaces coroner_config_set_stack_memory.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_stack_memory_all(config: *mut Config, all: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.stack_memory_all(all)) }
}

/// Sets whether the crashing process looks up symbol names in its own images.
///
/// Default: only on Apple systems, where the system libraries' symbols are available nowhere else.
/// The lookup runs after the rest of the report is on disk, and takes milliseconds, longer in a
/// large program. The names are used if neither the next launch nor a server finds a symbol file.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_symbol_names(config: *mut Config, names: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.symbol_names(names)) }
}

/// Sets after how many milliseconds an unresponsive thread is reported as hung. Default: 0, never.
///
/// Coroner watches threads that call coroner_hang_beat and, on Apple systems, the main thread while
/// it runs its run loop or the main queue.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_hang_threshold(config: *mut Config, milliseconds: u32) -> Status {
    let threshold = (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()));
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.hang_threshold(threshold)) }
}

/// Sets the maximum reports per hour for handled exceptions and non-fatal panics. Default: 16.
///
/// This is also the burst size. Hangs have a separate budget of the same size. Reports beyond the
/// limit are counted, and the next report contains their number.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_reports_per_hour(config: *mut Config, reports: u32) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.reports_per_hour(reports)) }
}

/// Sets how many bytes of the crashed thread's stack a report contains. Default: 2048; 0 for none.
///
/// Unless it is 0, the report also contains 256 to 512 bytes around each address in the thread's
/// registers. This memory may contain user input.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_stack_memory(config: *mut Config, bytes: u32) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.stack_memory(bytes)) }
}

/// Sets the maximum time in milliseconds for writing a report. Default: 5000.
///
/// After that the process ends, and the report contains what was written so far.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_deadline(config: *mut Config, milliseconds: u32) -> Status {
    let deadline = Duration::from_millis(milliseconds.into());
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.deadline(deadline)) }
}

/// Sets how many undelivered reports the store keeps. Default: 100 reports, 90 days, 64 MiB.
///
/// The store keeps at most `reports` reports and as many runs without a report, for at most `days`
/// days, in at most `bytes` bytes.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_limits(config: *mut Config, reports: u32, days: u32, bytes: u64) -> Status {
    let number = reports as usize;
    let age = Duration::from_hours(24 * u64::from(days));
    let retention = coroner::Retention::default().number(number).runs(number).age(age).bytes(bytes);
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.retention(retention)) }
}

/// Sets whether a report contains all threads or only the crashed one. Default: all.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_all_threads(config: *mut Config, all: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.all_threads(all)) }
}

/// Threads that get an alternate signal stack.
///
/// Without one, a thread's stack overflow can't be reported.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlternateStacks {
    /// All threads.
    Everywhere = 0,
    /// The installing thread, and threads that call coroner_attach_current_thread.
    Attached = 1,
    /// No thread: the app provides the stacks.
    Leave = 2,
}

/// An [`AlternateStacks`] from C, which may pass any number. The header declares it as the enum.
pub type AlternateStacksArgument = i32;

/// Sets which threads get an alternate signal stack. Default: all.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_alternate_stacks(
    config: *mut Config,
    stacks: AlternateStacksArgument,
) -> Status {
    let stacks = match stacks {
        0 => coroner::AlternateStacks::Everywhere,
        1 => coroner::AlternateStacks::Attached,
        2 => coroner::AlternateStacks::Leave,
        other => {
            return fail(
                Status::InvalidArgument,
                format!("invalid `stacks` {other}: expected a coroner_alternate_stacks"),
            );
        }
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.alternate_stacks(stacks)) }
}
