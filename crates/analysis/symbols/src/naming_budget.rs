//! What naming a report may cost, for an app that does it while its user waits for other things.
//!
//! Memory is added up before it is asked for: symbol tables, unpacked sections, tables of abbreviations. Mapped files are not counted: the
//! kernel takes their pages back when it needs them.

use std::{cell::Cell, time::Duration};

use coroner_report::{Report, model::Value};

/// What naming a report may cost ([`Symbolizer::symbolicate_report_within`](crate::Symbolizer::symbolicate_report_within)).
#[derive(Clone, Copy, Debug)]
pub struct NamingBudget {
    /// Bytes of memory of its own at any one time. Files are mapped, and not counted.
    pub memory: usize,
    /// Processor time, as `clock` tells it.
    pub time: Duration,
    /// How much processor time the thread that names has had.
    pub clock: fn() -> Duration,
}

/// The budget that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// [`NamingBudget::memory`]
    Memory,
    /// [`NamingBudget::time`]
    Time,
}

/// Report context that records what was left out when the report was named within a budget: the number of frames and the budget
/// that ran out. Naming the report without a budget removes it.
pub const NAMING_CONTEXT: &str = "coroner_naming";

/// What was left out when a report was named within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of frames that may lack a function, a line or inlined calls.
    pub frames: usize,
    /// The budget that ran out. `None` if the debug information is split over several files, which is not read.
    pub exhausted: Option<Exhausted>,
}

impl LeftOut {
    /// Records it in the report.
    pub(crate) fn note(self, report: &mut Report) {
        let reason = match self.exhausted {
            Some(Exhausted::Memory) => "memory",
            Some(Exhausted::Time) => "processor time",
            None => "split debug information",
        };
        let values = vec![
            (Value::from("frames_left_out"), Value::Unsigned(self.frames as u64)),
            (Value::from("for_want_of"), Value::from(reason)),
        ];
        let run = report.run.get_or_insert_with(Default::default);
        run.contexts.insert(NAMING_CONTEXT.to_owned(), Value::Map(values));
    }

    /// Removes the record from a report that was named in full.
    pub(crate) fn forget(report: &mut Report) {
        if let Some(run) = &mut report.run {
            run.contexts.remove(NAMING_CONTEXT);
        }
    }
}

/// How much of a budget is spent.
#[derive(Debug)]
pub(crate) struct Meter {
    budget: NamingBudget,
    began: Duration,
    reserved: Cell<usize>,
    steps: Cell<u32>,
    exhausted: Cell<Option<Exhausted>>,
}

/// After so many steps (entries, rows and ranges of debug information, each some tens of nanoseconds) the clock is asked.
const STEPS: u32 = 1 << 10;

impl Meter {
    pub(crate) fn new(budget: NamingBudget) -> Self {
        let began = (budget.clock)();
        Self { budget, began, reserved: Cell::new(0), steps: Cell::new(0), exhausted: Cell::new(None) }
    }

    /// What ended first, if anything did.
    pub(crate) fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted.get()
    }

    /// Whether there is processor time left. Once there is none, there never is.
    pub(crate) fn has_time(&self) -> bool {
        if self.exhausted.get() == Some(Exhausted::Time) {
            return false;
        }
        let has_time = (self.budget.clock)().saturating_sub(self.began) < self.budget.time;
        if !has_time {
            self.exhausted.set(Some(Exhausted::Time));
        }
        has_time
    }

    /// As [`Self::has_time`], for one of very many steps.
    pub(crate) fn step(&self) -> bool {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        if steps.is_multiple_of(STEPS) { self.has_time() } else { self.exhausted.get() != Some(Exhausted::Time) }
    }

    /// How much memory is not reserved.
    pub(crate) fn memory_left(&self) -> usize {
        self.budget.memory.saturating_sub(self.reserved.get())
    }

    /// Says that there was too little memory for something.
    pub(crate) fn lacks_memory(&self) {
        self.exhausted.set(self.exhausted.get().or(Some(Exhausted::Memory)));
    }

    /// Memory that is about to be asked for; `None` if that is more than is left.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved<'_>> {
        if bytes > self.memory_left() {
            self.lacks_memory();
            return None;
        }
        self.reserved.set(self.reserved.get() + bytes);
        Some(Reserved { meter: self, bytes })
    }
}

/// Memory that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    meter: &'a Meter,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.meter.reserved.set(self.meter.reserved.get() - self.bytes);
    }
}
