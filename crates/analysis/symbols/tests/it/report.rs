//! Symbolication of a report about this test program.

use coroner_report::model::{Address, Frame, Image, Report};
use coroner_report::wire::{AddressKind, ImageKind, Language, Monitor};
use coroner_report::{model::Thread, wire::FoundBy};
use coroner_symbols::{Match, Options, SymbolFile, Symbolizer, demangle_exception_types};

use coroner_report::model::{Crash, Exception};

/// Returns kind, load address, slide and size of this test program's image.
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

/// Like the other `image`. Uses the file's length as the image's size, because the code is near its
/// start.
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

/// Returns a report about this test program as if it had crashed in the function at `address`.
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
            // A return address after the last byte of the preceding function is not in this one.
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
fn a_reports_frames_get_names_and_lines() {
    let address = landmark_of_this_test as *const () as u64;
    let mut report = report_of_myself(address, None);
    let mut symbolizer = Symbolizer::new(Options::default());
    let images = symbolizer.symbolicate_report(&mut report);
    // The lines of a Mach-O program without a dSYM are in the object files of its debug map.
    assert_eq!((images[0].frames, images[0].named, images[0].lines), (2, 2, 2));
    for frame in &report.threads[0].frames {
        let function = frame.function.as_deref().unwrap();
        assert!(function.ends_with("landmark_of_this_test"), "{function}");
        assert_eq!(frame.symbol_address, Some(Address(address)));
        assert!(frame.file.as_deref().unwrap().ends_with("tests/it/report.rs"));
        assert!(frame.line.is_some());
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
fn a_symbol_files_name_replaces_the_processs() {
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
fn exception_types_are_demangled_once() {
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
        // A second pass would turn the class name `i` into `int`.
        assert_eq!(names, [Some("i"), Some("int"), Some("i"), Some("std::runtime_error")]);
        let raw: Vec<_> = report.exceptions.iter().map(|exception| exception.raw_type_name.as_deref()).collect();
        assert_eq!(raw, [Some("1i"), Some("i"), None, None]);
        assert_eq!(report.crash.as_ref().unwrap().exception_type.as_deref(), Some("i"));
    }
    let crash =
        Crash { monitor: Monitor::CPP_EXCEPTION, exception_type: Some("St13runtime_error".into()), ..Crash::default() };
    let mut torn = Report { crash: Some(crash), ..Report::default() };
    demangle_exception_types(&mut torn);
    assert_eq!(torn.crash.unwrap().exception_type.as_deref(), Some("std::runtime_error"));
}

/// Stripped libraries have no symbol for the code that a signal handler returns to.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_return_is_named() {
    let mut report = report_of_myself(landmark_of_this_test as *const () as u64, None);
    report.header.os = coroner_report::wire::Os::LINUX;
    let (arch, name) = match cfg!(target_arch = "x86_64") {
        true => (coroner_process::registers::Arch::X86_64, "__restore_rt"),
        false => (coroner_process::registers::Arch::Aarch64, "__kernel_rt_sigreturn"),
    };
    let thread = &mut report.threads[0];
    thread.registers = Some(coroner_report::model::Registers { arch: Some(arch), ..Default::default() });
    thread.frames.insert(0, Frame { address: Address(16), ..Frame::default() });
    thread.frames.insert(0, Frame { address: Address(32), ..Frame::default() });
    thread.frames[2].found_by = FoundBy::SIGNAL_FRAME;
    Symbolizer::new(Options::default()).symbolicate_report(&mut report);
    let names: Vec<_> = report.threads[0].frames[..2].iter().map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names, [None, Some(name)]);
}

#[cfg(target_os = "linux")]
#[test]
fn images_without_an_id_are_compared_by_their_code() {
    use object::{Object, ObjectSection, ObjectSymbol};
    let folder = tempfile::tempdir().unwrap();
    let (source, app) = (folder.path().join("app.c"), folder.path().join("app"));
    std::fs::write(&source, "int total(int n) { return n * 3 + 1; }\nint main(int n) { return total(n); }\n").unwrap();
    let built = std::process::Command::new("gcc")
        .args(["-O0", "-g", "-Wl,--build-id=none", "-o"])
        .args([&app, &source])
        .status();
    assert!(built.unwrap().success());
    let bytes = std::fs::read(&app).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let at = file.symbols().find(|symbol| symbol.name() == Ok("total")).unwrap().address();
    let text = file.section_by_name(".text").unwrap();
    let own = text.data_range(at, 16).unwrap().unwrap().to_vec();
    let mut other = own.clone();
    other[15] ^= 1;
    let slide = 0x5000_0000;
    for (code, expected) in [(Some(own), Match::Matched), (None, Match::Unverified), (Some(other), Match::Missing)] {
        let image = Image {
            kind: ImageKind::ELF,
            path: "/nowhere/app".into(),
            load_address: Address(slide),
            slide: Address(slide),
            size: 0x10_0000,
            ..Image::default()
        };
        let frame = Frame {
            address: Address(slide + at + 4),
            address_kind: AddressKind::INSTRUCTION,
            found_by: FoundBy::CONTEXT,
            ..Frame::default()
        };
        let code = code.map(|bytes| coroner_report::model::Code {
            address: Address(slide + at),
            bytes: bytes.into(),
            ..Default::default()
        });
        let mut report = Report {
            threads: vec![Thread { frames: vec![frame], ..Thread::default() }],
            images: vec![image],
            code: code.into_iter().collect(),
            ..Report::default()
        };
        let mut symbolizer = Symbolizer::new(Options { search: vec![folder.path().to_owned()], ..Options::default() });
        let images = symbolizer.symbolicate_report(&mut report);
        let matched = &symbolizer.status(&images[0].key).matched;
        let is_other = matches!(matched, Match::Mismatched { path, .. } if *path == app);
        assert!(*matched == expected || expected == Match::Missing && is_other, "{matched:?}");
        let named = report.threads[0].frames[0].function.as_deref() == Some("total");
        assert_eq!(named, !is_other, "{matched:?}");
    }
}
