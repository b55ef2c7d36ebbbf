//! What a report's frames are named with, and what that may cost.

use std::time::Duration;

use coroner_report::model::Report;

#[cfg(feature = "symbolicate")]
mod symbol_search;
#[cfg(feature = "symbolicate")]
pub use symbol_search::SymbolSearch;

/// What naming one report may cost the app, at the launch after a crash or while it goes on. Frames for which it does not suffice have what
/// is cheaper: functions without lines, or what the crash found itself. The report then says so (the context `coroner_naming`), and
/// whoever names it elsewhere, as `coroner show` does, completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamingBudget {
    /// Bytes of memory of its own at any one time. Symbol files are mapped, and not counted.
    pub memory: usize,
    /// Processor time of the thread that names.
    pub time: Duration,
}

impl NamingBudget {
    /// Bytes of memory of its own at any one time.
    #[must_use]
    pub fn memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Processor time of the thread that names.
    #[must_use]
    pub fn time(self, time: Duration) -> Self {
        Self { time, ..self }
    }
}

impl Default for NamingBudget {
    /// 32 MiB and one second; ten seconds in a build with debug assertions, whose code takes about ten times as long.
    fn default() -> Self {
        Self { memory: 32 << 20, time: Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 }) }
    }
}

/// What a report is named with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// Functions, inlined calls, files and lines.
    Lines,
    /// Functions, by symbol tables.
    Functions,
    /// What the crash itself found.
    None,
}

impl Naming {
    /// So many launches may end before they have read debug information, and then as many before they have read symbol tables.
    const LAUNCHES: u32 = 5;

    /// What is tried next of a run, which so many launches have begun to name, and ended meanwhile.
    pub(crate) fn after(unfinished: u32) -> Naming {
        match unfinished / Self::LAUNCHES {
            0 => Naming::Lines,
            1 => Naming::Functions,
            _ => Naming::None,
        }
    }
}

/// Names the frames of `report` at a launch of the app, within its budget.
#[cfg(feature = "symbolicate")]
pub(crate) fn name(report: &mut Report, naming: Naming, budget: NamingBudget) {
    symbol_search::name(report, naming, budget);
}

/// Finds the image of each frame. Names are left to who reads the report where symbols are.
#[cfg(not(feature = "symbolicate"))]
pub(crate) fn name(report: &mut Report, _: Naming, _: NamingBudget) {
    report.attribute_frames();
}

/// Names the frames of `report` with all that is known of them on this machine.
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

/// Gives exceptions of C++ the names that their types have in the source.
pub(crate) fn demangle_exception_types(report: &mut Report) {
    #[cfg(feature = "symbolicate")]
    coroner_symbols::demangle_exception_types(report);
    #[cfg(not(feature = "symbolicate"))]
    let _ = report;
}

/// The name that a function has in the source, by its linker name.
pub(crate) fn demangle(linker_name: &str) -> String {
    #[cfg(feature = "symbolicate")]
    return coroner_symbols::demangle(linker_name).name;
    #[cfg(not(feature = "symbolicate"))]
    linker_name.to_owned()
}
