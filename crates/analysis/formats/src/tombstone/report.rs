//! Converts a tombstone to a report.
//!
//! A protobuf contains each frame's address in the process, a text only the address in its file.
//! With a memory map, the image's load address is known from the map, and for the first frame from
//! the program counter. Images without a known load address are placed at made-up addresses, one
//! after the other, so that names can be looked up by build id; the report records this.

use std::collections::BTreeMap;

use coroner_process::registers::{AARCH64_NAMES, Arch, X86_64_NAMES};
use coroner_report::model::{
    Address, Annotation, AppFacts, Breadcrumb, Bytes, Crash, DeviceFacts, Frame, Header, Image, Lifecycle, OsFacts,
    Problem, Registers, Report, RunFacts, Segment, Signal, StackMemory, TextRange, Thread, Timestamp, Value,
    signal_code_name, signal_name,
};
use coroner_report::run_state::{ExitKind, Level};
use coroner_report::wire::{
    Access, AddressKind, CaptureMethod, ExtraRegister, FORMAT_VERSION, FoundBy, ImageKind, Monitor, Os,
};

use crate::tombstone::proto::{self, BacktraceFrame, MemoryMapping, Tombstone, architecture};
use crate::tombstone::{MAX_FRAMES, time};

/// Facts in a text for which the protobuf has no field.
#[derive(Debug, Default)]
pub(crate) struct TextFacts {
    pub(crate) ppid: u32,
    pub(crate) kernel_release: String,
    pub(crate) executable: String,
    pub(crate) access: Option<String>,
    pub(crate) syndrome: Option<u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) memory_tags: Vec<String>,
}

fn arch_of(number: i32) -> Option<Arch> {
    match number {
        architecture::ARM64 => Some(Arch::Aarch64),
        architecture::X86_64 => Some(Arch::X86_64),
        _ => None,
    }
}

fn arch_name(number: i32) -> Option<&'static str> {
    architecture::NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn bytes_of_hex(text: &str) -> Bytes {
    let digits: Vec<u8> =
        text.bytes().filter_map(|byte| char::from(byte).to_digit(16)).map(|digit| digit as u8).collect();
    Bytes(digits.as_chunks::<2>().0.iter().map(|pair| pair[0] << 4 | pair[1]).collect())
}

pub(crate) fn from_tombstone(tombstone: Tombstone, text_facts: TextFacts) -> Report {
    let time = time::parse(&tombstone.timestamp).unwrap_or_default();
    let uptime = tombstone.process_uptime.map(|seconds| u64::from(seconds) * 1_000_000_000);
    let start = Timestamp(uptime.map_or(0, |uptime| time.0.saturating_sub(uptime)));
    let process_name = tombstone.command_line.first().cloned().unwrap_or_default();
    let arch = arch_of(tombstone.arch);
    let mut report = Report {
        complete: true,
        header: Header {
            format_version: FORMAT_VERSION,
            pid: tombstone.pid,
            ppid: text_facts.ppid,
            process_name: process_name.clone(),
            arch,
            os: Os::ANDROID,
            page_size: tombstone.page_size,
            process_start: start,
            ..Header::default()
        },
        crash: Some(crash(&tombstone, &text_facts, time)),
        ..Report::default()
    };
    let mut images = Images::new(&tombstone);
    let mut order: Vec<u32> = tombstone.threads.keys().copied().collect();
    order.sort_by_key(|tid| (*tid != tombstone.tid, *tid));
    for tid in order {
        let thread = &tombstone.threads[&tid];
        report.threads.push(convert_thread(&tombstone, tid, thread, arch, &mut images));
        if let Some(guest) = tombstone.guest_threads.get(&tid) {
            let guest_arch = tombstone.guest_arch.and_then(arch_of);
            let mut guest = convert_thread(&tombstone, tid, guest, guest_arch, &mut images);
            let what = tombstone.guest_arch.and_then(arch_name).unwrap_or("guest");
            let name = report.threads.last().and_then(|host| host.name.clone()).unwrap_or_default();
            guest.name = Some(format!("{name} ({what} code, emulated)").trim_start().to_owned());
            guest.crashed = false;
            report.threads.push(guest);
        }
        report.stack_memory.extend(thread.memory_dump.iter().filter(|dump| !dump.memory.is_empty()).map(|dump| {
            let bytes = Bytes(dump.memory.clone());
            StackMemory { tid: tid.into(), address: Address(dump.begin_address), bytes, ..StackMemory::default() }
        }));
    }
    if !tombstone.threads.contains_key(&tombstone.tid) {
        let what = format!("the crashed thread {} is missing", tombstone.tid);
        report.problems.push(Problem { section: None, offset: 0, what });
    }
    annotations(&tombstone, &text_facts, &mut images, &mut report.annotations);
    if images.is_made_up {
        let what =
            "the text has no memory map: only the frames' offsets in their images are real, the addresses are made up";
        report.problems.push(Problem { section: None, offset: 0, what: what.to_owned() });
    }
    report.images = images.images;
    report.attribute_frames();
    report.run = Some(facts(&tombstone, &text_facts, time, start));
    report
}

fn crash(tombstone: &Tombstone, text_facts: &TextFacts, time: Timestamp) -> Crash {
    let signal = tombstone.signal_info.as_ref().map(|signal| Signal {
        number: signal.number,
        name: signal_name(Os::ANDROID, signal.number),
        code: signal.code,
        code_name: signal_code_name(Os::ANDROID, signal.number, signal.code),
        address: signal.has_fault_address.then_some(Address(signal.fault_address)),
        sender_pid: signal.has_sender.then_some(signal.sender_pid.cast_unsigned()),
        sender_uid: signal.has_sender.then_some(signal.sender_uid.cast_unsigned()),
        error_code: text_facts.syndrome,
        ..Signal::default()
    });
    Crash {
        time,
        monitor: Monitor::SIGNAL,
        address: signal.as_ref().and_then(|signal| signal.address),
        signal,
        tid: tombstone.tid.into(),
        access: match text_facts.access.as_deref() {
            Some("read") => Some(Access::READ),
            Some("write") => Some(Access::WRITE),
            _ => None,
        },
        message: not_empty(&tombstone.abort_message),
        ..Crash::default()
    }
}

fn convert_thread(
    tombstone: &Tombstone,
    tid: u32,
    thread: &proto::Thread,
    arch: Option<Arch>,
    images: &mut Images,
) -> Thread {
    let crashed = tid == tombstone.tid;
    let pc = thread.registers.iter().find(|register| matches!(register.name.as_str(), "pc" | "rip" | "eip"));
    Thread {
        tid: tid.into(),
        name: not_empty(&thread.name),
        crashed,
        main: tid == tombstone.pid,
        captured_by: Some(if crashed { CaptureMethod::CRASH_CONTEXT } else { CaptureMethod::PTRACE }),
        registers: registers(thread, arch),
        frames: images.frames(&thread.current_backtrace, pc.map(|pc| pc.value)),
        ..Thread::default()
    }
}

/// Returns the registers, if all general ones of the architecture are present. Those of 32-bit
/// processors keep their order.
fn registers(thread: &proto::Thread, arch: Option<Arch>) -> Option<Registers> {
    if thread.registers.is_empty() {
        return None;
    }
    let value = |name: &str| {
        let alias = match name {
            "lr" => "x30",
            "fp" => "x29",
            "pstate" => "pst",
            "rflags" => "eflags",
            _ => name,
        };
        let found = thread.registers.iter().find(|register| register.name == name || register.name == alias);
        // debuggerd leaves out x86_64's flags.
        found.map(|register| register.value).or_else(|| (name == "rflags" || name == "pstate").then_some(0))
    };
    let (names, more): (&[&str], &[&str]) = match arch {
        Some(Arch::X86_64) => (&X86_64_NAMES, &["rip", "rflags"]),
        Some(Arch::Aarch64) => (&AARCH64_NAMES, &["sp", "pc", "pstate"]),
        None => (&[], &[]),
    };
    let general: Option<Vec<u64>> = match arch {
        Some(_) => names.iter().chain(more).map(|name| value(name)).collect(),
        None => Some(thread.registers.iter().map(|register| register.value).collect()),
    };
    let esr = value("esr").map(|value| (ExtraRegister::ESR, value));
    Some(Registers { arch, general: general?, extra: esr.into_iter().collect(), only_preserved: false })
}

/// A tombstone's images, including those that only occur in frames.
#[derive(Debug, Default)]
pub(crate) struct Images {
    pub(crate) images: Vec<Image>,
    /// Files that only occur in frames, by name and build id, with the index in `images`.
    by_frame: BTreeMap<(String, String), usize>,
    /// Number of bits in an address.
    width: u32,
    is_made_up: bool,
}

/// Distance between images with made-up addresses, in bytes.
const SYNTHETIC_STEP: u64 = 1 << 32;
/// The first made-up address: above all addresses of a process, and not in the kernel's half.
const SYNTHETIC_BASE: u64 = 1 << 56;

impl Images {
    fn new(tombstone: &Tombstone) -> Images {
        let width = if arch_of(tombstone.arch).is_some() || tombstone.arch == architecture::RISCV64 { 64 } else { 32 };
        let mut images = Images { images: Vec::new(), by_frame: BTreeMap::new(), width, is_made_up: false };
        let mut rest = &tombstone.memory_mappings[..];
        while let Some((first, others)) = rest.split_first() {
            // A file's mappings follow each other with increasing offsets. There may be unnamed
            // ones in between (.bss, gaps).
            let mut group = vec![first];
            rest = others;
            while let Some(skipped) = rest.iter().position(|next| !next.mapping_name.is_empty()) {
                let (before, next) = (group[group.len() - 1], &rest[skipped]);
                let belongs = next.mapping_name == before.mapping_name
                    && next.offset > before.offset
                    && (next.build_id == before.build_id || next.build_id.is_empty());
                if !belongs {
                    break;
                }
                group.push(next);
                rest = &rest[skipped + 1..];
            }
            let is_file = !first.mapping_name.is_empty() && !first.mapping_name.starts_with('[');
            let is_code = group.iter().any(|mapping| mapping.execute);
            if is_file && (is_code || !first.build_id.is_empty()) {
                images.images.push(image(&group, tombstone));
            }
        }
        images
    }

    /// Converts a stack's frames; `pc` is the thread's program counter.
    pub(crate) fn frames(&mut self, frames: &[BacktraceFrame], pc: Option<u64>) -> Vec<Frame> {
        let kept = frames.iter().take(MAX_FRAMES).enumerate();
        kept.map(|(index, frame)| self.frame(frame, index == 0, pc.filter(|_| index == 0))).collect()
    }

    fn frame(&mut self, frame: &BacktraceFrame, is_first: bool, register: Option<u64>) -> Frame {
        let is_in_image = |images: &[Image]| images.iter().any(|image| image.contains(Address(frame.pc)));
        let address = match frame.pc {
            0 => self.process_address(frame, register),
            pc if !is_in_image(&self.images) && !frame.file_name.is_empty() => {
                // There are addresses but no memory map: the load address follows from them.
                self.add(frame, pc.wrapping_sub(frame.rel_pc));
                pc
            }
            pc => pc,
        };
        Frame {
            address: Address(address),
            found_by: if is_first { FoundBy::CONTEXT } else { FoundBy::CFI },
            // debuggerd's addresses of callers are already inside their calls.
            address_kind: AddressKind::INSTRUCTION,
            sp: (frame.sp != 0).then_some(Address(frame.sp)),
            module: not_empty(&frame.file_name),
            function: not_empty(&frame.function_name),
            symbol_address: not_empty(&frame.function_name)
                .and(address.checked_sub(frame.function_offset).map(Address)),
            ..Frame::default()
        }
    }

    /// Returns the address in the process for a text's frame, which only has the address in its
    /// file.
    fn process_address(&mut self, frame: &BacktraceFrame, register: Option<u64>) -> u64 {
        if frame.file_name.is_empty() {
            return register.unwrap_or(frame.rel_pc);
        }
        // Memory without a file, such as JIT code: no names could be looked up there.
        if frame.file_name.starts_with(['[', '<']) {
            return register.unwrap_or(0);
        }
        // `base.apk!libshop.so` is mapped as `base.apk`.
        let path = frame.file_name.split('!').next().unwrap_or_default();
        let of_map =
            self.images.iter().enumerate().filter(|(place, _)| !self.by_frame.values().any(|made| made == place));
        let mut mapped =
            of_map.map(|(_, image)| image).filter(|image| image.path == frame.file_name || image.path == path);
        let has_place = |image: &&Image| image.contains(Address(frame.rel_pc.wrapping_add(image.slide.0)));
        if let Some(image) = mapped.find(has_place) {
            return frame.rel_pc.wrapping_add(image.slide.0);
        }
        let key = (frame.file_name.clone(), frame.build_id.clone());
        let place = match self.by_frame.get(&key) {
            Some(place) => *place,
            None => {
                let base = register.map(|register| register.wrapping_sub(frame.rel_pc));
                self.is_made_up |= base.is_none();
                let made_up = SYNTHETIC_BASE + SYNTHETIC_STEP * self.by_frame.len() as u64;
                self.add(frame, base.unwrap_or(made_up))
            }
        };
        let image = &mut self.images[place];
        image.size = image.size.max(frame.rel_pc.saturating_add(1).min(SYNTHETIC_STEP));
        image.text.size = image.size;
        frame.rel_pc.wrapping_add(image.slide.0)
    }

    /// Adds an image that only occurs in a frame, with its file's addresses starting at `base`.
    fn add(&mut self, frame: &BacktraceFrame, base: u64) -> usize {
        let key = (frame.file_name.clone(), frame.build_id.clone());
        if let Some(place) = self.by_frame.get(&key) {
            let image = &mut self.images[*place];
            image.size = image.size.max(frame.rel_pc.saturating_add(1).min(SYNTHETIC_STEP));
            image.text.size = image.size;
            return *place;
        }
        let size = frame.rel_pc.saturating_add(1).min(SYNTHETIC_STEP);
        self.images.push(Image {
            kind: ImageKind::ELF,
            path: frame.file_name.clone(),
            load_address: Address(base),
            slide: Address(base),
            size,
            text: TextRange { address: Address(base), size },
            build_id: bytes_of_hex(&frame.build_id),
            ..Image::default()
        });
        self.by_frame.insert(key, self.images.len() - 1);
        self.images.len() - 1
    }
}

/// Creates the image for a file's mappings.
///
/// A frame's address in the file is pc − mapping + offset + load bias, where mapping, offset and
/// bias are those of the first executable segment: in files aligned to 16 KiB, segments have
/// different ones. The offset is relative to the start of the ELF file, which in an APK is the
/// offset of its first mapping.
fn image(group: &[&MemoryMapping], tombstone: &Tombstone) -> Image {
    let (first, last) = (group[0], group[group.len() - 1]);
    // If the start of a file is not mapped, the offset shows where it would be.
    let is_archive = first.mapping_name.split('!').next().is_some_and(|path| path.ends_with(".apk"));
    let begin = if is_archive { first.begin_address } else { first.begin_address.wrapping_sub(first.offset) };
    let begin = if begin > first.begin_address { first.begin_address } else { begin };
    let text = group.iter().find(|mapping| mapping.execute).copied().unwrap_or(first);
    let bias = match text.load_bias {
        0 => group.iter().map(|mapping| mapping.load_bias).max().unwrap_or(0),
        bias => bias,
    };
    let offset = text.offset.wrapping_sub(if is_archive { first.offset } else { 0 });
    let segment = |mapping: &MemoryMapping| Segment {
        address: Address(mapping.begin_address),
        size: mapping.end_address.saturating_sub(mapping.begin_address),
        file_offset: mapping.offset,
        protection: u8::from(mapping.execute) | u8::from(mapping.write) << 1 | u8::from(mapping.read) << 2,
    };
    let executable = tombstone.command_line.first();
    Image {
        kind: ImageKind::ELF,
        path: first.mapping_name.clone(),
        load_address: Address(begin),
        slide: Address(text.begin_address.wrapping_sub(offset).wrapping_sub(bias)),
        size: last.end_address.saturating_sub(begin),
        text: TextRange { address: Address(text.begin_address), size: segment(text).size },
        build_id: bytes_of_hex(
            group.iter().map(|mapping| mapping.build_id.as_str()).find(|id| !id.is_empty()).unwrap_or(""),
        ),
        segments: group.iter().copied().map(segment).collect(),
        is_main: executable == Some(&first.mapping_name) || first.mapping_name.contains("/bin/app_process"),
        ..Image::default()
    }
}

fn annotations(tombstone: &Tombstone, text_facts: &TextFacts, images: &mut Images, to: &mut Vec<Annotation>) {
    let mut add = |source: &str, text: String| {
        if !text.is_empty() {
            to.push(Annotation { source: source.to_owned(), text, ..Annotation::default() });
        }
    };
    for cause in &tombstone.causes {
        add("debuggerd: cause", cause.human_readable.clone());
        let Some(heap) = cause.memory_error.as_ref().and_then(|error| error.heap.as_ref()) else { continue };
        if heap.size > 0 {
            add("debuggerd: heap object", format!("{} bytes at {:#x}", heap.size, heap.address));
        }
        for (what, tid, frames) in [
            ("freed", heap.deallocation_tid, &heap.deallocation_backtrace),
            ("allocated", heap.allocation_tid, &heap.allocation_backtrace),
        ] {
            if !frames.is_empty() {
                add("debuggerd: heap object", format!("{what} by thread {tid}:\n{}", lines(frames, images.width)));
            }
        }
    }
    for detail in &tombstone.crash_details {
        add(
            &format!("crash detail {}", String::from_utf8_lossy(&detail.name)),
            String::from_utf8_lossy(&detail.data).into_owned(),
        );
    }
    let crashed = tombstone.threads.get(&tombstone.tid);
    for note in crashed.iter().flat_map(|thread| &thread.backtrace_note).chain(&text_facts.notes) {
        add("debuggerd: note", note.clone());
    }
    for file in crashed.iter().flat_map(|thread| &thread.unreadable_elf_files) {
        add("debuggerd: note", format!("{file} could not be read; frames may be missing"));
    }
    add("debuggerd: memory tags", text_facts.memory_tags.join("\n"));
}

/// Formats frames as lines, for stacks that don't belong to a thread.
fn lines(frames: &[BacktraceFrame], width: u32) -> String {
    let digits = width as usize / 4;
    let line = |frame: &BacktraceFrame| {
        let function = not_empty(&frame.function_name)
            .map_or_else(String::new, |name| format!(" ({name}+{})", frame.function_offset));
        let id = not_empty(&frame.build_id).map_or_else(String::new, |id| format!(" (BuildId: {id})"));
        format!("pc {:0digits$x}  {}{function}{id}", frame.rel_pc, frame.file_name)
    };
    frames.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the facts about the system in its fingerprint.
///
/// Fingerprints have the form `google/akita/akita:15/AP4A.241205.013/12621605:user/release-keys`.
pub(crate) fn parse_fingerprint(fingerprint: &str) -> (OsFacts, DeviceFacts) {
    let mut parts = fingerprint.split(':');
    let product = parts.next().unwrap_or_default();
    let version = parts.next().unwrap_or_default();
    let os = OsFacts {
        name: Some("Android".to_owned()),
        version: not_empty(version.split('/').next().unwrap_or_default()),
        build: not_empty(fingerprint),
        ..OsFacts::default()
    };
    let device = DeviceFacts {
        model: product.rsplit('/').next().and_then(not_empty),
        family: product.split('/').next().filter(|_| product.contains('/')).and_then(not_empty),
        ..DeviceFacts::default()
    };
    (os, device)
}

fn facts(tombstone: &Tombstone, text_facts: &TextFacts, time: Timestamp, start: Timestamp) -> RunFacts {
    let (mut os, mut device) = parse_fingerprint(&tombstone.build_fingerprint);
    os.kernel_version = not_empty(&text_facts.kernel_release);
    device.arch = arch_name(tombstone.arch).map(str::to_owned);
    let name = tombstone.command_line.first();
    let thread = tombstone.threads.get(&tombstone.tid);
    let hexadecimal = |value: i64| Value::Text(format!("{value:#x}"));
    let mut context: Vec<(&str, Value)> = vec![("uid", Value::Unsigned(tombstone.uid.into()))];
    context.extend(not_empty(&tombstone.revision).map(|text| ("revision", Value::Text(text))));
    context.extend(not_empty(&tombstone.selinux_label).map(|text| ("selinux_label", Value::Text(text))));
    context.extend(
        (tombstone.command_line.len() > 1).then(|| ("command_line", Value::Text(tombstone.command_line.join(" ")))),
    );
    let guest = tombstone.guest_arch.and_then(arch_name);
    context.extend(guest.map(|name| ("guest_architecture", Value::from(name))));
    let set = |value: Option<i64>| value.filter(|value| *value != -1).map(hexadecimal);
    context.extend(set(thread.and_then(|thread| thread.tagged_addr_ctrl)).map(|value| ("tagged_addr_ctrl", value)));
    context.extend(set(thread.and_then(|thread| thread.pac_enabled_keys)).map(|value| ("pac_enabled_keys", value)));
    if !tombstone.open_fds.is_empty() {
        let file = |file: &proto::Fd| {
            let owner = not_empty(&file.owner).map_or_else(String::new, |owner| format!(" ({owner})"));
            (Value::Unsigned(u64::from(file.fd.max(0).cast_unsigned())), Value::Text(format!("{}{owner}", file.path)))
        };
        context.push(("open_files", Value::Map(tombstone.open_fds.iter().map(file).collect())));
    }
    let context = context.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
    RunFacts {
        app: AppFacts {
            id: name.cloned(),
            process_name: name.cloned(),
            executable: not_empty(&text_facts.executable),
            pid: Some(tombstone.pid),
            process_start: (start.0 > 0).then_some(start),
            ..AppFacts::default()
        },
        os,
        device,
        lifecycle: Lifecycle { exit: ExitKind::CRASHED, crash_time: Some(time), ..Lifecycle::default() },
        contexts: BTreeMap::from([("tombstone".to_owned(), Value::Map(context))]),
        breadcrumbs: breadcrumbs(tombstone),
        ..RunFacts::default()
    }
}

/// Returns the logs' lines in chronological order.
fn breadcrumbs(tombstone: &Tombstone) -> Vec<Breadcrumb> {
    let mut breadcrumbs: Vec<Breadcrumb> = Vec::new();
    for buffer in &tombstone.log_buffers {
        breadcrumbs.extend(buffer.logs.iter().map(|line| {
            let numbers = [("pid", line.pid), ("tid", line.tid)]
                .map(|(key, value)| (Value::from(key), Value::Unsigned(value.into())));
            Breadcrumb {
                time: time::parse_log(&line.timestamp, &tombstone.timestamp).unwrap_or_default(),
                // <android/log.h>: 2 verbose, 3 debug, 4 info, 5 warn, 6 error, 7 fatal.
                level: match line.priority {
                    2 | 3 => Level::DEBUG,
                    5 => Level::WARNING,
                    6 => Level::ERROR,
                    7 => Level::FATAL,
                    _ => Level::INFO,
                },
                kind: Some("debug".to_owned()),
                category: Some(format!("{}: {}", buffer.name, line.tag)),
                message: Some(line.message.clone()),
                data: Some(Value::Map(numbers.into())),
                ..Breadcrumb::default()
            }
        }));
    }
    breadcrumbs.sort_by_key(|breadcrumb| breadcrumb.time);
    breadcrumbs
}
