//! What of the device changes while an app runs: free storage and memory, battery, heat. It is read while the app runs and noted in the run state,
//! because the process that dies can't ask for most of it; the event says when that was.
//!
//! Storage is read at install, which costs one system call. All of it is read by the delivery thread: where an earlier run left something,
//! after an error that the app reported, and when the app says that it comes to the front or leaves it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_report::run_state::{RunState, Scalar, ThermalState};

#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "device_state/linux.rs"]
mod power;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "device_state/unknown.rs"]
mod power;

/// Battery and heat, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Power {
    percent: Option<u8>,
    charging: Option<bool>,
    thermal: ThermalState,
}

impl Power {
    /// As [`Scalar::POWER`] has it.
    fn word(self) -> u64 {
        let percent = self.percent.map_or(0, |percent| u64::from(percent.min(100)) + 1);
        let charging = self.charging.map_or(0, |charging| 1 + u64::from(charging));
        percent | charging << 8 | u64::from(self.thermal.0) << 16
    }
}

/// Notes how full the file system of `directory` is.
pub(crate) fn note_storage(state: &RunState<'_>, directory: &Path) {
    let Ok(storage) = rustix::fs::statvfs(directory) else { return };
    state.set_scalar(Scalar::STORAGE_SIZE, storage.f_blocks.saturating_mul(storage.f_frsize));
    // Not `f_bfree`: root has blocks that nobody else gets.
    state.set_scalar(Scalar::STORAGE_FREE, storage.f_bavail.saturating_mul(storage.f_frsize));
    note_time(state);
}

/// Notes all of it. It reads some files, of which a driver may take milliseconds to answer: not for a thread that the app waits for.
pub(crate) fn note(state: &RunState<'_>, directory: &Path) {
    note_storage(state, directory);
    state.set_scalar(Scalar::MACHINE_MEMORY_FREE, power::memory_free().unwrap_or(0));
    state.set_scalar(Scalar::POWER, power::read().word());
    note_time(state);
}

fn note_time(state: &RunState<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    state.set_scalar(Scalar::DEVICE_READ, now.as_nanos() as u64);
}

#[cfg(test)]
#[path = "../tests/unit/device_state.rs"]
mod tests;
