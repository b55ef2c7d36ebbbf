//! Stack walks in a real process's saved memory, with unwind data from its files: `.debug_frame`,
//! `.gnu_debugdata`, no `PT_GNU_EH_FRAME`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use coroner_process::{
    memory::{Snapshot, SnapshotRange},
    registers::X86_64Registers,
};
use coroner_symbols::{LookupAddress, SnapshotImages, SymbolFile, UnwindData};
use coroner_unwind::{Found, Images, Options, RuleCache, Walker, X86_64};
use tempfile::TempDir;

/// Functions whose frames have different sizes and no frame pointer, so that only unwind data find
/// their callers.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) static int leaf(char *text) {
    asm volatile("movl $7, %%ebp\n\tmovl $34, %%eax\n\tsyscall" ::: "rax", "rcx", "r11", "rbp", "memory");
    return text[0];
}
__attribute__((noinline)) static int middle(int n) {
    char text[300];
    memset(text, n, sizeof text);
    return leaf(text) + text[n];
}
__attribute__((noinline)) static int outer(int n) {
    volatile char text[4000];
    text[n] = 1;
    return middle(n) + text[n];
}
int main(int argc, char **argv) {
    puts("ready");
    fflush(stdout);
    return outer(argc) + 1;
}
"#;

struct Saved {
    registers: X86_64Registers,
    stack: (u64, Vec<u8>),
    load_address: u64,
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn compile(folder: &TempDir, options: &[&str]) -> PathBuf {
    let (source, program) = (folder.path().join("walked.c"), folder.path().join("walked"));
    fs::write(&source, PROGRAM).unwrap();
    let mut arguments = vec!["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-o"];
    arguments.push(program.to_str().unwrap());
    arguments.push(source.to_str().unwrap());
    arguments.extend(options);
    run("gcc", &arguments);
    program
}

/// Saves the program's registers and stack while it waits in `leaf`, and kills it.
fn save(program: &Path) -> Saved {
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // 34 is `pause`; in any other call the program has not arrived yet.
    while !fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap().starts_with("34 ") {
        std::thread::yield_now();
    }
    let saved = stop_and_save(pid, program);
    end(&mut child);
    saved
}

fn stop_and_save(pid: i32, program: &Path) -> Saved {
    // SAFETY: plain data, all zeros are valid.
    let mut user: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the child is ours; `user` is as large as PTRACE_GETREGS writes.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, pid, none, none), 0);
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL), pid);
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, none, &raw mut user), 0);
    }
    let mut registers = X86_64Registers { pc: user.rip, ..Default::default() };
    let by_number = [
        user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8, user.r9, user.r10,
        user.r11, user.r12, user.r13, user.r14, user.r15,
    ];
    for (place, value) in registers.gpr.iter_mut().zip(by_number) {
        *place = value;
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let range = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
    };
    let (_, stack_end) = range(maps.lines().find(|line| line.ends_with("[stack]")).unwrap());
    let program = program.canonicalize().unwrap();
    let (load_address, _) = range(maps.lines().find(|line| line.ends_with(program.to_str().unwrap())).unwrap());
    let mut stack = vec![0; usize::try_from(stack_end - user.rsp).unwrap()];
    fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut stack, user.rsp).unwrap();
    Saved { registers, stack: (user.rsp, stack), load_address }
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the program's functions that a walk with these files' unwind data finds; `names` is used
/// for their names.
fn walk(saved: &Saved, files: &[SymbolFile], names: &SymbolFile) -> (Vec<String>, UnwindData) {
    let mut images = SnapshotImages::new();
    let data = images.add(files, saved.load_address);
    let ranges = [SnapshotRange { address: saved.stack.0, bytes: &saved.stack.1 }];
    let memory = images.memory(Snapshot { ranges: &ranges });
    let mut cache = RuleCache::new();
    let options = Options { scan_words: 0, ..Options::default() };
    let mut walker = Walker::<X86_64, _, _>::new(&saved.registers, memory, &images, &mut cache, options);
    let mut functions = Vec::new();
    while let Some(frame) = walker.next_frame() {
        if images.find(frame.pc).is_none() {
            break;
        }
        let is_stated = matches!(frame.found, Found::Context | Found::Cfi);
        let svma = frame.lookup_address().wrapping_sub(saved.load_address).wrapping_add(names.base_svma());
        let (name, _) = names.symbol(LookupAddress::of_instruction(svma)).unwrap();
        functions.push(if is_stated { name } else { format!("{name} by {}", frame.found.name()) });
    }
    (functions, data)
}

fn open(path: &Path) -> Vec<SymbolFile> {
    SymbolFile::open(path).unwrap()
}

const EXPECTED: [&str; 4] = ["leaf", "middle", "outer", "main"];

#[test]
fn a_debug_frame_alone_suffices() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, &["-fno-asynchronous-unwind-tables"]);
    let saved = save(&program);
    let (whole, debug) = (open(&program), folder.path().join("walked.debug"));
    let (functions, data) = walk(&saved, &whole, &whole[0]);
    assert_eq!(functions, EXPECTED, "{data:?}");
    assert!(data.debug_frame && data.has_code && data.problems.is_empty(), "{data:?}");

    // Compressed, in a debug file; then with only that file.
    run("objcopy", &["--only-keep-debug", "--compress-debug-sections", text(&program), text(&debug)]);
    let stripped = folder.path().join("stripped");
    run("objcopy", &["--strip-all", text(&program), text(&stripped)]);
    let both: Vec<SymbolFile> = open(&stripped).into_iter().chain(open(&debug)).collect();
    assert_eq!(walk(&saved, &both, &whole[0]).0, EXPECTED);
    let (functions, data) = walk(&saved, &open(&debug), &whole[0]);
    assert_eq!(functions, EXPECTED);
    assert!(data.debug_frame && !data.has_code && !data.eh_frame, "{data:?}");

    // Without it, code analysis is needed, or frames are missing.
    let (functions, data) = walk(&saved, &open(&stripped), &whole[0]);
    assert_ne!(functions, EXPECTED);
    assert!(!data.debug_frame, "{data:?}");

    // As in Android's system libraries.
    let mini = folder.path().join("mini");
    run("objcopy", &["--only-keep-debug", text(&program), text(&mini)]);
    let removed = ["debug_info", "debug_line", "debug_str", "debug_abbrev", "debug_aranges", "debug_rnglists"];
    for section in removed {
        run("objcopy", &[&format!("--remove-section=.{section}"), text(&mini)]);
    }
    run("xz", &["-k", text(&mini)]);
    let packed = format!(".gnu_debugdata={}.xz", text(&mini));
    let android = folder.path().join("android");
    run("objcopy", &["--add-section", &packed, text(&stripped), text(&android)]);
    let (functions, data) = walk(&saved, &open(&android), &whole[0]);
    assert_eq!(functions, EXPECTED);
    assert!(data.debug_frame && data.problems.is_empty(), "{data:?}");
}

#[test]
fn a_missing_search_table_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, &["-static", "-Wl,--no-eh-frame-hdr"]);
    let saved = save(&program);
    let files = open(&program);
    let (functions, data) = walk(&saved, &files, &files[0]);
    assert_eq!(functions.get(..4).unwrap_or_default(), EXPECTED, "{functions:?} {data:?}");
    assert_eq!(functions.last().map(String::as_str), Some("_start"), "{functions:?}");
    assert!(data.eh_frame && data.problems.is_empty(), "{data:?}");
}

#[test]
fn damaged_call_frame_information_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&folder, &["-fno-asynchronous-unwind-tables"]);
    let saved = save(&program);
    let whole = open(&program);
    let mut bytes = fs::read(&program).unwrap();
    let place = {
        use object::{Object, ObjectSection};
        let file = object::File::parse(&*bytes).unwrap();
        file.section_by_name(".debug_frame").unwrap().file_range().unwrap().0
    };
    let place = usize::try_from(place).unwrap();
    bytes[place..place + 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let damaged = SymbolFile::from_bytes(&program, bytes).unwrap();
    let (functions, data) = walk(&saved, &damaged, &whole[0]);
    assert_ne!(functions, EXPECTED);
    assert!(!data.debug_frame && data.problems.len() == 1, "{data:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
