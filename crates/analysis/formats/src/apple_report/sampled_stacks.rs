//! Sampled stacks in Apple's reports and in the output of `sample`.
//!
//! The reports are about processor time, wakeups, disk writes (`.diag`), hangs (`.hang`) and spins
//! (`.spin`, spindump). Each line is a frame with a count; its callees follow, indented; outermost
//! first.
//!
//! ```text
//! Heaviest stack for the target process:
//!   20  start + 1 (libdyld.dylib + 109009) [0x7fff7043a9d1]
//!   20  ??? (App + 4232) [0x10b2d6088]
//!
//!   1001  start + 1 (libdyld.dylib + 109009) [0x7fff7043a9d1] 1-1001
//!     1001  ??? (App + 4232) [0x10b2d6088] 1-1001
//!      *1001  ??? (kernel + 6000) [0xffffff8000201770] (blocked) 1-1001
//!
//!     + 2719 start  (in libdyld.dylib) + 1  [0x7fff7043a9d1]
//!     +   2719 ???  (in App)  load address 0x10b2d5000 + 0x1088  [0x10b2d6088]
//! ```
//!
//! Sources: `spindump(8)`, `sample(1)`, and Apple's "Analyzing a crash report" for the meaning of
//! the addresses.

use std::ops::Range;

use coroner_symbols::SymbolFrame;

use crate::apple_report::{
    Frame, Site,
    byte_edits::Edits,
    images::{ImageLists, hexadecimal, lines},
    named_frame,
};

/// The heading of a stack whose lines are not indented, although each calls the next.
const FLAT_STACK_HEADING: &str = "Heaviest stack";

/// The characters with which a tree's lines are drawn.
const TREE_CHARACTERS: [char; 8] = [' ', '\t', '+', '!', ':', '|', '*', '\''];

/// The location at which a frame's names are inserted.
#[derive(Clone, Debug)]
pub(crate) struct SampleLine {
    /// The line up to the name.
    prefix: Range<usize>,
    name: Range<usize>,
    /// The line after the name.
    suffix: Range<usize>,
}

impl SampleLine {
    /// Writes the calls, outermost first, like the tree itself.
    pub(crate) fn name(&self, bytes: &[u8], offset: u64, calls: &[SymbolFrame], edits: &mut Edits) {
        let part = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
        let mut text = Vec::new();
        for (index, call) in calls.iter().rev().enumerate() {
            if index > 0 {
                text.extend_from_slice(part(&self.suffix));
                text.push(b'\n');
                text.extend_from_slice(part(&self.prefix));
            }
            text.extend_from_slice(named_frame::describe(call, offset).as_bytes());
        }
        edits.replace(self.name.clone(), text);
    }
}

/// The parts of a frame's line, as byte offsets.
struct Parts<'a> {
    /// The column of the count.
    indentation: usize,
    name: Range<usize>,
    /// The image's name and the frame's offset in it, if present.
    image: Option<(&'a str, u64)>,
    address: u64,
}

impl<'a> Parts<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let counted = line.trim_start_matches(TREE_CHARACTERS);
        let indentation = line.len() - counted.len();
        let named = counted.trim_start_matches(|c: char| c.is_ascii_digit());
        if named.len() == counted.len() || !named.starts_with([' ', '\t']) {
            return None;
        }
        let name_at = line.len() - named.trim_start().len();
        let bracket = line.rfind("[0x").filter(|bracket| *bracket >= name_at)?;
        // `sample` writes the addresses of several samples here.
        let addresses = line.get(bracket + 1..)?.split_once(']')?.0;
        let address = hexadecimal(addresses.split(',').next()?)?;
        let head = line.get(name_at..bracket)?.trim_end();
        let (length, image) = image_of(head);
        let name = head.get(..length)?.trim_end();
        Some(Self { indentation, name: name_at..name_at + name.len(), image, address })
    }
}

/// Returns the length of the name at the start of a line, and the image with the offset.
///
/// Lines have the form `name + 1 (App + 4232)` or `name  (in App) + 1`.
fn image_of(head: &str) -> (usize, Option<(&str, u64)>) {
    if let Some(at) = head.rfind("  (in ") {
        let offset = head.rsplit_once(" + ").filter(|_| head.contains("  load address ")).map(|parts| parts.1);
        let name = head.get(at + 6..).and_then(|rest| rest.split_once(')')).map(|parts| parts.0);
        return (at, name.zip(offset.and_then(hexadecimal)));
    }
    let Some(at) = head.rfind(" (").filter(|_| head.ends_with(')')) else { return (head.len(), None) };
    let inside = head.get(at + 2..head.len() - 1).unwrap_or_default();
    let image = inside.rsplit_once(" + ").and_then(|(name, offset)| Some((name, offset.parse().ok()?)));
    (at, image)
}

/// Returns the image in a frame's line, its load address and the frame's offset in it.
pub(crate) fn load_address_and_offset(line: &str) -> Option<(&str, u64, u64)> {
    let Parts { image, address, .. } = Parts::parse(line)?;
    let (name, offset) = image?;
    Some((name, address.checked_sub(offset)?, offset))
}

/// Returns all frames that are in an image.
pub(crate) fn frames(lists: &ImageLists, bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut is_flat = false;
    let mut lines = lines(bytes).map(|(start, line)| (start, line, Parts::parse(line))).peekable();
    while let Some((start, line, parts)) = lines.next() {
        let Some(parts) = parts else {
            is_flat = line.trim_start().starts_with(FLAT_STACK_HEADING);
            continue;
        };
        // A stack's innermost frame has an instruction's address, the others have return addresses.
        let next = lines.peek().and_then(|(_, _, next)| next.as_ref());
        let calls = next.is_some_and(|next| is_flat || next.indentation > parts.indentation);
        let Some(image) = lists.image_at(start, parts.address) else { continue };
        let Some(found) = lists.images.get(image) else { continue };
        let name = line.get(parts.name.clone()).unwrap_or_default();
        let place = |range: Range<usize>| start + range.start..start + range.end;
        frames.push(Frame {
            image,
            offset: parts.address - found.load_address,
            is_return_address: calls,
            has_name: !name.starts_with("???"),
            site: Site::Sample(SampleLine {
                prefix: place(0..parts.name.start),
                suffix: place(parts.name.end..line.len()),
                name: place(parts.name),
            }),
        });
    }
    frames
}
