//! Limits on the cost of symbolicating a report.
//!
//! An app does it while its user is waiting for other things.
//!
//! Memory is counted before it is allocated: symbol tables, decompressed sections, abbreviation
//! tables. Mapped files are not counted: the kernel reclaims their pages when it needs them.

use std::{cell::Cell, time::Duration};

use coroner_report::{Report, model::Value};

/// Limits on the cost of symbolicating a report.
///
/// See
/// [`Symbolizer::symbolicate_report_within`](crate::Symbolizer::symbolicate_report_within).
#[derive(Clone, Copy, Debug)]
pub struct NamingBudget {
    /// Maximum memory in use at any time, in bytes. Mapped files are not counted.
    pub memory: usize,
    /// Maximum processor time, as measured by `clock`.
    pub time: Duration,
    /// Returns the processor time used so far by the calling thread.
    pub clock: fn() -> Duration,
}

/// The budget that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The limit [`NamingBudget::memory`].
    Memory,
    /// The limit [`NamingBudget::time`].
    Time,
}

/// Report context that records what was left out when the report was named within a budget.
///
/// It has the number of frames and the budget that ran out. Naming the report without a budget
/// removes it.
pub const NAMING_CONTEXT: &str = "coroner_naming";

/// The information left out when a report was symbolicated within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of frames that may lack a function, a line or inlined calls.
    pub frames: usize,
    /// The budget that ran out. `None` if the debug information is split over several files, which
    /// is not read.
    pub exhausted: Option<Exhausted>,
}

impl LeftOut {
    /// Records what was left out in the report.
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

/// The part of a budget that was used.
#[derive(Debug)]
pub(crate) struct Meter {
    budget: NamingBudget,
    began: Duration,
    reserved: Cell<usize>,
    steps: Cell<u32>,
    exhausted: Cell<Option<Exhausted>>,
}

/// Number of steps between two readings of the clock.
///
/// Steps are entries, rows and ranges in debug information, each some tens of nanoseconds.
const STEPS: u32 = 1 << 10;

impl Meter {
    pub(crate) fn new(budget: NamingBudget) -> Self {
        let began = (budget.clock)();
        Self { budget, began, reserved: Cell::new(0), steps: Cell::new(0), exhausted: Cell::new(None) }
    }

    /// Returns the budget that ran out first, if any.
    pub(crate) fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted.get()
    }

    /// Whether there is processor time left. Once it has run out, the result stays `false`.
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

    /// Like [`Self::has_time`], cheap enough for each of very many steps.
    pub(crate) fn step(&self) -> bool {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        if steps.is_multiple_of(STEPS) { self.has_time() } else { self.exhausted.get() != Some(Exhausted::Time) }
    }

    /// Returns how much memory is not reserved.
    pub(crate) fn memory_left(&self) -> usize {
        self.budget.memory.saturating_sub(self.reserved.get())
    }

    /// Records that there was too little memory for something.
    pub(crate) fn lacks_memory(&self) {
        self.exhausted.set(self.exhausted.get().or(Some(Exhausted::Memory)));
    }

    /// Reserves memory before it is allocated; `None` if there isn't enough left.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved<'_>> {
        if bytes > self.memory_left() {
            self.lacks_memory();
            return None;
        }
        self.reserved.set(self.reserved.get() + bytes);
        Some(Reserved { meter: self, bytes })
    }
}

/// Reserved memory, released on drop.
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
