//! Converts the sections' CBOR to the model.

use super::fields::Fields;
use super::item::{Limit, decode_item, more};
use super::profile::profile;
use super::{ReadError, Section, limits, missing};
use crate::model::{
    Address, Annotation, AppMemory, Bytes, Code, ConcurrentCrash, CpuTime, Crash, CrashFlag, End, Exception, Fault,
    Frame, FutexWait, Hang, Header, Image, Mach, Mapping, PhaseDuration, Problem, Registers, Report, RunFacts,
    SectionCount, Segment, Signal, Skipped, StackMemory, SymbolName, TextRange, Thread, Timestamp, UnknownSection,
    UnwindSection, Value, Zombie, signal_name, system_call_name,
};
use crate::wire::{
    Access, AddressKind, CaptureMethod, CrashFlags, ExtraRegister, FORMAT_VERSION, FoundBy, ImageKind, Language,
    Monitor, NotCaptured, Os, Phase, SectionKind, ThreadFlags, ThreadState, UnwindKind, WalkEnd, keys,
};
use coroner_process::registers::Arch;
use minicbor::Decoder;
use std::collections::{HashMap, HashSet};

/// Builds a report, section by section.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    pub(super) report: Report,
    /// Items that may still be decoded in all sections together.
    items: Limit,
    has_header: bool,
    frames: usize,
    tids: HashSet<u64>,
    /// Load addresses of images whose files were replaced.
    replaced: HashSet<u64>,
    /// Sections seen so far, to detect repeated ones.
    seen: HashMap<(SectionKind, &'a [u8]), u64>,
    problems_left_out: usize,
}

impl Default for Builder<'_> {
    fn default() -> Self {
        Builder {
            report: Report::default(),
            items: Limit(limits::ITEMS),
            has_header: false,
            frames: 0,
            tids: HashSet::new(),
            replaced: HashSet::new(),
            seen: HashMap::new(),
            problems_left_out: 0,
        }
    }
}

impl<'a> Builder<'a> {
    pub(super) fn problem(&mut self, section: Option<SectionKind>, offset: u64, what: String) {
        if self.report.problems.len() < limits::PROBLEMS {
            self.report.problems.push(Problem { section, offset, what });
        } else {
            self.problems_left_out += 1;
        }
    }

    /// Adds a whole section. Malformed content is a problem.
    ///
    /// # Errors
    /// [`ReadError::Newer`] if the header contains a later format version.
    pub(super) fn section(&mut self, section: &Section<'a>) -> Result<(), ReadError> {
        let kind = section.kind;
        if let Some(first) = self.seen.get(&(kind, section.payload)) {
            let what = format!("repeats the section at byte {first}; ignored");
            self.problem(Some(kind), section.offset, what);
            return Ok(());
        }
        self.seen.insert((kind, section.payload), section.offset);
        if section.version != 0 {
            let what = format!("unsupported section version {}", section.version);
            self.problem(Some(kind), section.offset, what);
            self.unknown(section);
            return Ok(());
        }
        match kind {
            SectionKind::HEADER => {
                let Some(mut fields) = self.map(section) else { return Ok(()) };
                if self.has_header {
                    self.problem(Some(kind), section.offset, "second header; ignored".to_owned());
                    return Ok(());
                }
                let header = header(&mut fields);
                if header.format_version > FORMAT_VERSION {
                    return Err(ReadError::Newer { version: header.format_version, offset: section.offset });
                }
                self.report.header = header;
                self.has_header = true;
            }
            SectionKind::CRASH => {
                if let Some(mut fields) = self.map(section) {
                    // Written again if another thread crashed meanwhile: the last one is the most
                    // complete.
                    self.report.crash = Some(crash(&mut fields));
                }
            }
            SectionKind::FAULT => {
                if let Some(mut fields) = self.map(section)
                    && self.has_room(self.report.faults.len(), limits::ELEMENTS, section.offset, kind)
                {
                    self.report.faults.push(fault(&mut fields));
                }
            }
            SectionKind::PROFILE => {
                if let Some(mut fields) = self.map(section) {
                    let (profile, is_whole) = profile(&mut fields);
                    if !is_whole {
                        self.problem(
                            Some(kind),
                            section.offset,
                            "malformed profile; its complete parts were kept".to_owned(),
                        );
                    }
                    self.report.profile = Some(profile);
                }
            }
            SectionKind::END => {
                if let Some(mut fields) = self.map(section) {
                    self.report.end = Some(end(&mut fields));
                }
            }
            SectionKind::THREADS => self.elements(section, &mut Self::thread),
            SectionKind::IMAGES => self.list(section, |report| &mut report.images, image),
            SectionKind::STACK_MEMORY => self.list(section, |report| &mut report.stack_memory, stack_memory),
            SectionKind::CODE => self.list(section, |report| &mut report.code, code),
            SectionKind::APP_MEMORY => self.list(section, |report| &mut report.app_memory, app_memory),
            SectionKind::ZOMBIES => self.list(section, |report| &mut report.zombies, zombie),
            SectionKind::MAPPINGS => self.list(section, |report| &mut report.mappings, mapping),
            SectionKind::SYMBOL_NAMES => self.list(section, |report| &mut report.symbol_names, symbol_name),
            SectionKind::REPLACED_IMAGES => self.elements(section, &mut Self::replaced_image),
            SectionKind::ANNOTATIONS => self.list(section, |report| &mut report.annotations, annotation),
            SectionKind::EXCEPTIONS => self.elements(section, &mut Self::exception),
            SectionKind::RUN_STATE => self.run_state(section),
            _ => self.unknown(section),
        }
        Ok(())
    }

    /// Returns the report, with problems for missing sections. `end` is the offset of the file's
    /// end.
    pub(super) fn finish(mut self, end: u64) -> Report {
        let report = &self.report;
        let expected = [
            (SectionKind::HEADER, self.has_header),
            (SectionKind::CRASH, report.crash.is_some()),
            (SectionKind::THREADS, !report.threads.is_empty()),
            // Frames without an address don't need images: the process has named them itself.
            (SectionKind::IMAGES, !report.images.is_empty() || (report.end.is_some() && self.frames == 0)),
            (SectionKind::END, report.end.is_some()),
        ];
        for (kind, there) in expected {
            if !there {
                self.report.problems.push(missing(kind, end));
            }
        }
        if self.problems_left_out > 0 {
            let what = format!("{} more problems are not listed", self.problems_left_out);
            self.report.problems.push(Problem { section: None, offset: end, what });
        }
        let mut report = self.report;
        for image in &mut report.images {
            image.replaced = self.replaced.contains(&image.load_address.0);
        }
        let (os, arch) = (report.header.os, report.header.arch);
        for thread in &mut report.threads {
            thread.syscall_name = thread.syscall.zip(arch).and_then(|(call, arch)| system_call_name(os, arch, call));
        }
        report.profile.iter_mut().for_each(|profile| profile.name_calls(os, arch));
        if let Some(crash) = &mut report.crash {
            if let Some(signal) = &mut crash.signal {
                signal.name_for(os, arch);
            }
            for concurrent in &mut crash.concurrent_crashes {
                concurrent.name = signal_name(os, concurrent.signal);
            }
        }
        for fault in &mut report.faults {
            fault.name = signal_name(os, fault.signal);
        }
        if let Some(run) = report.run.take() {
            report.stitch(run);
        }
        report.complete = report.problems.is_empty() && report.end.as_ref().is_some_and(|end| end.complete);
        leave_out_call(&mut report);
        report.attribute_frames();
        report.put_unrelated_panic_aside();
        report
    }

    /// Whether one more element fits within `limit`; reports the first that doesn't as a problem.
    fn has_room(&mut self, len: usize, limit: usize, offset: u64, kind: SectionKind) -> bool {
        if len >= limit {
            self.problem(Some(kind), offset, format!("more than {limit} of these; the others were left out"));
        }
        len < limit
    }

    /// Returns the payload of a section that is one map.
    fn map(&mut self, section: &Section<'_>) -> Option<Fields> {
        let mut decoder = Decoder::new(section.payload);
        let item = decode_item(&mut decoder, &mut self.items);
        match item.map(Fields::new) {
            Ok(Some(fields)) => {
                self.trailing(section, &decoder);
                return Some(fields);
            }
            Ok(None) => self.problem(Some(section.kind), section.payload_offset(), "not a map".to_owned()),
            Err(error) => {
                let offset = section.payload_offset() + decoder.position() as u64;
                self.problem(Some(section.kind), offset, format!("malformed CBOR: {error}"));
            }
        }
        None
    }

    /// Passes each element of a section that is an array of maps to `take`, until it returns
    /// `false`.
    fn elements(&mut self, section: &Section<'_>, take: &mut dyn FnMut(&mut Self, &mut Fields, u64) -> bool) {
        let mut decoder = Decoder::new(section.payload);
        let kind = Some(section.kind);
        let at = |decoder: &Decoder<'_>| section.payload_offset() + decoder.position() as u64;
        let len = match decoder.array() {
            Ok(len) => len,
            Err(error) => return self.problem(kind, at(&decoder), format!("malformed CBOR: {error}")),
        };
        let mut count = 0;
        loop {
            let start = at(&decoder);
            match more(&mut decoder, len, count) {
                Ok(true) => {}
                Ok(false) => return self.trailing(section, &decoder),
                Err(error) => return self.problem(kind, start, format!("malformed CBOR: {error}")),
            }
            count += 1;
            match decode_item(&mut decoder, &mut self.items).map(Fields::new) {
                Ok(Some(mut fields)) => {
                    if !take(self, &mut fields, start) {
                        return;
                    }
                }
                Ok(None) => self.problem(kind, start, "an element is not a map".to_owned()),
                Err(error) => {
                    return self.problem(kind, at(&decoder), format!("malformed CBOR: {error}"));
                }
            }
        }
    }

    /// Appends the elements of a section, converted from maps by `read`, to a list of the report.
    fn list<T>(
        &mut self,
        section: &Section<'_>,
        of: impl Fn(&mut Report) -> &mut Vec<T>,
        read: impl Fn(&mut Fields) -> T,
    ) {
        self.elements(section, &mut |builder, fields, offset| {
            let len = of(&mut builder.report).len();
            let room = builder.has_room(len, limits::ELEMENTS, offset, section.kind);
            of(&mut builder.report).extend(room.then(|| read(fields)));
            room
        });
    }

    fn trailing(&mut self, section: &Section<'_>, decoder: &Decoder<'_>) {
        let rest = section.payload.len().saturating_sub(decoder.position());
        if rest > 0 {
            let offset = section.payload_offset() + decoder.position() as u64;
            self.problem(Some(section.kind), offset, format!("{rest} unexpected bytes after the content"));
        }
    }

    fn run_state(&mut self, section: &Section<'_>) {
        let run = match Decoder::new(section.payload).bytes() {
            Ok(bytes) => RunFacts::read(bytes).map_err(|error| error.to_string()),
            Err(error) => Err(format!("malformed CBOR: {error}")),
        };
        match run {
            Ok(run) => self.report.run = Some(run),
            Err(what) => self.problem(Some(section.kind), section.payload_offset(), what),
        }
    }

    fn unknown(&mut self, section: &Section<'_>) {
        if !self.has_room(self.report.unknown_sections.len(), limits::PROBLEMS, section.offset, section.kind) {
            return;
        }
        let mut decoder = Decoder::new(section.payload);
        match decode_item(&mut decoder, &mut self.items) {
            Ok(value) => {
                let (kind, version) = (section.kind, section.version);
                self.report.unknown_sections.push(UnknownSection { kind, version, value });
            }
            Err(error) => {
                let offset = section.payload_offset() + decoder.position() as u64;
                self.problem(Some(section.kind), offset, format!("malformed CBOR: {error}"));
            }
        }
    }

    fn replaced_image(&mut self, fields: &mut Fields, offset: u64) -> bool {
        let has_room = self.has_room(self.replaced.len(), limits::ELEMENTS, offset, SectionKind::REPLACED_IMAGES);
        if let Some(address) = fields.address(keys::replaced_images::LOAD_ADDRESS).filter(|_| has_room) {
            self.replaced.insert(address.0);
        }
        has_room
    }

    fn thread(&mut self, fields: &mut Fields, offset: u64) -> bool {
        let kind = SectionKind::THREADS;
        if !self.has_room(self.report.threads.len(), limits::THREADS, offset, kind) {
            return false;
        }
        let Some(tid) = fields.u64(keys::thread::TID) else {
            self.problem(Some(kind), offset, "thread without an id".to_owned());
            return true;
        };
        // The crashed thread is first written with its registers only; its entry with frames then
        // replaces that.
        let mut registers_alone = None;
        if !self.tids.insert(tid) {
            let known = self.report.threads.iter().position(|thread| thread.tid == tid);
            registers_alone = known.filter(|known| {
                self.report
                    .threads
                    .get(*known)
                    .is_some_and(|thread| thread.frames.is_empty() && thread.walk_end.is_none())
            });
            if registers_alone.is_none() {
                self.problem(Some(kind), offset, format!("duplicate of thread {tid}; ignored"));
                return true;
            }
        }
        let flags = ThreadFlags(fields.number(keys::thread::FLAGS).unwrap_or(0));
        let frames = fields.array(keys::thread::FRAMES).unwrap_or_default();
        let (frames, skipped) = self.frames(frames, kind, offset);
        let thread = Thread {
            tid,
            name: fields.text(keys::thread::NAME),
            queue: fields.text(keys::thread::QUEUE),
            cpu_time: fields.pair(keys::thread::CPU_TIME).map(|(user_ns, system_ns)| CpuTime { user_ns, system_ns }),
            crashed: flags.has(ThreadFlags::CRASHED),
            current: flags.has(ThreadFlags::CURRENT),
            main: flags.has(ThreadFlags::MAIN),
            state: fields.number(keys::thread::STATE).map(ThreadState),
            syscall: fields.i64(keys::thread::SYSCALL),
            futex: fields.fields(keys::thread::FUTEX).map(|mut fields| futex(&mut fields)),
            port: fields.number(keys::thread::PORT),
            // Named once the header is known.
            syscall_name: None,
            captured_by: fields.number(keys::thread::CAPTURED_BY).map(CaptureMethod),
            not_captured: fields.number(keys::thread::NOT_CAPTURED).map(NotCaptured),
            stack: fields.pair(keys::thread::STACK).map(|(low, size)| (Address(low), Address(low.wrapping_add(size)))),
            registers: fields.fields(keys::thread::REGISTERS).map(registers),
            frames,
            skipped,
            walk_end: fields.number(keys::thread::WALK_END).map(WalkEnd).filter(|end| end.0 != 0),
            extra: fields.rest(),
        };
        match registers_alone.and_then(|known| self.report.threads.get_mut(known)) {
            Some(place) => *place = thread,
            None => self.report.threads.push(thread),
        }
        true
    }

    fn exception(&mut self, fields: &mut Fields, offset: u64) -> bool {
        let kind = SectionKind::EXCEPTIONS;
        if !self.has_room(self.report.exceptions.len(), limits::ELEMENTS, offset, kind) {
            return false;
        }
        let frames = fields.array(keys::exception::FRAMES).unwrap_or_default();
        let (frames, skipped) = self.frames(frames, kind, offset);
        let exception = Exception {
            language: Language(fields.number(keys::exception::LANGUAGE).unwrap_or(0)),
            type_name: fields.text(keys::exception::TYPE_NAME),
            raw_type_name: None,
            message: fields.text(keys::exception::MESSAGE),
            tid: fields.u64(keys::exception::TID).unwrap_or(0),
            location: fields.text(keys::exception::LOCATION),
            user_info: fields.text(keys::exception::USER_INFO),
            frames,
            skipped,
            extra: fields.rest(),
        };
        self.report.exceptions.push(exception);
        true
    }

    /// Reads a list of frames: arrays, and between them the numbers of omitted frames.
    fn frames(&mut self, items: Vec<Value>, kind: SectionKind, offset: u64) -> (Vec<Frame>, Vec<Skipped>) {
        let (mut frames, mut skipped) = (Vec::new(), Vec::new());
        let mut base = 0u64;
        for item in items {
            match item {
                Value::Unsigned(count) => skipped.push(Skipped { after: frames.len(), count }),
                Value::Array(parts) => {
                    if self.frames >= limits::FRAMES {
                        let what = format!("more than {} frames; the others were left out", limits::FRAMES);
                        self.problem(Some(kind), offset, what);
                        break;
                    }
                    let Some(frame) = frame(&parts, &mut base) else {
                        self.problem(
                            Some(kind),
                            offset,
                            "malformed frame; the rest of its stack was left out".to_owned(),
                        );
                        break;
                    };
                    self.frames += 1;
                    frames.push(frame);
                }
                _ => self.problem(Some(kind), offset, "a frame is not an array; left out".to_owned()),
            }
        }
        (frames, skipped)
    }
}

/// Reads a frame; `base` is the reference of its stack pointer, and is updated for the next frame.
fn frame(parts: &[Value], base: &mut u64) -> Option<Frame> {
    let [Value::Unsigned(pc), Value::Unsigned(found_by), Value::Unsigned(address_kind), rest @ ..] = parts else {
        return None;
    };
    let relative = |part: Option<&Value>, base: u64| match part {
        None | Some(Value::Null) => Some(None),
        Some(difference) => Some(Some(base.wrapping_add(difference.as_i64()?.cast_unsigned()))),
    };
    let sp = relative(rest.first(), *base)?;
    let cfa = relative(rest.get(1), sp.unwrap_or(*base))?;
    *base = cfa.or(sp).unwrap_or(*base);
    Some(Frame {
        address: Address(*pc),
        found_by: FoundBy(u8::try_from(*found_by).ok()?),
        address_kind: AddressKind(u8::try_from(*address_kind).ok()?),
        sp: sp.map(Address),
        cfa: cfa.map(Address),
        ..Frame::default()
    })
}

fn arch(fields: &mut Fields, key: u64) -> Option<Arch> {
    fields.take(key, |value| Arch::from_number(u8::try_from(value.as_u64()?).ok()?))
}

fn header(fields: &mut Fields) -> Header {
    Header {
        format_version: fields.number(keys::header::FORMAT_VERSION).unwrap_or(0),
        run_id: fields.id(keys::header::RUN_ID).unwrap_or_default(),
        event_id: fields.id(keys::header::EVENT_ID).unwrap_or_default(),
        pid: fields.number(keys::header::PID).unwrap_or(0),
        ppid: fields.number(keys::header::PPID).unwrap_or(0),
        arch: arch(fields, keys::header::ARCH),
        os: Os(fields.number(keys::header::OS).unwrap_or(0)),
        page_size: fields.number(keys::header::PAGE_SIZE).unwrap_or(0),
        pointer_auth_mask: fields.address(keys::header::POINTER_AUTH_MASK).unwrap_or_default(),
        sdk_version: fields.text(keys::header::SDK_VERSION).unwrap_or_default(),
        process_start: Timestamp(fields.u64(keys::header::PROCESS_START).unwrap_or(0)),
        process_name: fields.text(keys::header::PROCESS_NAME).unwrap_or_default(),
        extra: fields.rest(),
    }
}

fn crash(fields: &mut Fields) -> Crash {
    let flags = CrashFlags(fields.number(keys::crash::FLAGS).unwrap_or(0));
    let known = [
        (CrashFlags::STACK_OVERFLOW, CrashFlag::StackOverflow),
        (CrashFlags::RECRASH, CrashFlag::Recrash),
        (CrashFlags::NOT_FATAL, CrashFlag::NotFatal),
        (CrashFlags::BAD_STACK_POINTER, CrashFlag::BadStackPointer),
        (CrashFlags::FORK_CHILD, CrashFlag::ForkChild),
    ];
    let concurrent_crashes = fields.array(keys::crash::CONCURRENT_CRASHES).unwrap_or_default();
    Crash {
        time: Timestamp(fields.u64(keys::crash::TIME).unwrap_or(0)),
        since_install_ns: fields.u64(keys::crash::SINCE_INSTALL).unwrap_or(0),
        monitor: Monitor(fields.number(keys::crash::MONITOR).unwrap_or(0)),
        signal: fields.fields(keys::crash::SIGNAL).map(|mut fields| signal(&mut fields)),
        mach: fields.fields(keys::crash::MACH).map(|mut fields| mach(&mut fields)),
        tid: fields.u64(keys::crash::TID).unwrap_or(0),
        flags: known.into_iter().filter(|(bit, _)| flags.has(*bit)).map(|(_, flag)| flag).collect(),
        access: fields.number(keys::crash::ACCESS).map(Access),
        address: fields.address(keys::crash::ADDRESS),
        concurrent_crashes: concurrent_crashes
            .into_iter()
            .filter_map(Fields::new)
            .map(|mut fields| concurrent_crash(&mut fields))
            .collect(),
        message: fields.text(keys::crash::MESSAGE),
        exception_type: fields.text(keys::crash::EXCEPTION_TYPE),
        location: fields.text(keys::crash::LOCATION),
        hang: fields.fields(keys::crash::HANG).map(|mut fields| hang(&mut fields)),
        extra: fields.rest(),
    }
}

fn hang(fields: &mut Fields) -> Hang {
    Hang {
        number: fields.number(keys::hang::NUMBER).unwrap_or(0),
        lasted_ns: fields.u64(keys::hang::LASTED).unwrap_or(0),
        duration_ns: None,
        extra: fields.rest(),
    }
}

fn signal(fields: &mut Fields) -> Signal {
    Signal {
        number: fields.i32(keys::signal::NUMBER).unwrap_or(0),
        code: fields.i32(keys::signal::CODE).unwrap_or(0),
        errno: fields.i32(keys::signal::ERRNO).unwrap_or(0),
        address: fields.address(keys::signal::ADDRESS),
        sender_pid: fields.number(keys::signal::SENDER_PID),
        sender_uid: fields.number(keys::signal::SENDER_UID),
        trap_number: fields.u64(keys::signal::TRAP_NUMBER),
        error_code: fields.u64(keys::signal::ERROR_CODE),
        syscall: fields.i32(keys::signal::SYSCALL),
        syscall_arch: fields.number(keys::signal::SYSCALL_ARCH),
        extra: fields.rest(),
        ..Signal::default()
    }
}

fn mach(fields: &mut Fields) -> Mach {
    let number = |fields: &mut Fields, key| fields.i64(key).unwrap_or(0);
    let mach = Mach::new(
        fields.i32(keys::mach_exception::EXCEPTION).unwrap_or(0),
        number(fields, keys::mach_exception::CODE),
        number(fields, keys::mach_exception::SUBCODE),
    );
    Mach { extra: fields.rest(), ..mach }
}

fn concurrent_crash(fields: &mut Fields) -> ConcurrentCrash {
    ConcurrentCrash {
        tid: fields.u64(keys::concurrent_crash::TID).unwrap_or(0),
        signal: fields.i32(keys::concurrent_crash::SIGNAL).unwrap_or(0),
        name: None,
        code: fields.i32(keys::concurrent_crash::CODE).unwrap_or(0),
        address: fields.address(keys::concurrent_crash::ADDRESS),
        after_ns: fields.u64(keys::concurrent_crash::AFTER),
        extra: fields.rest(),
    }
}

/// Removes Coroner's own frame from the stack, if a runtime or the app called the monitor.
///
/// In such a report only those registers are known that a call preserves.
fn leave_out_call(report: &mut Report) {
    let monitor = report.crash.as_ref().map(|crash| crash.monitor);
    if !matches!(monitor, Some(Monitor::CPP_EXCEPTION | Monitor::NS_EXCEPTION | Monitor::PANIC | Monitor::USER)) {
        return;
    }
    let Some(thread) = report.threads.iter_mut().find(|thread| thread.crashed) else { return };
    if thread.frames.len() > 1 && thread.frames.first().is_some_and(|first| first.found_by == FoundBy::CONTEXT) {
        thread.frames.remove(0);
        for skipped in &mut thread.skipped {
            skipped.after = skipped.after.saturating_sub(1);
        }
    }
    if let Some(registers) = &mut thread.registers {
        registers.only_preserved = true;
    }
}

fn futex(fields: &mut Fields) -> FutexWait {
    FutexWait {
        address: fields.address(keys::futex::ADDRESS).unwrap_or_default(),
        operation: fields.number(keys::futex::OPERATION).unwrap_or(0),
        expected: fields.number(keys::futex::EXPECTED).unwrap_or(0),
        timed: fields.bool(keys::futex::TIMED).unwrap_or(false),
        start: fields.address(keys::futex::START).unwrap_or_default(),
        bytes: fields.bytes(keys::futex::BYTES).unwrap_or_default(),
    }
}

fn registers(mut fields: Fields) -> Registers {
    let arch = arch(&mut fields, keys::registers::ARCH);
    let general = fields.array(keys::registers::GENERAL).unwrap_or_default();
    let extra = fields.take(keys::registers::EXTRA, |value| {
        if let Value::Map(pairs) = value { Some(std::mem::take(pairs)) } else { None }
    });
    let extra = extra
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(register, value)| Some((ExtraRegister(u8::try_from(register.as_u64()?).ok()?), value.as_u64()?)));
    Registers {
        arch,
        general: general.iter().map_while(Value::as_u64).collect(),
        extra: extra.collect(),
        only_preserved: false,
    }
}

fn image(fields: &mut Fields) -> Image {
    let text = fields.pair(keys::image::TEXT).unwrap_or_default();
    let segments = fields.array(keys::image::SEGMENTS).unwrap_or_default();
    let unwind = fields.array(keys::image::UNWIND).unwrap_or_default();
    Image {
        kind: ImageKind(fields.number(keys::image::KIND).unwrap_or(0)),
        path: fields.text(keys::image::PATH).unwrap_or_default(),
        load_address: fields.address(keys::image::LOAD_ADDRESS).unwrap_or_default(),
        slide: fields.address(keys::image::SLIDE).unwrap_or_default(),
        size: fields.u64(keys::image::SIZE).unwrap_or(0),
        text: TextRange { address: Address(text.0), size: text.1 },
        build_id: fields.bytes(keys::image::BUILD_ID).unwrap_or_default(),
        text_id: Bytes::default(),
        segments: segments.iter().filter_map(segment).collect(),
        unwind: unwind.iter().filter_map(unwind_section).collect(),
        is_main: fields.bool(keys::image::IS_MAIN).unwrap_or(false),
        replaced: false,
        version: fields.text(keys::image::VERSION),
        cpu: fields.take(keys::image::CPU, |value| {
            let Value::Array(items) = value else { return None };
            let [kind, subtype] = items.as_slice() else { return None };
            Some((i32::try_from(kind.as_i64()?).ok()?, i32::try_from(subtype.as_i64()?).ok()?))
        }),
        extra: fields.rest(),
    }
}

fn segment(item: &Value) -> Option<Segment> {
    let Value::Array(parts) = item else { return None };
    let [
        Value::Unsigned(address),
        Value::Unsigned(size),
        Value::Unsigned(file_offset),
        Value::Unsigned(protection),
        ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    let protection = u8::try_from(*protection).ok()?;
    Some(Segment { address: Address(*address), size: *size, file_offset: *file_offset, protection })
}

fn unwind_section(item: &Value) -> Option<UnwindSection> {
    let Value::Array(parts) = item else { return None };
    let [Value::Unsigned(kind), Value::Unsigned(address), Value::Unsigned(size), ..] = parts.as_slice() else {
        return None;
    };
    Some(UnwindSection { kind: UnwindKind(u8::try_from(*kind).ok()?), address: Address(*address), size: *size })
}

fn stack_memory(fields: &mut Fields) -> StackMemory {
    StackMemory {
        tid: fields.u64(keys::stack_memory::TID).unwrap_or(0),
        address: fields.address(keys::stack_memory::ADDRESS).unwrap_or_default(),
        bytes: fields.bytes(keys::stack_memory::BYTES).unwrap_or_default(),
        extra: fields.rest(),
    }
}

fn code(fields: &mut Fields) -> Code {
    Code {
        address: fields.address(keys::code::ADDRESS).unwrap_or_default(),
        bytes: fields.bytes(keys::code::BYTES).unwrap_or_default(),
        extra: fields.rest(),
    }
}

fn app_memory(fields: &mut Fields) -> AppMemory {
    AppMemory {
        name: fields.text(keys::app_memory::NAME).unwrap_or_default(),
        bytes: fields.bytes(keys::app_memory::BYTES).unwrap_or_default(),
        address: fields.address(keys::app_memory::ADDRESS),
        size: fields.u64(keys::app_memory::SIZE),
        extra: fields.rest(),
    }
}

fn zombie(fields: &mut Fields) -> Zombie {
    Zombie {
        address: fields.address(keys::zombies::ADDRESS).unwrap_or_default(),
        class: fields.text(keys::zombies::CLASS).unwrap_or_default(),
        register: fields.text(keys::zombies::REGISTER),
        selector: fields.text(keys::zombies::SELECTOR),
        class_now: fields.text(keys::zombies::CLASS_NOW),
        name: fields.text(keys::zombies::NAME),
        reason: fields.text(keys::zombies::REASON),
        extra: fields.rest(),
    }
}

fn mapping(fields: &mut Fields) -> Mapping {
    Mapping {
        start: fields.address(keys::mappings::START).unwrap_or_default(),
        size: fields.u64(keys::mappings::SIZE).unwrap_or(0),
        protection: fields.number(keys::mappings::PROTECTION).unwrap_or(0),
        name: fields.text(keys::mappings::NAME),
        file_offset: fields.u64(keys::mappings::FILE_OFFSET),
        extra: fields.rest(),
    }
}

fn symbol_name(fields: &mut Fields) -> SymbolName {
    SymbolName {
        address: fields.address(keys::symbol_names::ADDRESS).unwrap_or_default(),
        name: fields.text(keys::symbol_names::NAME).unwrap_or_default(),
        symbol_address: fields.address(keys::symbol_names::SYMBOL_ADDRESS),
        extra: fields.rest(),
    }
}

fn annotation(fields: &mut Fields) -> Annotation {
    Annotation {
        source: fields.text(keys::annotations::SOURCE).unwrap_or_default(),
        text: fields.text(keys::annotations::TEXT).unwrap_or_default(),
        extra: fields.rest(),
    }
}

fn fault(fields: &mut Fields) -> Fault {
    Fault {
        section: SectionKind(fields.number(keys::fault::SECTION).unwrap_or(0)),
        signal: fields.i32(keys::fault::SIGNAL).unwrap_or(0),
        name: None,
        code: fields.i32(keys::fault::CODE).unwrap_or(0),
        address: fields.address(keys::fault::ADDRESS),
        pc: fields.address(keys::fault::PC),
        tid: fields.u64(keys::fault::TID),
        extra: fields.rest(),
    }
}

fn end(fields: &mut Fields) -> End {
    let mut counts = |key| {
        let pairs =
            fields.take(key, |value| if let Value::Map(pairs) = value { Some(std::mem::take(pairs)) } else { None });
        pairs.unwrap_or_default().into_iter().filter_map(|(key, value)| Some((key.as_u64()?, value.as_u64()?)))
    };
    let phases: Vec<(u64, u64)> = counts(keys::end::PHASES).collect();
    let dropped: Vec<(u64, u64)> = counts(keys::end::DROPPED).collect();
    End {
        complete: fields.bool(keys::end::COMPLETE).unwrap_or(false),
        deadline: fields.bool(keys::end::DEADLINE).unwrap_or(false),
        total_ns: fields.u64(keys::end::TOTAL).unwrap_or(0),
        phases: phases
            .into_iter()
            .filter_map(|(phase, ns)| Some(PhaseDuration { phase: Phase(u8::try_from(phase).ok()?), ns }))
            .collect(),
        dropped: dropped
            .into_iter()
            .filter_map(|(kind, count)| Some(SectionCount { section: SectionKind(u16::try_from(kind).ok()?), count }))
            .collect(),
        threads: fields.u64(keys::end::THREADS).unwrap_or(0),
        threads_captured: fields.u64(keys::end::THREADS_CAPTURED).unwrap_or(0),
        extra: fields.rest(),
    }
}
