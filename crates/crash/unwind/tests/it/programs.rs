//! C programs stopped by a tracer: with glibc and musl, linked dynamically and statically, without
//! their own unwind data.
#![cfg(all(any(target_os = "linux", target_os = "android"), target_arch = "x86_64"))]

use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::X86_64Registers;
use coroner_unwind::{AddressKind, AddressRange, End, Frame, Image, Images, Options, RuleCache, Walker, X86_64};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Ways to link a program: name, the compiler's environment variable, the compiler, its flags.
const LINKED: [(&str, &str, &str, &[&str]); 5] = [
    ("glibc", "CORONER_TEST_CC", "cc", &["-no-pie"]),
    ("glibc-static", "CORONER_TEST_CC", "cc", &["-static"]),
    ("glibc-static-pie", "CORONER_TEST_CC", "cc", &["-static-pie"]),
    ("musl", "CORONER_TEST_MUSL_CC", "musl-gcc", &[]),
    ("musl-static", "CORONER_TEST_MUSL_CC", "musl-gcc", &["-static"]),
];

/// Ways to compile a program: all code keeps frame pointers, or none does.
const COMPILED: [(&str, &[&str]); 2] =
    [("frame pointers", &["-O1", "-fno-omit-frame-pointer"]), ("none", &["-O2", "-fomit-frame-pointer"])];

/// Builds the program in each way for which a compiler is installed (glibc's is required).
fn programs() -> &'static [(String, PathBuf)] {
    static PROGRAMS: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    PROGRAMS.get_or_init(build)
}

fn build() -> Vec<(String, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stops.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&folder).unwrap();
    let mut programs = Vec::new();
    for (name, variable, compiler, link) in LINKED {
        for (compiled, flags) in COMPILED {
            let words = std::env::var(variable).unwrap_or_else(|_| compiler.to_owned());
            let mut words = words.split_whitespace();
            let file = folder.join(format!("{name}-{compiled}").replace(' ', "-"));
            let mut command = Command::new(words.next().unwrap());
            command.args(words).args(flags).args(link).args(["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]);
            command.arg("-fcf-protection=none").arg("-o").arg(&file).arg(&source).arg("-lpthread");
            match command.output() {
                Err(error) if compiler == "musl-gcc" => println!("skipped: {name}: can't run {compiler}: {error}"),
                output => {
                    let output = output.unwrap();
                    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
                    programs.push((format!("{name}, {compiled}"), file));
                }
            }
        }
    }
    programs
}

/// A stopped process: its memory and mappings.
struct Stopped {
    memory: File,
    images: Vec<Image>,
    executable: Vec<AddressRange>,
    /// The program's functions, ascending by address.
    functions: Vec<(u64, String)>,
    registers: X86_64Registers,
}

impl Memory for &Stopped {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.memory.read_exact_at(into, address).map_err(|_| Unreadable { address })
    }
}

impl Images for &Stopped {
    fn find(&self, address: u64) -> Option<Image> {
        self.images[..].find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some(self.executable.iter().any(|range| range.contains(address)))
    }
}

/// Runs a program up to its trap and passes it to `walk`.
fn stopped<R>(program: &Path, what: &str, walk: impl FnOnce(&Stopped) -> R) -> R {
    let mut command = Command::new(program);
    // SAFETY: a system call that allocates nothing.
    unsafe {
        command.arg(what).pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let main = child.id() as libc::pid_t;
    let mut traps = 0;
    let thread = loop {
        let mut status = 0;
        // SAFETY: waits for this thread's tracees and continues them.
        unsafe {
            let thread = libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD);
            assert!(thread > 0 && libc::WIFSTOPPED(status), "{}, {what}: status {status:x}", program.display());
            let signal = libc::WSTOPSIG(status);
            match signal {
                libc::SIGTRAP if status >> 16 == 0 => {
                    traps += 1;
                    // The first trap is exec's.
                    if traps == 2 {
                        break thread;
                    }
                    libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, libc::PTRACE_O_TRACECLONE);
                    libc::ptrace(libc::PTRACE_CONT, thread, 0, 0);
                }
                // A call of an invalid handler is a fatal fault.
                libc::SIGSEGV if traps == 1 && what == "bad handler" && pc_of(thread) == 16 => break thread,
                libc::SIGTRAP | libc::SIGSTOP => _ = libc::ptrace(libc::PTRACE_CONT, thread, 0, 0),
                signal => _ = libc::ptrace(libc::PTRACE_CONT, thread, 0, signal),
            }
        }
    };
    let walked = walk(&Stopped::read_state(main, thread, program));
    child.kill().unwrap();
    // The process has ended once all of its traced threads were waited for.
    // SAFETY: affects only this thread's tracees.
    while unsafe { libc::waitpid(-1, core::ptr::null_mut(), libc::__WALL | libc::__WNOTHREAD) } > 0 {}
    assert!(child.wait().is_err(), "it was waited for");
    walked
}

fn registers_of(thread: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: the kernel fills the structure of a stopped thread.
    unsafe {
        let mut registers: libc::user_regs_struct = core::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut registers), 0);
        registers
    }
}

fn pc_of(thread: libc::pid_t) -> u64 {
    registers_of(thread).rip
}

impl Stopped {
    fn read_state(process: libc::pid_t, thread: libc::pid_t, program: &Path) -> Stopped {
        let r = registers_of(thread);
        let gpr = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
            r.r15,
        ];
        let registers = X86_64Registers { gpr, pc: r.rip, flags: 0 };
        let memory = File::open(format!("/proc/{process}/mem")).unwrap();
        let mut stopped = Stopped { memory, images: vec![], executable: vec![], functions: vec![], registers };
        for line in fs::read_to_string(format!("/proc/{process}/maps")).unwrap().lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = fields[0].split_once('-').map(|(start, end)| (number(start), number(end))).unwrap();
            if fields[1].contains('x') {
                stopped.executable.push(AddressRange { start, end });
            }
            if number(fields[2]) == 0
                && let Some(name) = fields.get(5)
                && let Some(image) = stopped.image(start)
            {
                if Path::new(name) == program {
                    stopped.functions = functions(program, image.bias);
                }
                stopped.images.push(image);
            }
        }
        stopped.images.sort_by_key(|image| image.text.start);
        stopped
    }

    /// Returns the ELF image that starts at `start`.
    fn image(&self, start: u64) -> Option<Image> {
        let mut memory = self;
        let word = |memory: &mut &Stopped, at: u64| memory.read_u64(at).unwrap();
        if memory.read_u64(start).ok()? as u32 != u32::from_le_bytes(*b"\x7fELF") {
            return None;
        }
        let (table, count) = (start + word(&mut memory, start + 32), word(&mut memory, start + 56) as u16);
        let headers: Vec<u64> = (0..u64::from(count)).map(|index| table + index * 56).collect();
        let first = headers.iter().find(|header| word(&mut memory, **header) as u32 == libc::PT_LOAD)?;
        let bias = start - word(&mut memory, first + 16);
        let mut image = Image { base: start, bias, ..Image::default() };
        for header in headers {
            let kind = word(&mut memory, header);
            let start = word(&mut memory, header + 16) + bias;
            let range = AddressRange { start, end: start + word(&mut memory, header + 40) };
            match kind as u32 {
                libc::PT_LOAD if kind >> 32 & 1 != 0 => image.text = range,
                libc::PT_GNU_EH_FRAME => image.eh_frame_hdr = range,
                _ => {}
            }
        }
        Some(image)
    }

    fn walk(&self) -> (Vec<Frame>, End) {
        let mut cache = Box::new(RuleCache::new());
        let mut walker = Walker::<X86_64, _, _>::new(&self.registers, self, self, &mut cache, Options::default());
        (std::iter::from_fn(|| walker.next_frame()).take(100).collect(), walker.end().expect("an end"))
    }

    fn function(&self, address: u64) -> &str {
        let before = self.functions.partition_point(|(start, _)| *start <= address);
        let is_here = self.images.iter().any(|image| {
            image.text.contains(address) && before > 0 && image.text.contains(self.functions[before - 1].0)
        });
        if is_here { &self.functions[before - 1].1 } else { "" }
    }
}

/// Returns a program's functions from `nm`.
fn functions(program: &Path, bias: u64) -> Vec<(u64, String)> {
    let output = Command::new("nm").arg("-n").arg(program).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let symbol = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_code = matches!(words.next()?, "T" | "t" | "W" | "w" | "i");
        is_code.then_some((address + bias, words.next()?.to_owned()))
    };
    lines.lines().filter_map(symbol).collect()
}

/// Walks each program at the stop named `what`. The innermost frames must be those in `expected`,
/// where `SIGNAL` is a signal trampoline, and the outermost one must be in `outermost` or have no
/// symbol.
fn check(what: &str, expected: &[&str], outermost: &[&str]) {
    for (name, program) in programs() {
        stopped(program, what, |stopped| {
            let (frames, end) = stopped.walk();
            let names: Vec<&str> = frames
                .iter()
                .map(|frame| match frame.kind {
                    AddressKind::SignalTrampoline => "SIGNAL",
                    _ => stopped.function(frame.lookup_address()),
                })
                .collect();
            let said = || format!("{name}: {what}: {names:?} {frames:x?} {end:x?}");
            assert_eq!(names.get(..expected.len()), Some(expected), "{}", said());
            assert_eq!(end, End::EndOfStack, "{}", said());
            let last = *names.last().unwrap();
            assert!(outermost.contains(&last) || !name.contains("static") && last.is_empty(), "{}", said());
            for (frame, function) in frames.iter().zip(&names) {
                let trampoline = stopped.function(frame.lookup_address());
                assert!(
                    *function != "SIGNAL" || trampoline.is_empty() || trampoline.contains("restore_rt"),
                    "{}",
                    said()
                );
            }
        });
    }
}

const START: [&str; 2] = ["_start", "_start_c"];

#[test]
fn a_walk_leaves_a_signal_handler() {
    check("handler", &["stop", "inner", "handler", "SIGNAL", "crash", "main"], &START);
}

#[test]
fn a_walk_leaves_a_signal_handler_that_does_not_return() {
    check(
        "handler of no return",
        &["stop", "stop_for_good", "handler_of_no_return", "SIGNAL", "crash", "main"],
        &START,
    );
}

#[test]
fn a_walk_leaves_a_signal_handler_with_an_invalid_address() {
    check("bad handler", &["", "SIGNAL", "crash", "main"], &START);
}

#[test]
fn a_walk_ends_at_the_programs_start() {
    check("inner", &["stop", "inner", "call", "main"], &START);
    check("no return", &["stop", "stop_for_good", "call", "main"], &START);
}

#[test]
fn a_walk_ends_at_the_threads_start() {
    check("thread", &["stop", "inner", "thread"], &["clone3", "__clone3", "__clone", "clone", "__clone_internal"]);
}
