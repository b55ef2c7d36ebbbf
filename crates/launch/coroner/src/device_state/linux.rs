//! Device state on Linux and Android.
//!
//! Sources: `/proc/meminfo`, and sysfs's `power_supply` and `thermal`
//! (Documentation/ABI/testing/sysfs-class-power, sysfs-class-thermal), which Android apps can't
//! read.

use std::path::{Path, PathBuf};

use coroner_report::run_state::ThermalState;

use super::Power;

/// Maximum number of devices of a class that are read; a large server has dozens of sensors.
const MOST: usize = 32;

pub(super) fn memory_free() -> Option<u64> {
    crate::system::process::memory_use::available()
}

pub(super) fn read() -> Power {
    read_below(Path::new("/sys/class"))
}

/// Reads the classes below `root`.
pub(super) fn read_below(root: &Path) -> Power {
    let (percent, charging) = battery(&root.join("power_supply"));
    Power { percent, charging, thermal: thermal(&root.join("thermal")) }
}

/// Returns the mean charge of the machine's batteries, and whether they are charging.
fn battery(class: &Path) -> (Option<u8>, Option<bool>) {
    // The batteries of mice and headsets have the scope `Device`.
    let is_own = |supply: &PathBuf| {
        text(supply, "type").as_deref() == Some("Battery") && text(supply, "scope").as_deref() != Some("Device")
    };
    let batteries: Vec<PathBuf> = directories(class).filter(is_own).collect();
    let charges: Vec<u64> = batteries.iter().filter_map(|supply| number(supply, "capacity")?.try_into().ok()).collect();
    let percent = charges.iter().sum::<u64>().checked_div(charges.len() as u64);
    let states: Vec<String> = batteries.iter().filter_map(|supply| text(supply, "status")).collect();
    let is = |state: &str, others: &[&str]| others.contains(&state);
    let charging = states.iter().any(|state| is(state, &["Charging", "Full", "Not charging"]));
    // The machine is discharging if any battery is, even if another one is full.
    let discharging = states.iter().any(|state| state == "Discharging");
    let known = charging || discharging;
    (percent.and_then(|percent| percent.try_into().ok()), known.then_some(charging && !discharging))
}

/// Derives the thermal state from the zones' trip points.
///
/// Above a passive trip point the system slows down, above a critical one it shuts down.
fn thermal(class: &Path) -> ThermalState {
    let mut worst = ThermalState::UNKNOWN;
    for zone in directories(class) {
        let Some(now) = number(&zone, "temp").filter(|now| *now > 0) else { continue };
        let mut state = ThermalState::UNKNOWN;
        for point in 0..MOST {
            let Some(kind) = text(&zone, &format!("trip_point_{point}_type")) else { break };
            let reached = match kind.as_str() {
                "critical" => ThermalState::CRITICAL,
                "hot" => ThermalState::SERIOUS,
                "passive" | "active" => ThermalState::FAIR,
                _ => continue,
            };
            // Unused points are at 0 or below.
            let Some(at) = number(&zone, &format!("trip_point_{point}_temp")).filter(|at| *at > 0) else { continue };
            let found = if now >= at { reached } else { ThermalState::NOMINAL };
            state = if found.0 > state.0 { found } else { state };
        }
        worst = if state.0 > worst.0 { state } else { worst };
    }
    worst
}

fn directories(class: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(class).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).take(MOST)
}

fn text(directory: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

fn number(directory: &Path, name: &str) -> Option<i64> {
    text(directory, name)?.parse().ok()
}
