//! Compares core dumps' reports with gdb's frames of the same process.
//!
//! Frames are compared by address and, if both have names, by function.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use super::{Desk, Row, crashes, write};
use toolbox::tools;

const PART: &str = "cores";
/// Minimum share of frames that equal gdb's.
const WANTED: f64 = 0.99;
/// Maximum number of core dumps compared.
const MOST: usize = 68;
/// Maximum number of frames compared per stack; in an endless recursion, the first ones.
const FRAMES: usize = 64;
/// Running time of other projects' programs before they are killed.
const WORK: Duration = Duration::from_secs(2);

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !tools::on_path("gdb") {
        eprintln!("cores: skipped: missing `gdb` (Debian's package)");
        return Ok(Vec::new());
    }
    write(&desk.path("frames.py"), SCRIPT)?;
    let began = Instant::now();
    let programs = crashes::build(desk)?;
    let (mut of_faults, mut of_others) = (Score::default(), Score::default());
    for (number, (program, cause, way)) in crashes::deaths(&programs).into_iter().take(desk.cases(MOST)).enumerate() {
        if began.elapsed() > desk.time {
            break;
        }
        // Most are dumped by the kernel, some by gdb.
        let is_dumped =
            if number % 8 == 0 { dump(desk, program, cause, &way)? } else { die(desk, program, cause, &way)? };
        if is_dumped {
            of_faults.compare(desk, program, &format!("{cause} of {}", program.display()))?;
        }
    }
    let others = OTHERS.iter().filter(|(program, _)| tools::on_path(program));
    for (program, arguments) in others.take(desk.cases(OTHERS.len())) {
        // Killing a program leaves a core dump only if the kernel writes it to a file.
        let ways: &[&str] = if kernel_writes() { &["SEGV", "ABRT", "gcore"] } else { &["gcore"] };
        for way in &ways[..if desk.short { 1 } else { ways.len() }] {
            if let Some(file) = interrupt(desk, program, arguments, way)? {
                of_others.compare(desk, &file, &format!("{program}, {way}"))?;
            }
        }
    }
    Ok(vec![of_faults.row("programs of known causes"), of_others.row("other programs at work")])
}

/// Programs not written for this check, each with endless work.
const OTHERS: [(&str, &[&str]); 7] = [
    ("bash", &["-c", "f() { local i=0; while :; do i=$((i+1)); x=${x:0:5}$i; done; }; f"]),
    ("perl", &["-e", "sub f { while (1) { @l = sort { $a <=> $b } map { rand } 1..50; } } f()"]),
    ("python3", &["-c", "import json\nwhile True: json.loads(json.dumps([{'a': [1] * 9}] * 99), object_hook=sorted)"]),
    ("node", &["-e", "function f(n) { return n < 2 ? n : f(n - 1) + f(n - 2) } for (;;) JSON.stringify([f(20)])"]),
    ("ruby", &["-e", "loop { (1..100).map { |x| x.to_s.reverse }.sort.each { |s| s.to_sym } }"]),
    ("redis-server", &["--port", "0", "--unixsocket", "redis.sock", "--save", ""]),
    (
        "sqlite3",
        &[":memory:", "with recursive c(x) as (select 1 union all select x + 1 from c) select max(hex(x)) from c;"],
    ),
];

/// Counts of compared and equal frames.
#[derive(Default)]
struct Score {
    cores: u32,
    frames: u32,
    equal: u32,
}

impl Score {
    fn compare(&mut self, desk: &Desk, program: &Path, what: &str) -> anyhow::Result<()> {
        let ours: Value = serde_json::from_str(&desk.run(&["show", "core", "--format", "json"])?)?;
        self.cores += 1;
        for (tid, theirs) in by_gdb(desk, program)? {
            let threads = ours["threads"].as_array().into_iter().flatten();
            let thread = threads.into_iter().find(|thread| thread["tid"] == tid).unwrap_or(&Value::Null);
            let ours: Vec<Frame> = thread["frames"].as_array().into_iter().flatten().filter_map(Frame::ours).collect();
            for (number, frame) in theirs.iter().take(FRAMES).enumerate() {
                let is_equal = ours.get(number).is_some_and(|ours| ours.is_that_of(frame));
                self.frames += 1;
                self.equal += u32::from(is_equal);
                if !is_equal {
                    eprintln!(
                        "cores: {what}, thread {tid}, frame {number}: gdb {frame:x?}, ours {:x?}",
                        ours.get(number)
                    );
                    break;
                }
                // Without a name in gdb or an image in ours, in code generated at run time, gdb
                // continues by guessing.
                if frame.functions == [None] && ours[number].is_nowhere {
                    self.frames -= u32::from(number > 0);
                    self.equal -= u32::from(number > 0);
                    break;
                }
            }
        }
        Ok(())
    }

    fn row(&self, what: &str) -> Row {
        let share = if self.frames == 0 { 0.0 } else { f64::from(self.equal) / f64::from(self.frames) };
        let seen = format!("{} of {}, {:.2} %", self.equal, self.frames, share * 100.0);
        let what = format!("frames of {} core dumps that equal gdb's, {what}", self.cores);
        Row::new(PART, &what, format!("at least {} %", WANTED * 100.0), seen, share >= WANTED)
    }
}

/// A call on the stack, with the functions that are inlined there, innermost first.
#[derive(Debug)]
struct Frame {
    pc: u64,
    functions: Vec<Option<String>>,
    is_nowhere: bool,
}

impl Frame {
    fn ours(frame: &Value) -> Option<Frame> {
        let pc = u64::from_str_radix(frame["address"].as_str()?.strip_prefix("0x")?, 16).ok()?;
        let inlined = frame["inlined"].as_array().into_iter().flatten();
        let functions = inlined.chain([frame]).map(|call| call["function"].as_str().map(plain)).collect();
        Some(Frame { pc, functions, is_nowhere: frame["module"].is_null() })
    }

    /// Whether it is the same place, with the same names if both have any.
    fn is_that_of(&self, other: &Frame) -> bool {
        let named = |frame: &Frame| frame.functions.iter().any(Option::is_some);
        self.pc == other.pc && (!named(self) || !named(other) || self.functions == other.functions)
    }
}

/// Whether the kernel writes core dumps to files in the process's folder.
fn kernel_writes() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    pattern.starts_with("core")
}

/// Renames the kernel's core dump to `core`.
fn taken(desk: &Desk, folder: &Path) -> anyhow::Result<bool> {
    let written = std::fs::read_dir(folder)?.filter_map(Result::ok);
    let written = written
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core")));
    let Some(written) = written else { return Ok(false) };
    std::fs::rename(written, desk.path("core"))?;
    Ok(true)
}

fn fresh(desk: &Desk) -> anyhow::Result<std::path::PathBuf> {
    let folder = desk.path("dying");
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_file(desk.path("core"));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs a program that crashes; the kernel writes the core dump, or else gdb.
fn die(desk: &Desk, program: &Path, cause: &str, way: &str) -> anyhow::Result<bool> {
    if !kernel_writes() {
        return dump(desk, program, cause, way);
    }
    let folder = fresh(desk)?;
    let script = "ulimit -c unlimited; ulimit -t 20; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program).args([cause, way]).current_dir(&folder).output()?;
    taken(desk, &folder)
}

/// Ends a working program by a signal, or attaches gdb. Returns its file if there is a core dump.
fn interrupt(desk: &Desk, program: &str, arguments: &[&str], way: &str) -> anyhow::Result<Option<std::path::PathBuf>> {
    let folder = fresh(desk)?;
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh", program])
        .args(arguments)
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("running {program}"))?;
    std::thread::sleep(WORK);
    let pid = child.id().to_string();
    let file = std::fs::read_link(format!("/proc/{pid}/exe"));
    let is_written = if way == "gcore" {
        gdb(desk).args(["-p", &pid, "-ex", "gcore core"]).output()?;
        child.kill()?;
        desk.path("core").exists()
    } else {
        Command::new("kill").args([&format!("-{way}"), &pid]).status()?;
        child.wait()?;
        taken(desk, &folder)?
    };
    child.wait()?;
    let is_named = is_written && file.is_ok();
    if !is_named {
        eprintln!("cores: {program}, {way}: no core dump");
    }
    Ok(file.ok().filter(|_| is_named))
}

/// Crashes a program in gdb, which writes the file `core`. Returns false if it did not crash there.
pub(super) fn dump(desk: &Desk, program: &Path, cause: &str, way: &str) -> anyhow::Result<bool> {
    let core = desk.path("core");
    let _ = std::fs::remove_file(&core);
    gdb(desk).arg("-ex").arg(format!("run {cause} {way}")).args(["-ex", "gcore core"]).arg(program).output()?;
    Ok(core.exists())
}

fn gdb(desk: &Desk) -> Command {
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set width 0"]);
    command.current_dir(desk.folder.path());
    command
}

/// Prints gdb's frames of each thread.
///
/// Frames that it infers from tail calls are left out, because they are not on the stack. Frames of
/// inlined functions come before that of the function that contains them.
const SCRIPT: &str = r#"
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("thread", thread.ptid[1])
    try:
        frame, count = gdb.newest_frame(), 0
        while frame is not None and count < 400:
            if frame.type() != gdb.TAILCALL_FRAME:
                kind = "inlined" if frame.type() == gdb.INLINE_FRAME else "call"
                print("frame", hex(frame.pc()), kind, frame.name() or "")
            frame, count = frame.older(), count + 1
    except gdb.error as error:
        print("error", error)
"#;

/// Returns the core dump's threads with their frames.
fn by_gdb(desk: &Desk, program: &Path) -> anyhow::Result<Vec<(u64, Vec<Frame>)>> {
    let output = gdb(desk).arg(program).args(["core", "-x", "frames.py"]).output().context("running gdb")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut threads: Vec<(u64, Vec<Frame>)> = Vec::new();
    let mut inlined = Vec::new();
    for line in text.lines() {
        if let Some(tid) = line.strip_prefix("thread ") {
            threads.push((tid.parse().context("a thread of gdb's")?, Vec::new()));
            inlined.clear();
        }
        let Some(frame) = line.strip_prefix("frame 0x") else { continue };
        let mut words = frame.splitn(3, ' ');
        let (pc, kind) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        inlined.push(words.next().filter(|name| !name.is_empty()).map(plain));
        if kind == "call" {
            let pc = u64::from_str_radix(pc, 16).context("invalid address in gdb's output")?;
            let functions = std::mem::take(&mut inlined);
            threads.last_mut().context("a frame outside of a thread in gdb's output")?.1.push(Frame {
                pc,
                functions,
                is_nowhere: false,
            });
        }
    }
    Ok(threads)
}

/// Maps a function's several names to one.
///
/// Examples are `__GI_raise`, `raise`, `__raise`; glibc's `memcpy` is its `memmove`, and the vdso
/// has each function twice.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches("__GI_").trim_start_matches('_');
    name.trim_start_matches("vdso_").replace("memcpy_avx", "memmove_avx")
}
