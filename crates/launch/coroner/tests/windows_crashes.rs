//! Native crashes on Windows, in real processes: this program starts itself. `cargo xtask windows`
//! runs it under Wine.

#[cfg(not(all(windows, target_arch = "x86_64")))]
fn main() {}

#[cfg(all(windows, target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    match std::env::var(windows::ACT) {
        Ok(act) => windows::app(&act),
        Err(_) => windows::tests(),
    }
}

#[cfg(all(windows, target_arch = "x86_64"))]
mod windows {
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::io::Write;
    use std::panic::catch_unwind;
    use std::path::{Path, PathBuf};
    use std::process::{Command, ExitCode, Output};
    use std::sync::Barrier;
    use std::time::Duration;

    use coroner::{Config, FolderSink, Limits, Outcome, Sink, SinkAnswer, Store, Submission};
    use serde_json::Value;

    /// Variable with the app's action.
    pub(super) const ACT: &str = "CRASHES_ACT";
    /// Variable with the path of the app's store. Without it the app runs without Coroner.
    const STORE: &str = "CRASHES_STORE";
    /// A folder in which the stores stay, for who looks at them from another system.
    const KEEP: &str = "CRASHES_KEEP";
    /// Set where Wine is in Windows' place.
    const WINE: &str = "CRASHES_WINE";
    /// Set where the program was stripped, so that no frame has a name.
    const STRIPPED: &str = "CRASHES_STRIPPED";
    /// Longer than any delivery takes.
    const LONG: Duration = Duration::from_mins(2);

    // ──── the app ────

    type Filter = unsafe extern "system" fn(*const [*mut c_void; 2]) -> i32;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        safe fn SetErrorMode(mode: u32) -> u32;
        fn SetUnhandledExceptionFilter(filter: Option<Filter>) -> Option<Filter>;
        fn RaiseException(code: u32, flags: u32, count: u32, arguments: *const usize);
        fn VirtualAlloc(address: *mut c_void, size: usize, kind: u32, protection: u32) -> *mut c_void;
        fn LoadLibraryA(name: *const std::ffi::c_char) -> *mut c_void;
        fn GetProcAddress(image: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
        fn GetProcessHeap() -> *mut c_void;
        fn HeapLock(heap: *mut c_void) -> i32;
        fn FlsAlloc(callback: unsafe extern "system" fn(*mut c_void)) -> u32;
        fn FlsSetValue(index: u32, value: *mut c_void) -> i32;
        fn VirtualFree(address: *mut c_void, size: usize, kind: u32) -> i32;
    }

    #[link(name = "ntdll")]
    unsafe extern "system" {
        fn LdrLockLoaderLock(flags: u32, result: *mut u32, cookie: *mut usize) -> i32;
    }

    unsafe extern "C" {
        fn abort() -> !;
        fn signal(signal: i32, handler: usize) -> usize;
    }

    // A function with a frame pointer, which it destroys before it aborts: the unwinder reads where
    // that leads. (After a fault the system itself walks up the stack first, and comes to no
    // filter.)
    std::arch::global_asm!(
        ".globl without_frame",
        ".seh_proc without_frame",
        "without_frame:",
        "push rbp",
        ".seh_pushreg rbp",
        "sub rsp, 32",
        ".seh_stackalloc 32",
        "mov rbp, rsp",
        ".seh_setframe rbp, 0",
        ".seh_endprologue",
        "movabs rbp, 0x555500001230",
        "call abort",
        "int3",
        ".seh_endproc",
    );

    unsafe extern "C" {
        fn without_frame();
    }

    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}");
        let _ = out.flush();
    }

    /// Ends the process before it has answered.
    #[derive(Debug)]
    struct Dies;

    impl Sink for Dies {
        fn name(&self) -> &str {
            "dies"
        }

        fn deliver(&self, _: &Submission<'_>) -> SinkAnswer {
            std::process::abort();
        }
    }

    /// Says the line that is to crash: the one after the next.
    macro_rules! says_its_line {
        () => {
            say(&format!("line {}", line!() + 2))
        };
    }

    #[inline(never)]
    fn reads(at: usize) -> u32 {
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { (at as *const u32).read_volatile() }
    }

    #[inline(never)]
    fn writes(at: usize) {
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { (at as *mut u32).write_volatile(7) }
    }

    #[inline(never)]
    fn jumps(to: usize) -> u32 {
        // SAFETY: it is to fault.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u32>(black_box(to)) };
        says_its_line!();
        // It does not come back.
        let result = function();
        black_box(result) + 1
    }

    #[inline(never)]
    fn runs_no_instruction() {
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { std::arch::asm!("ud2") }
    }

    #[inline(never)]
    fn halts() {
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { std::arch::asm!("hlt") }
    }

    /// Allocates a page that is reserved or committed, with these rights (winnt.h); returns its
    /// address.
    fn page(is_committed: bool, protection: u32) -> usize {
        const MEM_COMMIT: u32 = 0x1000;
        const MEM_RESERVE: u32 = 0x2000;
        let kind = if is_committed { MEM_RESERVE | MEM_COMMIT } else { MEM_RESERVE };
        // SAFETY: a new page, wherever the system has room.
        let page = unsafe { VirtualAlloc(std::ptr::null_mut(), 4096, kind, protection) };
        assert!(!page.is_null());
        page as usize
    }

    /// Returns the address of a page that was released.
    fn freed() -> usize {
        const MEM_RELEASE: u32 = 0x8000;
        let page = page(true, PAGE_READWRITE);
        // SAFETY: a page of its own that nobody uses.
        assert!(unsafe { VirtualFree(page as *mut c_void, 0, MEM_RELEASE) } != 0);
        page
    }

    const PAGE_READONLY: u32 = 2;
    const PAGE_READWRITE: u32 = 4;
    const PAGE_GUARD: u32 = 0x100;

    #[inline(never)]
    fn divides(by: u32) -> u32 {
        let result: u32;
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { std::arch::asm!("div {0:e}", in(reg) by, inout("eax") 7 => result, inout("edx") 0 => _) }
        result
    }

    #[inline(never)]
    fn breaks() {
        says_its_line!();
        // SAFETY: it is to stop.
        unsafe { std::arch::asm!("int3") }
    }

    #[inline(never)]
    fn aborts() {
        says_its_line!();
        // SAFETY: the process ends.
        unsafe { abort() }
    }

    /// A function of Microsoft's universal C runtime, which GNU's programs load by hand.
    fn universal<F: Copy>(name: &std::ffi::CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>(), "a function");
        // SAFETY: the library stays; the caller says what the function of that name is.
        unsafe {
            let function = GetProcAddress(LoadLibraryA(c"ucrtbase.dll".as_ptr()), name.as_ptr());
            assert!(!function.is_null());
            std::mem::transmute_copy(&function)
        }
    }

    #[inline(never)]
    fn closes_nothing() {
        let close: unsafe extern "C" fn(*mut c_void) -> i32 = universal(c"fclose");
        says_its_line!();
        // SAFETY: the runtime finds that it is null.
        let result = unsafe { close(std::ptr::null_mut()) };
        assert_eq!(result, -1);
        say("an error");
    }

    type InvalidParameter = unsafe extern "C" fn(*const u16, *const u16, *const u16, u32, usize);

    unsafe extern "C" fn goes_on(_: *const u16, _: *const u16, _: *const u16, _: u32, _: usize) {
        say("the app's handler of invalid parameters");
    }

    #[inline(never)]
    fn raises(code: u32) {
        says_its_line!();
        // SAFETY: no arguments; 1: it can't go on.
        unsafe { RaiseException(code, 1, 0, std::ptr::null()) };
        black_box(());
    }

    #[inline(never)]
    fn recurses(left: u32) -> u32 {
        if black_box(left) == 0 {
            writes(left as usize);
            return 0;
        }
        black_box(recurses(left - 1)) + 1
    }

    #[inline(never)]
    fn loses_its_frame() {
        says_its_line!();
        // SAFETY: it is to fault.
        unsafe { without_frame() };
        black_box(());
    }

    unsafe extern "system" fn looks_on(_: *const [*mut c_void; 2]) -> i32 {
        say("the app's filter");
        0
    }

    /// Goes on behind `ud2`.
    unsafe extern "system" fn repairs(pointers: *const [*mut c_void; 2]) -> i32 {
        say("repaired");
        // SAFETY: the system gives a context, which has `Rip` at 0xf8 (winnt.h).
        unsafe { *(*pointers)[1].cast::<u8>().add(0xf8).cast::<u64>() += 2 };
        -1
    }

    extern "C" fn sees_abort(_: i32) {
        say("the app's SIGABRT");
    }

    pub(super) fn app(act: &str) -> ExitCode {
        // No debugger is started.
        SetErrorMode(3);
        match act {
            // SAFETY: a filter for the process's life.
            "filter" => drop(unsafe { SetUnhandledExceptionFilter(Some(looks_on)) }),
            // SAFETY: as above.
            "repair" => drop(unsafe { SetUnhandledExceptionFilter(Some(repairs)) }),
            // SAFETY: a handler for the process's life.
            "abort handled" => drop(unsafe { signal(22, sees_abort as *const () as usize) }),
            "invalid parameter" => drop(universal::<usize>(c"fclose")),
            "invalid parameter handled" => {
                let set: unsafe extern "C" fn(InvalidParameter) -> usize = universal(c"_set_invalid_parameter_handler");
                // SAFETY: a handler for the process's life.
                unsafe { set(goes_on) };
            }
            _ => {}
        }
        let coroner = std::env::var_os(STORE).map(|store| {
            let store = PathBuf::from(store);
            let mut config = Config::new("windows_crashes").version("1.2.3").store_dir(&store);
            config = match act {
                "die delivering" => config.sink(Dies).sink(FolderSink::new(store.join("reports"))),
                "no stacks" => config.crashes(coroner::Crashes::new().stack_memory(0)),
                "late" => config.limits(Limits::new().deadline(Duration::from_millis(500))),
                // If the report waited for a minidump, this would be noticed.
                "locked" | "locked heap" | "exit" => config.limits(Limits::new().deadline(Duration::from_mins(10))),
                // Wine takes seconds for a minidump.
                _ if std::env::var_os(STRIPPED).is_some() => {
                    config.limits(Limits::new().deadline(Duration::from_secs(60)))
                }
                _ => config,
            };
            let coroner = coroner::install(config).expect("it can be installed");
            say(&format!("last {:?}", coroner.last_run().outcome));
            assert_eq!(coroner.limits().sentences().count(), 0);
            coroner::set_tag("channel", "beta").expect("a tag");
            coroner
        });
        match act {
            "read" | "late" | "filter" | "no stacks" => drop(reads(black_box(16))),
            "write" => writes(black_box(0)),
            "write far" => writes(black_box(0x8000_0000_0000_0000)),
            "jump" => drop(jumps(0)),
            "jump to data" => drop(jumps(page(true, PAGE_READWRITE))),
            "read freed" => drop(reads(freed())),
            "read guard" => drop(reads(page(true, PAGE_READWRITE | PAGE_GUARD))),
            "read reserved" => drop(reads(page(false, PAGE_READWRITE))),
            "write constant" => writes(page(true, PAGE_READONLY)),
            "privileged" => halts(),
            "illegal" | "repair" => runs_no_instruction(),
            "divide" => drop(divides(black_box(0))),
            "breakpoint" => breaks(),
            // Wine 8 ends the thread whose stack is full, and asks nobody.
            "overflow" => raises(0xc000_00fd),
            "deep" => drop(recurses(black_box(1000))),
            "abort" | "abort handled" => aborts(),
            "fail fast" => std::process::abort(),
            "heap" => raises(0xc000_0374),
            "exception" => raises(0xe06d_7363),
            "invalid parameter" | "invalid parameter handled" => closes_nothing(),
            "thread" => drop(std::thread::spawn(|| writes(black_box(8))).join()),
            "recrash" => loses_its_frame(),
            "two" => {
                static BARRIER: Barrier = Barrier::new(2);
                let at_once = || {
                    BARRIER.wait();
                    writes(black_box(24));
                };
                let other = std::thread::spawn(at_once);
                at_once();
                drop(other.join());
            }
            "locked" => {
                let (mut state, mut cookie) = (0, 0);
                // SAFETY: two numbers are written.
                unsafe { LdrLockLoaderLock(0, &raw mut state, &raw mut cookie) };
                drop(std::thread::spawn(|| ()));
                writes(black_box(0));
            }
            "locked heap" => {
                // SAFETY: the process ends with the lock.
                unsafe { HeapLock(GetProcessHeap()) };
                writes(black_box(0));
            }
            "exit" => {
                // It is called when the process's other threads have been ended.
                unsafe extern "system" fn at_exit(_: *mut c_void) {
                    aborts();
                }
                // SAFETY: a function with the required signature, and a value that is not null.
                unsafe { FlsSetValue(FlsAlloc(at_exit), std::ptr::dangling_mut()) };
            }
            "panic" => {
                let reports = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |panic| {
                    reports(panic);
                    // SAFETY: the process ends.
                    unsafe { abort() }
                }));
                panic!("there is no canvas");
            }
            "die delivering" => drop(coroner.as_ref().map(|coroner| coroner.flush(LONG))),
            "uninstalled" => {
                coroner.clone().expect("it is installed").uninstall();
                writes(black_box(0));
            }
            "deliver" => assert!(coroner.as_ref().is_some_and(|coroner| coroner.flush(LONG)), "all is delivered"),
            other => unreachable!("{other}"),
        }
        ExitCode::SUCCESS
    }

    // ──── the tests ────

    /// A store of a test's own.
    struct Launches {
        store: PathBuf,
        _folder: Option<tempfile::TempDir>,
    }

    impl Launches {
        fn new(name: &str) -> Self {
            if let Some(keep) = std::env::var_os(KEEP) {
                return Self { store: Path::new(&keep).join(name), _folder: None };
            }
            let folder = tempfile::tempdir().expect("a directory");
            Self { store: folder.path().join("store"), _folder: Some(folder) }
        }

        fn start(&self, act: &str, with: bool) -> Output {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command.env(ACT, act).env_remove(STORE);
            if with {
                command.env(STORE, &self.store);
            }
            let output = command.output().expect("the app starts");
            println!("   {act}{}: {}", if with { "" } else { " without Coroner" }, output.status);
            output
        }

        fn run(&self, act: &str) -> Output {
            self.start(act, true)
        }

        /// Delivers what waits. What the app says of the last run.
        fn deliver(&self) -> String {
            let output = self.run("deliver");
            assert!(output.status.success(), "{} {}", output.status, String::from_utf8_lossy(&output.stderr));
            word(&output, "last ")
        }

        fn files(&self, end: &str) -> Vec<PathBuf> {
            let files = std::fs::read_dir(self.store.join("reports")).into_iter().flatten().flatten();
            files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(end)).collect()
        }

        fn reports(&self) -> Vec<Value> {
            let files = self.files(".json").into_iter();
            files.map(|file| serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON")).collect()
        }

        /// Crashes as without Coroner, and delivers one report, with a minidump.
        fn crash(&self, act: &str) -> (Output, Value) {
            let (output, without) = (self.run(act), self.start(act, false));
            assert!(!output.status.success());
            assert_eq!(output.status.code(), without.status.code(), "the process ends as without Coroner");
            assert_eq!(self.deliver(), name(Outcome::Crashed));
            let mut reports = self.reports();
            assert_eq!(reports.len(), 1, "{reports:#?}");
            let report = reports.remove(0);
            assert_eq!(report["crash"]["monitor"], "seh", "{report:#}");
            assert_eq!(report["run"]["tags"]["channel"], "beta", "{report:#}");
            (output, report)
        }
    }

    fn word(output: &Output, begin: &str) -> String {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_default().to_owned()
    }

    fn name(outcome: Outcome) -> String {
        format!("{outcome:?}")
    }

    fn frames(report: &Value) -> &[Value] {
        report["threads"][0]["frames"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// A crash is of that exception, and its stack leads from the app's function, at the line that
    /// it said, to its beginning.
    fn check(act: &str, exception: &str, at: &str) -> Value {
        let launches = Launches::new(act);
        let (output, report) = launches.crash(act);
        assert_eq!(report["complete"], true, "{report:#}");
        assert_eq!(report["crash"]["signal"]["name"], exception, "{report:#}");
        check_frames(&report, &output, at);
        let images = report["images"].as_array().expect("images");
        let is = |image: &Value, end: &str| {
            image["kind"] == "pe" && image["path"].as_str().is_some_and(|path| path.to_lowercase().ends_with(end))
        };
        assert!(images[0]["is_main"] == true && is(&images[0], ".exe"), "{:#}", images[0]);
        assert!(images.iter().any(|image| is(image, "ntdll.dll")), "{images:#?}");
        report
    }

    /// The system's minidump stands beside the report.
    fn minidumps() {
        for act in ["read", "abort", "thread"] {
            let launches = Launches::new(&format!("minidump {act}"));
            let (_, report) = launches.crash(act);
            let dumps = launches.files("minidump.dmp");
            assert_eq!(dumps.len(), 1, "{report:#}");
            let dump = std::fs::read(&dumps[0]).expect("a file");
            assert!(dump.starts_with(b"MDMP") && dump.len() > 4096, "{} bytes", dump.len());
            let declared = report["run"]["attachments"].as_array().expect("attachments");
            assert_eq!(declared[0]["content_type"], "application/x-dmp", "{declared:#?}");
        }
        let launches = Launches::new("minidump late");
        let (_, report) = launches.crash("late");
        let declared = report["run"]["attachments"].as_array().map_or(0, Vec::len);
        assert_eq!((declared, launches.files(".dmp").len()), (0, 0), "one that is cut is none");
        let launches = Launches::new("no stacks");
        let (_, report) = launches.crash("no stacks");
        assert!(report["stack_memory"].as_array().is_none_or(Vec::is_empty) && launches.files(".dmp").is_empty());
    }

    fn check_frames(report: &Value, output: &Output, at: &str) {
        let frames = frames(report);
        let is_of = |frame: &Value, end: &str| frame["function"].as_str().is_some_and(|name| name.ends_with(end));
        let named = frames.iter().position(|frame| is_of(frame, at)).unwrap_or_else(|| panic!("{frames:#?}"));
        let frame = &frames[named];
        assert!(frame["file"].as_str().is_some_and(|file| file.ends_with("windows_crashes.rs")), "{frame:#}");
        if !word(output, "line ").is_empty() {
            assert_eq!(frame["line"].to_string(), word(output, "line "), "{frame:#}");
        }
        let outer = frames.iter().position(|frame| is_of(frame, "windows::app") || is_of(frame, "{{closure}}"));
        assert!(outer.is_some_and(|outer| outer > named), "{frames:#?}");
    }

    fn null() {
        let report = check("read", "EXCEPTION_ACCESS_VIOLATION", "::reads");
        assert_eq!((&report["crash"]["access"], &report["crash"]["address"]), (&"read".into(), &"0x10".into()));
        assert_eq!(frames(&report)[0]["found_by"], "context");
        is_explained(&report, "near_null");
        let report = check("write", "EXCEPTION_ACCESS_VIOLATION", "::writes");
        is_explained(&report, "null_pointer");
        assert_eq!((&report["crash"]["access"], &report["crash"]["address"]), (&"write".into(), &"0x0".into()));
        let report = check("jump", "EXCEPTION_ACCESS_VIOLATION", "::jumps");
        assert_eq!(report["crash"]["access"], "execute", "{report:#}");
        assert_eq!(frames(&report)[1]["found_by"], "stack_top", "{report:#}");
        is_explained(&report, "jump_to_null");
        // No address of user space: the system does not say which.
        let report = check("write far", "EXCEPTION_ACCESS_VIOLATION", "::writes");
        assert!(report["crash"]["address"].is_null(), "{report:#}");
    }

    /// The mapping at the address and the access are in the report.
    fn memory() {
        for (act, exception, at, kind) in [
            ("read freed", "EXCEPTION_ACCESS_VIOLATION", "::reads", "unmapped"),
            ("read guard", "EXCEPTION_GUARD_PAGE", "::reads", "guard_page"),
            ("read reserved", "EXCEPTION_ACCESS_VIOLATION", "::reads", "guard_page"),
            ("write constant", "EXCEPTION_ACCESS_VIOLATION", "::writes", "write_to_read_only"),
            ("jump to data", "EXCEPTION_ACCESS_VIOLATION", "::jumps", "execute_of_data"),
        ] {
            let report = check(act, exception, at);
            is_explained(&report, kind);
            assert!(report["mappings"].as_array().is_some_and(|mappings| !mappings.is_empty()), "{report:#}");
        }
    }

    fn is_explained(report: &Value, kind: &str) {
        assert_eq!(report["explanation"]["kind"], kind, "{report:#}");
    }

    fn instructions() {
        for (act, exception, at, kind) in [
            ("illegal", "EXCEPTION_ILLEGAL_INSTRUCTION", "::runs_no_instruction", "illegal_instruction"),
            ("privileged", "EXCEPTION_PRIV_INSTRUCTION", "::halts", "privileged_instruction"),
            ("divide", "EXCEPTION_INT_DIVIDE_BY_ZERO", "::divides", "division_error"),
            ("breakpoint", "EXCEPTION_BREAKPOINT", "::breaks", "breakpoint"),
        ] {
            is_explained(&check(act, exception, at), kind);
        }
    }

    fn exceptions() {
        is_explained(&check("heap", "STATUS_HEAP_CORRUPTION", "::raises"), "heap_corruption");
        is_explained(&check("exception", "C++ exception", "::raises"), "exception");
    }

    fn aborted() {
        is_explained(&check("abort", "SIGABRT", "::aborts"), "abort");
        let launches = Launches::new("abort handled");
        let (output, report) = launches.crash("abort handled");
        assert!(String::from_utf8_lossy(&output.stdout).contains("the app's SIGABRT"));
        check_frames(&report, &output, "::aborts");
        // `__fastfail` asks nobody in the process.
        let launches = Launches::new("fail fast");
        assert!(!launches.run("fail fast").status.success());
        assert_eq!(launches.deliver(), name(Outcome::Unknown));
        assert!(launches.reports().is_empty());
    }

    fn invalid_parameters() {
        let launches = Launches::new("invalid parameter");
        let output = launches.run("invalid parameter");
        // As Microsoft's runtime ends it; Wine's raises an exception.
        assert_eq!(output.status.code(), Some(0xc000_0409_u32.cast_signed()), "{output:?}");
        assert_eq!(launches.deliver(), name(Outcome::Crashed));
        let report = launches.reports().remove(0);
        assert_eq!(report["crash"]["signal"]["name"], "STATUS_INVALID_CRUNTIME_PARAMETER", "{report:#}");
        check_frames(&report, &output, "::closes_nothing");
        is_explained(&report, "abort");
        // Who was there before has the process go on: the report is taken back.
        let launches = Launches::new("invalid parameter handled");
        let output = launches.run("invalid parameter handled");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("the app's handler") && printed.contains("an error"),
            "{output:?}"
        );
        assert_eq!(launches.deliver(), name(Outcome::CleanExit));
        assert!(launches.reports().is_empty());
    }

    fn other_threads() {
        let report = check("thread", "EXCEPTION_ACCESS_VIOLATION", "::writes");
        assert_eq!(report["crash"]["address"], "0x8");
        // One of two is reported.
        let launches = Launches::new("two");
        let (output, report) = launches.crash("two");
        check_frames(&report, &output, "::writes");
    }

    fn stacks() {
        let report = check("overflow", "EXCEPTION_STACK_OVERFLOW", "::raises");
        assert_eq!(report["crash"]["flags"][0], "stack_overflow", "{report:#}");
        is_explained(&report, "stack_overflow");
        // The innermost frames and the outermost.
        let report = check("deep", "EXCEPTION_ACCESS_VIOLATION", "::writes");
        let skipped = &report["threads"][0]["skipped"];
        assert!(skipped[0]["count"].as_u64() > Some(700), "{skipped:#}");
    }

    /// The walk up the stack faults: what else there is is kept.
    fn a_fault_of_the_walk() {
        let launches = Launches::new("recrash");
        let (_, report) = launches.crash("recrash");
        assert_eq!(report["complete"], false, "{report:#}");
        assert_eq!(report["crash"]["signal"]["name"], "SIGABRT");
        assert_eq!(report["faults"][0]["section"], "threads", "{report:#}");
        assert_eq!(report["threads"][0]["walk_end"], "fault", "{report:#}");
        let last = frames(&report).last().expect("a frame");
        assert_eq!(last["function"], "without_frame", "{last:#}");
        assert!(report["images"].as_array().is_some_and(|images| images.len() > 3), "{report:#}");
        assert_eq!(report["end"]["complete"], false, "{report:#}");
    }

    /// An earlier filter is called, and an exception that it repairs is not reported.
    fn filters_of_the_app() {
        let launches = Launches::new("filter");
        let (output, report) = launches.crash("filter");
        assert!(String::from_utf8_lossy(&output.stdout).contains("the app's filter"));
        check_frames(&report, &output, "::reads");
        let launches = Launches::new("repair");
        let output = launches.run("repair");
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("repaired"), "{output:?}");
        assert_eq!(launches.deliver(), name(Outcome::CleanExit));
        assert!(launches.reports().is_empty() && launches.files(".dmp").is_empty());
    }

    /// The crashed thread has a lock that a minidump needs: the report doesn't wait for one.
    fn locks() {
        for act in ["locked", "locked heap"] {
            let launches = Launches::new(act);
            let (output, report) = launches.crash(act);
            check_frames(&report, &output, "::writes");
            assert_eq!(report["complete"], true, "{report:#}");
        }
    }

    /// Other threads, which would write the report, are gone.
    fn an_exit() {
        let launches = Launches::new("exit");
        let (_, report) = launches.crash("exit");
        let frames = frames(&report);
        let place =
            |end| frames.iter().position(|frame| frame["function"].as_str().is_some_and(|name| name.ends_with(end)));
        let aborts = place("::aborts").unwrap_or_else(|| panic!("{frames:#?}"));
        assert_eq!((place("::at_exit"), &report["complete"]), (Some(aborts + 1), &true.into()), "{frames:#?}");
    }

    fn what_is_not_reported() {
        let launches = Launches::new("panic alone");
        assert_eq!(launches.run("panic").status.code(), Some(3));
        assert_eq!(launches.deliver(), name(Outcome::Crashed));
        let reports = launches.reports();
        assert_eq!(reports.len(), 1);
        assert!(reports[0]["crash"]["monitor"] == "panic" && launches.files(".dmp").is_empty(), "{reports:#?}");
        let launches = Launches::new("uninstalled");
        assert!(!launches.run("uninstalled").status.success());
        assert_eq!(launches.deliver(), name(Outcome::Uninstalled));
        assert!(launches.reports().is_empty());
    }

    /// For who reads it on another system.
    fn a_run_that_waits() {
        let launches = Launches::new("waiting crash");
        assert!(!launches.run("write").status.success());
        let runs = Store::open_existing(&launches.store).and_then(|store| store.list()).expect("a store");
        let raw = coroner::RawRun::read(&runs[0].path).expect("its files");
        let report = raw.parse().expect("reports").remove(0);
        assert_eq!(report.threads[0].frames[0].found_by, coroner_report::wire::FoundBy::CONTEXT);
    }

    fn a_kill_during_delivery() {
        let launches = Launches::new("crash delivery");
        assert!(!launches.run("write").status.success());
        assert!(!launches.run("die delivering").status.success());
        launches.deliver();
        let reports = launches.reports();
        let of_crash = reports.iter().filter(|report| report["crash"]["monitor"] == "seh");
        assert_eq!(of_crash.count(), 1, "{reports:#?}");
    }

    pub(super) fn tests() -> ExitCode {
        let of_minidumps: [(&str, fn()); 1] = [("minidumps", minidumps)];
        let of_reports: [(&str, fn()); 15] = [
            ("null", null),
            ("memory", memory),
            ("instructions", instructions),
            ("exceptions", exceptions),
            ("aborted", aborted),
            ("invalid parameters", invalid_parameters),
            ("other threads", other_threads),
            ("stacks", stacks),
            ("a fault of the walk", a_fault_of_the_walk),
            ("filters of the app", filters_of_the_app),
            ("locks", locks),
            ("an exit", an_exit),
            ("what is not reported", what_is_not_reported),
            ("a run that waits", a_run_that_waits),
            ("a kill during delivery", a_kill_during_delivery),
        ];
        // Wine's dbghelp.dll faults in the DWARF of a Rust program, and names need it: each has a
        // program of its own there.
        let tests: Vec<(&str, fn())> = match std::env::var_os(STRIPPED) {
            Some(_) => of_minidumps.into(),
            None if std::env::var_os(WINE).is_some() => of_reports.into(),
            None => of_reports.into_iter().chain(of_minidumps).collect(),
        };
        let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
        let mut failed = 0;
        for (name, test) in
            tests.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| name.contains(&**only)))
        {
            println!("{name}");
            if catch_unwind(test).is_err() {
                println!("FAILED {name}");
                failed += 1;
            }
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
