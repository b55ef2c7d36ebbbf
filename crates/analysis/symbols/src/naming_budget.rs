//! What naming a report may cost, for an app that does it while its user waits for other things.
//!
//! Memory is added up before it is asked for: symbol tables, unpacked sections, tables of abbreviations. Mapped files are not counted: the
//! kernel takes their pages back when it needs them.

use std::{cell::Cell, time::Duration};

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

/// Of what there was too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// [`NamingBudget::memory`]
    Memory,
    /// [`NamingBudget::time`]
    Time,
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
