//! Naming of a report's frames, and the budget for it.

use std::time::Duration;

use coroner_report::model::Report;

#[cfg(feature = "symbolicate")]
mod symbol_search;
#[cfg(feature = "symbolicate")]
pub use symbol_search::SymbolSearch;

/// Maximum cost for the app of naming one report.
///
/// It applies at the launch after a crash and while the app continues. Frames for which the budget
/// is not sufficient get cheaper names: functions without lines, or what the crash itself found.
/// The report then records this (the context `coroner_naming`), and naming it elsewhere, as
/// `coroner show` does, adds the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamingBudget {
    /// Maximum bytes of memory in use at any one time. Symbol files are mapped, and not counted.
    pub memory: usize,
    /// Maximum processor time of the thread that names.
    pub time: Duration,
}

impl NamingBudget {
    /// Sets the maximum bytes of memory in use at any one time.
    #[must_use]
    pub fn memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Sets the maximum processor time of the thread that names.
    #[must_use]
    pub fn time(self, time: Duration) -> Self {
        Self { time, ..self }
    }
}

impl Default for NamingBudget {
    /// Returns 32 MiB and one second; ten seconds in a build with debug assertions, whose code
    /// takes about ten times as long.
    fn default() -> Self {
        Self { memory: 32 << 20, time: Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 }) }
    }
}

/// The kind of names for a report's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Functions, inlined calls, files and lines.
    Lines,
    /// Functions, from symbol tables.
    Functions,
    /// Only what the crash itself found.
    None,
}

impl Naming {
    /// Number of launches that may end before they have read debug information, and then before
    /// they have read symbol tables.
    const LAUNCHES: u32 = 5;

    /// Returns how to name a run's reports after `unfinished` launches that started naming and
    /// ended in the meantime.
    pub(crate) fn after(unfinished: u32) -> Naming {
        match unfinished / Self::LAUNCHES {
            0 => Naming::Lines,
            1 => Naming::Functions,
            _ => Naming::None,
        }
    }
}

/// Names the frames of `report` at a launch of the app, within the budget.
#[cfg(feature = "symbolicate")]
pub(crate) fn name(report: &mut Report, naming: Naming, budget: NamingBudget) {
    symbol_search::name(report, naming, budget);
}

/// Finds each frame's image. Names are left to readers of the report that have symbols.
#[cfg(not(feature = "symbolicate"))]
pub(crate) fn name(report: &mut Report, _: Naming, _: NamingBudget) {
    report.attribute_frames();
}

/// Names the frames of `report` with everything available on this machine.
pub(crate) fn complete(report: &mut Report) {
    #[cfg(feature = "symbolicate")]
    SymbolSearch::default().symbolicate(report);
    #[cfg(not(feature = "symbolicate"))]
    {
        report.attribute_frames();
        for frame in report.frames_mut() {
            frame.function = frame.raw_function.clone();
        }
    }
}

/// Demangles the types of C++ exceptions.
pub(crate) fn demangle_exception_types(report: &mut Report) {
    #[cfg(feature = "symbolicate")]
    coroner_symbols::demangle_exception_types(report);
    #[cfg(not(feature = "symbolicate"))]
    let _ = report;
}

/// Demangles a function's linker name.
pub(crate) fn demangle(linker_name: &str) -> String {
    #[cfg(feature = "symbolicate")]
    return coroner_symbols::demangle(linker_name).name;
    #[cfg(not(feature = "symbolicate"))]
    linker_name.to_owned()
}
