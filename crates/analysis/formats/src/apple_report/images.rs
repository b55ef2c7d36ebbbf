//! The lists of images in text reports, and the lookup of an address's image.
//!
//! ```text
//! Binary Images:
//! 0x102d18000 - 0x102d23fff App arm64  <a47fbd1de98b3eed8e54afe0f7c0eea4> /var/containers/Bundle/…/App
//!        0x10b2d5000 -        0x10b2d8fff +com.example.App (1.0 - 1) <B1E…-…> /Applications/App.app/Contents/MacOS/App
//!     0x7fff2d0d1000 -                ???  com.apple.AppKit 6.9 (2022.60.126)  <2A…-…> /System/Library/…/AppKit
//! ```
//!
//! A crash report has one list, which tools for jailbroken devices split into parts (`Binary Images
//! (dpkg):`, `(App Store)`, `(Other)`). A report about several processes has one list for each,
//! after its stacks.

use std::ops::Range;

use coroner_symbols::{Arch, DebugId};

use crate::apple_report::{AppleImage, arch};

/// The start of a list's heading.
const HEADING: &str = "Binary Images";

/// All images in a report, list by list.
#[derive(Debug, Default)]
pub(crate) struct ImageLists {
    pub(crate) images: Vec<AppleImage>,
    lists: Vec<List>,
}

#[derive(Debug)]
struct List {
    /// The heading's offset in the report.
    at: usize,
    /// The indices of its images.
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
                    // Some lists have an empty line after the heading.
                    in_list = list.images.is_empty();
                } else {
                    read.images.extend(image(trimmed, process_arch));
                    list.images.end = read.images.len();
                }
            }
        }
        for list in &read.lists {
            if let Some(images) = read.images.get_mut(list.images.clone()) {
                fill_unknown_ends(images);
            }
        }
        read
    }

    /// Creates a list from the images in frames, for a report without a list.
    ///
    /// Frames contain the images' names and load addresses.
    pub(crate) fn inferred(images: Vec<AppleImage>) -> Self {
        let all = 0..images.len();
        Self { images, lists: vec![List { at: usize::MAX, images: all }] }
    }

    /// Returns the index of the image that contains a stack's address.
    ///
    /// The image is in the list after the stack, or in any other list (the kernel's images are only
    /// listed once).
    ///
    /// `at` is the stack's offset in the report.
    pub(crate) fn image_at(&self, at: usize, address: u64) -> Option<usize> {
        let own = self.lists.iter().find(|list| list.at > at).or(self.lists.last())?;
        self.find_in_list(own, address).or_else(|| self.lists.iter().find_map(|list| self.find_in_list(list, address)))
    }

    /// Returns the image with the highest start that contains the address.
    fn find_in_list(&self, list: &List, address: u64) -> Option<usize> {
        let holds = |image: &AppleImage| address >= image.load_address && address - image.load_address < image.size;
        let images = self.images.get(list.images.clone())?;
        let held = images.iter().enumerate().filter(|(_, image)| holds(image));
        Some(list.images.start + held.max_by_key(|(_, image)| image.load_address)?.0)
    }
}

/// Whether a trimmed line is the heading of a list of images.
pub(crate) fn is_heading(line: &str) -> bool {
    line.strip_prefix(HEADING).is_some_and(|rest| rest.ends_with(':') && rest.starts_with([':', ' ']))
}

/// Ends an image with an unknown end (`???`) at the start of the next one.
fn fill_unknown_ends(images: &mut [AppleImage]) {
    let mut starts: Vec<u64> = images.iter().map(|image| image.load_address).collect();
    starts.sort_unstable();
    for image in images.iter_mut().filter(|image| image.size == 0) {
        let next = starts.partition_point(|start| *start <= image.load_address);
        image.size = starts.get(next).map_or(0, |next| next - image.load_address);
    }
}

/// Parses a line of a list. The kernel's images have `*` before the address.
pub(crate) fn image(line: &str, process_arch: Arch) -> Option<AppleImage> {
    let (start, rest) = line.trim().trim_start_matches('*').split_once('-')?;
    let start = hexadecimal(start.trim())?;
    let rest = rest.trim_start();
    let (end, rest) = rest.split_once(char::is_whitespace)?;
    // `???` if the system didn't know it.
    let size = hexadecimal(end).map_or(0, |end| end.saturating_sub(start).saturating_add(1));
    // A name may contain `<`; the id is the first valid id in angle brackets.
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
    // `???` stands for all addresses without an image.
    if start == 0 && size == u64::MAX {
        return None;
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

/// Parses an id in hexadecimal, which has 16 bytes in reports.
trait FromApple: Sized {
    fn from_apple(text: &str) -> Option<Self>;
}

impl FromApple for DebugId {
    fn from_apple(text: &str) -> Option<Self> {
        text.parse().ok().filter(|id: &DebugId| id.as_bytes().len() == 16)
    }
}

/// Parses `ARM-64 (Native)`, `X86-64 (Translated)`, `ARM-64`.
fn code_type(text: &str) -> Arch {
    match text.split_whitespace().next() {
        Some("ARM-64") => Arch::Aarch64,
        Some("X86-64") => Arch::X86_64,
        Some("X86") => Arch::X86,
        Some("ARM") => Arch::Arm,
        _ => Arch::Other,
    }
}

/// Returns the lines with their offsets, without line endings.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        // A line that is not valid text is kept, but not parsed.
        Some((start, std::str::from_utf8(line).ok()?.trim_end_matches(['\n', '\r'])))
    })
}

/// Parses `0x…`, at most 16 digits.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` also accepts a sign.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests;
