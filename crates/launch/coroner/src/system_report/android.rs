//! Android's `ApplicationExitInfo` (API 30): how earlier processes of the app ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::hand_over::known;
use super::{SystemEnd, SystemReport};
use crate::store::directory::Directory;

/// The source in every record.
const SOURCE: &str = "ApplicationExitInfo";

/// Names of the reasons by number: `REASON_…` of `android.app.ApplicationExitInfo`.
const REASONS: [&str; 17] = [
    "UNKNOWN",
    "EXIT_SELF",
    "SIGNALED",
    "LOW_MEMORY",
    "CRASH",
    "CRASH_NATIVE",
    "ANR",
    "INITIALIZATION_FAILURE",
    "PERMISSION_CHANGE",
    "EXCESSIVE_RESOURCE_USAGE",
    "USER_REQUESTED",
    "USER_STOPPED",
    "DEPENDENCY_DIED",
    "OTHER",
    "FREEZER",
    "PACKAGE_STATE_CHANGE",
    "PACKAGE_UPDATED",
];

/// An entry of Android's `getHistoricalProcessExitReasons`, with the values of its getters.
///
/// ```
/// use coroner::{Config, ExitInfo};
///
/// let mut info = ExitInfo::default();
/// (info.pid, info.reason, info.timestamp_ms) = (4100, 3, 1_756_576_393_601);
/// let _config = Config::new("com.example.shop").system_report(info);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitInfo {
    /// `getPid`.
    pub pid: u32,
    /// `getReason`, such as 6 for `REASON_ANR`.
    pub reason: i32,
    /// `getStatus`: the exit code or the signal.
    pub status: i32,
    /// `getImportance`: 100 is the foreground.
    pub importance: i32,
    /// `getTimestamp`: the time of death in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// `getRss`, in kilobytes.
    pub rss_kb: u64,
    /// `getPss`, in kilobytes.
    pub pss_kb: u64,
    /// `getDescription`; may be empty.
    pub description: String,
    /// All bytes of `getTraceInputStream`; may be empty.
    ///
    /// They are text for an ANR, and a protobuf tombstone for `REASON_CRASH_NATIVE` (API 31).
    pub trace: Vec<u8>,
}

impl ExitInfo {
    /// Whether the store in `store_dir` has already recorded this process's end.
    ///
    /// If so, the trace need not be read again. The process is identified by process id and time.
    pub fn is_known(&self, store_dir: &Path) -> bool {
        let report = SystemReport::from(self.clone());
        Directory::open(store_dir).is_ok_and(|store| known(&store).get(SOURCE).is_some_and(|known| known.has(&report)))
    }

    fn end(&self) -> SystemEnd {
        match (self.reason, self.status) {
            (1, _) => SystemEnd::Exited,
            (2, 15) => SystemEnd::Terminated,
            // SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
            (2, 4..=8 | 11 | 31) | (4 | 5 | 7, _) => SystemEnd::Crashed,
            (3, _) => SystemEnd::OutOfMemory,
            (6, _) => SystemEnd::Hung,
            (10 | 11, _) => SystemEnd::EndedByUser,
            (2 | 8 | 9 | 12..=16, _) => SystemEnd::EndedBySystem,
            _ => SystemEnd::Unknown,
        }
    }
}

impl From<ExitInfo> for SystemReport {
    fn from(info: ExitInfo) -> Self {
        let reason = usize::try_from(info.reason).ok().and_then(|reason| REASONS.get(reason));
        let mut details = BTreeMap::from([
            ("reason".to_owned(), reason.map_or_else(|| info.reason.to_string(), |name| (*name).to_owned())),
            ("status".to_owned(), info.status.to_string()),
            ("importance".to_owned(), info.importance.to_string()),
        ]);
        for (key, value) in [("rss_kb", info.rss_kb), ("pss_kb", info.pss_kb)] {
            if value > 0 {
                details.insert(key.to_owned(), value.to_string());
            }
        }
        if !info.description.is_empty() {
            details.insert("description".to_owned(), info.description.clone());
        }
        SystemReport {
            run_id: None,
            source: SOURCE.to_owned(),
            pid: info.pid,
            // Above this limit, the addition could overflow.
            time: UNIX_EPOCH + Duration::from_millis(info.timestamp_ms.min(u64::MAX / 2_000_000)),
            end: info.end(),
            details,
            trace: info.trace,
        }
    }
}
