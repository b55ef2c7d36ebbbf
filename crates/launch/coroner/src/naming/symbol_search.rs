//! Symbol search on this machine.

use std::path::PathBuf;

use coroner_report::model::Report;
use coroner_symbols::{Options, Symbolizer};

use super::{Naming, NamingBudget};
use crate::clock::thread_time;

/// The locations where symbols are searched.
///
/// By default, these are a debugger's: the images' own paths, files beside them, and
/// `/usr/lib/debug`.
///
/// ```no_run
/// let mut report = coroner::Report::read_file("report.coroner")?;
/// coroner::SymbolSearch::default().symbolicate(&mut report);
/// println!("{report:#?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SymbolSearch {
    /// Folders and files with debug information.
    ///
    /// They may contain ELF debug files, dSYM bundles, Breakpad `.sym` files or unstripped
    /// programs. Files with an image's build id are used.
    pub paths: Vec<PathBuf>,
    /// The file that caches an index of the folders. `None` disables the cache.
    ///
    /// With a cache, the next search opens only changed files.
    pub index_cache: Option<PathBuf>,
}

impl SymbolSearch {
    /// Names the frames of `report`: function, file and line.
    pub fn symbolicate(&self, report: &mut Report) {
        let _ = self.symbolizer(true).symbolicate_report(report);
    }

    fn symbolizer(&self, debug_info: bool) -> Symbolizer {
        let (search, index_cache) = (self.paths.clone(), self.index_cache.clone());
        let options = Options { search, index_cache, debug_info, ..Options::default() };
        Symbolizer::new(options)
    }
}

/// Names a report's frames at a launch of the app, with files beside the images, within the budget.
pub(crate) fn name(report: &mut Report, naming: Naming, budget: NamingBudget) {
    let debug_info = match naming {
        Naming::Lines => true,
        Naming::Functions => false,
        Naming::None => return coroner_symbols::name_by_report(report),
    };
    let NamingBudget { memory, time } = budget;
    let budget = coroner_symbols::NamingBudget { memory, time, clock: thread_time };
    let mut symbolizer = Symbolizer::beside_images(debug_info);
    #[cfg(any(target_vendor = "apple", windows))]
    let left_out = symbolizer.symbolicate_report_within(report, budget);
    #[cfg(not(any(target_vendor = "apple", windows)))]
    let left_out = symbolizer.symbolicate_elf_report_within(report, budget);
    if let Some(left_out) = left_out {
        log::info!("coroner: the budget was too small to name {} frames of a report fully", left_out.frames);
    }
}
