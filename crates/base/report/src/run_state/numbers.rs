//! The enumerations of the run state.

use crate::open_numbers::open_numbers;

open_numbers! {
    /// A fact about the app, the system or the device that does not change during a run.
    Fact(u16) {
        /// Text: app identifier, such as a bundle id.
        APP_ID = 1 "app.id",
        /// Text: display name of the app.
        APP_NAME = 2 "app.name",
        /// Text: version of the app.
        APP_VERSION = 3 "app.version",
        /// Text: build of the app.
        APP_BUILD = 4 "app.build",
        /// Text: release, such as `app@1.2.3+45`.
        APP_RELEASE = 5 "app.release",
        /// Text: environment, such as `production`.
        APP_ENVIRONMENT = 6 "app.environment",
        /// Text: distribution of the app.
        APP_DIST = 7 "app.dist",
        /// Text: name of the process.
        PROCESS_NAME = 8 "app.process_name",
        /// Text: path of the executable.
        EXECUTABLE = 9 "app.executable",
        /// Integer: process id.
        PID = 10 "app.pid",
        /// Integer: start time of the process, in nanoseconds since the Unix epoch.
        PROCESS_START = 11 "app.process_start",
        /// Integer: time of install, in nanoseconds since the Unix epoch.
        INSTALLED = 12 "app.installed",
        /// Text: an anonymous identifier of this installation of the app.
        INSTALLATION_ID = 13 "app.installation_id",
        /// Text: version of Coroner.
        SDK_VERSION = 14 "app.sdk_version",
        /// Text: the C library that the app runs on, such as `glibc`.
        RUNTIME_NAME = 15 "app.runtime_name",
        /// Text: version of the C library.
        RUNTIME_VERSION = 16 "app.runtime_version",
        /// Text: build id of the program's file, in hexadecimal digits.
        APP_BUILD_ID = 17 "app.build_id",
        /// Integer: microseconds of silence after which the service manager kills the process.
        ///
        /// `WATCHDOG_USEC` of sd_watchdog_enabled(3).
        APP_WATCHDOG = 18 "app.watchdog_us",
        /// Text: name of the operating system, such as `Linux`, `macOS`, `iOS`.
        OS_NAME = 20 "os.name",
        /// Text: version of the operating system.
        OS_VERSION = 21 "os.version",
        /// Text: build of the operating system.
        OS_BUILD = 22 "os.build",
        /// Text: version of the kernel.
        OS_KERNEL_VERSION = 23 "os.kernel_version",
        /// Text: the distribution, such as `debian`.
        OS_DISTRIBUTION = 24 "os.distribution",
        /// Text: version of the distribution.
        OS_DISTRIBUTION_VERSION = 25 "os.distribution_version",
        /// Boolean: whether the device is rooted or jailbroken.
        OS_ROOTED = 26 "os.rooted",
        /// Text: boot id, which changes each time the machine starts.
        ///
        /// On Linux `/proc/sys/kernel/random/boot_id`.
        OS_BOOT_ID = 27 "os.boot_id",
        /// Text: model of the device, such as `iPhone15,2`.
        DEVICE_MODEL = 40 "device.model",
        /// Text: device family, such as `iPhone`.
        DEVICE_FAMILY = 41 "device.family",
        /// Text: architecture, such as `arm64e`.
        DEVICE_ARCH = 42 "device.arch",
        /// Text: description of the processor.
        DEVICE_CPU = 43 "device.cpu",
        /// Integer: number of processors.
        DEVICE_PROCESSOR_COUNT = 44 "device.processor_count",
        /// Integer: memory size in bytes.
        DEVICE_MEMORY_SIZE = 45 "device.memory_size",
        /// Integer: time at which the device booted, in nanoseconds since the Unix epoch.
        DEVICE_BOOT_TIME = 46 "device.boot_time",
        /// Boolean: whether the device is a simulator.
        DEVICE_SIMULATOR = 47 "device.simulator",
        /// Text: locale, such as `de_AT`.
        DEVICE_LOCALE = 48 "device.locale",
        /// Text: time zone, such as `Europe/Vienna`.
        DEVICE_TIME_ZONE = 49 "device.time_zone",
    }
}

open_numbers! {
    /// One of 64 words that change during a run, each independently.
    Scalar(u8) {
        /// End of the run: [`ExitKind`].
        EXIT = 0 "exit",
        /// Time at which [`EXIT`](Self::EXIT) was set, in nanoseconds since the Unix epoch.
        EXIT_TIME = 1 "exit_time",
        /// The newest breadcrumb: bits 0 to 15 its slot, plus 1; bits 16 to 63 its number.
        NEWEST_BREADCRUMB = 2 "newest_breadcrumb",
        /// Time of the last repetition of a breadcrumb, in nanoseconds since the Unix epoch.
        BREADCRUMB_REPEATED = 3 "breadcrumb_repeated",
        /// Whether the app is in the foreground: [`Foreground`].
        FOREGROUND = 4 "foreground",
        /// Time at which [`FOREGROUND`](Self::FOREGROUND) was set, nanoseconds since the Unix
        /// epoch.
        FOREGROUND_CHANGED = 5 "foreground_changed",
        /// Time of the last sign of life, in nanoseconds since the Unix epoch.
        LAST_ALIVE = 6 "last_alive",
        /// Start of the current hang, in nanoseconds since the Unix epoch; 0 if there is none.
        HANG_SINCE = 7 "hang_since",
        /// [`Level`] of the app's events.
        LEVEL = 8 "level",
        /// Session id: its first 8 bytes, big-endian.
        SESSION_ID_HIGH = 9 "session_id_high",
        /// Session id: its last 8 bytes, big-endian.
        SESSION_ID_LOW = 10 "session_id_low",
        /// Start of the session, in nanoseconds since the Unix epoch; 0 if there is none.
        SESSION_STARTED = 11 "session_started",
        /// Number of errors reported in the session.
        SESSION_ERRORS = 12 "session_errors",
        /// Status of the session: [`SessionStatus`].
        SESSION_STATUS = 13 "session_status",
        /// End of the session, in nanoseconds since the Unix epoch; 0 if it has not ended.
        SESSION_ENDED = 14 "session_ended",
        /// Bytes of memory that the process uses.
        MEMORY_USED = 15 "memory_used",
        /// Bytes of memory that are still available to the process.
        MEMORY_AVAILABLE = 16 "memory_available",
        /// 1 while a debugger is attached.
        DEBUGGED = 17 "debugged",
        /// Address of the last fault that was forwarded to another handler.
        FORWARDED_FAULT = 18 "forwarded_fault",
        /// Id of the run whose reports this process is processing: its first 8 bytes, big-endian.
        PROCESSING_RUN_HIGH = 19 "processing_run_high",
        /// Id of the run whose reports this process is processing: its last 8 bytes, big-endian.
        PROCESSING_RUN_LOW = 20 "processing_run_low",
        /// Id of the thread that processes another run's reports; 0 if there is none.
        PROCESSING_THREAD = 21 "processing_thread",
        /// Number of reports of survived errors that were not written because there were too many.
        REPORTS_LEFT_OUT = 22 "reports_left_out",
        /// Number of unwritten reports that the process itself has notified sinks of.
        ///
        /// A part of [`REPORTS_LEFT_OUT`](Self::REPORTS_LEFT_OUT).
        LEFT_OUT_NOTIFIED = 23 "left_out_notified",
        /// Number of reports that the process itself delivered, and removed from its run.
        REPORTS_DELIVERED = 24 "reports_delivered",
        /// 1 if the store's note of the last run records that it exited by itself.
        CLEAN_EXIT_NOTED = 25 "clean_exit_noted",
        /// A number that differs for each machine and each of its boots; 0 if not known.
        MACHINE = 26 "machine",
        /// Bytes at the start of the facts that are the same for all runs of that machine.
        MACHINE_FACTS = 27 "machine_facts",
        /// Size of the store's file system in bytes.
        STORAGE_SIZE = 28 "storage_size",
        /// Bytes of the store's file system that are available to an app.
        STORAGE_FREE = 29 "storage_free",
        /// Bytes of the machine's memory that are free or available without swapping.
        MACHINE_MEMORY_FREE = 30 "machine_memory_free",
        /// Battery and thermal state; 0 in each field means not known.
        ///
        /// Bits 0 to 7: charge in percent, plus 1. Bits 8 and 9: whether the battery is charging (1
        /// no, 2 yes). Bits 16 to 23: the [`ThermalState`].
        POWER = 31 "power",
        /// Time at which the previous four words were read, nanoseconds since the Unix epoch.
        DEVICE_READ = 48 "device_read",
        /// The signal for [`ExitKind::SIGTERM`] and [`ExitKind::SIGNAL`].
        EXIT_SIGNAL = 49 "exit_signal",
        /// Sender of [`EXIT_SIGNAL`](Self::EXIT_SIGNAL); 0 for the kernel or if unknown.
        EXIT_SENDER = 50 "exit_sender",
        /// Inode of the run's lock in its file system; 0 if not recorded.
        LOCK_FILE = 51 "lock_file",
        /// Start time of the process as read at the crash (Linux).
        ///
        /// In nanoseconds since the Unix epoch; 0 if there was no crash.
        PROCESS_STARTED = 52 "process_started",
        /// A number that differs for each app using the store; 0 if not recorded.
        APP = 53 "app",
        /// Name of [`EXIT_SENDER`](Self::EXIT_SENDER): its first 8 bytes, little-endian.
        EXIT_SENDER_NAME = 54 "exit_sender_name",
        /// Name of [`EXIT_SENDER`](Self::EXIT_SENDER): the next 8 bytes.
        EXIT_SENDER_NAME_REST = 55 "exit_sender_name_rest",
        /// 1 if the signal that requested the end went to a handler of the app.
        EXIT_HANDLED = 56 "exit_handled",
        /// Time at which the following words and [`MEMORY_USED`](Self::MEMORY_USED) were read.
        ///
        /// In nanoseconds since the Unix epoch.
        VITALS_READ = 57 "vitals_read",
        /// Number of processes in the memory cgroup killed because memory ran out, plus 1.
        ///
        /// 0 if not known.
        CGROUP_OOM_KILLS = 58 "cgroup_oom_kills",
        /// Number of processes on the machine killed because memory ran out, plus 1.
        ///
        /// 0 if not known.
        MACHINE_OOM_KILLS = 59 "machine_oom_kills",
        /// The memory cgroup, as the inode of its directory; 0 if not known.
        CGROUP = 60 "cgroup",
        /// Memory limit of the cgroup in bytes; 0 if there is none or it is not known.
        CGROUP_MEMORY_LIMIT = 61 "cgroup_memory_limit",
        /// Processor time: bits 0 to 31 the time used, bits 32 to 63 the hard limit.
        ///
        /// The time used is in hundredths of a second. The limit is in seconds, plus 1; 0 if there
        /// is none.
        PROCESSOR_TIME = 62 "processor_time",
        /// OOM score, memory pressure and process count; 0 in each field means not known.
        ///
        /// Bits 0 to 15: `oom_score_adj` plus 1,001. Bits 16 to 31: memory pressure in hundredths
        /// of a percent, plus 1. Bits 32 to 47: number of processes in the cgroup, plus 1.
        MEMORY_RISK = 63 "memory_risk",
    }
}

/// Number of hangs per run whose durations a run state can hold.
pub const MAX_HANGS: u8 = 16;

impl Scalar {
    /// The word for the duration of hang `number` in nanoseconds, set once the hang has ended.
    ///
    /// Words 32 to 47, by the number in the hang's report. `None` for a number without a word.
    pub const fn hang_duration(number: u8) -> Option<Scalar> {
        if number < MAX_HANGS { Some(Scalar(32 + number)) } else { None }
    }
}

open_numbers! {
    /// End of a run, as far as the process recorded it.
    ExitKind(u8) {
        /// The run has not ended, or had no chance to record how.
        RUNNING = 0 "running",
        /// A clean exit: `exit` or the end of `main`.
        CLEAN = 1 "clean",
        /// SIGTERM, which requests a clean exit.
        SIGTERM = 2 "sigterm",
        /// Coroner was uninstalled.
        UNINSTALLED = 3 "uninstalled",
        /// A crash, reported or not.
        CRASHED = 4 "crashed",
        /// A terminating signal other than SIGTERM and crash signals: Ctrl-C, a hangup, an alarm.
        SIGNAL = 5 "signal",
    }
}

open_numbers! {
    /// Thermal state of a device.
    ThermalState(u8) {
        /// Not known.
        UNKNOWN = 0 "unknown",
        /// Normal temperature.
        NOMINAL = 1 "nominal",
        /// Warm: the system throttles or cools.
        FAIR = 2 "fair",
        /// Hot.
        SERIOUS = 3 "serious",
        /// Critical: the system is about to shut down.
        CRITICAL = 4 "critical",
    }
}

open_numbers! {
    /// Whether an app was in the foreground.
    Foreground(u8) {
        /// Not known, or not a kind of app that is ever in the foreground.
        UNKNOWN = 0 "unknown",
        /// In the foreground.
        FOREGROUND = 1 "foreground",
        /// In the background.
        BACKGROUND = 2 "background",
    }
}

open_numbers! {
    /// Severity of an event or a breadcrumb. The names are Sentry's.
    Level(u8) {
        /// Debug.
        DEBUG = 1 "debug",
        /// Info.
        INFO = 2 "info",
        /// Warning.
        WARNING = 3 "warning",
        /// Error.
        ERROR = 4 "error",
        /// Fatal.
        FATAL = 5 "fatal",
    }
}

open_numbers! {
    /// Status of a session. The names are those of Sentry's protocol.
    SessionStatus(u8) {
        /// In progress, or ended normally.
        OK = 0 "ok",
        /// Ended normally.
        EXITED = 1 "exited",
        /// Ended with a crash.
        CRASHED = 2 "crashed",
        /// Ended abnormally (a hang, a kill).
        ABNORMAL = 3 "abnormal",
    }
}

open_numbers! {
    /// Kind of a key and its value.
    Kind(u8) {
        /// A tag: key and short text. The only kind in small slots.
        TAG = 1 "tag",
        /// A context: name and any CBOR item, usually a map.
        CONTEXT = 2 "context",
        /// Extra data: key and any CBOR item.
        EXTRA = 3 "extra",
        /// The user: key empty, a CBOR map, so that one user's fields are never mixed with
        /// another's.
        USER = 4 "user",
        /// The fingerprint: key empty, a CBOR array of texts.
        FINGERPRINT = 5 "fingerprint",
        /// An attachment to the run's reports.
        ///
        /// Its name, and a CBOR map of texts (`path`, `content_type`).
        ATTACHMENT = 6 "attachment",
        /// A text that replaces a fact's value: `release` or `environment`.
        CHANGED_FACT = 7 "changed_fact",
    }
}
