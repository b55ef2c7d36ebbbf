//! The lists of images in reports that are text, and the image that an address lies in.
//!
//! ```text
//! Binary Images:
//! 0x102d18000 - 0x102d23fff App arm64  <a47fbd1de98b3eed8e54afe0f7c0eea4> /var/containers/Bundle/…/App
//!        0x10b2d5000 -        0x10b2d8fff +com.example.App (1.0 - 1) <B1E…-…> /Applications/App.app/Contents/MacOS/App
//!     0x7fff2d0d1000 -                ???  com.apple.AppKit 6.9 (2022.60.126)  <2A…-…> /System/Library/…/AppKit
//! ```
//!
//! A crash report has one list, which tools for jailbroken devices write in parts (`Binary Images (dpkg):`, `(App Store)`, `(Other)`).
//! A report of several processes has one for each, below its stacks.

use std::ops::Range;

use coroner_symbols::{Arch, DebugId};

use crate::apple_report::{AppleImage, arch};

/// What a list's heading begins with.
const HEADING: &str = "Binary Images";

/// All images of a report, a list behind the other.
#[derive(Debug, Default)]
pub(crate) struct ImageLists {
    pub(crate) images: Vec<AppleImage>,
    lists: Vec<List>,
}

#[derive(Debug)]
struct List {
    /// Where in the report its heading begins.
    at: usize,
    /// Its images' places among all.
    images: Range<usize>,
}

impl ImageLists {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut read = Self::default();
        let mut process_arch = Arch::Other;
        let mut in_list = false;
        for (at, line) in lines(bytes) {
            let trimmed = line.trim();
            if let Some(code) = trimmed.strip_prefix("Code Type:") {
                process_arch = code_type(code.trim());
            } else if let Some(name) = trimmed.strip_prefix("Architecture:") {
                process_arch = arch(name.trim());
            }
            if is_heading(trimmed) {
                in_list = true;
                let here = read.images.len();
                let is_part = trimmed != "Binary Images:";
                if !is_part || read.lists.is_empty() {
                    read.lists.push(List { at, images: here..here });
                }
            } else if in_list && let Some(list) = read.lists.last_mut() {
                if trimmed.is_empty() {
                    // Some have an empty line behind the heading.
                    in_list = list.images.is_empty();
                } else {
                    read.images.extend(image(trimmed, process_arch));
                    list.images.end = read.images.len();
                }
            }
        }
        for list in &read.lists {
            if let Some(images) = read.images.get_mut(list.images.clone()) {
                end_at_the_next(images);
            }
        }
        read
    }

    /// A list by what the frames say of images, for a report that has none: each image's name and load address.
    pub(crate) fn inferred(images: Vec<AppleImage>) -> Self {
        let all = 0..images.len();
        Self { images, lists: vec![List { at: usize::MAX, images: all }] }
    }

    /// The place among all images of the one that an address of a stack lies in: one of the list that follows the stack, or of any
    /// other list if that has none (the kernel's images are listed once).
    ///
    /// `at` is where in the report the stack is.
    pub(crate) fn image_at(&self, at: usize, address: u64) -> Option<usize> {
        let own = self.lists.iter().find(|list| list.at > at).or(self.lists.last())?;
        self.held_by(own, address).or_else(|| self.lists.iter().find_map(|list| self.held_by(list, address)))
    }

    /// The image that begins last before an address that lies in it.
    fn held_by(&self, list: &List, address: u64) -> Option<usize> {
        let holds = |image: &AppleImage| address >= image.load_address && address - image.load_address < image.size;
        let images = self.images.get(list.images.clone())?;
        let held = images.iter().enumerate().filter(|(_, image)| holds(image));
        Some(list.images.start + held.max_by_key(|(_, image)| image.load_address)?.0)
    }
}

/// Whether a line, without spaces around it, is over a list of images.
pub(crate) fn is_heading(line: &str) -> bool {
    line.strip_prefix(HEADING).is_some_and(|rest| rest.ends_with(':') && rest.starts_with([':', ' ']))
}

/// An image whose end is not said (`???`) ends where the next one begins.
fn end_at_the_next(images: &mut [AppleImage]) {
    let mut starts: Vec<u64> = images.iter().map(|image| image.load_address).collect();
    starts.sort_unstable();
    for image in images.iter_mut().filter(|image| image.size == 0) {
        let next = starts.partition_point(|start| *start <= image.load_address);
        image.size = starts.get(next).map_or(0, |next| next - image.load_address);
    }
}

/// A line of a list. Images of the kernel have `*` before the address.
pub(crate) fn image(line: &str, process_arch: Arch) -> Option<AppleImage> {
    let (start, rest) = line.trim().trim_start_matches('*').split_once('-')?;
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
    let mut name = before.trim().trim_start_matches('+').trim_start();
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

/// The lines with their places, without their ends.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        // A line that is no text is kept, and says nothing.
        Some((start, std::str::from_utf8(line).ok()?.trim_end_matches(['\n', '\r'])))
    })
}

/// `0x…`, at most 16 digits.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` takes a sign, too.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests;
