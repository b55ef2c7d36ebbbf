//! What the app told while it was well.

use super::Problem;
use super::address::{Address, Id, Timestamp};
use super::value::{Extra, Value};
use crate::run_state::{ExitKind, Foreground, Level, SessionStatus};
use crate::wire::Monitor;
use serde::Serialize;
use std::collections::BTreeMap;

/// The content of a run state file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunFacts {
    /// The run.
    pub run_id: Id,
    /// The app.
    pub app: AppFacts,
    /// The operating system.
    pub os: OsFacts,
    /// The device.
    pub device: DeviceFacts,
    /// How the run went.
    pub lifecycle: Lifecycle,
    /// The session, for release health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
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

/// The app, as it was at install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AppFacts {
    /// Identifier, such as a bundle id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Release, such as `app@1.2.3+45`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Environment, such as `production`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dist: Option<String>,
    /// Name of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_name: Option<String>,
    /// Path of the executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Start of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_start: Option<Timestamp>,
    /// When Coroner was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed: Option<Timestamp>,
    /// An anonymous identifier of this installation of the app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation_id: Option<String>,
    /// Version of the Coroner that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdk_version: Option<String>,
    /// The C library that the app runs on, such as `glibc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_name: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_version: Option<String>,
}

/// The operating system, as it was at install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OsFacts {
    /// Its name, such as `Linux`, `macOS`, `iOS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Version of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// The distribution, such as `debian`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// Version of the distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_version: Option<String>,
    /// Whether the device is rooted or jailbroken, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rooted: Option<bool>,
}

/// The device, as it was at install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// Model, such as `iPhone15,2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Family, such as `iPhone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Architecture, such as `arm64e`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Description of the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_count: Option<u32>,
    /// Memory, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_size: Option<u64>,
    /// When it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_time: Option<Timestamp>,
    /// Whether it is a simulator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulator: Option<bool>,
    /// Locale, such as `de_AT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// Time zone, such as `Europe/Vienna`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lifecycle {
    /// How it ended, as far as the process could tell. [`ExitKind::RUNNING`]: it did not tell, so it is still running,
    /// or was killed, or the machine stopped.
    pub exit: ExitKind,
    /// When it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_time: Option<Timestamp>,
    /// The monitor that saw a crash, if one did: set before anything else is done, so it tells of a crash even where no
    /// report could be written.
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
    /// Memory that the process used, bytes, when it was last asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Memory that it could still have had, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available: Option<u64>,
    /// Whether a debugger was attached.
    pub debugged: bool,
    /// Address of the last fault that was handed on to another handler, where that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded_fault: Option<Address>,
}

/// A session of release health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Breadcrumb {
    /// When.
    pub time: Timestamp,
    /// How grave; 0 where that was not said.
    #[serde(skip_serializing_if = "is_unset")]
    pub level: Level,
    /// Type, such as `navigation`, `http`; `default` if empty.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
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
