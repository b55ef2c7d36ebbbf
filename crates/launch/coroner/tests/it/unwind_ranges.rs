//! Code of the app's own making: its frames are left by the rule that the app registered, in live
//! backtraces and in a crash.
//!
//! The code is a trampoline such as virtual machines have, in memory that is mapped for it: its
//! frame record is 0xd0 bytes above its stack pointer, the frame pointer is 0, its end can't be
//! seen from what follows the call, and on its stack lie return addresses of an earlier call.

use std::ffi::c_void;
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{LazyLock, Mutex};

use coroner::backtrace::{Backtrace, CaptureOptions, thread_id};
use coroner::{Report, UnwindRange, UnwindRangeError, UnwindRule, register_unwind_range};
use coroner_test_support::isolated;

const STORE: &str = "CORONER_TEST_STORE";
const HOW: &str = "CORONER_TEST_HOW";

/// Calls its first argument with its second, from a frame as above; the third is left on the stack.
type Trampoline = unsafe extern "C" fn(Option<extern "C" fn(*mut c_void)>, *mut c_void, usize);

/// Symbols of assembly are those of C, which on Apple's systems have an underscore before them.
#[cfg(target_vendor = "apple")]
macro_rules! symbol {
    ($name:literal) => {
        concat!("_", $name)
    };
}
#[cfg(not(target_vendor = "apple"))]
macro_rules! symbol {
    ($name:literal) => {
        $name
    };
}

// What is copied into the memory that is mapped; it is never run where it stands.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    concat!(".globl ", symbol!("coroner_test_trampoline")),
    concat!(symbol!("coroner_test_trampoline"), ":"),
    "push rbp",
    "sub rsp, 0xd0",
    // From here on the frame record is where the rule says.
    concat!(".globl ", symbol!("coroner_test_trampoline_body")),
    concat!(symbol!("coroner_test_trampoline_body"), ":"),
    "mov [rsp + 8], rdx",
    "mov [rsp + 16], rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "xor ebp, ebp",
    "call rax",
    "lea rax, [rip + 2f]",
    "jmp rax",
    concat!(".globl ", symbol!("coroner_test_trampoline_body_end")),
    concat!(symbol!("coroner_test_trampoline_body_end"), ":"),
    "2:",
    "add rsp, 0xd0",
    "pop rbp",
    "ret",
    concat!(".globl ", symbol!("coroner_test_trampoline_end")),
    concat!(symbol!("coroner_test_trampoline_end"), ":"),
    "nop",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".p2align 2",
    concat!(".globl ", symbol!("coroner_test_trampoline")),
    concat!(symbol!("coroner_test_trampoline"), ":"),
    "stp x29, x30, [sp, #-0x10]!",
    "sub sp, sp, #0xd0",
    // From here on the frame record is where the rule says.
    concat!(".globl ", symbol!("coroner_test_trampoline_body")),
    concat!(symbol!("coroner_test_trampoline_body"), ":"),
    "str x2, [sp, #8]",
    "str x2, [sp, #16]",
    "mov x9, x0",
    "mov x0, x1",
    "mov x29, xzr",
    "blr x9",
    "adr x9, 2f",
    "br x9",
    concat!(".globl ", symbol!("coroner_test_trampoline_body_end")),
    concat!(symbol!("coroner_test_trampoline_body_end"), ":"),
    "2:",
    "add sp, sp, #0xd0",
    "ldp x29, x30, [sp], #0x10",
    "ret",
    concat!(".globl ", symbol!("coroner_test_trampoline_end")),
    concat!(symbol!("coroner_test_trampoline_end"), ":"),
    "nop",
);

unsafe extern "C" {
    static coroner_test_trampoline: u8;
    static coroner_test_trampoline_body: u8;
    static coroner_test_trampoline_body_end: u8;
    static coroner_test_trampoline_end: u8;
}

/// The mapped code.
struct Code {
    entry: Trampoline,
    /// The range in which the rule holds.
    body: Range<usize>,
}

impl Code {
    fn map() -> Code {
        let [start, body, body_end, end] = [
            &raw const coroner_test_trampoline,
            &raw const coroner_test_trampoline_body,
            &raw const coroner_test_trampoline_body_end,
            &raw const coroner_test_trampoline_end,
        ];
        // SAFETY: a new mapping, into which the bytes of the function above are copied: they are
        // position independent.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
            let page = libc::mmap(std::ptr::null_mut(), 1 << 14, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let page = page.cast::<u8>();
            std::ptr::copy_nonoverlapping(start, page, end as usize - start as usize);
            assert_eq!(libc::mprotect(page.cast(), 1 << 14, libc::PROT_READ | libc::PROT_EXEC), 0);
            #[cfg(target_arch = "aarch64")]
            for line in (0..end as usize - start as usize).step_by(4) {
                std::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) page.add(line));
            }
            let at = |place: *const u8| page as usize + (place as usize - start as usize);
            Code { entry: std::mem::transmute::<*mut u8, Trampoline>(page), body: at(body)..at(body_end) }
        }
    }

    fn register(&self) -> UnwindRange {
        let rule = UnwindRule::frame_record(UnwindRule::STACK_POINTER, 0xd0).unwrap();
        register_unwind_range(self.body.clone(), rule).unwrap()
    }
}

/// An address after a call of this function, which has returned long since.
#[inline(never)]
fn called_before() -> usize {
    Backtrace::current().addresses()[0] as usize
}

#[inline(never)]
fn calls_the_code(code: &Code, function: Option<extern "C" fn(*mut c_void)>, with: *mut c_void) {
    let stale = black_box(called_before());
    // SAFETY: the code calls the function with the argument, and comes back.
    unsafe { (code.entry)(function, with, stale) };
    black_box(stale);
}

extern "C" fn called_back(with: *mut c_void) {
    // SAFETY: `through` passes its own local.
    let then = unsafe { &mut *with.cast::<&mut dyn FnMut()>() };
    then();
    black_box(&then);
}

/// Runs `then` under a frame of the code.
fn through(code: &Code, mut then: &mut dyn FnMut()) {
    calls_the_code(code, Some(called_back), (&raw mut then).cast());
}

static INSTALLED: LazyLock<(coroner::Coroner, tempfile::TempDir)> = LazyLock::new(|| {
    let store = tempfile::tempdir().unwrap();
    let config = coroner::Config::new("ranges-test").store_dir(store.path());
    (coroner::install(config).unwrap(), store)
});

fn functions(backtrace: &Backtrace) -> Vec<String> {
    let names = backtrace.names();
    names.frames().iter().map(|frame| frame.function.as_deref().unwrap_or("?").to_owned()).collect()
}

/// Returns the index of the code's frame in a backtrace, and its caller's name.
fn caller_of_the_code(backtrace: &Backtrace, code: &Code) -> (usize, String) {
    let at = backtrace.addresses().iter().position(|address| code.body.contains(&(*address as usize)));
    let at = at.unwrap_or_else(|| panic!("no frame of the code: {backtrace:#?}"));
    (at, functions(backtrace).get(at + 1).cloned().unwrap_or_default())
}

#[test]
fn a_live_backtrace_crosses_a_registered_range() {
    isolated(concat!(module_path!(), "::a_live_backtrace_crosses_a_registered_range"), || {
        LazyLock::force(&INSTALLED);
        let code = Code::map();
        let take = |code: &Code| {
            let mut taken = None;
            through(code, &mut || taken = Some(Backtrace::current()));
            taken.unwrap()
        };
        let registered = code.register();
        let backtrace = take(&code);
        let (at, caller) = caller_of_the_code(&backtrace, &code);
        assert!(functions(&backtrace)[at - 1].contains("called_back"), "{backtrace:#?}");
        assert!(caller.contains("calls_the_code"), "{caller} in {backtrace:#?}");
        // A rule is forgotten when its range is taken back: the walk is then left to what it finds
        // on the stack.
        assert!(registered.unregister());
        let (_, caller) = caller_of_the_code(&take(&code), &code);
        assert!(!caller.contains("calls_the_code"), "the test's code can be left without a rule: by {caller}");
        // And is there again at once.
        let _registered = code.register();
        assert!(caller_of_the_code(&take(&code), &code).1.contains("calls_the_code"));
    });
}

#[test]
fn another_thread_is_walked_through_a_registered_range() {
    isolated(concat!(module_path!(), "::another_thread_is_walked_through_a_registered_range"), || {
        LazyLock::force(&INSTALLED);
        let code = Code::map();
        let _registered = code.register();
        let (say, hear) = mpsc::channel();
        let held = Mutex::new(());
        let hold = held.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                through(&code, &mut || {
                    say.send(thread_id()).unwrap();
                    drop(held.lock());
                });
            });
            let backtrace = Backtrace::of_thread(hear.recv().unwrap(), &CaptureOptions::default()).unwrap();
            drop(hold);
            let (_, caller) = caller_of_the_code(&backtrace, &code);
            assert!(caller.contains("calls_the_code"), "{caller} in {backtrace:#?}");
        });
    });
}

extern "C" fn crashes(_: *mut c_void) {
    // SAFETY: none; the crash is what is wanted.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let code = Code::map();
    // Before install, and never taken back.
    let _ = code.register().into_number();
    let options = coroner::Crashes::new().symbol_names(true);
    // Names take their time under an emulator.
    let limits = coroner::Limits::new().deadline(std::time::Duration::from_mins(2));
    let config = coroner::Config::new("ranges-test").store_dir(store).no_sinks().crashes(options).limits(limits);
    let _coroner = coroner::install(config).unwrap();
    println!("{:x} {:x}", code.body.start, code.body.end);
    let function: Option<extern "C" fn(*mut c_void)> =
        if std::env::var(HOW).unwrap() == "calls-null" { None } else { Some(crashes) };
    calls_the_code(&code, function, std::ptr::null_mut());
}

/// Crashes a process, and gives its report and where the code's body was.
fn crash(how: &str) -> (Report, Range<u64>) {
    let store = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(emulator) => {
            let mut command = Command::new(emulator);
            command.args(words).arg(&this);
            command
        }
        None => Command::new(&this),
    };
    command.args(["unwind_ranges::crash_as_asked", "--exact", "--test-threads=1", "--nocapture"]);
    let output = command.envs([(STORE, store.path().as_os_str()), (HOW, how.as_ref())]).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{how}: {output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let body = printed.lines().rev().find_map(|line| {
        // libtest begins the line.
        let mut words = line.split_whitespace().rev();
        let end = u64::from_str_radix(words.next()?, 16).ok()?;
        Some(u64::from_str_radix(words.next()?, 16).ok()?..end)
    });
    (only_report(store.path()), body.unwrap_or_else(|| panic!("{how}: it said {printed:?}")))
}

fn only_report(store: &Path) -> Report {
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("one run and not {runs:?}") };
    let mut report = Report::read_file(run.join("report")).unwrap();
    report.attribute_frames();
    report
}

#[test]
fn a_crash_is_walked_through_a_registered_range() {
    for how in ["crashes", "calls-null"] {
        let (report, body) = crash(how);
        // Whether each name was found in time is another matter, under an emulator.
        assert!(report.end.is_some() && report.faults.is_empty(), "{how}: {report:#?}");
        let frames = &report.crashed_thread().unwrap().frames;
        let name = |index: usize| frames[index].raw_function.as_deref().unwrap_or("?");
        if how == "crashes" {
            assert!(name(0).contains("crashes"), "{how}: {frames:#?}");
        } else {
            assert_eq!(frames[0].address.0, 0, "{how}: {frames:#?}");
        }
        assert!(body.contains(&frames[1].address.0), "{how}: {body:x?} in {frames:#?}");
        assert!(name(2).contains("calls_the_code"), "{how}: {frames:#?}");
        assert_eq!(frames[2].found_by.to_string(), "registered", "{how}: {frames:#?}");
        assert!(name(3).contains("crash_as_asked"), "{how}: {frames:#?}");
        let stale = frames.iter().filter_map(|frame| frame.raw_function.as_deref());
        assert!(stale.clone().all(|name| !name.contains("called_before")), "{how}: {frames:#?}");
    }
}

#[test]
fn invalid_rules_are_rejected() {
    let sp = UnwindRule::STACK_POINTER;
    for register in [32, 255] {
        assert_eq!(UnwindRule::frame(register, 16), Err(UnwindRangeError::BadRule));
    }
    let frame = UnwindRule::frame(sp, 16).unwrap();
    for (register, offset) in
        [(0, -16), (sp, -16), (UnwindRule::FRAME_POINTER, -12), (UnwindRule::FRAME_POINTER, i32::MIN)]
    {
        assert_eq!(frame.saved(register, offset), Err(UnwindRangeError::BadRule), "{register} at {offset}");
    }
    assert_eq!(UnwindRule::frame_record(sp, i32::MAX), Err(UnwindRangeError::BadRule));
    assert_eq!(UnwindRule::outermost().saved(UnwindRule::FRAME_POINTER, -16), Err(UnwindRangeError::BadRule));
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn a_range_is_registered_until_it_is_dropped() {
    isolated(concat!(module_path!(), "::a_range_is_registered_until_it_is_dropped"), || {
        let rule = UnwindRule::frame_record(UnwindRule::STACK_POINTER, 0xd0).unwrap();
        for range in [0x7000..0x7000, 0x8000..0x7000, 0..0x7000] {
            assert!(matches!(register_unwind_range(range, rule), Err(UnwindRangeError::BadRange)));
        }
        let registered = register_unwind_range(0x7000..0x8000, rule).unwrap();
        assert!(coroner_walk::RANGES.find(0x7fff).is_some());
        drop(registered);
        assert!(coroner_walk::RANGES.find(0x7fff).is_none());
        let number = register_unwind_range(0x7000..0x8000, rule).unwrap().into_number();
        assert!(coroner_walk::RANGES.find(0x7fff).is_some());
        assert!(UnwindRange::from_number(number).unwrap().unregister());
        assert!(coroner_walk::RANGES.find(0x7fff).is_none());
        assert!(!UnwindRange::from_number(number).unwrap().unregister());
        assert!(UnwindRange::from_number(0).is_none());
    });
}
