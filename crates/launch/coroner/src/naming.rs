//! Names a report's frames within a budget.

use std::time::Duration;

use coroner_report::model::Report;

#[cfg(feature = "symbolicate")]
mod symbol_search;
#[cfg(feature = "symbolicate")]
pub use symbol_search::SymbolSearch;

/// The maximum cost of naming one report.
///
/// It applies at the launch after a crash, and to non-fatal reports of the running app. Frames
/// beyond the budget get cheaper names: functions without lines, or the names that the crash itself
/// found. The report records this in the context `coroner_naming`; naming it elsewhere, as `coroner
/// show` does, adds the rest.
///
/// ```
/// let budget = coroner::NamingBudget::default().memory(16 << 20);
/// let config = coroner::Config::new("com.example.paint").delivery(coroner::Delivery::new().naming_budget(budget));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamingBudget {
    /// Maximum memory in use at any time, in bytes. Mapped symbol files don't count.
    pub memory: usize,
    /// Maximum CPU time of the naming thread.
    pub time: Duration,
}

impl NamingBudget {
    /// Sets the maximum memory in use at any time, in bytes.
    #[must_use]
    pub fn memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Sets the maximum CPU time of the naming thread.
    #[must_use]
    pub fn time(self, time: Duration) -> Self {
        Self { time, ..self }
    }
}

impl Default for NamingBudget {
    /// Returns 32 MiB and one second. With debug assertions it is ten seconds, because the code is
    /// about ten times slower.
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
    /// Only the names that the crash itself found.
    None,
}

impl Naming {
    /// Maximum number of launches that may end while they read debug information, and after that
    /// while they read symbol tables.
    const MAX_UNFINISHED_LAUNCHES: u32 = 5;

    /// Returns how to name a run's reports after `unfinished` launches ended while they named them.
    pub(crate) fn after(unfinished: u32) -> Naming {
        match unfinished / Self::MAX_UNFINISHED_LAUNCHES {
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

/// Finds each frame's image. Readers of the report that have symbols add the names.
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
