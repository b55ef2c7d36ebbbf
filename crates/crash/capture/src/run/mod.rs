//! Run: a directory in the store for one process's life, created at install with everything that a
//! crash will need.
//!
//! ```text
//! <store>/                       0700
//!   runs/<run id, 32 hex digits>/  0700, one per process
//!     lock                         empty; a POSIX write lock (fcntl F_SETLK) held for the process's life
//!     report                       the report, see coroner-report: reserved at install and mapped, zero until a crash. Its last
//!                                  bytes are a small one by itself, the spare report: for a crash that can open no file
//!     report-2 …                   later crashes of a process that goes on after the first (made when they happen)
//!     children                     slots for the reports of children, created before the first fork (child_reports)
//!     state                        the run state, mapped, written while the app runs
//!   clean/                         the directory of a run that ended by itself and left no report, for the next one to use
//! ```
//!
//! After install one descriptor is open, the lock's. It is a POSIX lock because such a lock belongs
//! to the process: a child made by fork does not keep its dead parent's run locked (as it would
//! with flock or an open-file-description lock). The lock is dropped when the process closes any
//! descriptor of that file; an app that closes all descriptors does so. Therefore, code that claims
//! a run also checks whether the process named in the state is alive (`coroner::store`).
//!
//! Everything here consists of system calls without allocation, since a child made by fork or vfork
//! creates its run when it crashes. On targets where no faults are caught (`build.rs`), only the
//! parts that need none are compiled; the files are then created by `coroner` itself.

#[cfg(supported)]
pub mod app_memory;
#[cfg(all(supported, not(target_vendor = "apple")))]
mod child_reports;
mod clean_run;
#[cfg(supported)]
mod code_pieces;
mod install_options;
#[cfg(supported)]
mod opened_report;
#[cfg(supported)]
mod output_tail;
mod rate_limit;
#[cfg(supported)]
mod report_file;
#[cfg(supported)]
mod run_files;

#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) use child_reports::ChildReports;
pub use clean_run::{CleanRun, KEPT_VITALS};
#[cfg(supported)]
pub(crate) use code_pieces::{CODE_PIECE, encode_code, encode_code_around};
pub use install_options::{AlternateStacks, ForkPolicy, InstallLimits, InstallOptions};
#[cfg(supported)]
pub(crate) use opened_report::{OpenedReport, Place};
#[cfg(supported)]
pub use output_tail::keep_output;
pub use rate_limit::Budget;
#[cfg(supported)]
pub(crate) use report_file::{BUFFER, BUFFER_TOUCHED, ROOM, ReportWriter};
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) use run_files::note_end;
#[cfg(supported)]
pub use run_files::{RunError, RunStep};
#[cfg(supported)]
pub(crate) use run_files::{RunFiles, RunSizes, random_id};
