//! Names for all frames of a report at once.

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

/// What became of the frames of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSymbols {
    /// The image; [`Symbolizer::status`] says which files it was named from, or why none was.
    pub key: ImageKey,
    /// How many frames of the report lie in it.
    pub frames: usize,
    /// How many of them have a function now.
    pub named: usize,
    /// How many of them have a file and a line now.
    pub lines: usize,
}

impl Symbolizer {
    /// Names all frames of a report: function, file, line and inlined calls, where symbols are found; else the name that
    /// was found in the process as it died, demangled. Attributes the frames to their images first, and gives images without a build id
    /// what stands for one ([`identify_images`]).
    ///
    /// Says for each image that has frames, in the order of the report, how far that went.
    pub fn symbolicate_report(&mut self, report: &mut Report) -> Vec<ImageSymbols> {
        self.symbolicate_report_with(report, &mut |_, _| {})
    }

    /// As [`Self::symbolicate_report`]. `about_to` is given each image that is about to be opened, which for large ones takes
    /// a while, and how many frames are named by then.
    pub fn symbolicate_report_with(
        &mut self,
        report: &mut Report,
        about_to: &mut dyn FnMut(&ImageKey, usize),
    ) -> Vec<ImageSymbols> {
        report.attribute_frames();
        let arch = arch_of(report);
        let began = unchanged_since(report);
        let images: Vec<Image> = report.images.clone();
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
                    let key = ImageKey { replaced: is_replaced(image, began), ..ImageKey::of_image(image, arch) };
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
            // What an app had no time or room for is done now.
            LeftOut::forget(report);
        }
        finish(report);
        symbols.into_iter().flatten().collect()
    }
}

/// A frame's address as its image's file counts.
pub(crate) fn address_in(image: &Image, frame: &Frame) -> LookupAddress {
    let svma = image.to_svma(frame.address);
    match frame.address_kind {
        AddressKind::INSTRUCTION => LookupAddress::of_instruction(svma),
        _ => LookupAddress::of_return_address(svma),
    }
}

/// Names the frames of a report by what it has itself, without a symbol file: the names that were found in the process as it died, demangled.
/// For those who want no other symbols, or have no time for them; [`Symbolizer::symbolicate_report`] does it, too.
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

/// Whether the file at an image's path can't be taken for the image: it was replaced while the process ran; or, of an image without an
/// id, it may have been changed since.
pub(crate) fn is_replaced(image: &Image, began: Timestamp) -> bool {
    image.replaced || (image.kind == ImageKind::ELF && image.build_id.is_empty() && !is_loaded_file(image, began))
}

/// What needs no names of frames.
pub(crate) fn finish(report: &mut Report) {
    identify_images(report);
    name_signal_returns(report);
    demangle_exception_types(report);
}

/// Names the code that a signal handler returns to, on Linux, which stripped libraries have no symbol of.
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

/// Names the types of C++ exceptions as their source does. A report has them mangled, since demangling allocates. For those who
/// want no other symbols; [`Symbolizer::symbolicate_report`] does it, too.
pub fn demangle_exception_types(report: &mut Report) {
    let mut crash = report.crash.as_mut();
    if report.exceptions.is_empty()
        && let Some(crash) = crash.as_mut().filter(|crash| crash.monitor == Monitor::CPP_EXCEPTION)
        && let Some(name) = &mut crash.exception_type
    {
        // It was cut before its exceptions.
        *name = demangle_cpp_type(name);
    }
    // The uncaught one is the first, and is that of the crash.
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

/// The processor, by the registers of the first thread that has some.
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
        // It was named where there was more to read.
        return;
    }
    if function.raw_name.is_none() && frame.named_in_process {
        // A line without a name: that which the process found stays.
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
