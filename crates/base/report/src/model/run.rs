//! What the app recorded before the crash, in the run state.

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
    /// The run.
    pub run_id: Id,
    /// The app.
    pub app: AppFacts,
    /// The operating system.
    pub os: OsFacts,
    /// The device.
    pub device: DeviceFacts,
    /// The process that ran; `None` if its run state does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessIdentity>,
    /// What of the device changes; `None` if it was never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_state: Option<DeviceState>,
    /// How the run went.
    pub lifecycle: Lifecycle,
    /// What explains an end without a trace; `None` if it was never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vitals: Option<Vitals>,
    /// Why the process ended, as a later launch found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
    /// What was recorded at the very start of a crash: of the last that ended the process, or else of the last that did
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash: Option<CrashRecord>,
    /// The session, for release health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// The release that the app changed to after install. The session keeps the one that it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The environment that it changed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Level that the app set for its events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Tags.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Contexts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, Value>,
    /// Extra data.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Value>,
    /// The user: a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Value>,
    /// The fingerprint, by which a server groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fingerprint: Vec<String>,
    /// Files that go with the run's reports, in the order in which they were declared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Breadcrumbs, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breadcrumbs: Vec<Breadcrumb>,
    /// Breadcrumbs that were left and overwritten by later ones.
    pub breadcrumbs_overwritten: u64,
    /// Facts of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown_facts: Extra,
    /// Keys and values of kinds of a later version: a map for each kind.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown_values: Extra,
    /// What is damaged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// A file that goes with the reports of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Attachment {
    /// Under which name.
    pub name: String,
    /// Where it lies.
    pub path: String,
    /// Its media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

impl Attachment {
    /// The media type of the minidump that the system made of the crash itself (Windows).
    pub const MINIDUMP: &str = "application/x-dmp";
}

/// Which process a run was, for as long as the machine is not started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessIdentity {
    /// Process id, in its own pid namespace.
    pub pid: u32,
    /// When the process started: Linux, clock ticks after boot (field 22 of `/proc/PID/stat`); Darwin, microseconds
    /// since the Unix epoch. 0 if it is not known.
    pub start: u64,
    /// Linux: `/proc/sys/kernel/random/boot_id`. Nil if it is not known.
    pub boot_id: Id,
    /// Linux: inode of `/proc/self/ns/pid`. 0 if it is not known.
    pub pid_namespace: u64,
}

impl From<ProcessIdentity> for crate::run_state::ProcessIdentity {
    fn from(process: ProcessIdentity) -> Self {
        let ProcessIdentity { pid, start, boot_id, pid_namespace } = process;
        Self { pid, start, boot_id: boot_id.0, pid_namespace }
    }
}

/// What is known of a crash before anything of the app is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CrashRecord {
    /// What noticed it.
    pub monitor: Monitor,
    /// Signal number, or the exception of [`Monitor::MACH`]; 0 if it came another way.
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
    /// When.
    pub time: Timestamp,
    /// Program counter (avma).
    pub pc: Address,
    /// Stack pointer.
    pub sp: Address,
    /// Whether the process went on after it.
    pub not_fatal: bool,
}

/// Declares what is known of the app, its system or its device: each fact with its type and how it is read.
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
            /// Takes them out of the facts of a run state.
            pub(crate) fn take(fields: &mut Fields) -> Self {
                Self { $($fact: fields.$read(Fact::$key.0.into()),)* }
            }
        }
    };
}

facts! {
    /// The app, as it was at install.
    AppFacts {
        /// Identifier, such as a bundle id.
        id: String = text APP_ID,
        /// Name for people.
        name: String = text APP_NAME,
        /// Version.
        version: String = text APP_VERSION,
        /// Build.
        build: String = text APP_BUILD,
        /// Release, such as `app@1.2.3+45`.
        release: String = text APP_RELEASE,
        /// Environment, such as `production`.
        environment: String = text APP_ENVIRONMENT,
        /// Distribution.
        dist: String = text APP_DIST,
        /// Name of the process.
        process_name: String = text PROCESS_NAME,
        /// Path of the executable.
        executable: String = text EXECUTABLE,
        /// Process id.
        pid: u32 = number PID,
        /// Start of the process.
        process_start: Timestamp = time PROCESS_START,
        /// When Coroner was installed.
        installed: Timestamp = time INSTALLED,
        /// An anonymous identifier of this installation of the app.
        installation_id: String = text INSTALLATION_ID,
        /// Build id of the program's file, hexadecimal digits.
        build_id: String = text APP_BUILD_ID,
        /// Microseconds after which the service manager ends the process if it does not answer.
        watchdog_us: u64 = u64 APP_WATCHDOG,
        /// Version of the Coroner that wrote it.
        sdk_version: String = text SDK_VERSION,
        /// The C library that the app runs on, such as `glibc`.
        runtime_name: String = text RUNTIME_NAME,
        /// Its version.
        runtime_version: String = text RUNTIME_VERSION,
    }
}

facts! {
    /// The operating system, as it was at install.
    OsFacts {
        /// Its name, such as `Linux`, `macOS`, `iOS`.
        name: String = text OS_NAME,
        /// Its version.
        version: String = text OS_VERSION,
        /// Its build.
        build: String = text OS_BUILD,
        /// Version of the kernel.
        kernel_version: String = text OS_KERNEL_VERSION,
        /// The distribution, such as `debian`.
        distribution: String = text OS_DISTRIBUTION,
        /// Version of the distribution.
        distribution_version: String = text OS_DISTRIBUTION_VERSION,
        /// Another one for each time that the machine was started.
        boot_id: String = text OS_BOOT_ID,
        /// Whether the device is rooted or jailbroken, where that is known.
        rooted: bool = bool OS_ROOTED,
    }
}

facts! {
    /// The device, as it was at install.
    DeviceFacts {
        /// Model, such as `iPhone15,2`.
        model: String = text DEVICE_MODEL,
        /// Family, such as `iPhone`.
        family: String = text DEVICE_FAMILY,
        /// Architecture, such as `arm64e`.
        arch: String = text DEVICE_ARCH,
        /// Description of the processor.
        cpu: String = text DEVICE_CPU,
        /// Processors.
        processor_count: u32 = number DEVICE_PROCESSOR_COUNT,
        /// Memory, bytes.
        memory_size: u64 = u64 DEVICE_MEMORY_SIZE,
        /// When it was started.
        boot_time: Timestamp = time DEVICE_BOOT_TIME,
        /// Whether it is a simulator.
        simulator: bool = bool DEVICE_SIMULATOR,
        /// Locale, such as `de_AT`.
        locale: String = text DEVICE_LOCALE,
        /// Time zone, such as `Europe/Vienna`.
        time_zone: String = text DEVICE_TIME_ZONE,
    }
}

/// What of the device changes, as it was when it was last read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeviceState {
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Timestamp>,
    /// Memory that is free or can be had without swapping, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free: Option<u64>,
    /// Size of the file system that the store is on, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_size: Option<u64>,
    /// What of it an app can still have, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_free: Option<u64>,
    /// The battery's charge, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_percent: Option<u8>,
    /// Whether it is being charged, or full and connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charging: Option<bool>,
    /// How hot it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thermal: Option<ThermalState>,
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lifecycle {
    /// How it ended, as far as the process recorded. [`ExitKind::RUNNING`]: it recorded nothing, so it is still running,
    /// or was killed, or the machine stopped.
    pub exit: ExitKind,
    /// When it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_time: Option<Timestamp>,
    /// The signal that ended it, or asked it to end: of [`ExitKind::SIGTERM`] and [`ExitKind::SIGNAL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    /// The process that sent that signal, where the system said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_sender: Option<u32>,
    /// The name of that process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_sender_name: Option<String>,
    /// Whether that signal went to a handler of the app, which was to end it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exit_handled: bool,
    /// The monitor that saw a crash, if one did, though the process may have gone on after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crashed_by: Option<Monitor>,
    /// When it crashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_time: Option<Timestamp>,
    /// Whether the app was in front.
    pub foreground: Foreground,
    /// When that changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreground_changed: Option<Timestamp>,
    /// The last sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_alive: Option<Timestamp>,
    /// When the hang began that was still going on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_since: Option<Timestamp>,
    /// How long the hangs lasted that ended, in nanoseconds, by the number that is in their reports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hang_durations_ns: BTreeMap<u8, u64>,
    /// Memory that the process used, bytes, at its last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Memory that it could still have had, bytes: up to its own limit, else the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available: Option<u64>,
    /// Whether a debugger was attached.
    pub debugged: bool,
    /// Address of the last fault that was handed on to another handler, where that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded_fault: Option<Address>,
    /// Reports of what the process survived that were not written, since there were too many, and that no sink was notified of yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub reports_left_out: u64,
    /// Reports that the process delivered itself while it went on.
    #[serde(skip_serializing_if = "is_zero")]
    pub reports_delivered: u64,
    /// What the process was processing, which is the reports of another run.
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
    /// The run whose reports they are.
    pub run: Id,
    /// The thread that processes them.
    pub tid: u64,
}

/// A session of release health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Session {
    /// Its identity.
    pub id: Id,
    /// When it began.
    pub started: Timestamp,
    /// Errors reported in it.
    pub errors: u64,
    /// How it stands.
    pub status: SessionStatus,
    /// When it ended, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature.
fn is_unset(level: &Level) -> bool {
    level.0 == 0
}

/// Something that happened before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Breadcrumb {
    /// When.
    pub time: Timestamp,
    /// How grave; 0 where that was not said.
    #[serde(skip_serializing_if = "is_unset")]
    pub level: Level,
    /// Type, such as `navigation`, `http`; `default` if empty.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Category, such as `ui.click`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Data: a map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub unknown: Extra,
}
