//! Sections into the report file, each whole or not at all.

use coroner_machine::syscall::Errno;
use coroner_report::wire::{Encoder, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, seal};

use crate::os::files;

/// The buffer in which a section is made. The largest single element (a thread with its registers and frames, an image)
/// is far smaller.
pub(crate) const BUFFER: usize = 128 << 10;

/// A batch of elements ends when less than this is left in the buffer.
pub(crate) const ROOM: usize = 24 << 10;

/// A report file being written.
#[derive(Debug)]
pub(crate) struct Writer {
    file: i32,
    offset: u64,
    /// The first error of a write; what was written before it stands.
    pub error: Option<Errno>,
}

impl Writer {
    pub(crate) const fn new(file: i32) -> Self {
        Writer { file, offset: 0, error: None }
    }

    /// An encoder of the next section's payload.
    pub(crate) fn payload(buffer: &mut [u8; BUFFER]) -> Encoder<'_> {
        Encoder::new(Self::payload_bytes(buffer))
    }

    /// The bytes of the payload, for one that is encoded piece by piece.
    pub(crate) fn payload_bytes(buffer: &mut [u8; BUFFER]) -> &mut [u8] {
        buffer.get_mut(HEAD..).unwrap_or_default()
    }

    /// Writes the section whose payload of `length` bytes was encoded by [`Writer::payload`]'s encoder. False where the
    /// file could not take it.
    pub(crate) fn section(&mut self, buffer: &mut [u8; BUFFER], kind: SectionKind, length: usize) -> bool {
        let Some(framed) = buffer.get_mut(FILE_PREFIX.len()..).and_then(|tail| seal(tail, kind, length)) else {
            return false;
        };
        // The file's prefix stands before the first frame; both go in one write.
        let mut skip = FILE_PREFIX.len();
        if self.offset == 0 {
            skip = 0;
            for (to, from) in buffer.iter_mut().zip(FILE_PREFIX) {
                *to = from;
            }
        }
        let end = FILE_PREFIX.len().saturating_add(framed);
        buffer.get(skip..end).is_some_and(|bytes| self.write(bytes))
    }

    /// Appends bytes, however many writes it takes. What could not be written whole does not count: the next section is
    /// written over it.
    fn write(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let mut offset = self.offset;
        while !rest.is_empty() {
            match files::write_at(self.file, rest, offset) {
                Ok(0) => return self.fail(Errno(libc::EIO)),
                Ok(count) => {
                    offset = offset.saturating_add(count as u64);
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return self.fail(errno),
            }
        }
        self.offset = offset;
        true
    }

    fn fail(&mut self, errno: Errno) -> bool {
        self.error.get_or_insert(errno);
        false
    }

    /// Gives back the reserved bytes that were not needed.
    pub(crate) fn truncate(&self) {
        files::truncate(self.file, self.offset);
    }
}

/// Where a payload starts in the buffer: behind the file's prefix and the frame's header.
const HEAD: usize = FILE_PREFIX.len() + FRAME_HEADER_LEN;
