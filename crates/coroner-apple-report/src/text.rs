//! The text form: a header of `Key: value` lines, backtraces, registers, and the list `Binary Images:`.
//!
//! ```text
//! Thread 0 Crashed:
//! 0   App                        0x0000000102d1c7f4 0x102d18000 + 18420
//!
//! Last Exception Backtrace:
//! (0x18a1c5999 0x19a3b1f4c)
//!
//! Binary Images:
//! 0x102d18000 - 0x102d23fff App arm64  <a47fbd1de98b3eed8e54afe0f7c0eea4> /var/containers/Bundle/…/App
//!        0x10b2d5000 -        0x10b2d8fff +com.example.App (1.0 - 1) <B1E…-…> /Applications/App.app/Contents/MacOS/App
//! ```

use std::{fmt::Write as _, ops::Range};

use coroner_symbols::{Arch, DebugId, SymbolFrame};

use crate::{AppleImage, AppleReport, AppleReportError, Form, Frame, Site, arch, edit::Edits, function};

/// The list of images, which every report of this form has.
const IMAGES: &str = "Binary Images:";

/// Lines that reports begin with, behind the line of JSON that some have.
const BEGINNINGS: [&str; 4] = ["Incident Identifier:", "Process:", "Hardware Model:", "Translated Report"];

/// How far is looked for one of those.
const BEGINNING: usize = 4096;

/// Whether one of the first lines is one that reports begin with.
pub(crate) fn is_likely(bytes: &[u8]) -> bool {
    let beginning = String::from_utf8_lossy(&bytes[..bytes.len().min(BEGINNING)]);
    beginning.lines().any(|line| BEGINNINGS.iter().any(|known| line.starts_with(known)))
}

#[derive(Clone, Debug)]
pub(crate) enum FrameLine {
    /// A line of its own.
    Line {
        /// Number, image and address, with the spaces behind them.
        prefix: Range<usize>,
        /// What stands behind: a name, or an address and an offset.
        rest: Range<usize>,
    },
    /// One of several addresses in parentheses; its names go on lines of their own behind.
    Address {
        /// Behind the line that the addresses are in.
        behind: usize,
        /// Its place among them.
        number: usize,
        image: String,
        address: u64,
    },
}

impl FrameLine {
    /// Writes the calls, innermost first.
    pub(crate) fn name(&self, bytes: &[u8], offset: u64, calls: &[SymbolFrame], edits: &mut Edits) {
        match self {
            Self::Line { prefix, rest } => {
                let prefix = bytes.get(prefix.clone()).unwrap_or_default();
                let mut text = Vec::new();
                for (index, call) in calls.iter().enumerate() {
                    if index > 0 {
                        text.push(b'\n');
                        text.extend_from_slice(prefix);
                    }
                    text.extend_from_slice(described(call, offset).as_bytes());
                }
                edits.replace(rest.clone(), text);
            }
            Self::Address { behind, number, image, address } => {
                let mut text = String::new();
                for call in calls {
                    let _ = writeln!(text, "{number:<3} {image:<30} {address:#018x} {}", described(call, offset));
                }
                edits.insert(*behind, text);
            }
        }
    }
}

/// `function + offset (file:line)`, as Apple's tools write it; of an inlined call, which begins nowhere, `function [inlined]`.
fn described(call: &SymbolFrame, offset: u64) -> String {
    let mut text = function(call).to_owned();
    if call.inlined {
        text.push_str(" [inlined]");
    } else if let Some(start) = call.symbol_address {
        let _ = write!(text, " + {}", offset.wrapping_sub(start));
    }
    if let Some(file) = &call.file {
        let name = file.rsplit('/').next().unwrap_or(file);
        let _ = match call.line {
            Some(line) => write!(text, " ({name}:{line})"),
            None => write!(text, " ({name})"),
        };
    }
    text
}

/// The lines with their places, without their ends.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        // A line that is no text is kept, and says nothing.
        Some((start, std::str::from_utf8(line).ok()?.trim_end_matches(['\n', '\r'])))
    })
}

/// A stack that lines are read of.
#[derive(Clone, Copy)]
struct Stack {
    /// Its innermost address is one of an instruction: that of a thread, not that of an exception's throw.
    is_thread: bool,
    frames: usize,
}

pub(crate) fn read(bytes: &[u8]) -> Result<AppleReport<'_>, AppleReportError> {
    let mut images = Vec::new();
    let mut process_arch = Arch::Other;
    let mut in_images = false;
    for (_, line) in lines(bytes) {
        if let Some(code) = line.strip_prefix("Code Type:") {
            process_arch = code_type(code.trim());
        }
        if line.trim() == IMAGES {
            in_images = true;
        } else if in_images {
            if line.trim().is_empty() {
                // Some have an empty line behind the heading.
                in_images = images.is_empty();
            } else {
                images.extend(image(line, process_arch));
            }
        }
    }
    if images.is_empty() {
        return Err(if is_likely(bytes) {
            AppleReportError::NoFrames { lacks: "list of images", bug_type: None }
        } else {
            AppleReportError::NotAppleReport
        });
    }
    let mut report = AppleReport { bytes, form: Form::Text, images, frames: Vec::new() };
    let mut stack: Option<Stack> = None;
    for (start, line) in lines(bytes) {
        if let Some(begun) = heading(line) {
            stack = Some(begun);
        } else if line.trim().is_empty() {
            stack = None;
        } else if let Some(stack) = &mut stack {
            let before = report.frames.len();
            if line.starts_with('(') {
                addresses(&mut report, line, start);
            } else {
                let is_innermost = stack.frames == 0 && stack.is_thread;
                report.frames.extend(frame(&report.images, line, start, is_innermost));
            }
            stack.frames += report.frames.len() - before;
        }
    }
    Ok(report)
}

/// The line over a stack: `Thread 0 Crashed:`, `Thread 3 name:  Dispatch queue: …`, `Last Exception Backtrace:`.
fn heading(line: &str) -> Option<Stack> {
    let is_thread =
        line.strip_prefix("Thread ").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    // `Thread 0 crashed with ARM Thread State (64-bit):` is over registers.
    if is_thread && line.contains(':') && !line.contains(" State") {
        return Some(Stack { is_thread: true, frames: 0 });
    }
    (line.contains(" Backtrace") && line.trim_end().ends_with(':')).then_some(Stack { is_thread: false, frames: 0 })
}

/// `number image address rest`. The image's name may have spaces in it.
fn frame(images: &[AppleImage], line: &str, start: usize, is_innermost: bool) -> Option<Frame> {
    let mut words = words(line);
    let (_, number) = words.next()?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    words.next()?;
    let (at, address) = words.find_map(|(at, word)| Some((at, (word, hexadecimal(word)?))))?;
    let (word, address) = address;
    let behind = line.get(at + word.len()..)?;
    let rest = behind.trim();
    if rest.is_empty() {
        return None;
    }
    let rest_at = at + word.len() + (behind.len() - behind.trim_start().len());
    let image = image_at(images, address)?;
    let found = images.get(image)?;
    Some(Frame {
        image,
        offset: address - found.load_address,
        is_return_address: !is_innermost,
        has_name: !is_placeholder(rest, &found.name),
        site: Site::Line(FrameLine::Line {
            prefix: start..start + rest_at,
            rest: start + rest_at..start + rest_at + rest.len(),
        }),
    })
}

/// `(0x18a1c5999 0x19a3b1f4c …)`: return addresses all.
fn addresses(report: &mut AppleReport<'_>, line: &str, start: usize) {
    let Some(list) = line.trim_end().strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else { return };
    let behind = start + line.len();
    // The line's end stays its own.
    let end = report.bytes.get(behind..).unwrap_or_default();
    let behind = behind + end.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for (number, word) in list.split_whitespace().enumerate() {
        let Some(address) = hexadecimal(word) else { continue };
        let Some(image) = image_at(&report.images, address) else { continue };
        let AppleImage { name, load_address, .. } = &report.images[image];
        report.frames.push(Frame {
            image,
            offset: address - load_address,
            is_return_address: true,
            has_name: false,
            site: Site::Line(FrameLine::Address { behind, number, image: name.clone(), address }),
        });
    }
}

/// What stands where no name was found: `0x102d18000 + 18420`, `App + 18420`, `???`, or the symbol of the image's header, which
/// is nearest where a program is stripped.
fn is_placeholder(rest: &str, image: &str) -> bool {
    let Some((name, offset)) = rest.rsplit_once(" + ") else { return rest == "???" };
    let is_number = offset.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        && (hexadecimal(name).is_some()
            || name == image
            || name == "???"
            || name.trim_start_matches('_').starts_with("mh_execute_header")
            || name.trim_start_matches('_').starts_with("mh_dylib_header")
            || name == "<redacted>")
}

fn image(line: &str, process_arch: Arch) -> Option<AppleImage> {
    let (start, rest) = line.trim().split_once('-')?;
    let start = hexadecimal(start.trim())?;
    let rest = rest.trim_start();
    let (end, rest) = rest.split_once(char::is_whitespace)?;
    // `???` where the system didn't know.
    let size = hexadecimal(end).map_or(0, |end| end.saturating_sub(start).saturating_add(1));
    // A name may have `<` in it; the id is the first thing in angle brackets that is one.
    let id = rest.match_indices('<').find_map(|(at, _)| {
        let inside = rest.get(at + 1..)?.split_once('>')?;
        Some((at, DebugId::from_apple(inside.0)?, inside.1))
    });
    let (before, debug_id, path) = match id {
        Some((at, id, path)) => (rest.get(..at)?, Some(id), path.trim()),
        // An image without an id has no angle brackets, or zeros in them.
        None => (rest.split(" /").next()?, None, rest.find(" /").and_then(|at| rest.get(at..)).unwrap_or("").trim()),
    };
    let mut name = before.trim().trim_start_matches('+');
    if let Some((bundle, _version)) = name.split_once(" (") {
        name = bundle;
    }
    let mut image_arch = process_arch;
    if let Some((first, last)) = name.rsplit_once(' ')
        && arch(last) != Arch::Other
    {
        (name, image_arch) = (first.trim_end(), arch(last));
    }
    Some(AppleImage {
        name: name.trim().to_owned(),
        path: path.to_owned(),
        load_address: start,
        size,
        debug_id,
        arch: image_arch,
    })
}

/// Hexadecimal text of an id, which in reports is 16 bytes.
trait FromApple: Sized {
    fn from_apple(text: &str) -> Option<Self>;
}

impl FromApple for DebugId {
    fn from_apple(text: &str) -> Option<Self> {
        text.parse().ok().filter(|id: &DebugId| id.as_bytes().len() == 16)
    }
}

/// `ARM-64 (Native)`, `X86-64 (Translated)`, `ARM-64`.
fn code_type(text: &str) -> Arch {
    match text.split_whitespace().next() {
        Some("ARM-64") => Arch::Aarch64,
        Some("X86-64") => Arch::X86_64,
        Some("X86") => Arch::X86,
        Some("ARM") => Arch::Arm,
        _ => Arch::Other,
    }
}

/// The image that begins last before an address that lies in it.
fn image_at(images: &[AppleImage], address: u64) -> Option<usize> {
    let holds = |image: &AppleImage| address >= image.load_address && address - image.load_address < image.size;
    let held = images.iter().enumerate().filter(|(_, image)| holds(image));
    held.max_by_key(|(_, image)| image.load_address).map(|(index, _)| index)
}

/// The words of a line with their places.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let base = line.as_ptr() as usize;
    line.split_whitespace().map(move |word| (word.as_ptr() as usize - base, word))
}

/// `0x…`, at most 16 digits.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` takes a sign, too.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_images() {
        let ios = image(
            "0x102d18000 - 0x102d23fff My App arm64  <a47fbd1de98b3eed8e54afe0f7c0eea4> /var/containers/My App.app/My App",
            Arch::Other,
        )
        .unwrap();
        assert_eq!((ios.name.as_str(), ios.path.as_str()), ("My App", "/var/containers/My App.app/My App"));
        assert_eq!((ios.load_address, ios.size, ios.arch), (0x1_02d1_8000, 0xc000, Arch::Aarch64));
        assert_eq!(ios.debug_id.unwrap().to_string(), "a47fbd1de98b3eed8e54afe0f7c0eea4");
        let mac = image(
            "       0x10b2d5000 -        0x10b2d8fff +com.example.App (1.0 - 1) <A47FBD1D-E98B-3EED-8E54-AFE0F7C0EEA4> /A/App",
            Arch::X86_64,
        )
        .unwrap();
        assert_eq!((mac.name.as_str(), mac.path.as_str(), mac.arch), ("com.example.App", "/A/App", Arch::X86_64));
        let unknown =
            image("0x7fff0000 - 0xffffffffffffffff ??? (*) <00000000000000000000000000000000> ???", Arch::Other);
        assert_eq!(unknown.unwrap().debug_id, None);
        assert_eq!(image("EOF", Arch::Other), None);
        assert_eq!(image("0xzz - 0x10 a", Arch::Other), None);
    }

    #[test]
    fn names_and_what_stands_for_none() {
        for nothing in ["0x102d18000 + 18420", "App + 18420", "???", "_mh_execute_header + 12", "<redacted> + 4"] {
            assert!(is_placeholder(nothing, "App"), "{nothing}");
        }
        for name in ["main + 18420", "-[App run:] + 4", "main (main.m:12)", "0x102d18000 + x"] {
            assert!(!is_placeholder(name, "App"), "{name}");
        }
    }

    #[test]
    fn what_is_over_a_stack() {
        for thread in
            ["Thread 0 Crashed:", "Thread 12:", "Thread 0:: Dispatch queue: com.apple.main-thread", "Thread 1 name: x"]
        {
            assert!(heading(thread).is_some_and(|stack| stack.is_thread), "{thread}");
        }
        assert!(heading("Last Exception Backtrace:").is_some_and(|stack| !stack.is_thread));
        assert!(heading("Thread 0 crashed with ARM Thread State (64-bit):").is_none());
        assert!(heading("Threads: 12").is_none());
    }
}
