//! How the run before this one ended.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use coroner_report::model::Id;
use serde::{Deserialize, Serialize};

use crate::store::directory::Directory;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// There was no run before this one, in this store.
    FirstLaunch,
    /// The app ended by itself: `exit`, a return from `main`, or [`Coroner::mark_clean_exit`](crate::Coroner::mark_clean_exit).
    CleanExit,
    /// It was asked to end by SIGTERM.
    Terminated,
    /// It crashed, and there is a report.
    Crashed,
    /// It did not answer when it was ended, by the user or the system; known where it was watched for that
    /// ([`Config::hang_threshold`](crate::Config::hang_threshold)).
    Hung,
    /// Coroner was uninstalled while it ran; what came after is not known.
    Uninstalled,
    /// It ended without a trace: SIGKILL, the kernel's out-of-memory killer, a power failure, `_exit`.
    Unknown,
}

impl Outcome {
    /// The outcome in words that complete "the last run …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::FirstLaunch => "does not exist: this is the first launch",
            Self::CleanExit => "ended by itself",
            Self::Terminated => "was asked to end (SIGTERM)",
            Self::Crashed => "crashed",
            Self::Hung => "did not answer any more when it was ended",
            Self::Uninstalled => "uninstalled Coroner before it ended",
            Self::Unknown => "ended without a trace (killed, out of memory, or power failure)",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.describe())
    }
}

/// How the last run ended: of the runs that have ended and that no launch has looked at before, the one that began last. If
/// there is none (two processes of one app were started at once), what an earlier launch found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastRun {
    /// How it ended.
    pub outcome: Outcome,
    /// Which run it was; `None` for [`Outcome::FirstLaunch`].
    #[serde(with = "id_text")]
    pub run: Option<Id>,
    /// The event id of its report, if it crashed or hung: under which a server shows it.
    #[serde(with = "id_text")]
    pub event_id: Option<Id>,
    /// When it began.
    pub began: Option<SystemTime>,
    /// How long it ran from install to the crash or to the report of the hang, if it ended so. A crash soon after the start may come again each time before
    /// a report gets out.
    pub ran_for: Option<Duration>,
}

/// In the store, how the last run that was looked at ended.
const FILE: &str = "last_run.json";

impl LastRun {
    pub(crate) const FIRST_LAUNCH: LastRun =
        LastRun { outcome: Outcome::FirstLaunch, run: None, event_id: None, began: None, ran_for: None };

    /// Whether it crashed.
    pub fn crashed(&self) -> bool {
        self.outcome == Outcome::Crashed
    }

    /// Reads what an earlier launch noted. Without it, or with one that can't be understood, this is the first launch.
    pub(crate) fn read(store: &Directory) -> LastRun {
        let noted = store.read(FILE.as_ref(), 1 << 16).ok();
        noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Self::FIRST_LAUNCH)
    }

    pub(crate) fn write(&self, store: &Directory) -> io::Result<()> {
        let bytes = serde_json::to_vec(self).map_err(io::Error::other)?;
        store.write_atomically(FILE.as_ref(), &bytes)
    }
}

/// An id as its 32 digits.
mod id_text {
    use coroner_report::model::Id;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    // The signature is serde's.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(id: &Option<Id>, serializer: S) -> Result<S::Ok, S::Error> {
        id.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Id>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_again_and_damage_is_a_first_launch() {
        let folder = tempfile::tempdir().unwrap();
        let store = Directory::open(folder.path()).unwrap();
        assert_eq!(LastRun::read(&store), LastRun::FIRST_LAUNCH);
        let last = LastRun {
            outcome: Outcome::Crashed,
            run: Some(Id([9; 16])),
            event_id: Some(Id([0xab; 16])),
            began: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
            ran_for: Some(Duration::from_millis(1500)),
        };
        last.write(&store).unwrap();
        assert_eq!(LastRun::read(&store), last);
        store.write_atomically(FILE.as_ref(), b"{\"outcome\":").unwrap();
        assert_eq!(LastRun::read(&store), LastRun::FIRST_LAUNCH);
    }
}
