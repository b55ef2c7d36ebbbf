//! From the files of a run that has ended to its reports.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use coroner_report::model::{Report, RunFacts};
use coroner_report::reader::ReadError;
use coroner_symbols::{Options, Symbolizer};

use crate::bundle::is_written;
use crate::store::RawRun;
use crate::system_report;

/// Where symbols are looked for, beside the images themselves.
///
/// The default looks on this machine as a debugger would: at the images' own paths, beside them, and in `/usr/lib/debug`.
#[derive(Debug, Clone, Default)]
pub struct SymbolSearch {
    /// Folders and files with debug information: ELF debug files, dSYM bundles, breakpad `.sym` files, unstripped programs.
    /// What has an image's build id is used.
    pub paths: Vec<PathBuf>,
    /// A file that remembers what the folders hold, so that the next search opens only what changed. `None`: nothing is
    /// remembered.
    pub index_cache: Option<PathBuf>,
}

impl SymbolSearch {
    /// Names the frames of `report`: function, file and line.
    pub fn symbolicate(&self, report: &mut Report) {
        let _ = self.symbolizer(true).symbolicate_report(report);
    }

    /// The same at a launch of the app: within its budget.
    pub(crate) fn name(&self, report: &mut Report, naming: Naming, budget: NamingBudget) {
        let debug_info = match naming {
            Naming::Lines => true,
            Naming::Functions => false,
            Naming::None => return coroner_symbols::name_by_report(report),
        };
        let NamingBudget { memory, time } = budget;
        let budget = coroner_symbols::NamingBudget { memory, time, clock: thread_time };
        if let Some(left_out) = self.symbolizer(debug_info).symbolicate_report_within(report, budget) {
            log::info!("coroner: {} frames of a report could not be named in full within the budget", left_out.frames);
        }
    }

    fn symbolizer(&self, debug_info: bool) -> Symbolizer {
        let (search, index_cache) = (self.paths.clone(), self.index_cache.clone());
        let options = Options { search, index_cache, debug_info, ..Options::default() };
        Symbolizer::new(options)
    }
}

/// What naming one report may cost the app, at the launch after a crash or while it goes on. Frames for which it does not suffice have what
/// is cheaper: functions without lines, or what the crash found itself. The report then says so (the context `coroner_naming`), and
/// whoever names it elsewhere, as `coroner show` does, completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamingBudget {
    /// Bytes of memory of its own at any one time. Symbol files are mapped, and not counted.
    pub memory: usize,
    /// Processor time of the thread that names.
    pub time: Duration,
}

impl Default for NamingBudget {
    /// 32 MiB and one second; ten seconds in a build with debug assertions, whose code takes about ten times as long.
    fn default() -> Self {
        Self { memory: 32 << 20, time: Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 }) }
    }
}

/// How much processor time the calling thread has had.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to a value of this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    // It is not negative, and below a second in the second word.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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

/// A file that is no report, and where.
#[derive(Debug)]
pub struct InvalidReport {
    /// Which of the run's reports, 0 being the first.
    pub index: usize,
    /// What is wrong with it.
    pub error: ReadError,
}

impl fmt::Display for InvalidReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(out, "`report`: {}", self.error),
            index => write!(out, "`report-{}`: {}", index + 1, self.error),
        }
    }
}

impl std::error::Error for InvalidReport {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl RawRun {
    /// The run's reports, with the run state stitched in. Names of functions are those that the crash itself found (see
    /// [`SymbolSearch::symbolicate`] for more), types of C++ exceptions are demangled.
    ///
    /// # Errors
    /// One of the files is no report. Files that were reserved and never written are not looked at.
    pub fn parse(&self) -> Result<Vec<Report>, InvalidReport> {
        let written = (0..self.reports.len()).filter(|index| is_written(&self.reports[*index]));
        written.map(|index| report(self, index)).collect()
    }
}

/// The report `index` of a run, with the run state stitched in and what the system said of the same death.
pub(crate) fn report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let mut report = own_report(raw, index)?;
    if let Some(system) = raw.system_of(index) {
        system_report::complete(&mut report, &system);
    }
    system_report::complete_report(&mut report);
    Ok(report)
}

/// The report `index` of a run as the process left it, with the run state stitched in.
pub(crate) fn own_report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let bytes = raw.reports.get(index).map_or(&[][..], Vec::as_slice);
    let mut report = Report::read(bytes).map_err(|error| InvalidReport { index, error })?;
    stitch(&mut report, &raw.state);
    identify(&mut report, raw, index);
    Ok(report)
}

/// Gives a report that does not say which it is the run's id, by which sinks distinguish reports; behind the first report with
/// its place in the last byte.
fn identify(report: &mut Report, raw: &RawRun, index: usize) {
    let header = &mut report.header;
    let run = raw.run.unwrap_or(header.run_id);
    if header.run_id.is_nil() {
        header.run_id = run;
    }
    if header.event_id.is_nil() || (header.event_id == run && index > 0) {
        header.event_id = run;
        header.event_id.0[15] ^= index as u8;
    }
}

/// Puts the run state into the report. One that can't be read is no reason to lose the report: it is a problem of it.
fn stitch(report: &mut Report, state: &[u8]) {
    if !is_written(state) {
        return;
    }
    match RunFacts::read(state) {
        Ok(facts) => report.stitch(facts),
        Err(error) => report.problems.push(coroner_report::model::Problem {
            section: None,
            offset: 0,
            what: format!("the run state can't be read: {error}"),
        }),
    }
}
