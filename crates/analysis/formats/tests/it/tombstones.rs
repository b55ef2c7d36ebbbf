//! Handwritten tombstones and traces, based on AOSP's sources.

use coroner_formats::tombstone::{Form, TombstoneError, detect_form, exceptions_of_stack_trace, is_managed, read};
use coroner_report::model::{Frame, Report};
use coroner_report::run_state::Level;
use coroner_report::wire::{Access, AddressKind, Language, Monitor};

const ANDROID_14: &str = include_str!("../files/android-14.txt");
const ANDROID_5: &str = include_str!("../files/android-5.log");
const ANR: &str = include_str!("../files/anr.txt");

/// Encodes a length-delimited field: its key, the length, the bytes.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    [varint(u64::from(number << 3 | 2)), varint(content.len() as u64), content.to_vec()].concat()
}

fn number(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number << 3)), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn entry(of: u32, tid: u64, thread: &[Vec<u8>]) -> Vec<u8> {
    field(of, &[number(1, tid), field(2, &thread.concat())].concat())
}

/// Encodes a tombstone with the field numbers of `tombstone.proto`.
fn protobuf() -> Vec<u8> {
    let register = |name: &str, value| field(3, &[field(1, name.as_bytes()), number(2, value)].concat());
    let frame = |rel_pc, pc, name: &str| {
        let parts = [
            number(1, rel_pc),
            number(2, pc),
            number(3, 0x7f_0000_1000),
            field(4, name.as_bytes()),
            number(5, 4),
            field(6, b"/data/app/x/base.apk!libshop.so"),
            number(7, 0x3000),
            field(8, b"0badcafe"),
        ];
        field(4, &parts.concat())
    };
    let names = ["rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp"];
    let mut crashed = vec![number(1, 4123), field(2, b"Checkout")];
    crashed.extend(names.iter().enumerate().map(|(value, name)| register(name, value as u64)));
    crashed.extend([register("rsp", 0x7f_0000_1000), register("rip", 0x7a_1000_1010)]);
    crashed.extend([frame(0x1010, 0x7a_1000_1010, "pay"), frame(0x2020, 0x7a_1000_2020, "checkout")]);
    crashed.push(field(5, &[field(1, b"rsp"), number(3, 0x7f_0000_1000), field(4, &[7; 32])].concat()));
    crashed.push(field(7, b"a note"));
    let mapping = [number(1, 0x7a_1000_0000), number(2, 0x7a_1000_8000), number(3, 0x3000), number(4, 1), number(6, 1)];
    let mapping = [mapping.concat(), field(7, b"/data/app/x/base.apk"), field(8, b"0badcafe")].concat();
    let log = [
        field(1, b"08-30 19:53:13.500"),
        number(2, 4100),
        number(3, 4123),
        number(4, 6),
        field(5, b"Shop"),
        field(6, b"oh"),
    ];
    let signal =
        [number(1, 11), field(2, b"SIGSEGV"), number(3, 1), field(4, b"SEGV_MAPERR"), number(8, 1), number(9, 0x10)];
    let guest =
        [number(1, 4123), field(4, &[number(1, 0x88), number(2, 0x9_0000), field(4, b"guest_function")].concat())];
    [
        number(1, 3),
        number(24, 1),
        field(2, b"maker/shopper/shopper:15/AP4A/1:user/release-keys"),
        field(4, b"2025-08-30 19:53:13.601761139+0200"),
        number(5, 4100),
        number(6, 4123),
        number(7, 10225),
        field(9, b"com.example.shop"),
        number(20, 36),
        field(10, &signal.concat()),
        field(14, b"it is over"),
        field(15, &field(1, b"null pointer dereference")),
        entry(16, 4100, &[number(1, 4100), field(2, b"main")]),
        entry(16, 4123, &crashed),
        entry(25, 4123, &guest),
        field(17, &mapping),
        field(18, &[field(1, b"main"), field(2, &log.concat())].concat()),
        field(19, &[number(1, 3), field(2, b"/dev/null")].concat()),
        number(22, 16384),
        field(1000, b"a manufacturer's own"),
    ]
    .concat()
}

fn functions(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
}

fn texts(report: &Report) -> Vec<(&str, &str)> {
    report.annotations.iter().map(|note| (note.source.as_str(), note.text.as_str())).collect()
}

#[test]
fn a_protobuf_tombstone_is_converted() {
    let bytes = protobuf();
    assert_eq!(detect_form(&bytes), Some(Form::Protobuf));
    let report = read(&bytes).unwrap();
    assert!(report.complete && report.problems.is_empty(), "{:?}", report.problems);
    let crash = report.crash.as_ref().unwrap();
    let signal = crash.signal.as_ref().unwrap();
    assert_eq!((signal.number, signal.code_name), (11, Some("SEGV_MAPERR")));
    assert_eq!((crash.address.unwrap().0, crash.message.as_deref()), (0x10, Some("it is over")));
    assert_eq!((report.header.pid, report.header.page_size), (4100, 16384));
    assert_eq!(crash.time.0 - report.header.process_start.0, 36_000_000_000);
    // The crashed thread first, followed by the code that it emulated, then the others.
    let names: Vec<_> = report.threads.iter().map(|thread| thread.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["Checkout", "Checkout (arm64 code, emulated)", "main"]);
    assert!(report.threads[0].crashed && !report.threads[1].crashed && report.threads[2].main);
    let thread = report.crashed_thread().unwrap();
    assert_eq!(functions(&thread.frames), ["pay", "checkout"]);
    let frame = &thread.frames[1];
    assert_eq!((frame.address.0, frame.module_offset.unwrap().0), (0x7a_1000_2020, 0x2020));
    assert_eq!((frame.address_kind, frame.symbol_address.unwrap().0), (AddressKind::INSTRUCTION, 0x7a_1000_201c));
    let registers = thread.registers.as_ref().unwrap().x86_64().unwrap();
    assert_eq!((registers.pc, registers.sp()), (0x7a_1000_1010, 0x7f_0000_1000));
    // A library in an APK: its addresses are relative to its start in the archive.
    let image = &report.images[0];
    assert_eq!(
        (image.load_address.0, image.slide.0, image.code_id().as_deref()),
        (0x7a_1000_0000, 0x7a_1000_0000, Some("0badcafe"))
    );
    assert_eq!(report.stack_memory[0].bytes.0, [7; 32]);
    assert_eq!(texts(&report), [("debuggerd: cause", "null pointer dereference"), ("debuggerd: note", "a note")]);
    let run = report.run.as_ref().unwrap();
    assert_eq!((run.os.version.as_deref(), run.device.model.as_deref()), (Some("15"), Some("shopper")));
    let line = &run.breadcrumbs[0];
    assert_eq!((line.level, line.message.as_deref()), (Level::ERROR, Some("oh")));
    assert_eq!(line.time.to_string(), "2025-08-30T17:53:13.5Z");
    // The same file results in the same event.
    assert_eq!(read(&bytes).unwrap().header.event_id, report.header.event_id);
}

#[test]
fn a_truncated_protobuf_keeps_the_fields_before_the_damage() {
    let bytes = protobuf();
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Ok(report) => assert!(report.header.pid == 4100 && !report.threads.is_empty(), "{length}"),
            Err(TombstoneError::Damaged { offset, .. }) => assert!(offset <= length),
            Err(error) => assert!(length < 100, "{length}: {error}"),
        }
    }
    let cut = read(&bytes[..bytes.len() - 30]).unwrap();
    assert!(!cut.complete);
    assert_eq!(cut.problems[0].what, "the file ends within a field");
    assert!(cut.problems[0].offset > 500, "{:?}", cut.problems);
    // An invalid signal message between valid fields.
    let bad = [number(5, 4100), field(9, b"x"), field(2, b"y"), field(10, &[0xFF, 0xFF])].concat();
    let error = read(&bad).unwrap_err().to_string();
    assert!(error.contains("signal_info") && error.contains("at byte 9"), "{error}");
}

#[test]
fn a_text_tombstone_is_converted() {
    assert_eq!(detect_form(ANDROID_14.as_bytes()), Some(Form::Text));
    let report = read(ANDROID_14.as_bytes()).unwrap();
    assert!(report.complete && report.problems.is_empty(), "{:?}", report.problems);
    let header = &report.header;
    assert_eq!((header.pid, header.ppid, header.process_name.as_str()), (4100, 900, "com.example.shop"));
    let crash = report.crash.as_ref().unwrap();
    assert_eq!(crash.signal.as_ref().unwrap().code_name, Some("SEGV_MTESERR"));
    assert_eq!((crash.address.unwrap().0, crash.access), (0x0500_0070_0000_0828, Some(Access::WRITE)));
    assert_eq!(crash.message.as_deref(), Some("first line\nsecond line"));
    let thread = report.crashed_thread().unwrap();
    assert_eq!((thread.tid, thread.name.as_deref()), (4123, Some("Checkout")));
    let registers = thread.registers.as_ref().unwrap().aarch64().unwrap();
    assert_eq!(
        (registers.x[2], registers.x[30], registers.pstate),
        (0x0500_0070_0000_0828, 0x7a_1002_2054, 0x6000_1000)
    );
    let frames = &thread.frames;
    let expected = [
        "shop::Cart::pay(int, (anonymous namespace)::Card const&)",
        "?",
        "pay_now",
        "art_quick_invoke_stub",
        "com.example.shop.Checkout.run",
    ];
    assert_eq!(functions(frames), expected);
    // From the memory map: a file from its start, one with a load bias, one in an APK.
    assert_eq!(frames[0].address.0, registers.pc);
    assert_eq!(frames[1].address.0, 0x7a_1002_2050);
    assert_eq!(frames[2].address.0, 0x7a_0fff_0000 + 0x5008);
    assert_eq!(frames[3].address.0, 0x7a_2000_0000 - 0x10_0000 - 0x1000 + 0x37_7030);
    let main = report.threads.iter().find(|thread| thread.main).unwrap();
    assert_eq!((functions(&main.frames), main.registers.is_none()), (vec!["wait_for_it"], true));
    let texts = texts(&report);
    assert!(texts[0].1.starts_with("[MTE]: Use After Free"), "{texts:?}");
    let freed = "freed by thread 4124:\npc 0000000000021100  /data/app/~~a==/com.example.shop-b==/lib/arm64/libshop.so (shop::Cart::~Cart()+8)";
    assert!(texts.contains(&("debuggerd: heap object", freed)), "{texts:?}");
    assert!(texts.contains(&("crash detail cart", "3 items")), "{texts:?}");
    assert!(texts.iter().any(|(source, text)| *source == "debuggerd: memory tags" && text.contains("=>0x7000000800")));
    let memory = &report.stack_memory[0];
    assert_eq!((memory.address.0, memory.bytes.len()), (0x70_0000_0820, 32));
    assert_eq!(memory.bytes.0[..8], 0x1122_3344_5566_7788_u64.to_le_bytes());
    let run = report.run.as_ref().unwrap();
    assert_eq!(run.os.kernel_version.as_deref(), Some("6.1.43-android14-11"));
    let lines: Vec<_> = run.breadcrumbs.iter().map(|line| line.message.as_deref().unwrap()).collect();
    assert_eq!(lines, ["slow", "paying: 3 items", "Fatal signal 11 (SIGSEGV)"]);
    let context = run.contexts["tombstone"].to_json();
    assert_eq!(context["open_files"]["5"], "/data/data/com.example.shop/cart.db (FileInputStream 0x1234)");
    assert_eq!(context["pac_enabled_keys"], "0xf");
}

#[test]
fn each_logcat_format_results_in_the_same_report() {
    let plain = read(ANDROID_14.as_bytes()).unwrap();
    let stack = |report: &Report| -> Vec<Frame> { report.crashed_thread().unwrap().frames.clone() };
    let without_logs = ANDROID_14.split("--------- tail").next().unwrap();
    for prefix in [
        "08-30 19:53:13.711 11118 11118 F DEBUG   : ",
        "08-30 19:53:13.711 F/DEBUG   (11118): ",
        "F/DEBUG   ( 118): ",
        "F/DEBUG: ",
        " DEBUG   : ",
        "2025-08-30 19:53:13.711 11118-11118 DEBUG                   crash_dump64                         A  ",
    ] {
        let mut log = "08-30 19:53:13.100  4100  4100 I Shop    : before DEBUG\n".to_owned();
        for line in without_logs.lines() {
            log += &format!("{prefix}{line}\n08-30 19:53:13.711  700  700 I Other   : between\n");
        }
        let report = read(log.as_bytes()).unwrap_or_else(|error| panic!("{prefix:?}: {error}"));
        assert_eq!(stack(&report), stack(&plain), "{prefix:?}");
        assert_eq!(report.crash.unwrap().message, plain.crash.as_ref().unwrap().message, "{prefix:?}");
    }
}

#[test]
fn a_log_without_a_memory_map_keeps_the_offsets() {
    let report = read(ANDROID_5.as_bytes()).unwrap();
    assert_eq!((report.header.arch, report.header.pid), (None, 1907));
    let thread = report.crashed_thread().unwrap();
    assert!(thread.main);
    assert_eq!(thread.registers.as_ref().unwrap().general.len(), 17);
    // The first image's load address follows from the program counter; those of the others are
    // unknown.
    assert_eq!((thread.frames[0].address.0, thread.frames[1].address.0), (0xa2b1_d010, 0xa2b1_c122));
    let offsets: Vec<_> = thread.frames.iter().map(|frame| frame.module_offset.unwrap().0).collect();
    assert_eq!(offsets, [0x1010, 0x122, 0xd5b35]);
    assert!(report.problems[0].what.contains("made up"), "{:?}", report.problems);
    assert_eq!(report.run.unwrap().os.version.as_deref(), Some("5.1.1"));
}

#[test]
fn an_anr_trace_is_converted_to_a_hang_report() {
    assert_eq!(detect_form(ANR.as_bytes()), Some(Form::Anr));
    let report = read(ANR.as_bytes()).unwrap();
    let crash = report.crash.as_ref().unwrap();
    assert_eq!((crash.monitor, crash.tid), (Monitor::HANG, 4100));
    assert!(crash.message.as_deref().unwrap().starts_with("Input dispatching timed out"));
    assert_eq!(crash.time.to_string(), "2022-10-03T14:52:23.938520831Z");
    let names: Vec<_> = report.threads.iter().map(|thread| (thread.tid, thread.name.as_deref().unwrap())).collect();
    assert_eq!(names, [(4100, "main"), (4105, "Signal Catcher"), (4123, "pool-1-thread-1")]);
    let main = &report.threads[0];
    assert!(main.main && main.crashed && main.frames.iter().all(is_managed));
    assert_eq!(functions(&main.frames)[0], "com.example.shop.Cart.total");
    let places: Vec<_> = main.frames.iter().map(|frame| (frame.file.as_deref(), frame.line)).collect();
    assert_eq!(places[0], (Some("Cart.java"), Some(41)));
    assert_eq!((places[1], places[2]), ((Some("Main.kt"), None), (None, None)));
    let native = &report.threads[1].frames;
    assert_eq!((native.len(), native[1].module_offset.unwrap().0), (2, 0x512f0));
    let waits = "thread 4100 \"main\": waiting to lock <0x0d3a2f0a> (a java.lang.Object), held by thread 4123 \"pool-1-thread-1\"";
    assert!(texts(&report).contains(&("ART: monitor", waits)), "{:?}", texts(&report));
}

#[test]
fn kernel_wait_channels_are_read() {
    let at = ANR.find("----- Waiting").unwrap();
    let report = read(&ANR.as_bytes()[at..]).unwrap();
    assert_eq!((report.header.pid, functions(&report.threads[0].frames)), (4100, vec!["futex_wait_queue_me"]));
}

#[test]
fn a_java_stack_trace_is_read_as_a_chain_of_exceptions() {
    let text = "Exception in thread \"main\" com.example.Closed: the shop\n  is closed: now\n\tat com.example.Shop.open(Shop.java:12)\n\tat \
        app//com.example.Main.main(Main.java:3)\n\tSuppressed: java.io.IOException: close\n\t\tat com.example.Shop.close(Shop.java:99)\n\t\t... 1 more\n\
        Caused by: java.lang.IllegalStateException\n\tat com.example.Door.turn(Unknown Source)\n\tat java.base/java.lang.Thread.run(Native Method)\n\t... 1 more\n";
    let chain = exceptions_of_stack_trace(text, 7);
    assert_eq!(chain.len(), 2);
    assert_eq!((chain[0].language, chain[0].type_name.as_deref()), (Language::JAVA, Some("com.example.Closed")));
    assert_eq!(chain[0].message.as_deref(), Some("the shop\nis closed: now"));
    assert_eq!(functions(&chain[0].frames), ["com.example.Shop.open", "com.example.Main.main"]);
    assert_eq!((chain[1].message.as_deref(), chain[1].tid), (None, 7));
    assert_eq!(functions(&chain[1].frames), ["com.example.Door.turn", "java.lang.Thread.run", "com.example.Main.main"]);
    assert!(exceptions_of_stack_trace("", 7).is_empty());
}

const MAP_16_KIB: &str = "\
Build fingerprint: 'maker/shop/shop:16/BP2A/1:user/release-keys'
ABI: 'arm64'
Timestamp: 2026-10-01 10:00:00.000000000+0000
Cmdline: com.example.shop
pid: 4100, tid: 4123, name: Checkout  >>> com.example.shop <<<
signal 11 (SIGSEGV), code 1 (SEGV_MAPERR), fault addr 0x0000000000000010

backtrace:
      #00 pc 0000000000040e94  /data/app/base.apk (offset 0x368000) (BuildId: dd8f78e3)
      #01 pc 0000000000040e9c  /data/app/base.apk (offset 0x368000) (BuildId: dd8f78e3)

memory map (5 entries):
    00000070'13000000-00000070'13036fff r--    368000     37000  /data/app/base.apk (BuildId: dd8f78e3) (load bias 0x4000)
    00000070'13037000-00000070'13039fff ---         0      3000
--->00000070'1303a000-00000070'13040fff r-x    39e000      7000  /data/app/base.apk (BuildId: dd8f78e3) (load bias 0x4000)
    00000070'13041000-00000070'13043fff ---         0      3000
    00000070'13044000-00000070'13044fff r--    3a4000      1000  /data/app/base.apk
";

#[test]
fn segments_of_a_file_aligned_to_16_kib_are_one_image() {
    // A paste without the line of stars.
    let report = read(MAP_16_KIB.as_bytes()).unwrap();
    assert_eq!(report.images.len(), 1, "{:?}", report.images);
    let image = &report.images[0];
    // The load bias belongs to the executable segment: the file begins at its first mapping.
    assert_eq!((image.slide.0, image.load_address.0, image.size), (0x70_1300_0000, 0x70_1300_0000, 0x45000));
    let addresses: Vec<u64> = report.threads[0].frames.iter().map(|frame| frame.address.0).collect();
    assert_eq!(addresses, [0x70_1304_0e94, 0x70_1304_0e9c]);
    assert_eq!((report.header.pid, report.threads[0].name.as_deref()), (4100, Some("Checkout")));
}

#[test]
fn a_log_of_mediatek_is_read() {
    let stars = "*** *** *** *** *** *** *** *** *** *** *** *** *** *** *** ***\n";
    let log: String = (stars.to_owned() + MAP_16_KIB).lines().fold(String::new(), |log, line| {
        log + "10-01 10:00:00.123  4200  4200 I AEE/AED : " + line + "\n10-01 10:00:00.124  1  1 I init: other\n"
    });
    let report = read(log.as_bytes()).unwrap();
    assert_eq!(report.threads[0].frames.len(), 2);
    assert_eq!(report.images.len(), 1);
}

#[test]
fn threads_of_a_trace_by_debuggerd_occur_once() {
    let trace = "\
----- Waiting Channels: pid 9955 at 2023-07-04 14:51:13.302627725+0200 -----
Cmd line: com.example.app

sysTid=9955      futex_wait_queue_me
sysTid=9965      do_sigtimedwait
sysTid=9977      do_epoll_wait

----- end 9955 -----

----- pid 9955 at 2023-07-04 14:51:23.352279396+0200 -----
Cmd line: com.example.app
ABI: 'arm64'

\"example.app\" sysTid=9955
    #00 pc 000000000004c35c  /apex/com.android.runtime/lib64/bionic/libc.so (syscall+28) (BuildId: ba48)

\"Signal Catcher\" sysTid=9965
    #00 pc 000000000009b1cc  /apex/com.android.runtime/lib64/bionic/libc.so (__rt_sigtimedwait+12) (BuildId: ba48)

----- end 9955 -----
";
    let report = read(trace.as_bytes()).unwrap();
    let threads: Vec<_> = report.threads.iter().map(|thread| (thread.tid, functions(&thread.frames))).collect();
    // Of the last thread, only the place in the kernel is known.
    let expected = [(9955, vec!["syscall"]), (9965, vec!["__rt_sigtimedwait"]), (9977, vec!["do_epoll_wait"])];
    assert_eq!(threads, expected);
    assert!(report.threads[0].main && report.threads[0].crashed);
}

#[test]
fn other_files_are_refused() {
    for bytes in
        [&b""[..], b"hello", b"{\"a\": 1}", b"\x7FELF\x02\x01\x01", b"MDMP", b"*** *** ***", &[0; 100], &[0xFF; 100]]
    {
        assert_eq!(read(bytes).unwrap_err(), TombstoneError::NotATombstone, "{bytes:?}");
    }
    let head = format!("{}\nBuild fingerprint: 'x'\n", "*** ".repeat(16).trim_end());
    let error = read(head.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("an Android tombstone (text)") && error.contains("ends before the process"), "{error}");
}
