//! Symbol search on this machine.

use std::path::PathBuf;

use coroner_report::model::Report;
use coroner_symbols::{Options, Symbolizer};

use super::{Naming, NamingBudget};
use crate::clock::thread_time;

/// The places where symbols are searched, in addition to the images themselves.
///
/// By default, these are those of a debugger on this machine: the images' own paths, files beside
/// them, and `/usr/lib/debug`.
#[derive(Debug, Clone, Default)]
pub struct SymbolSearch {
    /// Folders and files with debug information.
    ///
    /// These may be ELF debug files, dSYM bundles, breakpad `.sym` files or unstripped programs.
    /// Those with an image's build id are used.
    pub paths: Vec<PathBuf>,
    /// A file that caches an index of the folders. `None` disables the cache.
    ///
    /// With it, the next search opens only what has changed.
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

/// Names a report's frames at a launch of the app, from files beside the images, within the budget.
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
        log::info!("coroner: {} frames of a report could not be named in full within the budget", left_out.frames);
    }
}
