//! The report file: a mapping with reserved blocks, into which sections are copied, each completely
//! or not at all.
//!
//! There is no descriptor: install maps the file and closes it, so that nothing that an app does
//! with descriptors, its working directory, its user or its limits affects what a crash writes. A
//! section is encoded in the workspace, copied after the previous one, and counts once the first
//! byte of its frame is stored, which is last (`coroner_report::wire::seal`). A process that is
//! killed in between leaves a zero there, which ends the report for a reader.
//!
//! If no disk space can be reserved at install, the report is in anonymous memory;
//! [`ReportFile::persist`] writes it to a file at the end of the session, if there is room by then.

use core::sync::atomic::AtomicU32;

use coroner_process::syscall::{Errno, Result};
use coroner_report::wire::{Encoder, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, seal};

use coroner_process::files::{self, Descriptor};
use coroner_process::memory;

/// Size in bytes of the buffer in which a section is encoded. The largest single element (a thread
/// with its registers and frames, an image) is far smaller.
pub(crate) const BUFFER: usize = 128 << 10;

/// Number of bytes of the buffer that most reports' sections use; pages of the rest are faulted in
/// when needed.
pub(crate) const BUFFER_TOUCHED: usize = 32 << 10;

/// A batch of elements ends when fewer bytes than this remain in the buffer.
pub(crate) const ROOM: usize = 24 << 10;

/// Number of a report's bytes whose pages are resident from install on.
const TOUCHED: usize = 16 << 10;

/// Offset of a payload in the buffer: after the file's prefix and the frame's header.
const HEAD: usize = FILE_PREFIX.len() + FRAME_HEADER_LEN;

/// A mapped report file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportFile {
    address: usize,
    capacity: usize,
    /// Whether it is a file on disk, and not anonymous memory.
    pub(crate) is_file: bool,
}

impl ReportFile {
    /// Maps an open file, new and empty, with `capacity` bytes of disk, and leaves
    /// the descriptor open.
    ///
    /// # Errors
    /// The kernel's error: `ENOSPC`, `EDQUOT` or `EFBIG` if the bytes are not available; `ENODEV`
    /// if the file system can't map files.
    pub(crate) fn map(file: &Descriptor, capacity: u32) -> Result<ReportFile> {
        files::reserve(file, capacity)?;
        let address = files::map_file(file, capacity as usize)?;
        Ok(ReportFile { address, capacity: capacity as usize, is_file: true })
    }

    /// No file.
    pub(crate) const NONE: ReportFile = ReportFile { address: 0, capacity: 0, is_file: false };

    /// Returns `true` if this is [`NONE`](Self::NONE).
    pub(crate) fn is_none(&self) -> bool {
        self.capacity == 0
    }

    /// Returns the file of `capacity` bytes that is mapped at `address`.
    pub(crate) fn mapped(address: usize, capacity: usize) -> ReportFile {
        ReportFile { address, capacity, is_file: true }
    }

    /// Returns `true` if this file's mapping ends at `address`.
    pub(crate) fn ends_at(&self, address: usize) -> bool {
        self.address + self.capacity == address
    }

    /// Splits off the last `length` bytes.
    pub(crate) fn split(self, length: u32) -> (ReportFile, ReportFile) {
        let capacity = self.capacity.saturating_sub(length as usize);
        let rest = ReportFile { address: self.address + capacity, capacity: self.capacity - capacity, ..self };
        (ReportFile { capacity, ..self }, rest)
    }

    /// Returns `true` if the file is mapped whole, and neither its first word nor its last one was
    /// written. The kernel reads them: the file may have been cut.
    pub(crate) fn is_unused(&self) -> bool {
        let is_zero = |at: usize| memory::is_zero((self.address + at) as u64);
        self.capacity.checked_sub(size_of::<u32>()).is_some_and(|last| is_zero(0) && is_zero(last))
    }

    /// Makes the pages that most reports write first resident before a crash (not
    /// async-signal-safe).
    pub(crate) fn touch(&self) {
        // If the disk or an older kernel refuses, a crash does it.
        let _ = files::populate(self.address, TOUCHED.min(self.capacity));
    }

    /// Creates anonymous memory in place of a file.
    pub(crate) fn in_memory(capacity: u32) -> Result<ReportFile> {
        let address = files::map_untouched(capacity as usize)?;
        Ok(ReportFile { address, capacity: capacity as usize, is_file: false })
    }

    /// Returns the last word of the mapping; `None` if there is none, or the file was cut.
    pub(crate) fn last_word(&self) -> Option<&AtomicU32> {
        let at = self.address + self.capacity.checked_sub(size_of::<AtomicU32>())?;
        // SAFETY: inside the mapping, aligned (its capacity is a multiple of the page size, or of
        // four), and shared as atomics are.
        memory::is_accessible(at as u64, true).then(|| unsafe { &*(at as *const AtomicU32) })
    }

    /// Returns the file without its last word.
    pub(crate) fn without_last_word(self) -> ReportFile {
        ReportFile { capacity: self.capacity.saturating_sub(size_of::<AtomicU32>()), ..self }
    }

    /// Unmaps the file.
    ///
    /// # Safety
    /// Nobody may use the mapping, or any copy of this value, afterwards.
    pub(crate) unsafe fn unmap(self) {
        if !self.is_none() {
            // SAFETY: by the contract.
            unsafe { files::unmap(self.address, self.capacity) };
        }
    }

    /// Writes the first `length` bytes to a file that the caller has just opened.
    ///
    /// # Errors
    /// The kernel's error; `EIO` for a write of zero bytes.
    pub(crate) fn persist(&self, file: &Descriptor, length: usize) -> Result<()> {
        let bytes = core::ptr::slice_from_raw_parts(self.address as *const u8, length.min(self.capacity));
        write_all(file, bytes)
    }
}

/// Writes all of `bytes`, which only the kernel reads, to the start of a file.
pub(crate) fn write_all(file: &Descriptor, bytes: *const [u8]) -> Result<()> {
    let mut offset = 0_usize;
    while offset < bytes.len() {
        let rest = core::ptr::slice_from_raw_parts(bytes.cast::<u8>().wrapping_add(offset), bytes.len() - offset);
        match files::write_at(file, rest, offset as u64) {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(count) => offset = offset.saturating_add(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes sections into a [`ReportFile`].
#[derive(Debug)]
pub(crate) struct ReportWriter {
    file: ReportFile,
    /// Number of bytes in complete sections.
    committed: usize,
    /// Error of the first section that didn't fit; what was written before it remains.
    pub(crate) error: Option<Errno>,
}

impl ReportWriter {
    /// Begins a report at the start of a file. What an earlier report left there is removed when
    /// the first section is written.
    ///
    /// # Safety
    /// The mapping must be this writer's alone until the writer is dropped.
    pub(crate) unsafe fn new(file: ReportFile) -> Self {
        ReportWriter { file, committed: 0, error: None }
    }

    /// Returns an encoder for the next section's payload.
    pub(crate) fn payload(buffer: &mut [u8; BUFFER]) -> Encoder<'_> {
        Encoder::new(Self::payload_bytes(buffer))
    }

    /// Returns the payload's bytes, for a payload that is encoded in parts.
    pub(crate) fn payload_bytes(buffer: &mut [u8; BUFFER]) -> &mut [u8] {
        buffer.get_mut(HEAD..).unwrap_or_default()
    }

    /// Zeros the `length` bytes that an earlier report left in the file: a section of it after a
    /// cut would be read as one of this report.
    pub(crate) fn clear(&mut self, length: usize) {
        for at in 0..length.min(self.file.capacity) {
            // SAFETY: inside the mapping, which is this writer's. Volatile: the compiler must not
            // make it a call of memset.
            unsafe { (self.file.address as *mut u8).add(at).write_volatile(0) };
        }
    }

    /// Writes the section whose payload of `length` bytes was encoded by
    /// [`ReportWriter::payload`]'s encoder. Returns `false` if the file has no room for it.
    ///
    /// A store may fault if the disk fails or the file was truncated: that ends the guarded
    /// section.
    pub(crate) fn section(&mut self, buffer: &mut [u8; BUFFER], kind: SectionKind, length: usize) -> bool {
        let Some(framed) = buffer.get_mut(FILE_PREFIX.len()..).and_then(|tail| seal(tail, kind, length)) else {
            return false;
        };
        // The file's prefix comes before the first frame.
        let mut from = FILE_PREFIX.len();
        if self.committed == 0 {
            from = 0;
            for (to, byte) in buffer.iter_mut().zip(FILE_PREFIX) {
                *to = byte;
            }
        }
        let end = FILE_PREFIX.len().saturating_add(framed);
        let Some(bytes) = buffer.get(from..end) else { return false };
        if bytes.len() > self.file.capacity.saturating_sub(self.committed) {
            self.error.get_or_insert(Errno(libc::ENOSPC));
            return false;
        }
        // SAFETY: `committed + bytes.len()` bytes fit in the mapping, which is this writer's.
        unsafe { copy_committing((self.file.address as *mut u8).add(self.committed), bytes) };
        self.committed = self.committed.saturating_add(bytes.len());
        true
    }

    /// Returns the number of bytes in complete sections so far.
    pub(crate) fn committed(&self) -> usize {
        self.committed
    }

    /// Returns the file that is being written.
    pub(crate) fn file(&self) -> ReportFile {
        self.file
    }
}

/// Copies `bytes` to `to`, the first byte last.
///
/// # Safety
/// That many bytes at `to` must be writable, and nobody else's.
unsafe fn copy_committing(to: *mut u8, bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    // SAFETY: by the contract. The two do not overlap: one is a buffer of the workspace, the other
    // the file's mapping.
    unsafe {
        core::ptr::copy_nonoverlapping(rest.as_ptr(), to.add(1), rest.len());
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        to.write_volatile(*first);
    }
}
