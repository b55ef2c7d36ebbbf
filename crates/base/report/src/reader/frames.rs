//! Finds the frames of a file, whole or damaged.

use crate::wire::{self, FILE_PREFIX, FRAME_HEADER_LEN, FRAME_MAGIC, HeaderError, SectionKind};

/// A whole section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Kind of the section.
    pub kind: SectionKind,
    /// Version of the section's layout.
    pub version: u16,
    /// Offset of the section's frame in the file.
    pub offset: u64,
    /// The payload, in CBOR.
    pub payload: &'a [u8],
}

impl Section<'_> {
    /// Offset of the payload in the file.
    pub fn payload_offset(&self) -> u64 {
        self.offset + FRAME_HEADER_LEN as u64
    }
}

/// An event of the [`Frames`] iterator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent<'a> {
    /// A whole section with a correct checksum.
    Section(Section<'a>),
    /// Bytes that are not a whole section.
    Damage {
        /// Kind of the damaged section, if its header contains it.
        section: Option<SectionKind>,
        /// Offset of the damage.
        offset: u64,
        /// The kind of damage.
        what: String,
    },
    /// The end of the written part. Always the last event.
    End {
        /// Offset of the end: the first zero of the unused rest, or the file size.
        offset: u64,
    },
}

/// Iterator over the frames of a file.
///
/// After damage, the next frame is the one that the damaged frame's length points to, if there is
/// one; otherwise the next position with a frame's magic and a correct checksum.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Bytes that may still be checksummed in search of frames.
    ///
    /// Without this limit, a file of headers with large lengths would take time quadratic in its
    /// size.
    search_budget: usize,
    /// Start of the zeros at the end of the file.
    written: usize,
    ended: bool,
}

enum Found<'a> {
    Whole(Section<'a>, usize),
    Damaged { section: Option<SectionKind>, len: Option<usize>, what: String },
    Nothing,
}

impl<'a> Frames<'a> {
    /// Iterates over the frames in a report file's bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        let search_budget = bytes.len().saturating_mul(4).saturating_add(1 << 20);
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Frames { bytes, position: FILE_PREFIX.len().min(bytes.len()), search_budget, written, ended: false }
    }

    fn rest(&self, position: usize) -> &'a [u8] {
        self.bytes.get(position..).unwrap_or_default()
    }

    fn at(&self, position: usize) -> Found<'a> {
        let rest = self.rest(position);
        match rest.first() {
            None | Some(0) => return Found::Nothing,
            Some(_) => {}
        }
        let damaged = |section, len, what| Found::Damaged { section, len, what };
        let header = match wire::parse_header(rest) {
            Ok(header) => header,
            Err(HeaderError::Short) if FRAME_MAGIC.iter().zip(rest).all(|(magic, byte)| magic == byte) => {
                return damaged(
                    None,
                    None,
                    format!("truncated: the file ends {} bytes into a section header", rest.len()),
                );
            }
            Err(HeaderError::Short | HeaderError::NotAFrame) => {
                return damaged(None, None, "no section starts here".to_owned());
            }
            Err(HeaderError::TooLong) => {
                let what = format!("the section's size exceeds the limit of {} MiB", wire::MAX_PAYLOAD >> 20);
                return damaged(None, None, what);
            }
        };
        let Some(payload) = rest.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + header.payload_len) else {
            let there = rest.len() - FRAME_HEADER_LEN;
            let what =
                format!("truncated: the file ends {there} bytes into this section of {} bytes", header.payload_len);
            return damaged(Some(header.kind), None, what);
        };
        let len = FRAME_HEADER_LEN + header.payload_len;
        if wire::checksum(header.kind, header.version, payload) != header.checksum {
            let what = format!("wrong checksum of {} bytes", header.payload_len);
            return damaged(Some(header.kind), Some(len), what);
        }
        let section = Section { kind: header.kind, version: header.version, offset: position as u64, payload };
        Found::Whole(section, len)
    }

    /// Returns the next position of a whole frame, starting at `from`.
    fn search(&mut self, from: usize) -> Option<usize> {
        let mut position = from;
        loop {
            position += find(self.rest(position), FRAME_MAGIC)?;
            let claimed = wire::parse_header(self.rest(position)).map_or(0, |header| header.payload_len);
            self.search_budget = self.search_budget.checked_sub(claimed + FRAME_HEADER_LEN)?;
            if let Found::Whole(..) = self.at(position) {
                return Some(position);
            }
            position += 1;
        }
    }

    fn end(&mut self, offset: usize) -> FrameEvent<'a> {
        self.ended = true;
        FrameEvent::End { offset: offset as u64 }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = FrameEvent<'a>;

    fn next(&mut self) -> Option<FrameEvent<'a>> {
        if self.ended {
            return None;
        }
        let start = self.position;
        match self.at(start) {
            Found::Whole(section, len) => {
                self.position = start + len;
                Some(FrameEvent::Section(section))
            }
            Found::Nothing => {
                // The unused rest; but zeros may also be a page that the disk lost, followed by
                // sections.
                Some(match self.search(start) {
                    Some(next) => {
                        self.position = next;
                        let what = format!("{} bytes of zeros between sections", next - start);
                        FrameEvent::Damage { section: None, offset: start as u64, what }
                    }
                    None => self.end(start),
                })
            }
            Found::Damaged { section, len, what } => {
                // Trust a length that leads to something plausible: then only this frame is
                // damaged, and payload bytes that look like a frame (a copy in the process's
                // memory) are not mistaken for one.
                let after = len.map(|len| start + len);
                let after = after.filter(|after| *after >= self.written || self.rest(*after).starts_with(&FRAME_MAGIC));
                match after.or_else(|| self.search(start + 1)) {
                    Some(next) => self.position = next,
                    None => self.position = self.bytes.len(),
                }
                Some(FrameEvent::Damage { section, offset: start as u64, what })
            }
        }
    }
}

fn find(bytes: &[u8], needle: [u8; 6]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| *window == needle)
}
