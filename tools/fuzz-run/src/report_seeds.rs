//! Seeds for the targets that read a run's files, written by the types of the crash path.

use std::{fs, path::Path, sync::atomic::AtomicU64};

use anyhow::Context;
use coroner_process::registers::{Arch, X86_64Registers};
use coroner_report::{
    run_state::{Breadcrumb, Fact, Kind, Level, Limits, ProcessIdentity, RunState, Scalar},
    wire::{
        self, Access, AddressKind, Annotation, Code, ConcurrentCrash, Crash, CrashFlags, Encoder, End, Exception,
        FILE_PREFIX, FORMAT_VERSION, FRAME_HEADER_LEN, Fault, FoundBy, Frame, Header, Image, ImageKind, Language,
        Mapping, Monitor, Os, Phase, PhaseDuration, Registers, ReplacedImage, SectionKind, Segment, Signal,
        StackMemory, SymbolName, Thread, ThreadEncoder, ThreadFlags, WalkEnd,
    },
};

/// Writes the seeds.
///
/// # Errors
/// An error if a file can't be written.
pub(crate) fn collect(corpus: &Path) -> anyhow::Result<()> {
    let sections = sections();
    let (mut file, mut apart) = (FILE_PREFIX.to_vec(), Vec::new());
    for (kind, payload) in &sections {
        let mut section = vec![0; FRAME_HEADER_LEN];
        section.extend_from_slice(payload);
        let sealed = wire::seal(&mut section, *kind, payload.len()).context("the section does not fit")?;
        file.extend_from_slice(&section[..sealed]);
        apart.push(kind.0 as u8);
        apart.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        apart.extend_from_slice(payload);
    }
    write(corpus, "report_file", "all-sections", &file)?;
    write(corpus, "report_file", "torn", &file[..file.len() * 2 / 3])?;
    write(corpus, "report_sections", "all-sections", &apart)?;
    let state = run_state();
    write(corpus, "run_state", "small", &state)?;
    let used = state.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    write(corpus, "run_state", "without-zeros", &state[..used])?;
    // Kind, key length, value length, value; see `coroner_fuzz::reports`.
    let mut values = Vec::new();
    for (kind, key, value) in [
        (0, 3, &b"tagvalue"[..]),
        (0x11, 4, b"game"),
        (0x21, 0, b"\xa1\x61a\x01"),
        (3, 2, b"\xa1\x61a\xf6"),
        (2, 3, b"tag"),
    ] {
        values.extend_from_slice(&[kind, key, value.len() as u8]);
        values.extend_from_slice(value);
    }
    write(corpus, "run_state_values", "each", &values)?;
    let mut both = (apart.len() as u16).to_le_bytes().to_vec();
    both.extend_from_slice(&apart);
    both.extend_from_slice(&values);
    write(corpus, "explanation", "all-sections", &both)?;
    write(corpus, "report_writers", "all-sections", &both)
}

/// Encodes one section of every kind.
fn sections() -> Vec<(SectionKind, Vec<u8>)> {
    let frames = [
        Frame {
            pc: 0x5555_0000_1234,
            found_by: FoundBy::CONTEXT,
            address_kind: AddressKind::INSTRUCTION,
            sp: Some(0x7FFF_0000_1000),
            cfa: Some(0x7FFF_0000_1040),
        },
        Frame {
            pc: 0x7F12_0000_0010,
            found_by: FoundBy::SCAN,
            address_kind: AddressKind::RETURN,
            sp: None,
            cfa: Some(u64::MAX),
        },
    ];
    let list = |write: &dyn Fn(&mut Encoder<'_>)| {
        encoded(|encoder| {
            encoder.begin_array();
            write(encoder);
            encoder.end();
        })
    };
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: [1; 16],
        event_id: [2; 16],
        pid: 7,
        ppid: 1,
        arch: Some(Arch::X86_64),
        os: Os::LINUX,
        page_size: 4096,
        pointer_auth_mask: 0,
        sdk_version: b"0.1.0",
        process_start_ns: 1_790_000_000_000_000_000,
        process_name: b"victim",
    };
    let crash = Crash {
        time_ns: 1_790_000_000_000_000_001,
        monitor: Monitor::SIGNAL,
        signal: Some(Signal { number: 11, code: 1, address: Some(0x18), ..Signal::default() }),
        tid: 8,
        flags: CrashFlags::STACK_OVERFLOW,
        access: Some(Access::WRITE),
        address: Some(0x18),
        concurrent_crashes: &[ConcurrentCrash {
            tid: 9,
            signal: 7,
            code: 2,
            address: Some(0x1000),
            after_ns: Some(1500),
        }],
        message: Some(b"out of cheese"),
        ..Crash::default()
    };
    let exception = Exception {
        language: Language::CPP,
        type_name: Some(b"std::runtime_error"),
        message: Some(b"out of cheese"),
        tid: 8,
        frames: &frames,
        ..Exception::default()
    };
    let registers = X86_64Registers { pc: 0x5555_0000_1234, ..X86_64Registers::default() };
    let thread = Thread {
        tid: 8,
        name: Some(b"worker"),
        flags: ThreadFlags::CRASHED,
        registers: Some(Registers::from(&registers)),
        ..Thread::default()
    };
    let image = Image {
        kind: ImageKind::ELF,
        path: b"/opt/app/victim",
        load_address: 0x5555_0000_0000,
        slide: 0x5555_0000_0000,
        size: 0x9000,
        text: (0x5555_0000_1000, 0x4000),
        build_id: &[0xab; 20],
        segments: &[Segment { address: 0x5555_0000_0000, size: 0x1000, file_offset: 0, protection: 5 }],
        is_main: true,
        ..Image::default()
    };
    let fault = Fault { section: SectionKind::STACK_MEMORY, signal: 7, address: Some(0x6000), ..Fault::default() };
    let end = End {
        complete: true,
        total_ns: 345_678,
        phases: &[PhaseDuration { phase: Phase::ENTRY, ns: 1000 }],
        threads: 1,
        threads_captured: 1,
        ..End::default()
    };
    vec![
        (SectionKind::HEADER, encoded(|encoder| header.encode(encoder))),
        (SectionKind::CRASH, encoded(|encoder| crash.encode(encoder))),
        (
            SectionKind::EXCEPTIONS,
            list(&|encoder| {
                let () = exception.encode(encoder);
            }),
        ),
        (
            SectionKind::THREADS,
            list(&|encoder| {
                let Some(mut thread) = ThreadEncoder::begin(encoder, &thread) else { return };
                thread.frame(&frames[0]);
                thread.skip(99_000);
                thread.frame(&frames[1]);
                thread.finish(WalkEnd::ROOT);
            }),
        ),
        (
            SectionKind::IMAGES,
            list(&|encoder| {
                let _ = image.encode(encoder);
            }),
        ),
        (
            SectionKind::STACK_MEMORY,
            list(&|encoder| {
                StackMemory { tid: 8, address: 0x7FFF_0000_1000, bytes: &[0, 1, 2, 3] }.encode(encoder);
            }),
        ),
        (
            SectionKind::SYMBOL_NAMES,
            list(&|encoder| {
                SymbolName { address: 0x7F12_0000_0010, name: b"read", symbol_address: Some(0x7F12_0000_0000) }
                    .encode(encoder);
            }),
        ),
        (
            SectionKind::CODE,
            list(&|encoder| {
                Code { address: 0x5555_0000_1234, bytes: &[0x8b, 0x40, 0x10] }.encode(encoder);
            }),
        ),
        (
            SectionKind::MAPPINGS,
            list(&|encoder| {
                Mapping { start: 0x1_0000, size: 0x4000, protection: 5, name: b"/opt/data", file_offset: 0x1000 }
                    .encode(encoder);
            }),
        ),
        (
            SectionKind::REPLACED_IMAGES,
            list(&|encoder| {
                ReplacedImage { load_address: 0x5555_0000_0000 }.encode(encoder);
            }),
        ),
        (
            SectionKind::ANNOTATIONS,
            list(&|encoder| {
                Annotation { source: b"libsystem_c.dylib", text: b"abort() called" }.encode(encoder);
            }),
        ),
        (SectionKind::FAULT, encoded(|encoder| fault.encode(encoder))),
        (SectionKind::END, encoded(|encoder| end.encode(encoder))),
    ]
}

fn encoded(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut encoder = Encoder::new(&mut buffer);
    write(&mut encoder);
    encoder.written().to_vec()
}

/// Creates a run state with a value of every kind.
fn run_state() -> Vec<u8> {
    let limits = Limits {
        facts_bytes: 256,
        small_slots: 2,
        small_bytes: 64,
        large_slots: 2,
        large_bytes: 128,
        breadcrumbs: 3,
        breadcrumb_bytes: 64,
    };
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    state.set_scalar(Scalar::EXIT, 1);
    let facts = state.set_facts_with(&mut [0; 256], |facts| {
        facts.text(Fact::ALL[0].0, "com.example.paint");
        facts.uint(Fact::PID, 7);
    });
    facts.expect("the facts fit");
    state.set_text(Kind::TAG, "language", "de").expect("the value fits");
    state.set_cbor(Kind::ALL[1].0, "game", &[0xa1, 0x61, b'a', 1]).expect("the value fits");
    for message in ["opened", "saved", "closed", "opened again"] {
        let breadcrumb =
            Breadcrumb { time_ns: 1, level: Level::INFO, kind: "", category: "ui", message, data: Some(&[0xa0]) };
        state.breadcrumb(&breadcrumb);
    }
    state.to_bytes()
}

/// Writes a seed.
///
/// # Errors
/// An error if the file can't be written.
pub(crate) fn write(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes).with_context(|| format!("can't write a seed of {target}"))
}
