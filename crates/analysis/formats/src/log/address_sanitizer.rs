//! Reads reports of AddressSanitizer and related sanitizers.
//!
//! The others are HWAddressSanitizer, MemorySanitizer and UndefinedBehaviorSanitizer.
//!
//! ```text
//! ==4711==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x4f5e2d bp 0x7ffd sp 0x7ffc
//! READ of size 4 at 0x602000000010 thread T0
//!     #0 0x4f5e2d in total /home/shop/cart.c:7:10
//!     #1 0x7f2e4f in __libc_start_main (/lib/x86_64-linux-gnu/libc.so.6+0x2724f) (BuildId: 51657f81…)
//!
//! 0x602000000010 is located 0 bytes inside of 4-byte region [0x602000000010,0x602000000014)
//! freed by thread T0 here:
//!     #0 …
//! SUMMARY: AddressSanitizer: heap-use-after-free /home/shop/cart.c:7:10 in total
//! ==4711==ABORTING
//! ```
//!
//! The first stack is the error's; the others (where the memory was freed or allocated, where the
//! thread was created) become annotations. Source: `compiler-rt/lib/asan/asan_errors.cpp` and
//! `sanitizer_stacktrace_printer.cpp` of LLVM.

use coroner_process::registers::Arch;
use coroner_report::model::{Address, Annotation, Exception, Frame};
use coroner_report::wire::{Access, AddressKind, FoundBy, Language, Monitor};

use super::images::Images;
use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address, exception, own, parse_location};

const SANITIZERS: [&str; 4] =
    ["AddressSanitizer: ", "HWAddressSanitizer: ", "MemorySanitizer: ", "UndefinedBehaviorSanitizer: "];
/// Maximum number of stacks besides the error's.
const MAX_OTHER_STACKS: usize = 32;
/// Maximum size of such a stack's text, in bytes.
const MAX_OTHER_STACK_BYTES: usize = 16 << 10;

/// Marks between the process id and the sanitizer's name.
const MARKS: [&str; 2] = ["==ERROR: ", "==WARNING: "];

pub(super) fn head(line: &str) -> Option<usize> {
    let mark = MARKS.iter().find_map(|mark| line.find(mark))?;
    let start = line.get(..mark)?.rfind("==")?;
    parts(line.get(start..)?).map(|_| start)
}

/// Returns the process id, the sanitizer, and its message.
fn parts(head: &str) -> Option<(u32, &'static str, &str)> {
    let (pid, rest) = MARKS.iter().find_map(|mark| head.strip_prefix("==")?.split_once(mark))?;
    let (sanitizer, said) = SANITIZERS.iter().find_map(|name| Some((*name, rest.strip_prefix(name)?)))?;
    Some((pid.parse().ok()?, sanitizer, said))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (pid, sanitizer, said) = parts(&first.text)?;
    let sanitizer = sanitizer.trim_end_matches([':', ' ']);
    // "heap-use-after-free on address …", "attempting double-free on …", "SEGV on unknown address",
    // "requested allocation size 0x…".
    let kind = [" on ", " (", ": ", " 0x"].iter().fold(said, |kind, end| kind.split(end).next().unwrap_or(kind)).trim();
    let mut texts = Texts { said: vec![said.to_owned()], ..Texts::default() };
    let mut images = Images::default();
    let mut is_finished = false;
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        if head(&line.text).is_some() {
            lines = before;
            break;
        }
        let text = line.text.trim();
        if text.starts_with("SUMMARY: ") || text.ends_with("==ABORTING") {
            is_finished = true;
            break;
        }
        match frame(text, texts.frames(), &mut images) {
            Some(frame) => texts.frame(frame, text),
            // Some lines start with the process id again.
            None => texts.line(text.strip_prefix(&format!("=={pid}==")).unwrap_or(text)),
        }
    }
    let Texts { said, frames, others, .. } = texts;
    let problem = match (is_finished, frames.is_empty()) {
        (_, true) => Some(format!("after line {}: the text ends before the stack", first.number)),
        (false, _) => Some(format!("after line {}: the text ends before the summary", lines.number())),
        _ => None,
    };
    let number = said.iter().rev().find_map(|text| thread(text)).unwrap_or(0);
    let whole = said.join("\n");
    let thrown = Exception {
        language: Language::CPP,
        type_name: Some(kind.to_owned()),
        message: Some(said.iter().skip(1).find(|text| !text.is_empty()).unwrap_or(&said[0]).clone()),
        // The first thread's id equals the process id; for others the sanitizer's own number is
        // used.
        tid: if number == 0 { pid.into() } else { number },
        frames,
        ..Exception::default()
    };
    let mut death = Death { problem, pid: Some(pid), ..exception(thrown, Some(format!("T{number}")), Monitor::SIGNAL) };
    death.threads[0].main = number == 0;
    death.crash.exception_type = Some(format!("{sanitizer}: {kind}"));
    death.crash.address =
        said[0].split_once(" address ").and_then(|(_, rest)| address(rest)).map(|found| Address(found.0));
    death.crash.access = match () {
        () if whole.contains("WRITE of size") || whole.contains("caused by a WRITE") => Some(Access::WRITE),
        () if whole.contains("READ of size") || whole.contains("caused by a READ") => Some(Access::READ),
        () => None,
    };
    death.annotations.push(Annotation { source: sanitizer.to_owned(), text: whole, ..Annotation::default() });
    death.annotations.extend(others.into_iter().map(|text| Annotation {
        source: sanitizer.to_owned(),
        text,
        ..Annotation::default()
    }));
    death.images = images.into_images();
    death.arch = (!death.images.is_empty()).then_some(Arch::NATIVE);
    Some(Found { death, rest: lines })
}

/// Parses the thread in `… thread T0`, `… thread T3 (worker) here:`, `(pc 0x… T0)`.
fn thread(text: &str) -> Option<u64> {
    text.split([' ', '(', ')', ',']).find_map(|word| word.strip_prefix('T')?.parse().ok())
}

/// The parts read so far.
#[derive(Default)]
struct Texts {
    /// The non-empty lines before the first stack.
    said: Vec<String>,
    /// The first stack.
    frames: Vec<Frame>,
    is_behind: bool,
    /// The other stacks, each after its heading.
    others: Vec<String>,
    heading: String,
    in_other: bool,
}

impl Texts {
    /// Returns the number of frames in the current stack.
    fn frames(&self) -> usize {
        if self.is_behind { usize::MAX } else { self.frames.len() }
    }

    fn frame(&mut self, frame: Frame, text: &str) {
        if !self.is_behind {
            if self.frames.len() < MAX_FRAMES {
                self.frames.push(frame);
            }
            return;
        }
        if !self.in_other && self.others.len() < MAX_OTHER_STACKS {
            self.others.push(std::mem::take(&mut self.heading));
        }
        self.in_other = true;
        if let Some(other) = self.others.last_mut().filter(|other| other.len() < MAX_OTHER_STACK_BYTES) {
            other.push('\n');
            other.push_str(text);
        }
    }

    fn line(&mut self, text: &str) {
        if self.frames.is_empty() {
            if !text.is_empty() && self.said.len() < 64 {
                self.said.push(text.to_owned());
            }
            return;
        }
        self.is_behind = true;
        self.in_other = false;
        if !text.is_empty() {
            text.clone_into(&mut self.heading);
        }
    }
}

/// Parses a frame.
///
/// Frames have the form `#1 0x4f5e2d in total(cart*) /home/shop/cart.c:7:10` or `#2 0x41b
/// (/tmp/shop+0x41b) (BuildId: 51657f81)`.
/// Parses a line of a stack: `#1 0x55cb04b86196 in main /home/shop/cart.c:21:46`.
pub(super) fn frame(text: &str, before: usize, images: &mut Images) -> Option<Frame> {
    let (number, rest) = text.strip_prefix('#')?.split_once(' ')?;
    let _: u32 = number.parse().ok()?;
    let (pc, rest) = address(rest.trim_start())?;
    let mut rest = rest.trim();
    let mut build_id = "";
    if let Some((other, id)) = rest.rsplit_once(" (BuildId: ") {
        (rest, build_id) = (other, id.trim_end_matches(')'));
    }
    let mut frame = Frame {
        address: Address(pc),
        found_by: if before == 0 { FoundBy::CONTEXT } else { FoundBy::FRAME_POINTER },
        // A caller's printed address is inside its call.
        address_kind: AddressKind::INSTRUCTION,
        ..Frame::default()
    };
    let in_module = rest.strip_suffix(')').and_then(|text| {
        let (before, place) = text.rsplit_once('(')?;
        let (path, offset) = place.rsplit_once("+0x")?;
        Some((before.trim_end(), path, u64::from_str_radix(offset, 16).ok()?))
    });
    if let Some((before, path, offset)) = in_module {
        rest = before;
        images.add(path, pc.wrapping_sub(offset), offset, build_id);
        frame.module = Some(path.to_owned());
    }
    if let Some(named) = rest.strip_prefix("in ") {
        let source = named.rsplit_once(' ').map(|(name, source)| (name, parse_location(source)));
        match source.filter(|(_, (_, line, _))| line.is_some()) {
            Some((name, (file, line, column))) => {
                frame.function = Some(name.to_owned());
                (frame.file, frame.line, frame.column) = (Some(file.to_owned()), line, column);
            }
            None => frame.function = Some(named.to_owned()),
        }
    }
    let is_systems = |path: &str| ["/lib", "/usr/lib"].iter().any(|system| path.starts_with(system));
    let of_sanitizer = |function: &str, file: &str| {
        [
            "__asan",
            "__interceptor_",
            "__sanitizer",
            "__hwasan",
            "__msan",
            "__ubsan",
            "___interceptor_",
            "asan_thread_start",
        ]
        .iter()
        .any(|prefix| function.starts_with(prefix))
            || file.contains("/compiler-rt/lib/")
            || file.contains("/libsanitizer/")
    };
    frame.in_app = match &frame.module {
        Some(module) if is_systems(module) => Some(false),
        _ => own(&frame, of_sanitizer),
    };
    Some(frame)
}
