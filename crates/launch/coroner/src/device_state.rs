//! Records device state that changes while an app runs: free storage and memory, battery, heat.
//!
//! The state is read while the app runs and stored in the run state, because a dying process can't
//! query most of it. The report contains the time of reading.
//!
//! Storage is read by an install that creates the run's files, otherwise with the first breadcrumb,
//! to save a system call in ordinary launches. If a run did not read it, the next launch does when
//! it processes the report. The delivery thread reads everything if an earlier run left something,
//! after an error that the app reported, and when the app enters or leaves the foreground.

use std::path::Path;

use coroner_report::model::{DeviceState, RunFacts, Timestamp};
use coroner_report::run_state::{RunState, Scalar, ThermalState};

use crate::clock::now_ns;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod unknown;

#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as power;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use unknown as power;

/// Battery and thermal state. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Power {
    percent: Option<u8>,
    charging: Option<bool>,
    thermal: ThermalState,
}

impl Power {
    /// Encodes the state as [`Scalar::POWER`].
    fn word(self) -> u64 {
        let percent = self.percent.map_or(0, |percent| u64::from(percent.min(100)) + 1);
        let charging = self.charging.map_or(0, |charging| 1 + u64::from(charging));
        percent | charging << 8 | u64::from(self.thermal.0) << 16
    }
}

/// Returns the size of `directory`'s file system and the part that is available to an app, in
/// bytes.
#[cfg(unix)]
fn storage(directory: &Path) -> Option<(u64, u64)> {
    let storage = nix::sys::statvfs::statvfs(directory).ok()?;
    // Not `f_bfree`, which includes blocks reserved for root.
    let bytes = |blocks: u64| blocks.saturating_mul(storage.fragment_size().into());
    Some((bytes(storage.blocks().into()), bytes(storage.blocks_available().into())))
}

#[cfg(windows)]
fn storage(directory: &Path) -> Option<(u64, u64)> {
    use std::os::windows::ffi::OsStrExt;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetDiskFreeSpaceExW(directory: *const u16, available: *mut u64, size: *mut u64, free: *mut u64) -> i32;
    }
    let path: Vec<u16> = directory.as_os_str().encode_wide().chain([0]).collect();
    let (mut available, mut size) = (0, 0);
    // SAFETY: the path ends with a NUL; two numbers are written, and a null pointer is allowed for
    // the third.
    let known = unsafe { GetDiskFreeSpaceExW(path.as_ptr(), &raw mut available, &raw mut size, std::ptr::null_mut()) };
    (known != 0).then_some((size, available))
}

#[cfg(not(any(unix, windows)))]
fn storage(_directory: &Path) -> Option<(u64, u64)> {
    None
}

/// Records size and free space of the file system that contains `directory`.
pub(crate) fn note_storage(state: &RunState<'_>, directory: &Path) {
    let Some((size, free)) = storage(directory) else { return };
    state.set_scalar(Scalar::STORAGE_SIZE, size);
    state.set_scalar(Scalar::STORAGE_FREE, free);
    note_time(state);
}

/// Adds the file system's current size and free space to the facts of a run that did not record
/// them.
pub(crate) fn complete(facts: &mut RunFacts, directory: &Path) {
    if facts.device_state.is_none()
        && let Some((size, free)) = storage(directory)
    {
        let (read, storage_size, storage_free) = (Some(Timestamp(now_ns())), Some(size), Some(free));
        facts.device_state = Some(DeviceState { read, storage_size, storage_free, ..DeviceState::default() });
    }
}

/// Records all device state.
///
/// This reads files, for which a driver may take milliseconds. Don't call it on a thread that the
/// app waits for.
pub(crate) fn note(state: &RunState<'_>, directory: &Path) {
    note_storage(state, directory);
    state.set_scalar(Scalar::MACHINE_MEMORY_FREE, power::memory_free().unwrap_or(0));
    state.set_scalar(Scalar::POWER, power::read().word());
    note_time(state);
}

fn note_time(state: &RunState<'_>) {
    state.set_scalar(Scalar::DEVICE_READ, now_ns());
}

#[cfg(test)]
mod tests;
