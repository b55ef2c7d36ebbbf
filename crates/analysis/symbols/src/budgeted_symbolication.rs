//! Names all frames of a report within a budget.
//!
//! An app symbolicates its last crash while its user is waiting for other things.
//!
//! The most important information comes first, in case the budget runs out: functions of all frames
//! from symbol tables, lines of the crashed thread and of exceptions, lines of other threads. All
//! addresses in an image are looked up at once, so that nothing is kept: the symbol table is
//! dropped before the debug information is read, which isn't kept at all
//! ([`dwarf_pass`](crate::dwarf_pass)).

use coroner_process::heap_sort;
use coroner_report::{
    Report,
    model::{Frame, Image, ImageIndex},
};

use crate::{
    call::{Call, DwarfFrame, Symbol},
    demangle::names_same_function,
    file_kind::FileKind,
    image_identity::unchanged_since,
    image_key::ImageKey,
    naming_budget::{LeftOut, Meter, NamingBudget},
    report_symbolication::{address_in, arch_of, demangle_own_name, fill, finish, is_replaced},
    symbol_file::SymbolFile,
    symbolizer::{Symbolizer, named},
};

/// An image that contains frames.
struct InImage<'a> {
    image: &'a Image,
    files: Vec<SymbolFile>,
    /// The addresses with their results.
    addresses: Vec<Known>,
}

struct Known {
    svma: u64,
    /// Whether the frame is from the crashed thread or an exception.
    first: bool,
    symbol: Option<Symbol>,
    calls: Vec<DwarfFrame>,
    /// Number of frames with this address.
    frames: usize,
    left_out: bool,
}

/// Returns the calls at an address from a file's object files
/// ([`SymbolFile::frames_in_object_files`]).
type InObjectFiles = fn(&SymbolFile, u64) -> Vec<DwarfFrame>;

impl Symbolizer {
    /// Like [`Self::symbolicate_report`], within a budget. Returns what was left out, and records
    /// it in the report ([`NAMING_CONTEXT`](crate::NAMING_CONTEXT)).
    ///
    /// Breakpad files are not read. Debug information outside the symbol files (`.dwo`, `.dwp`,
    /// supplementary files of `dwz`) is left out. Object files of a Mach-O image are read, but they
    /// only exist on the machine that linked it; their memory is not counted.
    pub fn symbolicate_report_within(&mut self, report: &mut Report, budget: NamingBudget) -> Option<LeftOut> {
        self.within(report, budget, Some(SymbolFile::frames_in_object_files))
    }

    /// Like [`Self::symbolicate_report_within`], for a report with ELF images only.
    ///
    /// Saves the code for Mach-O object files (160 KB) in programs that use nothing else.
    pub fn symbolicate_elf_report_within(&mut self, report: &mut Report, budget: NamingBudget) -> Option<LeftOut> {
        self.within(report, budget, None)
    }

    fn within(
        &mut self,
        report: &mut Report,
        budget: NamingBudget,
        in_object_files: Option<InObjectFiles>,
    ) -> Option<LeftOut> {
        let meter = Meter::new(budget);
        report.attribute_frames();
        let images = std::mem::take(&mut report.images);
        let mut found = self.addresses_by_image(report, &images);
        // The crashed thread's images first.
        let is_crashed =
            |image: usize| found[image].as_ref().is_some_and(|found| found.addresses.iter().any(|known| known.first));
        let order = (0..images.len()).filter(|&image| found[image].is_some());
        let (mut order, later): (Vec<usize>, Vec<usize>) = order.partition(|&image| is_crashed(image));
        order.extend(later);
        for first in [true, false] {
            for &image in &order {
                let Some(found) = &mut found[image] else { continue };
                if first {
                    self.open_within(found, report, &meter);
                    found.look_up_symbols(&meter);
                }
                if self.debug_info {
                    found.look_up_lines(first, &meter, in_object_files);
                }
            }
        }
        let index = ImageIndex::new(&images);
        for frame in report.frames_mut() {
            if let Some((image, svma)) = locate_in_image(frame, &images, &index)
                && let Some(found) = &found[image]
            {
                fill(frame, found.image, found.calls(svma).into_iter().map(named).collect());
            }
            demangle_own_name(frame);
        }
        let left_out = found.iter().flatten().flat_map(|found| &found.addresses).filter(|known| known.left_out);
        let left_out: usize = left_out.map(|known| known.frames).sum();
        drop(found);
        report.images = images;
        finish(report);
        let left_out = (left_out > 0).then_some(LeftOut { frames: left_out, exhausted: meter.exhausted() })?;
        left_out.note(report);
        Some(left_out)
    }

    /// Returns the addresses of the report's frames by image, sorted and distinct.
    #[allow(clippy::unused_self)] // As the other steps.
    fn addresses_by_image<'a>(&self, report: &mut Report, images: &'a [Image]) -> Vec<Option<InImage<'a>>> {
        let index = ImageIndex::new(images);
        let mut found: Vec<Option<InImage<'a>>> = images.iter().map(|_| None).collect();
        let threads =
            report.threads.iter().flat_map(|thread| thread.frames.iter().map(|frame| (frame, thread.crashed)));
        let exceptions = report.exceptions.iter().flat_map(|thrown| thrown.frames.iter().map(|frame| (frame, true)));
        let profile = report.profile.iter().flat_map(|profile| profile.nodes.iter().map(|node| (&node.frame, true)));
        for (frame, first) in threads.chain(exceptions).chain(profile) {
            let Some((image, svma)) = locate_in_image(frame, images, &index) else { continue };
            let entry = found[image].get_or_insert_with(|| InImage {
                image: &images[image],
                files: Vec::new(),
                addresses: Vec::new(),
            });
            let known = Known { svma, first, symbol: None, calls: Vec::new(), frames: 1, left_out: false };
            entry.addresses.push(known);
        }
        for found in found.iter_mut().flatten() {
            heap_sort(&mut found.addresses, |first, second| first.svma < second.svma);
            found.addresses.dedup_by(|next, kept| {
                let same = next.svma == kept.svma;
                if same {
                    kept.first |= next.first;
                    kept.frames += next.frames;
                }
                same
            });
        }
        found
    }

    fn open_within(&mut self, found: &mut InImage<'_>, report: &Report, meter: &Meter) {
        if !meter.has_time() {
            found.leave_out(|_| true);
            return;
        }
        let key = ImageKey::from_image(found.image, arch_of(report));
        let key = ImageKey { replaced: is_replaced(found.image, unchanged_since(report)), ..key };
        found.files = self.locator.find(&key).files;
        found.files.retain(|file| file.kind() != FileKind::Breakpad);
        // As without a budget, files with lines are asked first.
        let (with_lines, without) = std::mem::take(&mut found.files).into_iter().partition(SymbolFile::has_dwarf);
        found.files = with_lines;
        found.files.extend::<Vec<_>>(without);
    }
}

/// Returns the index of a frame's image, and the frame's address in it.
fn locate_in_image(frame: &Frame, images: &[Image], index: &ImageIndex) -> Option<(usize, u64)> {
    let image = index.find(frame.lookup_address())?;
    Some((image, address_in(&images[image], frame).svma()))
}

impl InImage<'_> {
    fn leave_out(&mut self, which: impl Fn(&Known) -> bool) {
        self.addresses.iter_mut().filter(|known| which(known)).for_each(|known| known.left_out = true);
    }

    fn look_up_symbols(&mut self, meter: &Meter) {
        for file in &self.files {
            let open: Vec<usize> =
                (0..self.addresses.len()).filter(|&at| self.addresses[at].symbol.is_none()).collect();
            if open.is_empty() {
                return;
            }
            let asked: Vec<u64> = open.iter().map(|&at| self.addresses[at].svma).collect();
            let symbols = meter.has_time().then(|| file.symbols_within(&asked, meter)).flatten();
            match symbols {
                Some(symbols) => {
                    for (at, symbol) in open.into_iter().zip(symbols) {
                        self.addresses[at].symbol = symbol;
                    }
                }
                None => {
                    for at in open {
                        self.addresses[at].left_out = true;
                    }
                }
            }
        }
    }

    /// Looks up lines for the addresses of the crashed thread, or of the others.
    fn look_up_lines(&mut self, first: bool, meter: &Meter, in_object_files: Option<InObjectFiles>) {
        for file in self.files.iter().filter(|file| file.has_dwarf()) {
            let is_open = |known: &Known| known.first == first && known.calls.is_empty();
            let open: Vec<usize> = (0..self.addresses.len()).filter(|&at| is_open(&self.addresses[at])).collect();
            if open.is_empty() {
                return;
            }
            if !meter.has_time() {
                open.into_iter().for_each(|at| self.addresses[at].left_out = true);
                return;
            }
            let asked: Vec<u64> = open.iter().map(|&at| self.addresses[at].svma).collect();
            for (at, answer) in open.into_iter().zip(file.pass_within(&asked, meter)) {
                self.addresses[at].calls = answer.frames;
                self.addresses[at].left_out |= answer.left_out;
            }
        }
        let Some(in_object_files) = in_object_files else { return };
        for file in self.files.iter().filter(|file| file.has_object_files()) {
            for known in self.addresses.iter_mut().filter(|known| known.first == first && known.calls.is_empty()) {
                if meter.has_time() {
                    known.calls = in_object_files(file, known.svma);
                } else {
                    known.left_out = true;
                }
            }
        }
    }

    /// Returns the calls at an address, innermost first.
    fn calls(&self, svma: u64) -> Vec<Call> {
        let Ok(at) = self.addresses.binary_search_by_key(&svma, |known| known.svma) else { return Vec::new() };
        let known = &self.addresses[at];
        let symbol = known.symbol.clone();
        Call::with_symbol(known.calls.iter().cloned().map(Call::from_dwarf).collect(), symbol, names_same_function)
    }
}
