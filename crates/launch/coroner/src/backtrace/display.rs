//! Formats a backtrace like a report's stack in `coroner show`: with inlined calls, files and
//! lines.

use std::fmt;

use coroner_report::model::{Address, Bytes, Frame, Image, Report, SymbolName, Thread};
use coroner_report::text::{Style, write_frames};
use coroner_report::wire::{AddressKind, FoundBy, ImageKind};

use super::Backtrace;
use super::loaded_image::LoadedImage;
use crate::naming;

impl fmt::Display for Backtrace {
    /// Writes one line per frame and per call inlined into it: image, address, function, file and
    /// line.
    ///
    /// Files and lines need debug information on this machine: in the image, beside it, or in
    /// `/usr/lib/debug`. It is read each time, which takes up to a second for a large program;
    /// [`Backtrace::names`] is fast.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_frames(&mut Plain(out), &self.with_lines())
    }
}

struct Plain<'f, 'o>(&'f mut fmt::Formatter<'o>);

impl coroner_report::text::Sink for Plain<'_, '_> {
    fn piece(&mut self, _: Style, text: &str) -> fmt::Result {
        self.0.write_str(text)
    }
}

impl Backtrace {
    /// Returns the frames with all available names: from the debug information of the images'
    /// files, otherwise from the process itself.
    fn with_lines(&self) -> Vec<Frame> {
        let names = self.names();
        let mut report = Report::default();
        let mut frames = Vec::new();
        for (index, named) in names.frames().iter().enumerate() {
            let address = Address(named.address);
            let lookup = self.lookup_address(index).unwrap_or(named.address);
            let is_instruction = lookup == named.address;
            let address_kind = if is_instruction { AddressKind::INSTRUCTION } else { AddressKind::RETURN };
            frames.push(Frame { address, address_kind, found_by: FoundBy::CFI, ..Frame::default() });
            if let Some(function) = &named.function {
                let symbol_address = Some(Address(named.address.wrapping_sub(named.function_offset)));
                let name = SymbolName { address, name: function.to_string(), symbol_address, ..SymbolName::default() };
                report.symbol_names.push(name);
            }
            let image = self.images.image_at(lookup).map(|image| as_in_reports(image));
            let is_new = |image: &Image| report.images.iter().all(|known| known.load_address != image.load_address);
            report.images.extend(image.filter(is_new));
        }
        report.threads.push(Thread { frames, ..Thread::default() });
        naming::complete(&mut report);
        report.threads.pop().map(|thread| thread.frames).unwrap_or_default()
    }
}

fn as_in_reports(image: &LoadedImage) -> Image {
    Image {
        kind: if cfg!(target_vendor = "apple") { ImageKind::MACHO } else { ImageKind::ELF },
        path: image.path.to_string_lossy().into_owned(),
        load_address: Address(image.range.start),
        slide: Address(image.slide),
        size: image.range.end.wrapping_sub(image.range.start),
        build_id: Bytes(image.build_id.clone()),
        ..Image::default()
    }
}
