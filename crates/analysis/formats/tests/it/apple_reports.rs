//! Reports in Apple's formats about the program whose dSYM is in `fixtures/symbols`.

use std::path::PathBuf;

use coroner_formats::apple_report::{AppleReport, AppleReportError, Form, Named, read_report};
use coroner_report::wire::{Language, Os};
use coroner_symbols::{Match, Options, Symbolizer};
use object::{Object, ObjectSymbol};
use serde_json::Value;

/// The program's load address in these reports.
const LOADED: u64 = 0x1_02d1_8000;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/symbols").join(name)
}

/// The program's arm64 image: `LC_UUID` and function offsets.
struct Program {
    uuid: [u8; 16],
    functions: Vec<(String, u64)>,
}

impl Program {
    fn read() -> Self {
        let bytes = std::fs::read(fixture("program.dylib")).unwrap();
        let fat = object::read::macho::MachOFatFile32::parse(&*bytes).unwrap();
        let slice = fat
            .arches()
            .iter()
            .map(|arch| object::read::macho::FatArch::data(arch, &*bytes).unwrap())
            .map(|slice| object::File::parse(slice).unwrap())
            .find(|file| file.architecture() == object::Architecture::Aarch64)
            .unwrap();
        let functions = slice.symbols().map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address())).collect();
        Self { uuid: slice.mach_uuid().unwrap().unwrap(), functions }
    }

    fn plain_uuid(&self) -> String {
        self.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn hyphened_uuid(&self) -> String {
        let plain = self.plain_uuid().to_uppercase();
        format!("{}-{}-{}-{}-{}", &plain[..8], &plain[8..12], &plain[12..16], &plain[16..20], &plain[20..])
    }

    fn offset(&self, name: &str) -> u64 {
        self.functions.iter().find(|function| function.0 == name).unwrap_or_else(|| panic!("no {name}")).1
    }
}

fn options() -> Options {
    Options { search: vec![fixture("program.dylib.dSYM")], debug_roots: vec![], ..Options::default() }
}

fn named(report: &[u8]) -> (Named, String) {
    let report = AppleReport::read(report).unwrap();
    let named = report.symbolicate(&mut Symbolizer::new(options()), &mut |_, _| {});
    let text = String::from_utf8(named.bytes.clone()).unwrap();
    (named, text)
}

/// Returns a report as written by iOS 14.
fn text(program: &Program, end: &str) -> String {
    let deep = LOADED + program.offset("__Z4deepi") + 0x14;
    let entry = LOADED + program.offset("_entry");
    let plain = LOADED + program.offset("_plain_c");
    let lines = [
        "Incident Identifier: 6156848E-344E-4D9E-84E0-87AFD0D0AE7B".to_owned(),
        "Process:             My Program [1234]".to_owned(),
        "Code Type:           ARM-64 (Native)".to_owned(),
        "Exception Codes:     KERN_INVALID_ADDRESS at 0x0000000000000018".to_owned(),
        String::new(),
        "Last Exception Backtrace:".to_owned(),
        // A return address: the call is the preceding instruction, in another function.
        format!("({:#x} {:#x} 0x1b8a7d7a4)", plain + 4, plain),
        String::new(),
        "Thread 0 name:  Dispatch queue: com.apple.main-thread".to_owned(),
        "Thread 0 Crashed:".to_owned(),
        format!("0   My Program                    \t{deep:#018x} {LOADED:#x} + {}", deep - LOADED),
        format!("1   My Program                    \t{:#018x} entry + 0", entry + 8),
        "2   libsystem_kernel.dylib        \t0x00000001b8a7d7a4 __pthread_kill + 8".to_owned(),
        "3   ???                           \t0x0000000000000018 0x0 + 24".to_owned(),
        "the line of a future system, with \u{201c}text\u{201d} \u{2026} and 0x102d18000".to_owned(),
        String::new(),
        "Thread 1:".to_owned(),
        // The start of a function: a thread's innermost address is an instruction's.
        format!("0   My Program                    \t{plain:#018x} My Program + {}", plain - LOADED),
        String::new(),
        "Thread 0 crashed with ARM Thread State (64-bit):".to_owned(),
        format!("    x0: 0x0000000000000000   x1: {plain:#018x}"),
        format!("0   My Program                    \t{deep:#018x} {LOADED:#x} + 4"),
        String::new(),
        "Binary Images:".to_owned(),
        format!(
            "{LOADED:#x} - {:#x} My Program arm64  <{}> /var/containers/My Program",
            LOADED + 0x3fff,
            program.plain_uuid()
        ),
        "0x1b8a57000 - 0x1b8a8afff libsystem_kernel.dylib arm64e  <00112233445566778899aabbccddeeff> /usr/lib/x"
            .to_owned(),
        String::new(),
        "EOF".to_owned(),
    ];
    lines.join(end) + end
}

#[test]
fn a_text_report_is_symbolicated_in_place() {
    let program = Program::read();
    for end in ["\n", "\r\n"] {
        let original = text(&program, end);
        let (named, after) = named(original.as_bytes());
        let report = AppleReport::read(original.as_bytes()).unwrap();
        assert_eq!((report.form(), report.images().len(), report.frame_count()), (Form::Text, 2, 7));
        assert_eq!(report.images()[0].name, "My Program");

        // All lines are kept in order; those of frames up to the start of the name.
        let mut rest = after.lines();
        for line in original.lines() {
            let head = match line.split_once("\t0x") {
                Some((before, behind)) => format!("{before}\t0x{}", &behind[..16]),
                None => line.to_owned(),
            };
            assert!(rest.any(|line| line.starts_with(&head)), "{head:?} is missing in\n{after}");
        }

        // Inlined calls precede the function that contains them, with its frame number.
        let frames: Vec<&str> = after.lines().filter(|line| line.contains("\t0x")).collect();
        assert!(frames[0].contains("deepest(int) [inlined] (program.cpp:"), "{frames:#?}");
        assert!(frames.iter().any(|line| line.starts_with("0 ") && line.contains(" deep(int) + 20 (program.cpp:")));
        let entry = frames.iter().find(|line| line.starts_with("1 ")).unwrap();
        assert!(entry.contains("(program.cpp:") && entry.contains("entry + 8"), "{entry}");
        // Frames without symbols or image are unchanged, and so are the registers.
        assert!(after.contains("__pthread_kill + 8") && after.contains("0x0000000000000018 0x0 + 24"));
        assert!(after.contains(&format!("{LOADED:#x} + 4{end}")), "{after}");
        // Thread 1 is at the function's first instruction.
        assert!(after.lines().any(|line| line.starts_with("0 ") && line.contains(" plain_c + 0 (program.cpp:")));
        // The exception's addresses are return addresses: the preceding call is looked up.
        let exception: Vec<&str> = after
            .lines()
            .skip_while(|line| !line.starts_with('('))
            .skip(1)
            .take_while(|line| !line.is_empty())
            .collect();
        assert_eq!(exception.len(), 2 + exception.iter().filter(|line| line.contains("[inlined]")).count());
        assert!(exception[0].starts_with("0   My Program") && exception[0].contains("plain_c + 4"), "{exception:#?}");
        assert!(exception[1].starts_with("1   My Program") && !exception[1].contains("plain_c"), "{exception:#?}");

        assert_eq!(named.images.len(), 2);
        assert_eq!((named.images[0].frames, named.images[0].named), (5, 5));
        // The system's own name is kept.
        assert_eq!((named.images[1].frames, named.images[1].named, named.images[1].lines), (2, 1, 0));
    }
}

fn json(program: &Program) -> String {
    let deep = program.offset("__Z4deepi") + 0x14;
    let entry = program.offset("_entry") + 8;
    let plain = program.offset("_plain_c");
    format!(
        r#"{{"app_name":"Program","bug_type":"309","os_version":"iPhone OS 17.1"}}
{{
  "uptime" : 12000,
  "threads" : [{{"triggered":true,"id":7,"threadState":{{"x":[{{"value":18446744073709551615}}]}},"frames":[
      {{"imageOffset":{deep},"imageIndex":0}},
      {{"imageOffset":{entry},"symbol":"<redacted>","symbolLocation":99,"imageIndex":0 }},
      {{"imageOffset":20,"symbol":"start","symbolLocation":20,"imageIndex":1}},
      {{"imageOffset":7}}, 12, {{"imageOffset":-1,"imageIndex":0}}, {{"imageOffset":1,"imageIndex":99}}]}},
    {{"id":8,"frames":[{{"imageOffset":{deep},"symbol":"kept","inline":true,"imageIndex":0}},{{"imageOffset":{deep},"imageIndex":0}}]}}],
  "lastExceptionBacktrace" : [{{"imageOffset":{plain},"imageIndex":0}}],
  "usedImages" : [
    {{"source":"P","arch":"arm64","base":{LOADED},"size":16384,"uuid":"{}","path":"\/private\/var\/Program","name":"Program"}},
    {{"size":0,"source":"A","base":0,"uuid":"00000000-0000-0000-0000-000000000000"}}
  ],
  "unknown" : [1.50, "\u0041", 0.1e2]
}}
"#,
        program.hyphened_uuid()
    )
}

#[test]
fn a_json_report_is_symbolicated_in_place() {
    let program = Program::read();
    let original = json(&program);
    let report = AppleReport::read(original.as_bytes()).unwrap();
    assert_eq!((report.form(), report.frame_count()), (Form::Ips, 3));
    let (named, after) = named(original.as_bytes());
    assert_eq!((named.images.len(), named.images[0].frames, named.images[0].lines), (1, 3, 3));

    let document = |text: &str| serde_json::from_str::<Value>(text.split_once('\n').unwrap().1).unwrap();
    let after_json = document(&after);
    let frames = after_json["threads"][0]["frames"].as_array().unwrap();
    let inlined = frames.iter().take_while(|frame| frame["inline"] == true).count();
    assert!(inlined > 0 && frames[0]["symbol"] == "deepest(int)", "{frames:#?}");
    assert_eq!(frames[inlined]["symbol"], "deep(int)");
    assert_eq!(frames[inlined]["symbolLocation"], 20);
    assert_eq!(frames[inlined]["sourceFile"], "program.cpp");
    assert!(frames[inlined]["sourceLine"].as_u64().is_some());
    // A redacted name is replaced.
    let entry = frames[inlined + 1..].iter().find(|frame| frame["inline"].is_null()).unwrap();
    assert_eq!((&entry["symbol"], &entry["symbolLocation"]), (&"entry".into(), &8.into()));
    assert!(frames.iter().any(|frame| frame["symbol"] == "start"));
    // The call that precedes `plain_c` is in another function.
    let exception = after_json["lastExceptionBacktrace"].as_array().unwrap();
    assert!(!exception.is_empty() && exception.iter().all(|frame| frame["symbol"] != "plain_c"), "{exception:#?}");
    // A call that the system has expanded is not changed.
    assert_eq!(after_json["threads"][1], document(&original)["threads"][1]);

    // Outside the frames, the bytes are unchanged.
    for part in [
        r#""uptime" : 12000,"#,
        r#"[1.50, "\u0041", 0.1e2]"#,
        r#""path":"\/private\/var\/Program""#,
        "\n      {\"imageOffset\":7}, 12, ",
    ] {
        assert!(after.contains(part), "{part} in {after}");
    }
    assert_eq!(after.lines().next(), original.lines().next());
}

#[test]
fn an_older_ips_is_a_line_of_json_followed_by_text() {
    let program = Program::read();
    let original = format!("{{\"app_name\":\"Program\",\"bug_type\":\"109\"}}\n{}", text(&program, "\n"));
    let (_, after) = named(original.as_bytes());
    assert!(after.starts_with("{\"app_name\"") && after.contains(" deep(int) + 20 (program.cpp:"), "{after}");
}

#[test]
fn a_split_image_list_is_read() {
    let program = Program::read();
    let whole = text(&program, "\n");
    let (stacks, list) = whole.split_once("Binary Images:\n").unwrap();
    let (first, second) = list.split_once('\n').unwrap();
    let parts = format!(
        "{stacks}Binary Images (dpkg):\n{second}\nBinary Images (App Store):\n{first}\n\nBinary Images (Other):\n"
    );
    let (named, after) = named(parts.as_bytes());
    assert!(after.contains(" deep(int) + 20 (program.cpp:"), "{after}");
    assert_eq!(named.images.iter().map(|image| image.frames).sum::<usize>(), 7);
}

#[test]
fn a_report_without_an_image_list_is_read_without_ids() {
    let program = Program::read();
    let whole = text(&program, "\n");
    // Its start is cut off as well.
    let (_, stacks) = whole.split_once("Dispatch queue: com.apple.main-thread\n").unwrap();
    let (stacks, _) = stacks.split_once("Binary Images:").unwrap();
    assert!(AppleReport::is_likely(stacks.as_bytes()));
    let report = AppleReport::read(stacks.as_bytes()).unwrap();
    let image = &report.images()[0];
    assert_eq!((image.name.as_str(), image.load_address, &image.debug_id), ("My Program", LOADED, &None));
    assert_eq!((report.form(), report.frame_count()), (Form::Text, 2));
    // No file can be matched to it.
    let mut symbolizer = Symbolizer::new(options());
    let named = report.symbolicate(&mut symbolizer, &mut |_, _| {});
    assert_eq!(named.bytes, stacks.as_bytes());
    assert_eq!(symbolizer.status(&named.images[0].key).matched, Match::Missing);
}

/// Returns a report about processor time as written by macOS: a flat stack and a tree.
fn samples(program: &Program) -> String {
    let deep = program.offset("__Z4deepi") + 0x14;
    let entry = program.offset("_entry") + 8;
    let plain = program.offset("_plain_c");
    let lines = [
        "Date/Time:        2026-11-21 10:11:12.131 +0100".to_owned(),
        "Command:          Program".to_owned(),
        "Event:            cpu usage".to_owned(),
        "Architecture:     arm64".to_owned(),
        String::new(),
        "Heaviest stack for the target process:".to_owned(),
        "  20  start + 1 (libdyld.dylib + 109009) [0x7fff7043a9d1]".to_owned(),
        format!("  20  ??? (Program + {plain}) [{:#x}]", LOADED + plain),
        format!("  20  ??? (Program + {plain}) [{:#x}]", LOADED + plain),
        String::new(),
        "Powerstats for:   Program [1234]".to_owned(),
        format!("  20  ??? (Program + {entry}) [{:#x}] 1-20", LOADED + entry),
        format!("    12  ??? (Program + {deep}) [{:#x}] (running) 1-12", LOADED + deep),
        format!("    8   ??? (Program + {plain}) [{:#x}] 13-20", LOADED + plain),
        "     *8  ??? (kernel + 6000) [0xffffff8000201770] (blocked) 13-20".to_owned(),
        "    1   ??? [0x18]".to_owned(),
        String::new(),
        "  Binary Images:".to_owned(),
        format!("         {LOADED:#x} -  ???  com.example.Program 1.0 (1)  <{}>  /Applications/Program", program.hyphened_uuid()),
        "      0x7fff70420000 - 0x7fff7045ffff  libdyld.dylib (732)  <00112233-4455-6677-8899-AABBCCDDEEFF>  /usr/lib/x".to_owned(),
        "*0xffffff8000200000 - 0xffffff80009fffff  kernel (6153)  <10112233-4455-6677-8899-AABBCCDDEEFF>  /System/x".to_owned(),
        String::new(),
    ];
    lines.join("\n")
}

#[test]
fn sampled_stacks_are_symbolicated_in_place() {
    let program = Program::read();
    let original = samples(&program);
    let report = AppleReport::read(original.as_bytes()).unwrap();
    assert_eq!((report.form(), report.images().len(), report.frame_count()), (Form::Samples, 3, 7));
    let (named, after) = named(original.as_bytes());
    assert_eq!((named.images[0].frames, named.images[0].named), (5, 5));
    assert_eq!((named.images[2].frames, named.images[2].named), (1, 0), "the kernel's");
    let lines: Vec<&str> = after.lines().collect();
    let of = |text: &str| -> Vec<&str> { lines.iter().copied().filter(|line| line.contains(text)).collect() };

    // Of two frames at a function's first instruction, the first is a return address, whose call is
    // in another function; the last is the current instruction.
    let plain = program.offset("_plain_c");
    let flat = of(&format!("(Program + {plain}) [{:#x}]", LOADED + plain));
    assert!(!flat[0].contains("plain_c"), "{after}");
    assert!(flat.iter().any(|line| line.starts_with("  20  plain_c + 0 (program.cpp:")), "{after}");
    // The frame that calls into the kernel.
    assert!(flat.iter().all(|line| !line.starts_with("    8   plain_c")), "{after}");

    // Outermost first: the function, then the calls inlined into it, each with the count, the
    // location and the rest of the line.
    let deep: Vec<&str> = of(" (running) 1-12");
    assert!(deep.len() > 1 && deep[0].starts_with("    12  deep(int) + 20 (program.cpp:"), "{after}");
    assert!(deep.last().unwrap().starts_with("    12  deepest(int) [inlined] (program.cpp:"), "{after}");
    for kept in [
        "start + 1 (libdyld.dylib + 109009)",
        "*8  ??? (kernel + 6000) [0xffffff8000201770] (blocked)",
        "1   ??? [0x18]",
    ] {
        assert!(after.contains(kept), "{kept} in {after}");
    }

    // The output of `sample`, without a list of images.
    let drawn = format!(
        "Call graph:\n    + 27 ???  (in Program)  load address {LOADED:#x} + 0x1088  [{:#x},{LOADED:#x}]\n",
        LOADED + 0x1088
    );
    let report = AppleReport::read(drawn.as_bytes()).unwrap();
    assert_eq!((report.images()[0].load_address, report.frame_count()), (LOADED, 1));
}

#[test]
fn errors_for_reports_without_stacks_name_the_kind() {
    let kind = |text: &str| match AppleReport::read(text.as_bytes()).unwrap_err() {
        AppleReportError::OtherKind { kind } => kind,
        other => panic!("{other:?}"),
    };
    assert!(kind("{\"bug_type\":\"298\"}\n{\"processes\":[],\"largestProcess\":\"App\"}").contains("JetsamEvent"));
    assert!(kind("{\"bug_type\":\"210\"}\n{\"panicString\":\"panic(cpu 0\"}").contains("kernel panic"));
    assert!(kind("panic(cpu 2 caller 0xfffffff01): \"x\"\nDebugger message: panic\n").contains("kernel panic"));
    let jetsam = "Incident Identifier: 1\nOS Version: iPhone OS 8\n\nFree pages: 10\nLargest process:   App\n";
    assert!(
        AppleReport::is_likely(jetsam.as_bytes()) && kind(jetsam).contains("JetsamEvent")
            || kind(jetsam).contains("LowMemory")
    );
}

#[test]
fn symbols_from_another_build_are_not_used() {
    let mut program = Program::read();
    program.uuid[3] ^= 1;
    let original = text(&program, "\n");
    let report = AppleReport::read(original.as_bytes()).unwrap();
    let mut symbolizer = Symbolizer::new(options());
    let named = report.symbolicate(&mut symbolizer, &mut |_, _| {});
    assert_eq!(named.bytes, original.as_bytes());
    assert_eq!(symbolizer.status(&named.images[0].key).matched, Match::Missing);
}

#[test]
fn other_files_are_refused() {
    let read = |text: &str| AppleReport::read(text.as_bytes()).unwrap_err();
    assert_eq!(read(""), AppleReportError::NotAppleReport);
    assert_eq!(read("hello\nworld"), AppleReportError::NotAppleReport);
    let lacks = |error: AppleReportError| match error {
        AppleReportError::NoFrames { lacks, bug_type } => (lacks, bug_type),
        other => panic!("{other:?}"),
    };
    assert_eq!(lacks(read("Process: x [1]\nThread 0:\n0  a 0x1 b + 1\n")), ("image list", None));
    let memory = "{\"bug_type\":\"298\"}\n{\"processes\":[],\"usedImages\":[]}";
    assert!(matches!(read(memory), AppleReportError::OtherKind { .. }), "a memory report");
    let unknown = memory.replace("298", "999");
    assert_eq!(lacks(read(&unknown)), ("threads", Some("999".into())));
    let offset = |error: AppleReportError| match error {
        AppleReportError::Json { offset, what } => (offset, what),
        other => panic!("{other:?}"),
    };
    let (at, what) = offset(read("{\"bug_type\":\"309\"}\n{\n  \"threads\" : [x]\n}"));
    assert!((34..=37).contains(&at) && what.contains("expected value"), "{at} {what}");
    let (at, _) = offset(read("{\"bug_type\":309}\n{}"));
    assert!(at < 16, "{at}");
    // Nested deeper than the parser allows.
    let deep = format!("{{\"bug_type\":\"309\"}}\n{{\"usedImages\":{}", "[".repeat(100_000));
    offset(read(&deep));
}

#[test]
fn truncated_and_damaged_reports_do_not_panic() {
    let program = Program::read();
    let mut symbolizer = Symbolizer::new(options());
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for original in [text(&program, "\n"), json(&program), samples(&program)] {
        for length in (0..original.len()).step_by(3) {
            if let Ok(report) = AppleReport::read(&original.as_bytes()[..length]) {
                let _ = report.symbolicate(&mut symbolizer, &mut |_, _| {});
            }
        }
        for _ in 0..500 {
            let mut bytes = original.clone().into_bytes();
            for _ in 0..=random(6) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = random(256) as u8,
                    1 => drop(bytes.drain(at..(at + random(20)).min(bytes.len()))),
                    _ => {
                        let piece: Vec<u8> = bytes[at..].iter().take(random(40)).copied().collect();
                        let to = random(bytes.len());
                        bytes.splice(to..to, piece);
                    }
                }
            }
            if let Ok(report) = AppleReport::read(&bytes) {
                let _ = report.symbolicate(&mut symbolizer, &mut |_, _| {});
            }
        }
    }
}

/// Returns the functions of a stack in a Coroner report.
fn functions(frames: &[coroner_report::model::Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
}

#[test]
fn a_text_report_is_converted() {
    let program = Program::read();
    let original = text(&program, "\n").replace(
        "Code Type:           ARM-64 (Native)",
        "Path:                /var/containers/My Program\nIdentifier:          com.example.program\nVersion:             1.2 (34)\n\
         Code Type:           ARM-64 (Native)\nParent Process:      launchd [1]\nDate/Time:           2026-11-21 10:11:12.500 +0100\n\
         OS Version:          iPhone OS 15.8 (19H370)\nException Type:  EXC_BAD_ACCESS (SIGSEGV)",
    );
    let mut report = read_report(original.as_bytes()).unwrap();
    let crash = report.crash.as_ref().unwrap();
    assert_eq!(
        (crash.mach.as_ref().unwrap().name, crash.signal.as_ref().unwrap().name),
        (Some("EXC_BAD_ACCESS"), Some("SIGSEGV"))
    );
    assert_eq!(
        (crash.address.map(|address| address.0), crash.time.to_string().as_str()),
        (Some(0x18), "2026-11-21T09:11:12.5Z")
    );
    let header = &report.header;
    assert_eq!((header.process_name.as_str(), header.pid, header.ppid, header.os), ("My Program", 1234, 1, Os::IOS));
    assert_eq!(header.event_id.to_string(), "6156848e344e4d9e84e087afd0d0ae7b");
    let app = &report.run.as_ref().unwrap().app;
    assert_eq!((app.version.as_deref(), app.build.as_deref()), (Some("1.2"), Some("34")));
    assert_eq!(report.threads.len(), 2);
    let thread = &report.threads[0];
    assert_eq!((thread.crashed, thread.queue.as_deref()), (true, Some("com.apple.main-thread")));
    assert_eq!(functions(&thread.frames), ["?", "entry", "__pthread_kill", "?"]);
    assert_eq!((report.exceptions.len(), report.exceptions[0].frames.len()), (1, 3));
    // It can be symbolicated like any report.
    Symbolizer::new(options()).symbolicate_report(&mut report);
    assert_eq!(report.threads[0].frames[0].function.as_deref(), Some("deep(int)"));
    assert_eq!(report.threads[1].frames[0].function.as_deref(), Some("plain_c"));
    assert_eq!(report.images.iter().filter(|image| image.is_main).count(), 1);
}

#[test]
fn a_json_report_is_converted() {
    let program = Program::read();
    let more = r#""pid":77,"procName":"Program","procPath":"/private/var/Program","parentPid":1,"cpuType":"ARM-64","incident":"6156848E-344E-4D9E-84E0-87AFD0D0AE7B",
  "captureTime":"2026-11-21 10:11:12.1234 +0100","bundleInfo":{"CFBundleIdentifier":"com.example.program","CFBundleShortVersionString":"1.2"},
  "exception":{"type":"EXC_CRASH","signal":"SIGABRT","rawCodes":[0,0]},"faultingThread":0,
  "asi":{"libsystem_c.dylib":["abort() called"]},"termination":{"namespace":"SIGNAL","code":6,"indicator":"Abort trap: 6"},
  "exceptionReason":{"name":"NSRangeException","composed_message":"index 3 beyond bounds"},
  "threads""#;
    let original = json(&program).replacen("\"threads\"", more, 1);
    let mut report = read_report(original.as_bytes()).unwrap();
    let crash = report.crash.as_ref().unwrap();
    assert_eq!(
        (crash.mach.as_ref().unwrap().name, crash.signal.as_ref().unwrap().name),
        (Some("EXC_CRASH"), Some("SIGABRT"))
    );
    assert_eq!((crash.tid, crash.address), (7, None));
    assert_eq!((report.header.pid, report.header.os), (77, Os::IOS));
    assert_eq!(report.run.as_ref().unwrap().os.version.as_deref(), Some("17.1"));
    let exception = &report.exceptions[0];
    assert_eq!((exception.language, exception.type_name.as_deref()), (Language::OBJC, Some("NSRangeException")));
    assert_eq!(exception.message.as_deref(), Some("index 3 beyond bounds"));
    assert_eq!(report.abort_message(), Some("abort() called"));
    assert_eq!(functions(&report.threads[0].frames), ["?", "?", "start"]);
    assert_eq!(report.threads[1].frames[0].inlined[0].function.as_deref(), Some("kept"));
    Symbolizer::new(options()).symbolicate_report(&mut report);
    assert_eq!(functions(&report.threads[0].frames), ["deep(int)", "entry", "start"]);
    assert_eq!(report.header.event_id, read_report(original.as_bytes()).unwrap().header.event_id);

    // Truncated anywhere, and with any value in place of a number.
    let whole = original.trim_end().len();
    for end in (0..whole).step_by(11) {
        let error = read_report(&original.as_bytes()[..end]).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    for (place, _) in original.match_indices(':') {
        let mut other = original.clone();
        other.insert(place + 1, '[');
        // In a text report it changes nothing.
        let _ = read_report(other.as_bytes());
    }
    let text = text(&program, "\n");
    for end in (0..text.len()).step_by(13).filter(|end| text.is_char_boundary(*end)) {
        let _ = read_report(&text.as_bytes()[..end]);
    }
}
