//! The text form of a report.
//!
//! It has a header with `Key: value` lines, backtraces, registers, and the list `Binary Images:`.
//!
//! ```text
//! Thread 0 Crashed:
//! 0   App                        0x0000000102d1c7f4 0x102d18000 + 18420
//!
//! Last Exception Backtrace:
//! (0x18a1c5999 0x19a3b1f4c)
//! ```

use std::{collections::BTreeMap, fmt::Write as _, ops::Range};

use coroner_symbols::{Arch, SymbolFrame};

use crate::apple_report::{
    AppleImage, AppleReport, AppleReportError, Form, Frame, Site,
    byte_edits::Edits,
    images::{self, ImageLists, hexadecimal, lines},
    named_frame, sampled_stacks, unsupported_kind,
};

/// Lines at the start of reports, after the line of JSON that some have.
const FIRST_LINES: [&str; 10] = [
    "Incident Identifier:",
    "Process:",
    "Hardware Model:",
    "Translated Report",
    "Date/Time:",
    "Command:",
    "Powerstats for:",
    "Heaviest stack for",
    "Analysis of sampling",
    "Call graph:",
];

/// Maximum number of bytes searched for one of these lines.
const MAX_BYTES_BEFORE_FIRST_LINE: usize = 4096;

/// Whether one of the first lines belongs to a report.
///
/// It may be from the start of a report, or the heading of a stack or a list of images, in case the
/// start was cut off.
pub(crate) fn is_likely(bytes: &[u8]) -> bool {
    let beginning = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES_BEFORE_FIRST_LINE)]);
    let is_known = |line: &str| {
        let line = line.trim();
        FIRST_LINES.iter().any(|known| line.starts_with(known))
            || heading(line).is_some()
            || images::is_heading(line)
            || unsupported_kind::describe_line(line).is_some()
    };
    beginning.lines().any(is_known)
}

#[derive(Clone, Debug)]
pub(crate) enum FrameLine {
    /// A separate line.
    Line {
        /// Number, image and address, including the spaces after them.
        prefix: Range<usize>,
        /// The rest: a name, or an address and an offset.
        rest: Range<usize>,
    },
    /// One of several addresses in parentheses; names are inserted as separate lines after it.
    Address {
        /// The end of the line with the addresses.
        behind: usize,
        /// Index of the address.
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
                    text.extend_from_slice(named_frame::describe(call, offset).as_bytes());
                }
                edits.replace(rest.clone(), text);
            }
            Self::Address { behind, number, image, address } => {
                let mut text = String::new();
                for call in calls {
                    let _ = writeln!(
                        text,
                        "{number:<3} {image:<30} {address:#018x} {}",
                        named_frame::describe(call, offset)
                    );
                }
                edits.insert(*behind, text);
            }
        }
    }
}

/// The stack whose lines are being read.
#[derive(Clone, Copy)]
struct Stack {
    /// Whether the innermost address is an instruction's, as in a thread's stack.
    ///
    /// An exception's throw has a return address instead.
    is_thread: bool,
    frames: usize,
}

/// Returns the lists of images; if there are none, a list derived from the frames.
pub(crate) fn lists(bytes: &[u8]) -> ImageLists {
    let lists = ImageLists::read(bytes);
    if lists.images.is_empty() { ImageLists::inferred(inferred(bytes)) } else { lists }
}

pub(crate) fn read(bytes: &[u8]) -> Result<AppleReport<'_>, AppleReportError> {
    let lists = lists(bytes);
    if lists.images.is_empty() {
        let other = lines(bytes).find_map(|(_, line)| unsupported_kind::describe_line(line.trim()));
        return Err(match other {
            Some(kind) => AppleReportError::OtherKind { kind },
            None if is_likely(bytes) => AppleReportError::NoFrames { lacks: "image list", bug_type: None },
            None => AppleReportError::NotAppleReport,
        });
    }
    let mut frames = Vec::new();
    let mut stack: Option<Stack> = None;
    for (start, line) in lines(bytes) {
        if let Some(begun) = heading(line) {
            stack = Some(begun);
        } else if line.trim().is_empty() {
            stack = None;
        } else if let Some(stack) = &mut stack {
            let before = frames.len();
            if line.starts_with('(') {
                addresses(&lists, bytes, line, start, &mut frames);
            } else {
                let is_innermost = stack.frames == 0 && stack.is_thread;
                frames.extend(frame(&lists, line, start, is_innermost));
            }
            stack.frames += frames.len() - before;
        }
    }
    let mut form = Form::Text;
    if frames.is_empty() {
        frames = sampled_stacks::frames(&lists, bytes);
        form = if frames.is_empty() { Form::Text } else { Form::Samples };
    }
    Ok(AppleReport { bytes, form, images: lists.images, frames })
}

/// Returns the images in frames without names, each with its load address; none has an id.
fn inferred(bytes: &[u8]) -> Vec<AppleImage> {
    let mut found: BTreeMap<u64, AppleImage> = BTreeMap::new();
    for (_, line) in lines(bytes) {
        let Some((name, load_address, offset)) = Parts::parse(line)
            .and_then(|parts| parts.split_placeholder())
            .or_else(|| sampled_stacks::load_address_and_offset(line))
        else {
            continue;
        };
        let image = found.entry(load_address).or_insert_with(|| AppleImage {
            name: name.to_owned(),
            path: String::new(),
            load_address,
            size: 0,
            debug_id: None,
            arch: Arch::Other,
        });
        image.size = image.size.max(offset.saturating_add(1));
    }
    found.into_values().collect()
}

/// Parses a stack's heading: `Thread 0 Crashed:`, `Thread 3 name:  Dispatch queue: …`, `Last
/// Exception Backtrace:`.
fn heading(line: &str) -> Option<Stack> {
    let is_thread =
        line.strip_prefix("Thread ").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    // `Thread 0 crashed with ARM Thread State (64-bit):` is the heading of registers.
    if is_thread && line.contains(':') && !line.contains(" State") {
        return Some(Stack { is_thread: true, frames: 0 });
    }
    (line.contains(" Backtrace") && line.trim_end().ends_with(':')).then_some(Stack { is_thread: false, frames: 0 })
}

/// The parts of a frame's line: `number image address rest`. The image's name may contain spaces.
pub(crate) struct Parts<'a> {
    pub(crate) image: &'a str,
    pub(crate) address: u64,
    pub(crate) rest: &'a str,
    /// Offset of the rest in the line, in bytes.
    rest_at: usize,
}

impl<'a> Parts<'a> {
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let mut words = words(line);
        let (_, number) = words.next()?;
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (image_at, _) = words.next()?;
        let (at, word, address) = words.find_map(|(at, word)| Some((at, word, hexadecimal(word)?)))?;
        let behind = line.get(at + word.len()..)?;
        let rest = behind.trim();
        if rest.is_empty() {
            return None;
        }
        let rest_at = at + word.len() + (behind.len() - behind.trim_start().len());
        Some(Self { image: line.get(image_at..at)?.trim(), address, rest, rest_at })
    }

    /// Parses `0x102d18000 + 18420` or `App + 18420`. Returns the image's name, its load address,
    /// and the frame's offset in it.
    fn split_placeholder(&self) -> Option<(&'a str, u64, u64)> {
        let (base, offset) = self.rest.rsplit_once(" + ")?;
        let offset: u64 = offset.parse().ok()?;
        let load_address = self.address.checked_sub(offset)?;
        (hexadecimal(base) == Some(load_address) && load_address != 0 || base == self.image).then_some((
            self.image,
            load_address,
            offset,
        ))
    }
}

fn frame(lists: &ImageLists, line: &str, start: usize, is_innermost: bool) -> Option<Frame> {
    let Parts { address, rest, rest_at, .. } = Parts::parse(line)?;
    let image = lists.image_at(start, address)?;
    let found = lists.images.get(image)?;
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

/// Adds the frames in `(0x18a1c5999 0x19a3b1f4c …)`, all of which are return addresses.
fn addresses(lists: &ImageLists, bytes: &[u8], line: &str, start: usize, frames: &mut Vec<Frame>) {
    let Some(list) = line.trim_end().strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else { return };
    let behind = start + line.len();
    // Keep the line's own ending.
    let end = bytes.get(behind..).unwrap_or_default();
    let behind = behind + end.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for (number, word) in list.split_whitespace().enumerate() {
        let Some(address) = hexadecimal(word) else { continue };
        let Some(image) = lists.image_at(start, address) else { continue };
        let AppleImage { name, load_address, .. } = &lists.images[image];
        frames.push(Frame {
            image,
            offset: address - load_address,
            is_return_address: true,
            has_name: false,
            site: Site::Line(FrameLine::Address { behind, number, image: name.clone(), address }),
        });
    }
}

/// Whether a text is a placeholder for a missing name: `0x102d18000 + 18420`, `App + 18420`, `???`,
/// or the symbol of the image's header, which is the nearest one in a stripped program.
pub(crate) fn is_placeholder(rest: &str, image: &str) -> bool {
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

/// Returns the words of a line with their offsets.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let base = line.as_ptr() as usize;
    line.split_whitespace().map(move |word| (word.as_ptr() as usize - base, word))
}

#[cfg(test)]
mod tests;
