//! The configuration, built step by step.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use coroner::{Crashes, Delivery, Exceptions, Limits};

use crate::app_pointer::AppPointer;
use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};
use crate::text::text;

/// What an app decides before coroner_install: made by coroner_config_new, given to coroner_install or freed by
/// coroner_config_free. One thread at a time may use it.
#[derive(Debug)]
pub struct Config {
    // Taken out and put back by each step, since the Rust configuration is built by value.
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

    /// The Rust configuration that it is; `None` if a step panicked.
    pub(crate) fn into_whole(self) -> Option<coroner::Config> {
        let Self { app, crashes, exceptions, delivery, limits } = self;
        Some(app?.crashes(crashes?).exceptions(exceptions?).delivery(delivery?).limits(limits?))
    }
}

/// A part of the configuration, which setters change.
pub(crate) trait Part: Sized {
    fn of(config: &mut Config) -> &mut Option<Self>;
}

/// Makes the type of a field a part of the configuration.
macro_rules! part {
    ($($field:ident: $part:ty,)*) => {$(
        impl Part for $part {
            fn of(config: &mut Config) -> &mut Option<Self> {
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

/// A configuration with the defaults, for the app with this name or, better, identifier ("com.example.paint"). It names the
/// default store, so it should stay the same from version to version. NULL if the name is NULL or not UTF-8.
///
/// # Safety
/// `app` is NULL or a text that ends with a NUL.
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

/// Frees a configuration that was not given to coroner_install. NULL is nothing to free.
///
/// # Safety
/// `config` is NULL or from `coroner_config_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_free(config: *mut Config) {
    if !config.is_null() {
        // SAFETY: from `Box::into_raw` in `coroner_config_new`, and freed once, as the caller promises.
        let config = unsafe { Box::from_raw(config) };
        guarded(|| {
            drop(config);
            Ok(())
        });
    }
}

/// Changes that part of the configuration at `config` by `step`.
///
/// # Safety
/// `config` is null or from `coroner_config_new` and not freed, and nobody else uses it meanwhile.
pub(crate) unsafe fn change<P: Part>(config: *mut Config, step: impl FnOnce(P) -> P) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let config = unsafe { config.as_mut() };
        let config = config.ok_or_else(|| fail(Status::InvalidArgument, "`config` is NULL"))?;
        let part = P::of(config);
        *part = part.take().map(step);
        Ok(())
    })
}

/// Changes the configuration at `config` by `step` with a text, which the caller names `what` in messages.
///
/// # Safety
/// As of [`change`]; `value` is null or a text that ends with a NUL.
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

/// What Android's ApplicationExitInfo says of the end of an earlier process of the app.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ExitInfo {
    /// `sizeof(coroner_exit_info)`: which fields the caller knows. Those after it are 0.
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
    /// getRss, kilobytes.
    pub rss_kb: u64,
    /// getPss, kilobytes.
    pub pss_kb: u64,
    /// getDescription; NULL if there is none.
    pub description: *const c_char,
    /// All bytes of getTraceInputStream; NULL if there are none.
    pub trace: *const u8,
    /// How many they are.
    pub trace_length: usize,
}

// SAFETY: its size comes first, and numbers and pointers may be 0.
unsafe impl SizedStruct for ExitInfo {
    const NAME: &'static str = "coroner_exit_info";
    const LEAST: usize = std::mem::offset_of!(ExitInfo, rss_kb);
}

/// Adds what Android says of the end of an earlier process: it is joined with the report of that run and completes its outcome; a
/// crash without a report becomes one. The same may be given at each launch. Nothing is kept of the memory.
///
/// # Safety
/// `config` is from `coroner_config_new`; `info` points to as many bytes as its `size` says; its description is NULL or a text that ends with a NUL,
/// its trace is NULL or has so many bytes.
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
        // SAFETY: so many bytes, as the caller promises.
        unsafe { std::slice::from_raw_parts(info.trace, info.trace_length) }.to_vec()
    };
    let mut said = coroner::ExitInfo::default();
    (said.pid, said.reason, said.status, said.importance) = (info.pid, info.reason, info.status, info.importance);
    (said.timestamp_ms, said.rss_kb, said.pss_kb) = (info.timestamp_ms, info.rss_kb, info.pss_kb);
    (said.description, said.trace) = (description.to_owned(), trace);
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.system_report(said)) }
}

/// Sets the app's version, such as "2.1.0".
///
/// # Safety
/// `config` is from `coroner_config_new`; `version` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_version(config: *mut Config, version: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, version, "version", |config, version| config.version(version)) }
}

/// Sets where the app runs, such as "production" or "beta".
///
/// # Safety
/// `config` is from `coroner_config_new`; `environment` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_environment(config: *mut Config, environment: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, environment, "environment", |config, environment| config.environment(environment)) }
}

/// Sets the release, by which servers distinguish versions of an app. Without it: "APP@VERSION".
///
/// # Safety
/// `config` is from `coroner_config_new`; `release` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_release(config: *mut Config, release: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, release, "release", |config, release| config.release(release)) }
}

/// Sets the distribution: one of several builds of a release.
///
/// # Safety
/// `config` is from `coroner_config_new`; `dist` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_dist(config: *mut Config, dist: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, dist, "dist", |config, dist| config.dist(dist)) }
}

/// Sets the directory of the store, which is made at install for its owner only. Without it: ~/.local/state/APP/coroner
/// on Linux, ~/Library/Application Support/APP/Coroner on macOS and iOS. On Android it must be set: a directory below
/// Context.getFilesDir().
///
/// # Safety
/// `config` is from `coroner_config_new`; `directory` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_store_dir(config: *mut Config, directory: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, directory, "directory", |config, directory| config.store_dir(directory)) }
}

/// Adds a sink that writes each report to a folder, as JSON and as the crash left it. Without any sink set, that is done to
/// the folder "reports" in the store.
///
/// # Safety
/// `config` is from `coroner_config_new`; `folder` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_folder_sink(config: *mut Config, folder: *const c_char) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change_text(config, folder, "folder", |config, folder| config.sink(coroner::FolderSink::new(folder))) }
}

/// Adds a sink that delivers to a project of Sentry, or of a server that speaks its protocol. `dsn` is the project's address with
/// the key to it, "https://KEY@HOST/PROJECT". With `require_consent` nothing leaves before coroner_set_consent(true).
///
/// # Safety
/// `config` is from `coroner_config_new`; `dsn` is a text that ends with a NUL.
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
        // Not the text itself: it holds a key.
        let made = coroner::SentrySink::new(dsn)
            .map_err(|error| fail(Status::InvalidArgument, format!("`dsn` is no DSN: {error}")))?;
        sink = Some(made.options(|options| options.require_consent = require_consent));
        Ok(())
    });
    let Some(sink) = sink else { return status };
    crate::consent::remember_sentry(&sink);
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.sink(sink)) }
}

/// Adds a sink that delivers by OTLP, as OpenTelemetry log records over HTTP. `endpoint` is the Collector's address, such as
/// "http://localhost:4318", below which records go to "v1/logs"; NULL for the one that OTEL_EXPORTER_OTLP_ENDPOINT says, and if that is
/// not set there is no sink. `headers` go with each request, in the form "name=value,name=value", percent-encoded; NULL for those of
/// OTEL_EXPORTER_OTLP_HEADERS. The other variables of OpenTelemetry's exporters hold in any case. With `require_consent` nothing leaves
/// before coroner_set_consent(true).
///
/// # Safety
/// `config` is from `coroner_config_new`; the others are NULL or texts that end with a NUL.
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

/// Takes away all sinks, the default one too: reports stay in the store, up to its limits.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_no_sinks(config: *mut Config) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, coroner::Config::no_sinks) }
}

/// Sets whether what is surely a secret by its form (the user in a URL, an Authorization header, tokens) is hidden in texts of the
/// app before the sinks get a report. Default: yes.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_scrub_secrets(config: *mut Config, scrub: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.scrub_secrets(scrub)) }
}

/// Sets a function that hides more: it is called at the next launch for each text that the app or a library wrote (tags, user,
/// contexts, extra, breadcrumbs, messages), with the key under which the text stands (a tag's, or empty). If it returns true, the
/// text is replaced by `[Filtered]`. It may be called on several threads at once. NULL changes nothing.
///
/// # Safety
/// `config` is from `coroner_config_new`; `hides` can be called with two texts and `context` on any thread, for the process's life.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_scrub(
    config: *mut Config,
    hides: Option<unsafe extern "C" fn(key: *const c_char, text: *const c_char, context: *mut c_void) -> bool>,
    context: *mut c_void,
) -> Status {
    let Some(hides) = hides else { return Status::Ok };
    let context = AppPointer(context);
    let scrub = move |key: &str, text: &str| {
        // A text with a NUL in it is shown up to that.
        let c_text = |text: &str| CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let (key, text) = (c_text(key), c_text(text));
        // SAFETY: as the caller promises; both texts end with a NUL.
        unsafe { hides(key.as_ptr(), text.as_ptr(), context.get()) }.then(|| "[Filtered]".to_owned())
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.scrub(scrub)) }
}

/// Sets whether handlers that were installed before are asked first about every fault, and a crash is reported only if they don't take
/// it: for code that a runtime compiled ahead of time. Default: no, they are asked first only about what is known to be theirs.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_chain_first(config: *mut Config, chain_first: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.chain_first(chain_first)) }
}

/// Sets whether a crash signal that another handler has taken after the install is taken back; that handler is called after the
/// report. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_reinstall_handlers(config: *mut Config, reinstall: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.reinstall_handlers(reinstall)) }
}

/// Sets whether a crash of a child made by fork is reported, under a run of its own. Default: yes; if not, it is left to
/// whoever handled it before.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_report_fork_children(config: *mut Config, report: bool) -> Status {
    let policy = if report { coroner::ForkPolicy::Report } else { coroner::ForkPolicy::Silent };
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.fork(policy)) }
}

/// Sets whether Objective-C exceptions that nobody catches are reported with name, reason and the stack of the throw (macOS, iOS;
/// nothing elsewhere). Default: yes.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_objc_exceptions(config: *mut Config, report: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.objc(report)) }
}

/// Sets whether exceptions that AppKit catches and only logs are reported, as ones that the process survives (macOS; nothing
/// elsewhere). It replaces `-[NSApplication reportException:]` by a method that reports and goes on in it. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_appkit_exceptions(config: *mut Config, report: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.appkit(report)) }
}

/// Sets whether Objective-C objects that are deallocated are remembered, by address and class, so that a report says of what class an object was
/// that the crashed thread used after that, and which message was sent to it (macOS, iOS; nothing elsewhere). No object is kept. It replaces
/// `-dealloc` of `NSObject`, `NSProxy` and `NSException`, and takes 576 KiB of memory. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_zombies(config: *mut Config, remember: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |exceptions: Exceptions| exceptions.zombies(remember)) }
}

/// Sets whether a thread is started whose stack says the run's id, so that what MetricKit says of this process's death is known to be of this run (macOS,
/// iOS; nothing elsewhere). The thread waits for ever and costs some tens of KiB of memory. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_run_id_thread(config: *mut Config, start: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.run_id_thread(start)) }
}

/// Sets whether the last 60 KiB that the process wrote to stderr and to stdout go with its reports, as attachments `stderr` and `stdout`, where those
/// are regular files when Coroner is installed: a file is read again at the crash, and one that the process
/// appends to from where it ended at install. Of a terminal, a pipe or a socket nothing is kept. They may hold what users typed. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_keep_output(config: *mut Config, keep: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.keep_output(keep)) }
}

/// Sets whether the used parts of all threads' stacks are in a report, so that a debugger or `minidump-stackwalk` can walk a minidump made
/// of it as far as the report's own frames go: 64 KiB of the crashed thread, 16 KiB of each other, 448 KiB of the others together. They may
/// hold what users typed. The reserved file is larger by 576 KiB. In the place of `coroner_config_set_stack_memory`. Default: no.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_stack_memory_all(config: *mut Config, all: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.stack_memory_all(all)) }
}

/// Sets whether the dying process looks up names for the report's addresses in its own images, when everything else is on
/// disk: they are used where no symbol file is found at the next launch or at a server. It takes milliseconds, and longer in a
/// large program. Default: only on Apple's systems, whose own libraries have their symbols nowhere else.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_symbol_names(config: *mut Config, names: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.symbol_names(names)) }
}

/// Sets after how many milliseconds a watched thread that does not answer hangs, and is reported; 0 for never, which is the default.
/// Threads are watched that call coroner_hang_beat, and on Apple's systems the main thread, where it works through its run loop or
/// the main queue.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_hang_threshold(config: *mut Config, milliseconds: u32) -> Status {
    let threshold = (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()));
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.hang_threshold(threshold)) }
}

/// Sets how many reports of handled exceptions and of panics that the process survives it writes in an hour, as many of them at once; and
/// as many of hangs. What is beyond is counted, and the next report says how many. Default: 16.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_reports_per_hour(config: *mut Config, reports: u32) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.reports_per_hour(reports)) }
}

/// Sets how many bytes of the crashed thread's stack are in a report. With them come 256 to 512 bytes around each address that is in
/// one of its registers. They may hold what users typed. Default: 2048; 0 for
/// none.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_stack_memory(config: *mut Config, bytes: u32) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.stack_memory(bytes)) }
}

/// Sets how long writing a report may take before the process is ended with what there is, in milliseconds. Default: 5000.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_deadline(config: *mut Config, milliseconds: u32) -> Status {
    let deadline = Duration::from_millis(milliseconds.into());
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.deadline(deadline)) }
}

/// Sets how much the store keeps of what can't be delivered: so many reports, as many runs without one, so many days, so many bytes.
/// Default: 100, 90, 64 MiB.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_limits(config: *mut Config, reports: u32, days: u32, bytes: u64) -> Status {
    let number = reports as usize;
    let age = Duration::from_hours(24 * u64::from(days));
    let retention = coroner::Retention::default().number(number).runs(number).age(age).bytes(bytes);
    // SAFETY: as the caller promises.
    unsafe { change(config, |limits: Limits| limits.retention(retention)) }
}

/// Sets whether all threads are in a report, or only the crashed one. Default: all.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_all_threads(config: *mut Config, all: bool) -> Status {
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.all_threads(all)) }
}

/// Which threads get an alternate signal stack, without which a stack overflow can't be reported.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlternateStacks {
    /// All.
    Everywhere = 0,
    /// Only the thread that installs and those that call coroner_attach_current_thread.
    Attached = 1,
    /// None: the app looks after it.
    Leave = 2,
}

/// Sets which threads get an alternate signal stack: one of coroner_alternate_stacks. Default: all.
///
/// # Safety
/// `config` is from `coroner_config_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_alternate_stacks(config: *mut Config, stacks: i32) -> Status {
    let stacks = match stacks {
        0 => coroner::AlternateStacks::Everywhere,
        1 => coroner::AlternateStacks::Attached,
        2 => coroner::AlternateStacks::Leave,
        other => return fail(Status::InvalidArgument, format!("{other} is none of coroner_alternate_stacks")),
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |crashes: Crashes| crashes.alternate_stacks(stacks)) }
}
