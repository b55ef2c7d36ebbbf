//! The numbers of the run state.

use crate::open_numbers::open_numbers;

open_numbers! {
    /// A fact of the app, the system or the device that does not change during a run.
    Fact(u16) {
        /// Text: identifier of the app, such as a bundle id.
        APP_ID = 1 "app.id",
        /// Text: its name for people.
        APP_NAME = 2 "app.name",
        /// Text: its version.
        APP_VERSION = 3 "app.version",
        /// Text: its build.
        APP_BUILD = 4 "app.build",
        /// Text: its release, such as `app@1.2.3+45`.
        APP_RELEASE = 5 "app.release",
        /// Text: its environment, such as `production`.
        APP_ENVIRONMENT = 6 "app.environment",
        /// Text: its distribution.
        APP_DIST = 7 "app.dist",
        /// Text: name of the process.
        PROCESS_NAME = 8 "app.process_name",
        /// Text: path of the executable.
        EXECUTABLE = 9 "app.executable",
        /// Integer: process id.
        PID = 10 "app.pid",
        /// Integer: start of the process, nanoseconds since the Unix epoch.
        PROCESS_START = 11 "app.process_start",
        /// Integer: time of install, nanoseconds since the Unix epoch.
        INSTALLED = 12 "app.installed",
        /// Text: an anonymous identifier of this installation of the app.
        INSTALLATION_ID = 13 "app.installation_id",
        /// Text: version of Coroner.
        SDK_VERSION = 14 "app.sdk_version",
        /// Text: the C library that the app runs on, such as `glibc`.
        RUNTIME_NAME = 15 "app.runtime_name",
        /// Text: its version.
        RUNTIME_VERSION = 16 "app.runtime_version",
        /// Text: build id of the program's file, hexadecimal digits.
        APP_BUILD_ID = 17 "app.build_id",
        /// Integer: microseconds after which the service manager ends the process if it does not answer (`WATCHDOG_USEC` of sd_watchdog_enabled(3)).
        APP_WATCHDOG = 18 "app.watchdog_us",
        /// Text: name of the operating system, such as `Linux`, `macOS`, `iOS`.
        OS_NAME = 20 "os.name",
        /// Text: its version.
        OS_VERSION = 21 "os.version",
        /// Text: its build.
        OS_BUILD = 22 "os.build",
        /// Text: version of the kernel.
        OS_KERNEL_VERSION = 23 "os.kernel_version",
        /// Text: the distribution, such as `debian`.
        OS_DISTRIBUTION = 24 "os.distribution",
        /// Text: version of the distribution.
        OS_DISTRIBUTION_VERSION = 25 "os.distribution_version",
        /// Boolean: rooted or jailbroken.
        OS_ROOTED = 26 "os.rooted",
        /// Text: another one for each time that the machine was started (Linux: `/proc/sys/kernel/random/boot_id`).
        OS_BOOT_ID = 27 "os.boot_id",
        /// Text: model of the device, such as `iPhone15,2`.
        DEVICE_MODEL = 40 "device.model",
        /// Text: its family, such as `iPhone`.
        DEVICE_FAMILY = 41 "device.family",
        /// Text: its architecture, such as `arm64e`.
        DEVICE_ARCH = 42 "device.arch",
        /// Text: description of its processor.
        DEVICE_CPU = 43 "device.cpu",
        /// Integer: number of processors.
        DEVICE_PROCESSOR_COUNT = 44 "device.processor_count",
        /// Integer: memory in bytes.
        DEVICE_MEMORY_SIZE = 45 "device.memory_size",
        /// Integer: when it was started, nanoseconds since the Unix epoch.
        DEVICE_BOOT_TIME = 46 "device.boot_time",
        /// Boolean: a simulator.
        DEVICE_SIMULATOR = 47 "device.simulator",
        /// Text: locale, such as `de_AT`.
        DEVICE_LOCALE = 48 "device.locale",
        /// Text: time zone, such as `Europe/Vienna`.
        DEVICE_TIME_ZONE = 49 "device.time_zone",
    }
}

open_numbers! {
    /// One of 64 words that change during a run, each at once.
    Scalar(u8) {
        /// [`ExitKind`].
        EXIT = 0 "exit",
        /// When that was set, nanoseconds since the Unix epoch.
        EXIT_TIME = 1 "exit_time",
        /// [`Foreground`].
        FOREGROUND = 4 "foreground",
        /// When that was set, nanoseconds since the Unix epoch.
        FOREGROUND_CHANGED = 5 "foreground_changed",
        /// The last sign of life, nanoseconds since the Unix epoch.
        LAST_ALIVE = 6 "last_alive",
        /// When a hang began, nanoseconds since the Unix epoch; 0 while none goes on.
        HANG_SINCE = 7 "hang_since",
        /// [`Level`] of the app's events.
        LEVEL = 8 "level",
        /// Session id: its first 8 bytes, big-endian.
        SESSION_ID_HIGH = 9 "session_id_high",
        /// Session id: its last 8 bytes, big-endian.
        SESSION_ID_LOW = 10 "session_id_low",
        /// When the session began, nanoseconds since the Unix epoch; 0: there is none.
        SESSION_STARTED = 11 "session_started",
        /// Errors reported in the session.
        SESSION_ERRORS = 12 "session_errors",
        /// [`SessionStatus`].
        SESSION_STATUS = 13 "session_status",
        /// When the session ended, nanoseconds since the Unix epoch; 0: it did not.
        SESSION_ENDED = 14 "session_ended",
        /// Memory that the process uses, bytes.
        MEMORY_USED = 15 "memory_used",
        /// Memory that it could still have, bytes.
        MEMORY_AVAILABLE = 16 "memory_available",
        /// 1 while a debugger is attached.
        DEBUGGED = 17 "debugged",
        /// Address of the last fault that was handed on to another handler.
        FORWARDED_FAULT = 18 "forwarded_fault",
        /// Id of the run whose reports this process is processing: its first 8 bytes, big-endian.
        PROCESSING_RUN_HIGH = 19 "processing_run_high",
        /// Its last 8 bytes, big-endian.
        PROCESSING_RUN_LOW = 20 "processing_run_low",
        /// The thread that processes them; 0 while none does.
        PROCESSING_THREAD = 21 "processing_thread",
        /// Reports of what the process survived that were not written, since there were too many.
        REPORTS_LEFT_OUT = 22 "reports_left_out",
        /// How many of those the process itself has notified sinks of.
        LEFT_OUT_NOTIFIED = 23 "left_out_notified",
        /// Reports that the process itself has delivered while it went on, which are not in its run any more.
        REPORTS_DELIVERED = 24 "reports_delivered",
        /// 1: the store's note of the last run says that one ended by itself.
        CLEAN_EXIT_NOTED = 25 "clean_exit_noted",
        /// Another number for each machine and each of its boots; 0: not known.
        MACHINE = 26 "machine",
        /// Bytes of facts, from the first one on, that are the same for all runs of that machine.
        MACHINE_FACTS = 27 "machine_facts",
        /// Size of the file system that the store is on, bytes.
        STORAGE_SIZE = 28 "storage_size",
        /// What of it an app can still have, bytes.
        STORAGE_FREE = 29 "storage_free",
        /// Memory of the machine that is free or can be had without swapping, bytes.
        MACHINE_MEMORY_FREE = 30 "machine_memory_free",
        /// Battery and heat: bits 0 to 7 are the charge in percent, plus 1; bits 8 and 9 whether it is being charged (1 no, 2 yes);
        /// bits 16 to 23 the [`ThermalState`]. 0 each: not known.
        POWER = 31 "power",
        /// When those four were last read, nanoseconds since the Unix epoch.
        DEVICE_READ = 48 "device_read",
        /// The signal of [`ExitKind::SIGTERM`] and [`ExitKind::SIGNAL`].
        EXIT_SIGNAL = 49 "exit_signal",
        /// The process that sent it; 0: the kernel did, or it is not known.
        EXIT_SENDER = 50 "exit_sender",
        /// The number of the run's lock in its file system; 0: not noted.
        LOCK_FILE = 51 "lock_file",
        /// When the process started, nanoseconds since the Unix epoch, as it read when it crashed (Linux); 0: it did not.
        PROCESS_STARTED = 52 "process_started",
        /// Another number for each app that has the store; 0: not noted.
        APP = 53 "app",
        /// The name of [`EXIT_SENDER`](Self::EXIT_SENDER): its first 8 bytes, little-endian.
        EXIT_SENDER_NAME = 54 "exit_sender_name",
        /// The 8 bytes behind them.
        EXIT_SENDER_NAME_REST = 55 "exit_sender_name_rest",
        /// 1: the signal that asked for the end went to a handler of the app.
        EXIT_HANDLED = 56 "exit_handled",
        /// When the words from here on and [`MEMORY_USED`](Self::MEMORY_USED) were read, nanoseconds since the Unix epoch.
        VITALS_READ = 57 "vitals_read",
        /// Processes of the memory cgroup that were killed for want of memory, plus 1; 0: not known.
        CGROUP_OOM_KILLS = 58 "cgroup_oom_kills",
        /// Processes of the machine that were, plus 1; 0: not known.
        MACHINE_OOM_KILLS = 59 "machine_oom_kills",
        /// The memory cgroup: the inode of its directory; 0: not known.
        CGROUP = 60 "cgroup",
        /// The most memory that the cgroup may use, bytes; 0: no limit, or not known.
        CGROUP_MEMORY_LIMIT = 61 "cgroup_memory_limit",
        /// Processor time: bits 0 to 31 what was used, hundredths of a second; bits 32 to 63 the hard limit, seconds, plus 1 (0: none).
        PROCESSOR_TIME = 62 "processor_time",
        /// Bits 0 to 15: `oom_score_adj` plus 1,001; bits 16 to 31: memory pressure, hundredths of a percent, plus 1; bits 32 to 47: processes
        /// of the cgroup, plus 1. 0 each: not known.
        MEMORY_RISK = 63 "memory_risk",
    }
}

/// Hangs of one run whose durations a run state has room for.
pub const MAX_HANGS: u8 = 16;

impl Scalar {
    /// The word for how long hang `number` of the run lasted, nanoseconds, once it has ended: words 32 to 47, by the number that the
    /// hang's report has. `None` for a number without a word.
    pub const fn hang_duration(number: u8) -> Option<Scalar> {
        if number < MAX_HANGS { Some(Scalar(32 + number)) } else { None }
    }
}

open_numbers! {
    /// How a run ended, as far as the process recorded.
    ExitKind(u8) {
        /// It has not ended, or had no chance to record how.
        RUNNING = 0 "running",
        /// `exit` or the end of `main`.
        CLEAN = 1 "clean",
        /// SIGTERM, which asks for a clean end.
        SIGTERM = 2 "sigterm",
        /// Coroner was uninstalled.
        UNINSTALLED = 3 "uninstalled",
        /// A crash, reported or not.
        CRASHED = 4 "crashed",
        /// A signal whose default is to end a process, other than SIGTERM and those of crashes: Ctrl-C, a hangup, an alarm.
        SIGNAL = 5 "signal",
    }
}

open_numbers! {
    /// How hot a device is.
    ThermalState(u8) {
        /// Not known.
        UNKNOWN = 0 "unknown",
        /// As it should be.
        NOMINAL = 1 "nominal",
        /// So warm that the system slows down or cools.
        FAIR = 2 "fair",
        /// Hot.
        SERIOUS = 3 "serious",
        /// So hot that the system is about to switch off.
        CRITICAL = 4 "critical",
    }
}

open_numbers! {
    /// Whether an app was in front.
    Foreground(u8) {
        /// Not known, or not a kind of app that is ever in front.
        UNKNOWN = 0 "unknown",
        /// In front.
        FOREGROUND = 1 "foreground",
        /// In the background.
        BACKGROUND = 2 "background",
    }
}

open_numbers! {
    /// Gravity of an event or a breadcrumb. The names are Sentry's.
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
    /// How a session stands. The names are those of Sentry's protocol.
    SessionStatus(u8) {
        /// It goes on, or ended well.
        OK = 0 "ok",
        /// It ended well.
        EXITED = 1 "exited",
        /// It ended with a crash.
        CRASHED = 2 "crashed",
        /// It ended otherwise than it should (a hang, a kill).
        ABNORMAL = 3 "abnormal",
    }
}

open_numbers! {
    /// What a key and its value are.
    Kind(u8) {
        /// A tag: key and short text. The only kind in small slots.
        TAG = 1 "tag",
        /// A context: name and any CBOR item, usually a map.
        CONTEXT = 2 "context",
        /// Extra data: key and any CBOR item.
        EXTRA = 3 "extra",
        /// The user: key empty, a CBOR map, so that one user's fields are never mixed with another's.
        USER = 4 "user",
        /// The fingerprint: key empty, a CBOR array of texts.
        FINGERPRINT = 5 "fingerprint",
        /// A file that goes with the run's reports: its name, and a CBOR map of texts (`path`, `content_type`).
        ATTACHMENT = 6 "attachment",
        /// A text that takes the place of a fact's: `release` or `environment`.
        CHANGED_FACT = 7 "changed_fact",
    }
}
