//! The minidump file: a header, a directory of streams, and their contents.

use coroner_report::model::Timestamp;
use minidump_common::format::{
    MINIDUMP_DIRECTORY, MINIDUMP_HEADER, MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_MEMORY_DESCRIPTOR,
    MINIDUMP_SIGNATURE, MINIDUMP_STREAM_TYPE, MINIDUMP_VERSION,
};
use scroll::ctx::{SizeWith, TryIntoCtx};
use scroll::{Endian, LE, Pwrite};

use crate::minidump_writer::MinidumpError;

/// Alignment of parts: contexts contain 16-byte registers.
const ALIGNMENT: usize = 16;

/// A thread's contiguous stack memory.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) tid: u64,
    pub(crate) descriptor: MINIDUMP_MEMORY_DESCRIPTOR,
}

pub(crate) struct File {
    bytes: Vec<u8>,
    /// Number of streams that fit into the directory.
    room: usize,
    /// The stack memory, once it was appended: two streams refer to it.
    pub(crate) stacks: Option<Vec<Stack>>,
}

/// Returns a structure's size in the file, in bytes.
pub(crate) fn size_of<T: SizeWith<Endian>>() -> usize {
    T::size_with(&LE)
}

impl File {
    /// Creates a file with room for `streams` streams.
    pub(crate) fn new(streams: usize) -> Self {
        let directory = streams * size_of::<MINIDUMP_DIRECTORY>();
        Self { bytes: vec![0; size_of::<MINIDUMP_HEADER>() + directory], room: streams, stacks: None }
    }

    /// Appends bytes. Offsets have 32 bits; the file's size is checked once, at its end.
    pub(crate) fn append_bytes(&mut self, bytes: &[u8]) -> Location {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let location = Location { data_size: bytes.len() as u32, rva: self.bytes.len() as u32 };
        self.bytes.extend_from_slice(bytes);
        location
    }

    pub(crate) fn append<T>(&mut self, value: T) -> Result<Location, MinidumpError>
    where
        T: TryIntoCtx<Endian, Error = scroll::Error> + SizeWith<Endian>,
    {
        let mut bytes = Vec::new();
        put(&mut bytes, value)?;
        Ok(self.append_bytes(&bytes))
    }

    /// Appends a list in the format's form: the number of elements, then the elements.
    pub(crate) fn append_list<T>(&mut self, elements: Vec<T>) -> Result<Location, MinidumpError>
    where
        T: TryIntoCtx<Endian, Error = scroll::Error> + SizeWith<Endian>,
    {
        let mut bytes = (elements.len() as u32).to_le_bytes().to_vec();
        elements.into_iter().try_for_each(|element| put(&mut bytes, element))?;
        Ok(self.append_bytes(&bytes))
    }

    /// Appends a string (`MINIDUMP_STRING`): its length in bytes, then NUL-terminated UTF-16.
    /// Returns its offset.
    pub(crate) fn append_text(&mut self, text: &str) -> u32 {
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut bytes = (units.len() as u32 * 2).to_le_bytes().to_vec();
        bytes.extend(units.into_iter().chain([0]).flat_map(u16::to_le_bytes));
        self.append_bytes(&bytes).rva
    }

    pub(crate) fn finish(
        mut self,
        streams: &[(MINIDUMP_STREAM_TYPE, Location)],
        time: Timestamp,
    ) -> Result<Vec<u8>, MinidumpError> {
        if u32::try_from(self.bytes.len()).is_err() || streams.len() > self.room {
            return Err(MinidumpError::TooLarge);
        }
        let header = MINIDUMP_HEADER {
            signature: MINIDUMP_SIGNATURE,
            version: MINIDUMP_VERSION,
            stream_count: streams.len() as u32,
            stream_directory_rva: size_of::<MINIDUMP_HEADER>() as u32,
            checksum: 0,
            time_date_stamp: seconds(time),
            flags: 0,
        };
        let mut start = Vec::new();
        put(&mut start, header)?;
        for (stream, location) in streams {
            put(&mut start, MINIDUMP_DIRECTORY { stream_type: *stream as u32, location: *location })?;
        }
        self.bytes[..start.len()].copy_from_slice(&start);
        Ok(self.bytes)
    }
}

/// Converts a time to the format's: seconds since the Unix epoch in 32 bits, which overflow in
/// 2106.
pub(crate) fn seconds(time: Timestamp) -> u32 {
    u32::try_from(time.0 / 1_000_000_000).unwrap_or(u32::MAX)
}

fn put<T>(bytes: &mut Vec<u8>, value: T) -> Result<(), MinidumpError>
where
    T: TryIntoCtx<Endian, Error = scroll::Error> + SizeWith<Endian>,
{
    let start = bytes.len();
    bytes.resize(start + size_of::<T>(), 0);
    // The size comes from the type itself, so it fits.
    bytes.pwrite_with(value, start, LE).map_err(|_| MinidumpError::TooLarge)?;
    Ok(())
}
