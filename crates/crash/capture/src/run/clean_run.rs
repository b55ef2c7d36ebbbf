//! State that a run takes over from the run whose files it reuses.

use coroner_report::run_state::Scalar;

/// Scalars that carry over from run to run within one boot: a launch that reads none of them has
/// them from the previous run.
pub const KEPT_VITALS: [Scalar; 4] =
    [Scalar::VITALS_READ, Scalar::MACHINE_OOM_KILLS, Scalar::CGROUP_OOM_KILLS, Scalar::CGROUP];

/// A run that exited cleanly and whose files this run reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanRun {
    /// The run's ID.
    pub id: [u8; 16],
    /// When the run's session began, in nanoseconds since the Unix epoch; 0 if it had none.
    pub began: u64,
    /// The run's [`Scalar::CLEAN_EXIT_NOTED`].
    pub is_noted: bool,
    /// The run's [`Scalar::APP`].
    pub app: u64,
    /// The run's [`Scalar::MACHINE`].
    pub machine: u64,
    /// The first bytes of the run's facts.
    pub facts: [u8; 512],
    /// Number of bytes of `facts` that are about the machine, [`Scalar::MACHINE_FACTS`].
    pub machine_facts: usize,
    /// The run's readings of out-of-memory kills, see [`KEPT_VITALS`].
    pub vitals: [u64; KEPT_VITALS.len()],
}
