//! What a run takes over from the one whose files it uses.

use coroner_report::run_state::Scalar;

/// What counts on from run to run of one boot: a launch that reads none of it has it from the one before.
pub const KEPT_VITALS: [Scalar; 4] =
    [Scalar::VITALS_READ, Scalar::MACHINE_OOM_KILLS, Scalar::CGROUP_OOM_KILLS, Scalar::CGROUP];

/// A run that ended by itself and whose files this one uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanRun {
    /// Its id.
    pub id: [u8; 16],
    /// When its session began, nanoseconds since the Unix epoch; 0 if it had none.
    pub began: u64,
    /// Its [`Scalar::CLEAN_EXIT_NOTED`].
    pub is_noted: bool,
    /// Its [`Scalar::APP`].
    pub app: u64,
    /// Its [`Scalar::MACHINE`].
    pub machine: u64,
    /// What its facts began with.
    pub facts: [u8; 512],
    /// Bytes of that which are of the machine, [`Scalar::MACHINE_FACTS`].
    pub machine_facts: usize,
    /// What it read of kills for want of memory, see [`KEPT_VITALS`].
    pub vitals: [u64; KEPT_VITALS.len()],
}
