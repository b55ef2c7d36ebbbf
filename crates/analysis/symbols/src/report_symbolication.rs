//! Symbolicates all frames of a report.

use coroner_process::symtab::LookupAddress;
use coroner_report::{
    Report,
    model::{Address, Frame, Image, ImageIndex, InlinedFrame, Timestamp},
    wire::{AddressKind, FoundBy, ImageKind, Language, Monitor, Os},
};

use crate::{
    demangle::{demangle, demangle_cpp_type},
    file_kind::Arch,
    image_identity::{identify_images, is_loaded_file, unchanged_since},
    image_key::ImageKey,
    naming_budget::LeftOut,
    symbolizer::{SymbolFrame, Symbolizer},
};

/// The result for one image's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSymbols {
    /// The image; [`Symbolizer::status`] has the files used for it, or the reason why there are
    /// none.
    pub key: ImageKey,
    /// Number of the report's frames in the image.
    pub frames: usize,
    /// Number of these frames that now have a function.
    pub named: usize,
    /// Number of these frames that now have a file and a line.
    pub lines: usize,
}

impl Symbolizer {
    /// Symbolicates all frames of a report.
    ///
    /// A frame gets function, file, line and inlined calls if symbols are found; else the demangled
    /// name from the crashing process.
    ///
    /// First assigns the frames to their images, and gives images without a build id a substitute
    /// ([`identify_images`]). Returns a result for each image that contains frames, in the report's
    /// order.
    pub fn symbolicate_report(&mut self, report: &mut Report) -> Vec<ImageSymbols> {
        self.symbolicate_report_with(report, &mut |_, _| {})
    }

    /// Like [`Self::symbolicate_report`]. `about_to` is called before each image is opened, which
    /// may take a while, with the number of frames named so far.
    pub fn symbolicate_report_with(
        &mut self,
        report: &mut Report,
        about_to: &mut dyn FnMut(&ImageKey, usize),
    ) -> Vec<ImageSymbols> {
        report.attribute_frames();
        let arch = arch_of(report);
        let began = unchanged_since(report);
        let images: Vec<Image> = report.images.clone();
        for image in images.iter().filter(|image| image.build_id.is_empty()) {
            let pieces = report.code.iter().filter(|piece| image.contains(piece.address));
            let code = pieces.map(|piece| (image.to_svma(piece.address), piece.bytes.to_vec())).collect::<Vec<_>>();
            if !code.is_empty() {
                self.locator.expect_code(&image.path, code);
            }
        }
        let index = ImageIndex::new(&images);
        let mut addresses: Vec<Vec<LookupAddress>> = vec![Vec::new(); images.len()];
        for frame in report.frames_mut() {
            if let Some(image) = index.find(frame.lookup_address()) {
                addresses[image].push(address_in(&images[image], frame));
            }
        }
        let mut symbols: Vec<Option<ImageSymbols>> = vec![None; images.len()];
        for (done, frame) in report.frames_mut().enumerate() {
            let at = index.find(frame.lookup_address());
            if let Some(index) = at {
                let image = &images[index];
                let entry = symbols[index].get_or_insert_with(|| {
                    let key = ImageKey { replaced: is_replaced(image, began), ..ImageKey::from_image(image, arch) };
                    about_to(&key, done);
                    self.look_up(&key, &addresses[index]);
                    ImageSymbols { key, frames: 0, named: 0, lines: 0 }
                });
                entry.frames += 1;
                let address = address_in(image, frame);
                fill(frame, image, self.symbolicate(&entry.key, address));
                entry.lines += usize::from(frame.line.is_some());
            }
            demangle_own_name(frame);
            if let Some(entry) = at.and_then(|index| symbols[index].as_mut()) {
                entry.named += usize::from(frame.function.is_some());
            }
        }
        if self.debug_info {
            // This pass includes everything that an app left out for lack of time or memory.
            LeftOut::forget(report);
        }
        finish(report);
        symbols.into_iter().flatten().collect()
    }
}

/// Returns a frame's address in the address space of its image's file.
pub(crate) fn address_in(image: &Image, frame: &Frame) -> LookupAddress {
    let svma = image.to_svma(frame.address);
    match frame.address_kind {
        AddressKind::INSTRUCTION => LookupAddress::of_instruction(svma),
        _ => LookupAddress::of_return_address(svma),
    }
}

/// Names a report's frames without symbol files, by demangling the names found in the crashing
/// process. For callers that don't need other symbols or have no time;
/// [`Symbolizer::symbolicate_report`] includes it.
pub fn name_by_report(report: &mut Report) {
    report.attribute_frames();
    report.frames_mut().for_each(demangle_own_name);
    finish(report);
}

pub(crate) fn demangle_own_name(frame: &mut Frame) {
    if frame.function.is_none()
        && let Some(raw) = &frame.raw_function
    {
        frame.function = Some(demangle(raw).name);
    }
}

/// Whether the file at an image's path can't be assumed to be the image.
///
/// It was replaced while the process ran, or the image has no id and the file may have been changed
/// since.
pub(crate) fn is_replaced(image: &Image, began: Timestamp) -> bool {
    image.replaced || (image.kind == ImageKind::ELF && image.build_id.is_empty() && !is_loaded_file(image, began))
}

/// Completes what doesn't depend on the frames' names.
pub(crate) fn finish(report: &mut Report) {
    identify_images(report);
    name_signal_returns(report);
    demangle_exception_types(report);
}

/// Names the code that a signal handler returns to on Linux.
///
/// Stripped libraries have no symbol for it.
fn name_signal_returns(report: &mut Report) {
    let name = match arch_of(report) {
        Arch::X86_64 => "__restore_rt",
        Arch::Aarch64 => "__kernel_rt_sigreturn",
        _ => return,
    };
    if !matches!(report.header.os, Os::LINUX | Os::ANDROID) {
        return;
    }
    for thread in &mut report.threads {
        for place in 1..thread.frames.len() {
            if thread.frames[place].found_by == FoundBy::SIGNAL_FRAME {
                thread.frames[place - 1].function.get_or_insert_with(|| name.to_owned());
            }
        }
    }
}

/// Demangles the types of C++ exceptions. Reports contain mangled names, because demangling
/// allocates. For callers that don't need other symbols; [`Symbolizer::symbolicate_report`]
/// includes it.
pub fn demangle_exception_types(report: &mut Report) {
    let mut crash = report.crash.as_mut();
    if report.exceptions.is_empty()
        && let Some(crash) = crash.as_mut().filter(|crash| crash.monitor == Monitor::CPP_EXCEPTION)
        && let Some(name) = &mut crash.exception_type
    {
        // The report was truncated before its exceptions.
        *name = demangle_cpp_type(name);
    }
    // The first exception is the uncaught one, which belongs to the crash.
    for exception in &mut report.exceptions {
        let mut crash = crash.take();
        if exception.language != Language::CPP || exception.raw_type_name.is_some() {
            continue;
        }
        let Some(raw) = exception.type_name.take() else { continue };
        let name = demangle_cpp_type(&raw);
        if let Some(named) = crash.as_mut().and_then(|crash| crash.exception_type.as_mut())
            && *named == raw
        {
            named.clone_from(&name);
        }
        exception.raw_type_name = (name != raw).then_some(raw);
        exception.type_name = Some(name);
    }
}

/// Returns the architecture, from the first thread that has registers.
pub(crate) fn arch_of(report: &Report) -> Arch {
    use coroner_process::registers::Arch as Machine;
    match report.threads.iter().find_map(|thread| thread.registers.as_ref()?.arch) {
        Some(Machine::X86_64) => Arch::X86_64,
        Some(Machine::Aarch64) => Arch::Aarch64,
        None => Arch::Other,
    }
}

pub(crate) fn fill(frame: &mut Frame, image: &Image, mut calls: Vec<SymbolFrame>) {
    let Some(function) = calls.pop() else { return };
    if frame.line.is_some() && function.line.is_none() {
        // The frame was symbolicated where more information was available.
        return;
    }
    if function.raw_name.is_none() && frame.named_in_process {
        // A line without a name: keep the name found in the process.
        (frame.file, frame.line, frame.column) = (function.file, function.line, function.column);
        return;
    }
    frame.named_in_process = false;
    frame.function = function.function;
    frame.raw_function = function.raw_name;
    frame.symbol_address = function.symbol_address.map(|svma| Address(svma.wrapping_add(image.slide.0)));
    frame.file = function.file;
    frame.line = function.line;
    frame.column = function.column;
    frame.inlined = calls
        .into_iter()
        .map(|call| InlinedFrame {
            function: call.function,
            raw_function: call.raw_name,
            file: call.file,
            line: call.line,
            column: call.column,
        })
        .collect();
}
