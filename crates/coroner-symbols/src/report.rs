//! Names for all frames of a report at once.

use std::path::PathBuf;

use coroner_report::{
    Report,
    model::{Address, Frame, Image, InlinedFrame},
    wire::{AddressKind, ImageKind, Language, Monitor},
};
use coroner_scan::LookupAddress;

use crate::{
    debug_id::DebugId,
    demangle::{demangle, demangle_cpp_type},
    symbol_file::{Arch, FileKind},
    symbolizer::{ImageKey, SymbolFrame, Symbolizer},
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
    /// was found in the process as it died, demangled. Attributes the frames to their images first.
    ///
    /// Says for each image that has frames, in the order of the report, how far that went.
    pub fn symbolicate_report(&mut self, report: &mut Report) -> Vec<ImageSymbols> {
        self.symbolicate_report_with(report, &mut |_, _| {})
    }

    /// As [`Self::symbolicate_report`]. `about_to` is told each image that is about to be opened, which for large ones takes
    /// a while, and how many frames are named by then.
    pub fn symbolicate_report_with(
        &mut self,
        report: &mut Report,
        about_to: &mut dyn FnMut(&ImageKey, usize),
    ) -> Vec<ImageSymbols> {
        report.attribute_frames();
        let arch = arch_of(report);
        let images: Vec<Image> = report.images.clone();
        // By start, to find the image of an address; those inside others (as of a shared cache) start later.
        let mut order: Vec<usize> = (0..images.len()).collect();
        order.sort_by_key(|&index| images[index].load_address);
        let mut symbols: Vec<Option<ImageSymbols>> = vec![None; images.len()];
        for (done, frame) in report.frames_mut().enumerate() {
            let lookup = frame.lookup_address();
            let behind = order.partition_point(|&index| images[index].load_address <= lookup);
            let at = order[..behind].iter().rev().copied().find(|&index| images[index].contains(lookup));
            if let Some(index) = at {
                let image = &images[index];
                let entry = symbols[index].get_or_insert_with(|| {
                    let key = ImageKey::of_image(image, arch);
                    about_to(&key, done);
                    ImageSymbols { key, frames: 0, named: 0, lines: 0 }
                });
                entry.frames += 1;
                let svma = image.to_svma(frame.address);
                let address = if frame.address_kind == AddressKind::INSTRUCTION {
                    LookupAddress::of_instruction(svma)
                } else {
                    LookupAddress::of_return_address(svma)
                };
                fill(frame, image, self.symbolicate(&entry.key, address));
                entry.lines += usize::from(frame.line.is_some());
            }
            if frame.function.is_none()
                && let Some(raw) = &frame.raw_function
            {
                frame.function = Some(demangle(raw).name);
            }
            if let Some(entry) = at.and_then(|index| symbols[index].as_mut()) {
                entry.named += usize::from(frame.function.is_some());
            }
        }
        demangle_exception_types(report);
        symbols.into_iter().flatten().collect()
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

impl ImageKey {
    /// The key of a report's image. `arch` is the processor of the process, for images that don't say their own.
    pub fn of_image(image: &Image, arch: Arch) -> Self {
        // Apple's `mach/machine.h`: CPU_TYPE_X86 is 7, CPU_TYPE_ARM 12, CPU_ARCH_ABI64 0x0100_0000.
        let arch = match image.cpu {
            Some((0x0100_0007, _)) => Arch::X86_64,
            Some((0x0100_000c, _)) => Arch::Aarch64,
            _ => arch,
        };
        Self {
            path: PathBuf::from(&image.path),
            debug_id: DebugId::new(&image.build_id),
            kind: if image.kind == ImageKind::MACHO { FileKind::MachO } else { FileKind::Elf },
            arch,
            base_svma: image.to_svma(image.load_address),
        }
    }
}

/// The processor, by the registers of the first thread that has some.
fn arch_of(report: &Report) -> Arch {
    use coroner_machine::registers::Arch as Machine;
    match report.threads.iter().find_map(|thread| thread.registers.as_ref()?.arch) {
        Some(Machine::X86_64) => Arch::X86_64,
        Some(Machine::Aarch64) => Arch::Aarch64,
        None => Arch::Other,
    }
}

fn fill(frame: &mut Frame, image: &Image, mut calls: Vec<SymbolFrame>) {
    let Some(function) = calls.pop() else { return };
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

#[cfg(test)]
mod tests {
    use coroner_report::{model::Thread, wire::FoundBy};

    use super::*;
    use crate::{SymbolFile, symbolizer::Match, symbolizer::Options};
    use coroner_report::model::{Crash, Exception};

    /// Kind, load address, slide and size of the image of this test program.
    #[cfg(not(target_vendor = "apple"))]
    fn my_image(path: &str) -> (ImageKind, u64, u64, u64) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped: Vec<(u64, u64)> = maps
            .lines()
            .filter(|line| line.ends_with(path))
            .map(|line| {
                let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
                (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
            })
            .collect();
        let (load, end) = (mapped[0].0, mapped[mapped.len() - 1].1);
        (ImageKind::ELF, load, load, end - load)
    }

    /// As above. The file's length is taken for the image's: its code is near its beginning.
    #[cfg(target_vendor = "apple")]
    fn my_image(path: &str) -> (ImageKind, u64, u64, u64) {
        unsafe extern "C" {
            // <mach-o/dyld.h>
            fn _dyld_get_image_header(index: u32) -> *const u8;
            fn _dyld_get_image_vmaddr_slide(index: u32) -> isize;
        }
        // SAFETY: image 0 is the program and stays.
        let (load, slide) = unsafe { (_dyld_get_image_header(0) as u64, _dyld_get_image_vmaddr_slide(0) as u64) };
        (ImageKind::MACHO, load, slide, std::fs::metadata(path).unwrap().len())
    }

    /// A report of this test program, as if it had died in the function at `address`.
    fn report_of_myself(address: u64, build_id: Option<Vec<u8>>) -> Report {
        let path = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let (kind, load, slide, size) = my_image(&path);
        let file = &SymbolFile::open(std::path::Path::new(&path)).unwrap()[0];
        let own_id = file.debug_id().map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let image = Image {
            kind,
            path,
            load_address: Address(load),
            slide: Address(slide),
            size,
            build_id: build_id.unwrap_or(own_id).into(),
            ..Image::default()
        };
        let frame = |address, address_kind| Frame {
            address: Address(address),
            address_kind,
            found_by: FoundBy::CFI,
            ..Frame::default()
        };
        let thread = Thread {
            frames: vec![
                frame(address, AddressKind::INSTRUCTION),
                // A return address behind the last byte of the function before is not in this one.
                frame(address + 1, AddressKind::RETURN),
            ],
            ..Thread::default()
        };
        Report { threads: vec![thread], images: vec![image], ..Report::default() }
    }

    #[inline(never)]
    extern "C" fn landmark_of_this_test(value: u64) -> u64 {
        std::hint::black_box(value) + 1
    }

    #[test]
    fn frames_of_a_report_get_names_and_lines() {
        let address = landmark_of_this_test as *const () as u64;
        let mut report = report_of_myself(address, None);
        let mut symbolizer = Symbolizer::new(Options::default());
        let images = symbolizer.symbolicate_report(&mut report);
        // Lines of a Mach-O program are in its dSYM; this one has none, and the object files that it refers to are not read.
        let lines = if cfg!(target_vendor = "apple") { 0 } else { 2 };
        assert_eq!((images[0].frames, images[0].named, images[0].lines), (2, 2, lines));
        for frame in &report.threads[0].frames {
            let function = frame.function.as_deref().unwrap();
            assert!(function.ends_with("report::tests::landmark_of_this_test"), "{function}");
            assert_eq!(frame.symbol_address, Some(Address(address)));
            if lines > 0 {
                assert!(frame.file.as_deref().unwrap().ends_with("src/report.rs"));
                assert!(frame.line.is_some());
            }
        }
    }

    #[test]
    fn an_image_with_another_id_is_not_used() {
        let address = landmark_of_this_test as *const () as u64;
        let mut report = report_of_myself(address, Some(vec![7; 20]));
        let mut symbolizer = Symbolizer::new(Options::default());
        let images = symbolizer.symbolicate_report(&mut report);
        assert_eq!((images[0].frames, images[0].named), (2, 0));
        assert!(matches!(symbolizer.status(&images[0].key).matched, Match::Mismatched { .. }));
        assert!(report.threads[0].frames.iter().all(|frame| frame.function.is_none()));
    }

    #[test]
    fn a_name_from_the_process_itself_is_demangled() {
        let mut report = report_of_myself(0x1000, None);
        report.symbol_names = vec![coroner_report::model::SymbolName {
            address: Address(0x1000),
            name: "_ZN3foo3barEv".into(),
            symbol_address: None,
            ..Default::default()
        }];
        Symbolizer::new(Options::default()).symbolicate_report(&mut report);
        assert_eq!(report.threads[0].frames[0].function.as_deref(), Some("foo::bar()"));
        assert!(report.threads[0].frames[0].named_in_process && !report.threads[0].frames[1].named_in_process);
    }

    #[test]
    fn a_symbol_file_knows_better_than_the_process() {
        let address = landmark_of_this_test as *const () as u64;
        let mut report = report_of_myself(address, None);
        report.symbol_names = vec![coroner_report::model::SymbolName {
            address: Address(address),
            name: "nearest".into(),
            symbol_address: Some(Address(address - 64)),
            ..Default::default()
        }];
        Symbolizer::new(Options::default()).symbolicate_report(&mut report);
        let frame = &report.threads[0].frames[0];
        assert!(frame.function.as_deref().unwrap().ends_with("landmark_of_this_test") && !frame.named_in_process);
        assert_eq!(frame.symbol_address, Some(Address(address)));
    }

    fn exception(language: Language, kind: &str) -> Exception {
        Exception { language, type_name: Some(kind.into()), ..Exception::default() }
    }

    #[test]
    fn types_are_demangled_once() {
        let mut report = Report {
            crash: Some(Crash { monitor: Monitor::USER, exception_type: Some("1i".into()), ..Crash::default() }),
            exceptions: vec![
                exception(Language::CPP, "1i"),
                exception(Language::CPP, "i"),
                exception(Language::OBJC, "i"),
                exception(Language::CPP, "std::runtime_error"),
            ],
            ..Report::default()
        };
        for _ in 0..2 {
            demangle_exception_types(&mut report);
            let names: Vec<_> = report.exceptions.iter().map(|exception| exception.type_name.as_deref()).collect();
            // A class `i` is not the `int` that its name would be next time.
            assert_eq!(names, [Some("i"), Some("int"), Some("i"), Some("std::runtime_error")]);
            let raw: Vec<_> = report.exceptions.iter().map(|exception| exception.raw_type_name.as_deref()).collect();
            assert_eq!(raw, [Some("1i"), Some("i"), None, None]);
            assert_eq!(report.crash.as_ref().unwrap().exception_type.as_deref(), Some("i"));
        }
        let crash = Crash {
            monitor: Monitor::CPP_EXCEPTION,
            exception_type: Some("St13runtime_error".into()),
            ..Crash::default()
        };
        let mut torn = Report { crash: Some(crash), ..Report::default() };
        demangle_exception_types(&mut torn);
        assert_eq!(torn.crash.unwrap().exception_type.as_deref(), Some("std::runtime_error"));
    }
}
