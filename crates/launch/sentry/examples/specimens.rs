//! Events of kinds of reports that this machine can't make, one line of JSON each: other systems,
//! languages' exceptions, hangs, and reports with too much of everything. `cargo xtask
//! sentry-check` has Relay's normaliser judge them.

use std::time::SystemTime;

use coroner_report::model::{
    Address, Annotation, Bytes, Crash, CrashFlag, DeviceState, Exception, Frame, Hang, Header, Id, Image, InlinedFrame,
    Lifecycle, Mach, Problem, Registers, Report, RunFacts, Session, Signal, Skipped, Thread, Timestamp, Value,
    signal_code_name, signal_name,
};
use coroner_report::run_state::{Foreground, Level, ThermalState};
use coroner_report::wire::{
    Access, AddressKind, CaptureMethod, FoundBy, ImageKind, Language, Monitor, NotCaptured, Os, ThreadState,
};
use coroner_sentry::event::{Event, EventOptions};

const MACHO: u64 = 0x1_0450_0000;
const ELF: u64 = 0x5555_5555_4000;

fn frame(base: u64, number: u64) -> Frame {
    Frame {
        address: Address(base + 0x1000 + number * 0x40),
        found_by: if number == 0 { FoundBy::CONTEXT } else { FoundBy::FRAME_POINTER },
        address_kind: if number == 0 { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        function: Some(format!("paint::layer{number}")),
        raw_function: Some(format!("_ZN5paint6layer{number}E")),
        symbol_address: Some(Address(base + 0x1000 + number * 0x40 - 0x10)),
        file: Some("/src/paint/layer.rs".into()),
        line: Some(10 + number as u32),
        column: Some(5),
        ..Frame::default()
    }
}

fn thread(tid: u64, base: u64, frames: u64) -> Thread {
    Thread {
        tid,
        name: Some(format!("worker {tid}")),
        state: Some(ThreadState::BLOCKED),
        captured_by: Some(CaptureMethod::MACH),
        frames: (0..frames).map(|number| frame(base, number)).collect(),
        registers: Some(Registers {
            arch: coroner_process_arch("aarch64"),
            general: (0..34).collect(),
            extra: Vec::new(),
            only_preserved: false,
        }),
        ..Thread::default()
    }
}

/// The architecture of that name, by way of a report's own words.
fn coroner_process_arch(name: &str) -> Option<coroner_process::registers::Arch> {
    use coroner_process::registers::Arch;
    [Arch::Aarch64, Arch::X86_64].into_iter().find(|arch| arch.name() == name)
}

fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

fn run(os: &str) -> RunFacts {
    let mut run = RunFacts { run_id: Id([3; 16]), ..RunFacts::default() };
    run.app.id = Some("com.example.paint".into());
    run.app.name = Some("Paint".into());
    run.app.version = Some("2.1.0".into());
    run.app.build = Some("45".into());
    run.app.release = Some("com.example.paint@2.1.0+45".into());
    run.app.dist = Some("45".into());
    run.app.environment = Some("production".into());
    run.app.installed = Some(now());
    run.os.name = Some(os.into());
    run.os.version = Some("15.1".into());
    run.os.build = Some("24B83".into());
    run.os.kernel_version = Some("Darwin Kernel Version 24.1.0".into());
    run.os.rooted = Some(false);
    run.device.model = Some("iPhone15,2".into());
    run.device.family = Some("iPhone".into());
    run.device.arch = Some("arm64e".into());
    run.device.processor_count = Some(6);
    run.device.memory_size = Some(6 << 30);
    run.device.boot_time = Some(Timestamp(1_700_000_000_000_000_000));
    run.device_state = Some(DeviceState {
        read: Some(Timestamp(1_700_000_000_000_000_000)),
        memory_free: Some(1 << 30),
        storage_size: Some(1 << 40),
        storage_free: Some(0),
        battery_percent: Some(41),
        charging: Some(false),
        thermal: Some(ThermalState::SERIOUS),
    });
    run.device.simulator = Some(false);
    (run.app.runtime_name, run.app.runtime_version) = (Some("glibc".into()), Some("2.36".into()));
    run.device.locale = Some("de_AT".into());
    run.device.time_zone = Some("Europe/Vienna".into());
    run.lifecycle =
        Lifecycle { foreground: Foreground::FOREGROUND, memory_used: Some(1 << 28), ..Lifecycle::default() };
    run.session = Some(Session { id: Id([4; 16]), started: now(), ..Session::default() });
    run.tags.insert("channel".into(), "beta".into());
    run.user = Some(Value::Map(vec![("id".into(), "4711".into()), ("username".into(), "Ada".into())]));
    run.contexts.insert("document".into(), Value::Map(vec![("pages".into(), Value::Unsigned(3))]));
    run.extra.insert("note".into(), "shown".into());
    run.fingerprint = vec!["paint".into(), "layer".into()];
    run.breadcrumbs = vec![coroner_report::model::Breadcrumb {
        time: now(),
        level: Level::INFO,
        kind: Some("navigation".into()),
        category: Some("ui".into()),
        message: Some("opened".into()),
        data: Some(Value::Map(vec![("to".into(), "canvas".into())])),
        ..Default::default()
    }];
    run
}

fn image(kind: ImageKind, path: &str, base: u64, id: Vec<u8>, main: bool) -> Image {
    Image {
        kind,
        path: path.into(),
        load_address: Address(base),
        slide: Address(if kind == ImageKind::MACHO { base - 0x1_0000_0000 } else { base }),
        size: 0x10_0000,
        build_id: Bytes(id),
        is_main: main,
        cpu: (kind == ImageKind::MACHO).then_some((0x0100_000c, if main { 0 } else { -0x7fff_fffe })),
        ..Image::default()
    }
}

fn apple(os: Os, name: &str) -> Report {
    let mut crashed = thread(259, MACHO, 5);
    (crashed.crashed, crashed.current, crashed.main) = (true, true, true);
    crashed.frames[1].inlined = vec![InlinedFrame {
        function: Some("paint::inlined".into()),
        file: Some("src/inlined.rs".into()),
        line: Some(7),
        ..InlinedFrame::default()
    }];
    let mut lost = thread(400, MACHO, 0);
    (lost.registers, lost.not_captured) = (None, Some(NotCaptured::DENIED));
    Report {
        complete: true,
        header: Header {
            format_version: 1,
            run_id: Id([3; 16]),
            event_id: Id([0xab; 16]),
            process_name: "Paint".into(),
            arch: coroner_process_arch("aarch64"),
            os,
            sdk_version: "0.1.0".into(),
            process_start: now(),
            ..Header::default()
        },
        crash: Some(Crash {
            time: now(),
            monitor: Monitor::MACH,
            mach: Some(Mach {
                exception: 1,
                name: Some("EXC_BAD_ACCESS"),
                code: 1,
                code_name: Some("KERN_INVALID_ADDRESS"),
                subcode: 0x10,
                ..Mach::default()
            }),
            signal: Some(signal(os, 11, 1)),
            tid: 259,
            access: Some(Access::WRITE),
            address: Some(Address(0x10)),
            ..Crash::default()
        }),
        threads: vec![crashed, thread(260, MACHO, 3), lost],
        images: vec![
            image(
                ImageKind::MACHO,
                "/Users/ada/Applications/Paint.app/Contents/MacOS/Paint",
                MACHO,
                (1..=16).collect(),
                true,
            ),
            image(ImageKind::MACHO, "/usr/lib/libSystem.B.dylib", MACHO + 0x100_0000, (17..=32).collect(), false),
        ],
        annotations: vec![Annotation {
            source: "/usr/lib/libSystem.B.dylib".into(),
            text: "abort() called".into(),
            ..Annotation::default()
        }],
        run: Some(run(name)),
        ..Report::default()
    }
}

fn signal(os: Os, number: i32, code: i32) -> Signal {
    Signal {
        number,
        name: signal_name(os, number),
        code,
        code_name: signal_code_name(os, number, code),
        errno: 22,
        sender_pid: Some(1),
        ..Signal::default()
    }
}

fn linux(os: Os) -> Report {
    let mut report = apple(os, "Linux");
    for frame in report.frames_mut() {
        let offset = frame.address.0 - MACHO;
        frame.address = Address(ELF + offset);
        frame.symbol_address = Some(Address(ELF + offset - 0x10));
    }
    let id: Vec<u8> = (1..=20).collect();
    report.images = vec![
        image(ImageKind::ELF, "/home/ada/paint", ELF, id, true),
        image(ImageKind::ELF, "linux-vdso.so.1", 0x7fff_f7fc_1000, vec![7; 8], false),
        image(ImageKind::ELF, "/opt/no-build-id.so", 0x7fff_0000_0000, Vec::new(), false),
        image(ImageKind::ELF, "", 0x7ffe_0000_0000, vec![9; 20], false),
    ];
    if let Some(crash) = &mut report.crash {
        (crash.monitor, crash.mach) = (Monitor::SIGNAL, None);
        crash.flags = vec![CrashFlag::StackOverflow];
    }
    report.threads[0].skipped = vec![Skipped { after: 2, count: 99_500 }];
    report
}

fn thrown(language: Language, kind: Option<&str>, message: &str, frames: u64) -> Exception {
    Exception {
        language,
        type_name: kind.map(Into::into),
        message: Some(message.into()),
        tid: 259,
        location: Some("src/layer.rs:10:5".into()),
        user_info: (language == Language::OBJC).then(|| "{ index = 7; }".into()),
        frames: (0..frames).map(|number| frame(MACHO, number)).collect(),
        ..Exception::default()
    }
}

/// An exception with the frames of its runtime.
fn javascript() -> Exception {
    let mut thrown = thrown(Language::JAVASCRIPT, Some("TypeError"), "cart is undefined", 2);
    for frame in &mut thrown.frames {
        (frame.found_by, frame.address, frame.module) = (FoundBy::MANAGED, Address(0), Some("javascript".into()));
        (frame.file, frame.line, frame.in_app) = (Some("cart.js".into()), Some(41), Some(true));
    }
    thrown
}

fn with(mut report: Report, monitor: Monitor, exceptions: Vec<Exception>) -> Report {
    report.exceptions = exceptions;
    if let Some(crash) = &mut report.crash {
        (crash.monitor, crash.mach, crash.address, crash.access) = (monitor, None, None, None);
        crash.signal = Some(signal(report.header.os, 6, 0));
    }
    report
}

/// Every kind, with a name.
pub(crate) fn specimens() -> Vec<(&'static str, Report)> {
    let mac = || apple(Os::MACOS, "macOS");
    let mut guard = mac();
    if let Some(mach) = guard.crash.as_mut().and_then(|crash| crash.mach.as_mut()) {
        (mach.exception, mach.name, mach.code, mach.subcode) = (12, Some("EXC_GUARD"), i64::MIN + 7, -1);
    }
    let mut unknown = mac();
    if let Some(crash) = &mut unknown.crash {
        crash.mach = Some(Mach { exception: 99, code: 0, ..Mach::default() });
    }
    let mut panic = with(mac(), Monitor::PANIC, Vec::new());
    if let Some(crash) = &mut panic.crash {
        (crash.message, crash.location) = (Some("index out of bounds".into()), Some("src/layer.rs:10:5".into()));
    }
    let mut hang = with(apple(Os::IOS, "iOS"), Monitor::HANG, Vec::new());
    if let Some(crash) = &mut hang.crash {
        (crash.flags, crash.signal, crash.mach, crash.address) = (vec![CrashFlag::NotFatal], None, None, None);
        crash.hang = Some(Hang { lasted_ns: 2_125_000_000, duration_ns: Some(3_000_000_000), ..Hang::default() });
    }
    let mut fatal_hang = hang.clone();
    if let Some(crash) = &mut fatal_hang.crash {
        crash.flags = Vec::new();
        crash.hang = Some(Hang { lasted_ns: 2_125_000_000, ..Hang::default() });
    }
    let mut user = hang.clone();
    if let Some(crash) = &mut user.crash {
        crash.hang = None;
        (crash.monitor, crash.exception_type, crash.message) =
            (Monitor::USER, Some("OddState".into()), Some("odd".into()));
    }
    let mut torn = mac();
    (torn.crash, torn.complete, torn.run) = (None, false, None);
    torn.problems = vec![Problem { section: None, offset: 99, what: "the file ends here".into() }];
    let cpp = vec![
        thrown(Language::CPP, Some("std::runtime_error"), "outer", 4),
        thrown(Language::CPP, Some("std::out_of_range"), "vector::_M_range_check", 0),
        thrown(Language::CPP, None, "innermost", 2),
    ];
    vec![
        ("mach", mac()),
        ("mach-ios", apple(Os::IOS, "iOS")),
        ("mach-tvos", apple(Os::TVOS, "tvOS")),
        ("mach-guard-with-negative-codes", guard),
        ("mach-unknown", unknown),
        ("cpp-exception-chain", with(mac(), Monitor::CPP_EXCEPTION, cpp)),
        (
            "nsexception",
            with(
                mac(),
                Monitor::NS_EXCEPTION,
                vec![thrown(Language::OBJC, Some("NSRangeException"), "index 7 beyond bounds", 3)],
            ),
        ),
        ("panic", panic),
        (
            "panic-with-sources",
            with(
                mac(),
                Monitor::PANIC,
                vec![
                    thrown(Language::RUST, None, "failed", 3),
                    thrown(Language::RUST, Some("io::Error"), "no such file", 0),
                ],
            ),
        ),
        ("swift", with(mac(), Monitor::SIGNAL, vec![thrown(Language::SWIFT, Some("PaintError"), "noCanvas", 0)])),
        ("javascript", with(mac(), Monitor::USER, vec![javascript()])),
        ("hang", hang),
        ("fatal-hang", fatal_hang),
        ("user", user),
        ("torn", torn),
        ("elf", linux(Os::LINUX)),
        ("elf-android", linux(Os::ANDROID)),
        ("too-much", too_much()),
        ("many-threads", many_threads()),
    ]
}

/// A report with everything longer than it may be.
fn too_much() -> Report {
    let mut report = linux(Os::LINUX);
    let long = "x".repeat(20_000);
    report.threads[0].frames = (0..1000).map(|number| frame(ELF, number)).collect();
    for frame in report.frames_mut() {
        frame.function.clone_from(&Some(long.clone()));
        frame.raw_function.clone_from(&Some(long.clone()));
        frame.file = Some(format!("/{long}.rs"));
    }
    report.threads[1].name = Some(long.clone());
    report.images[0].path = format!("/{long}");
    report.images[0].path.truncate(4000);
    report.annotations[0].text.clone_from(&long);
    if let Some(crash) = &mut report.crash {
        crash.message = Some(long.clone());
        crash.location = Some(long.clone());
    }
    if let Some(run) = &mut report.run {
        run.tags = (0..64).map(|number| (format!("key {number} {}", "k".repeat(300)), long.clone())).collect();
        run.tags.insert("two lines".into(), "a\nb".into());
        run.extra = (0..30).map(|number| (format!("long {number}"), Value::Text(long.clone()))).collect();
        run.contexts.insert(
            "long".into(),
            Value::Map((0..10).map(|n| (Value::Unsigned(n), Value::Text(long.clone()))).collect()),
        );
        run.contexts.insert("many".into(), Value::Array((0..5000).map(Value::Unsigned).collect()));
        let deep =
            |depth: usize| (0..depth).fold(Value::from("deep"), |value, _| Value::Map(vec![("k".into(), value)]));
        run.contexts.insert("deep".into(), deep(12));
        run.extra.insert("deep".into(), deep(12));
        (run.app.release, run.app.environment) = (Some(format!("a/b\\{long}")), Some("a/b".into()));
        run.app.dist = Some(long.clone());
        run.contexts.insert("app".into(), Value::Text(long.clone()));
        run.user = Some(Value::Map(vec![
            ("id".into(), Value::Unsigned(5)),
            ("username".into(), Value::Text(long.clone())),
            ("plan".into(), deep(12)),
        ]));
        run.breadcrumbs = (0..100)
            .map(|_| coroner_report::model::Breadcrumb {
                time: now(),
                message: Some("m".repeat(480)),
                data: Some(deep(12)),
                ..Default::default()
            })
            .collect();
    }
    report
}

fn many_threads() -> Report {
    let mut report = linux(Os::LINUX);
    report.threads.extend((1000..2000).map(|tid| thread(tid, ELF, 20)));
    report
}

fn main() {
    let print = |name: &str, number: usize, event: Event| {
        let mut event = event.to_value();
        event["event_id"] = format!("{number:032x}").into();
        println!("{}", serde_json::json!({ "name": name, "event": event }));
    };
    let specimens = specimens();
    for (number, (name, report)) in specimens.iter().enumerate() {
        print(name, number + 1, Event::from_report(report, &EventOptions::default()));
    }
    let watchdog = Event::from_watchdog_termination(Id::default(), now(), &run("iOS"), &EventOptions::default());
    print("watchdog-termination", specimens.len() + 1, watchdog);
}
