//! The run state: memory that is copied to a mapped file, which the app writes outside a signal
//! handler.
//!
//! The file outlives the process. Tags, contexts, breadcrumbs and the run's lifecycle are not
//! gathered in a dying process: they are already in this file. A crash adds only one
//! [record](RunState::set_crash), before anything else. The file is mapped shared, and each change
//! is copied to it before the call returns, so that it survives a `SIGKILL` at any instruction.
//! Every update leaves the previous value readable until the new one is whole. Without a
//! [mirror](RunState::mirrored), the words themselves are the mapping.
//!
//! Writers ([`RunState`]) never wait: no locks, no allocation, a bounded number of steps, from any
//! number of threads and from signal handlers. The file's blocks must be allocated before it is
//! mapped (`fallocate`, `F_PREALLOCATE`): a store to a hole in a file on a full disk raises SIGBUS.
//!
//! ```
//! use coroner_report::run_state::{Breadcrumb, Kind, Level, Limits, ProcessIdentity, RunState};
//! use std::sync::atomic::AtomicU64;
//!
//! let limits = Limits::default();
//! // In earnest: the mapping of a file. Zeros, as a new file is.
//! let region: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
//! let state = RunState::create(&region, &limits, [7; 16], &ProcessIdentity::default()).unwrap();
//! state.set_text(Kind::TAG, "language", "de").unwrap();
//! state.breadcrumb(&Breadcrumb { time_ns: 1, level: Level::INFO, message: "opened", ..Breadcrumb::default() });
//!
//! // At the next launch, from the file's bytes:
//! let facts = coroner_report::RunFacts::read(&state.to_bytes()).unwrap();
//! assert_eq!(facts.tags["language"], "de");
//! assert_eq!(facts.breadcrumbs[0].message.as_deref(), Some("opened"));
//! ```
//!
//! `docs/report-format.md` specifies the bytes.

mod breadcrumb;
mod checksum;
mod crash_record;
mod facts;
mod identity;
mod layout;
mod numbers;
#[cfg(feature = "std")]
mod read;
mod slots;
mod writer;

pub use breadcrumb::Breadcrumb;
pub use coroner_process::identity::ProcessIdentity;
pub use crash_record::CrashRecord;
pub use facts::FactsEncoder;
pub use layout::{FIXED_BYTES, Limits, MAGIC, MAX_KEY, VERSION};
pub use numbers::{ExitKind, Fact, Foreground, Kind, Level, MAX_HANGS, Scalar, SessionStatus, ThermalState};
#[cfg(feature = "std")]
pub use read::RunStateError;
pub use slots::Stored;
pub use writer::{CreateError, Refused, RunState, words_of_mapping};
