//! Data that the app recorded in the run state before the crash.

use super::Problem;
use super::address::{Address, Id};
use super::termination::{Termination, Vitals};
use super::timestamp::Timestamp;
use super::value::{Extra, Value};
use crate::reader::Fields;
use crate::run_state::{ExitKind, Fact, Foreground, Level, SessionStatus, ThermalState};
use crate::wire::Monitor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The content of a run state file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunFacts {
    /// The run's id.
    pub run_id: Id,
    /// The app.
    pub app: AppFacts,
    /// The operating system.
    pub os: OsFacts,
    /// The device.
    pub device: DeviceFacts,
    /// The process that ran; `None` if its run state doesn't contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessIdentity>,
    /// Changing properties of the device; `None` if they were never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_state: Option<DeviceState>,
    /// The run's course and end.
    pub lifecycle: Lifecycle,
    /// Measurements that explain an end without a trace; `None` if they were never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vitals: Option<Vitals>,
    /// Why the process ended, as determined by a later launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
    /// The crash record, written at the very start of a crash.
    ///
    /// It describes the last fatal crash, or else the last non-fatal one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash: Option<CrashRecord>,
    /// The release-health session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// The release that the app set after install. The session keeps its original release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The environment that the app set after install.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The level that the app set for its events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Tags set by the app.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Contexts set by the app.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, Value>,
    /// Extra data set by the app.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Value>,
    /// The user, as a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Value>,
    /// The fingerprint by which a server groups events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fingerprint: Vec<String>,
    /// Files attached to the run's reports, in the order of their declaration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Breadcrumbs, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breadcrumbs: Vec<Breadcrumb>,
    /// Number of breadcrumbs overwritten by later ones.
    pub breadcrumbs_overwritten: u64,
    /// Facts of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown_facts: Extra,
    /// Keys and values of kinds from a later version: a map for each kind.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown_values: Extra,
    /// Damaged parts of the run state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// A file attached to a run's reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Attachment {
    /// Name of the attachment.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// Media type of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

impl Attachment {
    /// The media type of a minidump that the system wrote for the crash itself (Windows).
    pub const MINIDUMP: &str = "application/x-dmp";
}

/// Identity of a run's process, valid until the machine restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessIdentity {
    /// Process id, in the process's own pid namespace.
    pub pid: u32,
    /// Start time of the process; 0 if unknown.
    ///
    /// On Linux in clock ticks after boot (field 22 of `/proc/PID/stat`), on Darwin in microseconds
    /// since the Unix epoch.
    pub start: u64,
    /// Boot id from `/proc/sys/kernel/random/boot_id` (Linux); nil if unknown.
    pub boot_id: Id,
    /// Inode of `/proc/self/ns/pid` (Linux); 0 if unknown.
    pub pid_namespace: u64,
}

impl From<ProcessIdentity> for crate::run_state::ProcessIdentity {
    fn from(process: ProcessIdentity) -> Self {
        let ProcessIdentity { pid, start, boot_id, pid_namespace } = process;
        Self { pid, start, boot_id: boot_id.0, pid_namespace }
    }
}

/// A crash as recorded before any of the app's data is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CrashRecord {
    /// The monitor that noticed the crash.
    pub monitor: Monitor,
    /// Signal number, or the exception of [`Monitor::MACH`]; 0 if there was neither.
    pub signal: i32,
    /// `si_code`, or `code[0]` of a Mach exception.
    pub code: i64,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr` of a signal that has one, or the address of `EXC_BAD_ACCESS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The thread that crashed.
    pub tid: u64,
    /// Time of the crash.
    pub time: Timestamp,
    /// Program counter (avma).
    pub pc: Address,
    /// Stack pointer.
    pub sp: Address,
    /// Whether the process continued after the crash.
    pub not_fatal: bool,
}

/// Declares facts about the app, its system or its device: each with its type and reader.
macro_rules! facts {
    ($(#[$doc:meta])* $name:ident { $($(#[$fact_doc:meta])* $fact:ident: $type:ty = $read:ident $key:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(default)]
        pub struct $name {
            $($(#[$fact_doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $fact: Option<$type>,)*
        }

        impl $name {
            /// Takes these facts out of a run state's facts.
            pub(crate) fn take(fields: &mut Fields) -> Self {
                Self { $($fact: fields.$read(Fact::$key.0.into()),)* }
            }
        }
    };
}

facts! {
    /// The app at install time.
    AppFacts {
        /// App identifier, such as a bundle id.
        id: String = text APP_ID,
        /// Display name of the app.
        name: String = text APP_NAME,
        /// Version of the app.
        version: String = text APP_VERSION,
        /// Build of the app.
        build: String = text APP_BUILD,
        /// Release, such as `app@1.2.3+45`.
        release: String = text APP_RELEASE,
        /// Environment, such as `production`.
        environment: String = text APP_ENVIRONMENT,
        /// Distribution of the app.
        dist: String = text APP_DIST,
        /// Name of the process.
        process_name: String = text PROCESS_NAME,
        /// Path of the executable.
        executable: String = text EXECUTABLE,
        /// Process id.
        pid: u32 = number PID,
        /// Start time of the process.
        process_start: Timestamp = time PROCESS_START,
        /// Time at which Coroner was installed.
        installed: Timestamp = time INSTALLED,
        /// An anonymous identifier of this installation of the app.
        installation_id: String = text INSTALLATION_ID,
        /// Build id of the program's file, in hexadecimal digits.
        build_id: String = text APP_BUILD_ID,
        /// Microseconds of silence after which the service manager kills the process.
        watchdog_us: u64 = u64 APP_WATCHDOG,
        /// Version of the Coroner that wrote the run state.
        sdk_version: String = text SDK_VERSION,
        /// The C library that the app runs on, such as `glibc`.
        runtime_name: String = text RUNTIME_NAME,
        /// Version of the C library.
        runtime_version: String = text RUNTIME_VERSION,
    }
}

facts! {
    /// The operating system at install time.
    OsFacts {
        /// Name of the system, such as `Linux`, `macOS`, `iOS`.
        name: String = text OS_NAME,
        /// Version of the system.
        version: String = text OS_VERSION,
        /// Build of the system.
        build: String = text OS_BUILD,
        /// Version of the kernel.
        kernel_version: String = text OS_KERNEL_VERSION,
        /// The distribution, such as `debian`.
        distribution: String = text OS_DISTRIBUTION,
        /// Version of the distribution.
        distribution_version: String = text OS_DISTRIBUTION_VERSION,
        /// Boot id, which changes each time the machine starts.
        boot_id: String = text OS_BOOT_ID,
        /// Whether the device is rooted or jailbroken, if known.
        rooted: bool = bool OS_ROOTED,
    }
}

facts! {
    /// The device at install time.
    DeviceFacts {
        /// Device model, such as `iPhone15,2`.
        model: String = text DEVICE_MODEL,
        /// Device family, such as `iPhone`.
        family: String = text DEVICE_FAMILY,
        /// Architecture, such as `arm64e`.
        arch: String = text DEVICE_ARCH,
        /// Description of the processor.
        cpu: String = text DEVICE_CPU,
        /// Number of processors.
        processor_count: u32 = number DEVICE_PROCESSOR_COUNT,
        /// Memory size in bytes.
        memory_size: u64 = u64 DEVICE_MEMORY_SIZE,
        /// Time at which the device booted.
        boot_time: Timestamp = time DEVICE_BOOT_TIME,
        /// Whether the device is a simulator.
        simulator: bool = bool DEVICE_SIMULATOR,
        /// Locale, such as `de_AT`.
        locale: String = text DEVICE_LOCALE,
        /// Time zone, such as `Europe/Vienna`.
        time_zone: String = text DEVICE_TIME_ZONE,
    }
}

/// Changing properties of the device, as last read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeviceState {
    /// Time of the reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Timestamp>,
    /// Bytes of memory that are free or available without swapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free: Option<u64>,
    /// Size of the store's file system in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_size: Option<u64>,
    /// Bytes of the store's file system that are available to an app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_free: Option<u64>,
    /// Battery charge in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_percent: Option<u8>,
    /// Whether the battery is charging, or full and connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charging: Option<bool>,
    /// Thermal state of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thermal: Option<ThermalState>,
}

/// The course and end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lifecycle {
    /// End of the run, as far as the process recorded it.
    ///
    /// With [`ExitKind::RUNNING`] the process recorded no end: it is still running or was killed,
    /// or the machine stopped.
    pub exit: ExitKind,
    /// Time at which the end was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_time: Option<Timestamp>,
    /// The signal that ended the process or asked it to end.
    ///
    /// Only with [`ExitKind::SIGTERM`] and [`ExitKind::SIGNAL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    /// The process that sent `exit_signal`, if the system reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_sender: Option<u32>,
    /// Name of the process that sent `exit_signal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_sender_name: Option<String>,
    /// Whether `exit_signal` went to a handler of the app, which was to end the process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exit_handled: bool,
    /// The monitor that saw a crash, if one did. The process may have continued after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crashed_by: Option<Monitor>,
    /// Time of the crash that a monitor saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_time: Option<Timestamp>,
    /// Whether the app was in the foreground.
    pub foreground: Foreground,
    /// Time of the last change between foreground and background.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreground_changed: Option<Timestamp>,
    /// Time of the last sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_alive: Option<Timestamp>,
    /// Start of the hang that was still in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_since: Option<Timestamp>,
    /// Durations of hangs that ended, in nanoseconds, by the hang number in their reports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hang_durations_ns: BTreeMap<u8, u64>,
    /// Bytes of memory that the process used, as last recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Bytes of memory that were still available.
    ///
    /// Up to the process's own limit, or else the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available: Option<u64>,
    /// Whether a debugger was attached.
    pub debugged: bool,
    /// Address of the last fault that was forwarded to another handler, if recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded_fault: Option<Address>,
    /// Number of suppressed reports of survived errors.
    ///
    /// They were suppressed because there were too many, and no sink has been notified of them yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub reports_left_out: u64,
    /// Reports that the process delivered itself while running.
    #[serde(skip_serializing_if = "is_zero")]
    pub reports_delivered: u64,
    /// Reports of another run that the process was processing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processing: Option<Processing>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The processing of an earlier run's reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Processing {
    /// The run whose reports are processed.
    pub run: Id,
    /// The thread that processes the reports.
    pub tid: u64,
}

/// A release-health session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Session {
    /// Session id.
    pub id: Id,
    /// Time at which the session began.
    pub started: Timestamp,
    /// Number of errors reported in the session.
    pub errors: u64,
    /// Status of the session.
    pub status: SessionStatus,
    /// Time at which the session ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature.
fn is_unset(level: &Level) -> bool {
    level.0 == 0
}

/// An event that preceded the crash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Breadcrumb {
    /// Time of the event.
    pub time: Timestamp,
    /// Severity; 0 if not set.
    #[serde(skip_serializing_if = "is_unset")]
    pub level: Level,
    /// Type, such as `navigation`, `http`; `default` if empty.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Category, such as `ui.click`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Message of the breadcrumb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Data of the breadcrumb, as a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Number of equal breadcrumbs that followed at once, and are counted instead of kept; at most
    /// 65,535.
    #[serde(skip_serializing_if = "is_zero")]
    pub repetitions: u64,
    /// Time of the last repetition, if this is the newest breadcrumb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown: Extra,
}
