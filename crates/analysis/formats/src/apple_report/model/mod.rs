//! Converts Apple's crash reports to Coroner reports.
//!
//! The result has the crash, the threads with their registers and frames, and the images.

mod ips;
mod text;

use crate::content_id;
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Annotation, AppFacts, Bytes, Crash, DeviceFacts, Exception, Header, Id, Image, Mach, OsFacts, Problem,
    RunFacts, Signal, TextRange, Thread, Timestamp, mach_code_name, mach_exception_name, signal_code_name, signal_name,
};
use coroner_report::wire::{FORMAT_VERSION, ImageKind, Language, Monitor, Os};

use crate::apple_report::{AppleImage, AppleReport, AppleReportError, Form};

/// Maximum number of threads that are read.
const MAX_THREADS: usize = 16_384;
/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 16_384;
/// Maximum number of images.
const MAX_IMAGES: usize = 65_536;

/// Reads an Apple crash report as a Coroner report with the names that it contains. With the
/// images' ids, a [`Symbolizer`](coroner_symbols::Symbolizer) can find more names.
///
/// The event id is the incident's, or else derived from the content: the same file results in the
/// same event each time.
///
/// # Errors
/// [`AppleReportError`] if the bytes are not an Apple report, are damaged, or contain sampled
/// stacks, which are not a crash. Lines that can't be parsed are skipped; missing parts are listed
/// in [`Report::problems`].
pub fn read_report(bytes: &[u8]) -> Result<Report, AppleReportError> {
    let (form, lacking) = match AppleReport::read(bytes) {
        Ok(report) => (report.form(), None),
        // A process that the system killed before it ran has neither images nor stacks.
        Err(error @ AppleReportError::NoFrames { .. }) => {
            (if crate::apple_report::ips::is_document(bytes) { Form::Ips } else { Form::Text }, Some(error))
        }
        Err(error) => return Err(error),
    };
    let parsed = match form {
        Form::Ips => ips::read(bytes)?,
        Form::Text => text::read(bytes),
        Form::Samples => {
            return Err(AppleReportError::OtherKind { kind: "sampled stacks of a running process" });
        }
    };
    if parsed.threads.is_empty() && parsed.thrown.is_none() && parsed.exception.is_none() {
        return Err(lacking.unwrap_or(AppleReportError::NoFrames { lacks: "threads", bug_type: None }));
    }
    Ok(parsed.report(bytes))
}

/// The contents of both forms.
#[derive(Debug, Default)]
struct Parsed {
    incident: Option<String>,
    process_name: String,
    pid: u32,
    parent_pid: u32,
    path: Option<String>,
    bundle_id: Option<String>,
    version: Option<String>,
    build: Option<String>,
    is_arm64: Option<bool>,
    /// System, such as `iPhone OS 18.1 (22B83)`.
    os: Option<String>,
    hardware: Option<String>,
    time: Option<Timestamp>,
    start: Option<Timestamp>,
    /// Exception type, such as `EXC_BAD_ACCESS`.
    exception: Option<String>,
    /// Code and subcode.
    codes: Vec<i64>,
    /// Signal, such as `SIGSEGV`.
    signal: Option<String>,
    /// Subtype, such as `KERN_INVALID_ADDRESS at 0x0000000000000018`.
    subtype: Option<String>,
    /// Index of the crashed thread in `threads`.
    crashed: Option<usize>,
    threads: Vec<Thread>,
    images: Vec<AppleImage>,
    /// The exception that was thrown.
    thrown: Option<Exception>,
    annotations: Vec<Annotation>,
    problems: Vec<Problem>,
}

impl Parsed {
    fn annotate(&mut self, source: &str, text: impl Into<String>) {
        let text = text.into();
        if !text.trim().is_empty() {
            self.annotations.push(Annotation { source: source.to_owned(), text, ..Annotation::default() });
        }
    }

    /// Keeps what the exception's subtype contains beside a code's name and an address, and the
    /// exception's message.
    fn annotate_exception(&mut self, message: Option<&str>) {
        let subtype = self.subtype.clone().unwrap_or_default();
        let is_plain =
            subtype.split(' ').count() <= 3 && (subtype.starts_with("KERN_") || subtype.starts_with("SEGV_"));
        let parts = [(!is_plain).then_some(subtype.as_str()), message];
        let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        self.annotate("exception", parts.join(": "));
    }

    /// Returns the architecture, if its registers are supported.
    fn arch(&self) -> Option<Arch> {
        self.is_arm64.map(|is_arm64| if is_arm64 { Arch::Aarch64 } else { Arch::X86_64 })
    }

    fn report(mut self, bytes: &[u8]) -> Report {
        let arch = self.arch();
        let (os, facts) = system(self.os.as_deref());
        let crashed = self.crashed.filter(|place| *place < self.threads.len());
        let crashed = crashed.or_else(|| self.threads.iter().position(|thread| thread.crashed)).unwrap_or(0);
        let mut tid = 0;
        for (place, thread) in self.threads.iter_mut().enumerate() {
            thread.crashed = place == crashed;
            thread.main = place == 0;
            if thread.crashed {
                tid = thread.tid;
            }
        }
        // The crashed thread comes first, as in all reports.
        self.threads.sort_by_key(|thread| !thread.crashed);
        let crash = self.crash(os, tid);
        let images = self
            .images
            .iter()
            .filter(|image| image.load_address != 0)
            .take(MAX_IMAGES)
            .map(|image| self.image(image))
            .collect();
        let id = self.incident.as_deref().and_then(|id| id.trim().parse().ok()).filter(|id: &Id| !id.is_nil());
        let run_id = id.unwrap_or_else(|| content_id([bytes]));
        let mut report = Report {
            complete: self.problems.is_empty(),
            problems: self.problems,
            header: Header {
                format_version: FORMAT_VERSION,
                run_id,
                event_id: run_id,
                pid: self.pid,
                ppid: self.parent_pid,
                process_name: self.process_name.clone(),
                arch,
                os,
                page_size: if arch == Some(Arch::Aarch64) { 16_384 } else { 4096 },
                process_start: self.start.unwrap_or_default(),
                ..Header::default()
            },
            crash: Some(crash),
            exceptions: self.thrown.into_iter().map(|thrown| Exception { tid, ..thrown }).collect(),
            threads: self.threads,
            images,
            annotations: self.annotations,
            run: Some(RunFacts {
                run_id,
                app: AppFacts {
                    id: self.bundle_id,
                    name: Some(self.process_name.clone()).filter(|name| !name.is_empty()),
                    version: self.version,
                    build: self.build,
                    process_name: Some(self.process_name),
                    executable: self.path,
                    pid: Some(self.pid),
                    process_start: self.start,
                    ..AppFacts::default()
                },
                os: facts,
                device: DeviceFacts {
                    model: self.hardware,
                    arch: arch.map(|arch| arch.name().to_owned()),
                    ..DeviceFacts::default()
                },
                ..RunFacts::default()
            }),
            ..Report::default()
        };
        report.attribute_frames();
        report
    }

    fn crash(&self, os: Os, tid: u64) -> Crash {
        let number = |name: &Option<String>, name_of: &dyn Fn(i32) -> Option<&'static str>| {
            let name = name.as_deref()?;
            (1..64).find(|number| name_of(*number) == Some(name))
        };
        let name = self.subtype.as_deref().and_then(|subtype| subtype.split_whitespace().next());
        let subtype = self.subtype.as_deref().and_then(|text| text.split_once(" at ")).map(|(_, address)| address);
        let parsed = subtype.and_then(|text| crate::apple_report::images::hexadecimal(text.split_whitespace().next()?));
        let mach = number(&self.exception, &mach_exception_name).map(|number| match self.codes[..] {
            [] => {
                let code = (1..64).find(|code| name.is_some() && mach_code_name(number, *code) == name);
                let codes = Mach::new(number, code.unwrap_or_default(), parsed.unwrap_or_default() as i64);
                Mach { unknown_codes: code.is_none(), ..codes }
            }
            [code] => Mach::new(number, code, 0),
            [code, subcode, ..] => Mach::new(number, code, subcode),
        });
        let is_bad_access = mach.as_ref().is_some_and(|mach| mach.exception == 1);
        // If the processor doesn't report the address, the subcode is meaningless
        // (`EXC_I386_GPFLT`).
        let by_code = self.codes.get(1).filter(|_| is_bad_access && self.codes.first() != Some(&13));
        let address = parsed.or(by_code.map(|subcode| *subcode as u64)).map(Address);
        let signal = number(&self.signal, &|number| signal_name(os, number)).map(|number| {
            let code = (1..16).find(|code| name.is_some() && signal_code_name(os, number, *code) == name);
            Signal {
                number,
                name: signal_name(os, number),
                code: code.unwrap_or_default(),
                code_name: name.filter(|_| code.is_some()).and_then(|_| signal_code_name(os, number, code?)),
                address,
                ..Signal::default()
            }
        });
        Crash {
            time: self.time.unwrap_or_default(),
            monitor: if mach.is_some() { Monitor::MACH } else { Monitor::SIGNAL },
            signal,
            mach,
            tid,
            address: address.filter(|_| is_bad_access || self.exception.is_none()),
            ..Crash::default()
        }
    }

    fn image(&self, image: &AppleImage) -> Image {
        let id = image.debug_id.as_ref().map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let (path, load_address) =
            (if image.path.is_empty() { &image.name } else { &image.path }, Address(image.load_address));
        Image {
            kind: ImageKind::MACHO,
            path: path.clone(),
            load_address,
            // `__TEXT` starts at 4 GiB in a program's file, at 0 in a library's; names are looked
            // up by build id, relative to the image.
            slide: load_address,
            size: image.size,
            text: TextRange { address: load_address, size: image.size },
            build_id: Bytes(id),
            is_main: self.path.as_deref().map(without_private) == Some(without_private(path))
                || (self.path.is_none() && image.name == self.process_name),
            ..Image::default()
        }
    }
}

/// Returns a path without the `/private` through which Apple's systems reach `/var`: one report has
/// both forms.
fn without_private(path: &str) -> &str {
    path.strip_prefix("/private").filter(|rest| rest.starts_with("/var/")).unwrap_or(path)
}

/// Creates the thrown exception, which is usually an Objective-C exception.
fn thrown(name: Option<String>, message: Option<String>, frames: Vec<coroner_report::model::Frame>) -> Exception {
    Exception { language: Language::OBJC, type_name: name, message, frames, ..Exception::default() }
}

/// Parses a system's name and version: `iPhone OS 18.1 (22B83)`, `macOS 14.1 (23B74)`, `Mac OS X
/// 10.15.7 (19H15)`.
fn system(text: Option<&str>) -> (Os, OsFacts) {
    const SYSTEMS: [(&str, Os); 10] = [
        ("iPhone OS", Os::IOS),
        ("iPadOS", Os::IOS),
        ("iOS", Os::IOS),
        ("macOS", Os::MACOS),
        ("Mac OS X", Os::MACOS),
        ("Apple TVOS", Os::TVOS),
        ("tvOS", Os::TVOS),
        ("Watch OS", Os::WATCHOS),
        ("watchOS", Os::WATCHOS),
        ("xrOS", Os::VISIONOS),
    ];
    let text = text.unwrap_or_default().trim();
    let found = SYSTEMS.iter().find_map(|(name, os)| Some((*name, *os, text.strip_prefix(name)?)));
    let Some((name, os, rest)) = found else { return (Os::MACOS, OsFacts::default()) };
    let (version, build) = rest.split_once('(').unwrap_or((rest, ""));
    let not_empty = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let facts = OsFacts {
        name: Some(if os == Os::IOS { "iOS" } else { name }.to_owned()),
        version: not_empty(version),
        build: not_empty(build.trim_end().trim_end_matches(')')),
        ..OsFacts::default()
    };
    (os, facts)
}

/// Parses `2026-11-21 10:11:12.1234 +0100`; the fraction is optional.
fn time(text: &str) -> Option<Timestamp> {
    let mut words = text.split_whitespace();
    let (date, time) = (words.next()?, words.next()?);
    format!("{date}T{time}{}", words.next().unwrap_or("Z")).parse().ok()
}
