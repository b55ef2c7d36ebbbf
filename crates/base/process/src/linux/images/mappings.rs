//! The kernel's list of this process's mappings, with their access rights and files.
//!
//! For addresses that are in no image, and for images whose headers are not where the dynamic
//! linker's list says.
//!
//! The caller's duties: [`Mappings::open`] outside a signal handler: using the descriptor that it
//! keeps costs a tenth of opening a new one, and works when no other descriptor is free.
//! Guarantees: only system calls; the kept descriptor is used only once it is proved to be ours and
//! this process's, and only for the kernel's current data. Limits: a lookup takes a microsecond if
//! the kernel has `PROCMAP_QUERY` (Linux 6.11, `linux/fs.h`); otherwise `/proc/self/maps` is opened
//! and read as a stream (proc_pid_maps(5)), which takes a millisecond if a thousand threads have
//! their stacks.

use crate::descriptor::OwnedDescriptor;
use crate::files::{Descriptor, File, open};
use crate::linux::syscall::{Errno, Result, syscall};
use crate::linux::threads::process_id;
use crate::mapping::{FileId, Mapping, Permissions};
use crate::process_mark::ProcessMark;

/// The kernel's suffix for the path of a file that no longer has a name.
pub const DELETED_MARK: &[u8] = b" (deleted)";

/// An open `/proc/self/maps`.
#[derive(Debug)]
pub struct Mappings {
    /// `None` if the file could not be opened: it is tried again at each use.
    descriptor: Option<OwnedDescriptor>,
    /// The process that opened it.
    process: ProcessMark,
}

impl Mappings {
    /// Opens the list (not async-signal-safe); the descriptor is kept for when no other is free.
    ///
    /// # Errors
    /// The error of open.
    pub fn open() -> Result<Mappings> {
        Self::open_by(process_id())
    }

    /// Like [`open`](Self::open), for a caller that knows the process id.
    pub fn open_by(pid: i32) -> Result<Mappings> {
        Ok(Mappings { descriptor: Some(OwnedDescriptor::adopt(open_maps()?)?), process: ProcessMark::for_caller(pid) })
    }

    /// Creates the list without opening it, if that isn't possible now (not async-signal-safe).
    pub fn unopened() -> Mappings {
        Mappings { descriptor: None, process: ProcessMark::for_caller(process_id()) }
    }

    /// Closes the list (not async-signal-safe).
    pub fn close(self) {
        if let Some(descriptor) = self.descriptor {
            descriptor.close();
        }
    }

    /// Returns the mapping that contains `address`.
    pub fn at(&self, address: u64) -> Result<Option<Mapping>> {
        Ok(self.at_or_after(address)?.filter(|mapping| mapping.contains(address)))
    }

    /// Returns the mapping that contains `address`, else the first one above it.
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>> {
        self.look_up(address, &mut []).map(|found| found.map(|(mapping, _)| mapping))
    }

    /// Writes the path of the file that is mapped at `address` into `into`, as far as it fits.
    ///
    /// Returns the bytes written, none if no file is mapped there. The kernel appends
    /// [`DELETED_MARK`] to the path of a deleted file.
    pub fn path_at<'p>(&self, address: u64, into: &'p mut [u8]) -> Result<&'p [u8]> {
        let found = self.look_up(address, into)?;
        let length = found.filter(|(mapping, _)| mapping.contains(address)).map_or(0, |(_, length)| length);
        Ok(path(into.get(..length).unwrap_or(&[])))
    }

    /// Calls `each` with the mappings around an address, in ascending order.
    ///
    /// This is the one that contains the address. If there is none, or it allows no access, the
    /// nearest ones below and above are included. Each comes with its name, as far as that fits
    /// into `name` (a path; the kernel's name, such as `[heap]`; or empty).
    pub fn around(&self, address: u64, name: &mut [u8], mut each: impl FnMut(&Mapping, &[u8])) {
        let Ok(found) = self.at_or_after(address) else { return };
        let at = found.filter(|mapping| mapping.contains(address));
        let is_whole = at.is_some_and(|mapping| !mapping.permissions.is_guard());
        let below = if is_whole { None } else { self.below(found.map_or(address, |found| found.start.min(address))) };
        let above = match at {
            Some(_) if is_whole => None,
            Some(guard) => self.at_or_after(guard.end).unwrap_or_default(),
            None => found,
        };
        for start in [below, at, above].into_iter().flatten().map(|mapping| mapping.start) {
            if let Ok(Some((mapping, length))) = self.look_up(start, name) {
                each(&mapping, name.get(..length).unwrap_or(&[]));
            }
        }
    }

    /// Returns the last mapping that ends at or before an address.
    ///
    /// Reads the list, since the kernel can only be asked for the next mapping; but not if nothing
    /// is mapped below, as for a null pointer.
    fn below(&self, address: u64) -> Option<Mapping> {
        if self.at_or_after(0).ok()??.end > address {
            return None;
        }
        let mut found = None;
        let read = self.ask(|list| {
            each_line(list, &mut [], |line| {
                let is_below = line.mapping.end <= address;
                if is_below {
                    found = Some(line.mapping);
                }
                !is_below
            })
        });
        read.ok()?;
        found
    }

    /// Calls `each` with up to four mappings that contain an address one bit away from `address`.
    ///
    /// The address may have been one of these before memory failed. In ascending order, each with
    /// its name as in [`around`](Self::around). Bits below the 25th lead to memory nearby and are
    /// not tried.
    pub fn one_bit_away(&self, address: u64, name: &mut [u8], mut each: impl FnMut(&Mapping, &[u8])) {
        let Ok(descriptor) = open_maps() else { return };
        let mut starts = [0; 4];
        let mut free = starts.iter_mut();
        let read = each_line(&descriptor, &mut [], |line| {
            let is_one_away = (24..64).any(|bit| line.mapping.contains(address ^ 1 << bit));
            let is_good = line.mapping.permissions.read && is_one_away && !line.mapping.contains(address);
            if is_good && let Some(start) = free.next() {
                *start = line.mapping.start;
            }
            free.len() == 0
        });
        drop(descriptor);
        if read.is_err() {
            return;
        }
        for start in starts.into_iter().filter(|start| *start != 0) {
            if let Ok(Some((mapping, length))) = self.look_up(start, name) {
                each(&mapping, name.get(..length).unwrap_or(&[]));
            }
        }
    }

    fn look_up(&self, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
        if let Some(kept) = self.kept()
            && let Ok(found) = query(kept, address, path)
        {
            return Ok(found);
        }
        self.ask(|list| look_up(list, address, path))
    }

    /// Returns the kept descriptor, if it is still valid.
    ///
    /// `None` if it is the parent's, or was closed by the app and is now something else.
    fn kept(&self) -> Option<&Descriptor> {
        self.descriptor.as_ref().filter(|_| self.process.is_caller(process_id()))?.verified()
    }

    /// Opens the list for some queries.
    fn ask<R>(&self, questions: impl FnOnce(&Descriptor) -> Result<R>) -> Result<R> {
        // A fresh descriptor first: under qemu-user the kept one is a snapshot from when it was
        // opened.
        match open_maps() {
            Ok(fresh) => questions(&fresh),
            Err(error) => questions(self.kept().ok_or(error)?),
        }
    }
}

/// Returns the mapping that contains `address`, else the first one above it.
///
/// With the length of its name in `path`.
fn look_up(list: &Descriptor, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
    match query(list, address, path) {
        // ENOTTY: a kernel before 6.11, or an emulation of a kernel. ENAMETOOLONG: the path buffer
        // is too short.
        Err(Errno(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::ENAMETOOLONG | libc::EPERM)) => {
            read_until(list, address, path)
        }
        found => found,
    }
}

/// `struct procmap_query` of `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    search: u64,
    address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// Asks the kernel for the mapping at or after `address`.
fn query(descriptor: &Descriptor, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 0x11;
    const COVERING_OR_NEXT: u64 = 0x10;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        search: COVERING_OR_NEXT,
        address,
        name_size: path.len() as u32,
        name: if path.is_empty() { 0 } else { path.as_mut_ptr() as u64 },
        ..Query::default()
    };
    // SAFETY: the kernel writes one `Query`, and at most `name_size` bytes at `name`.
    // Async-signal-safe: one system call.
    match unsafe { syscall!(libc::SYS_ioctl, descriptor.number(), PROCMAP_QUERY, &raw mut query) } {
        Ok(_) => {}
        Err(Errno(libc::ENOENT)) => return Ok(None),
        Err(error) => return Err(error),
    }
    let permissions = Permissions {
        read: query.flags & 1 != 0,
        write: query.flags & 2 != 0,
        execute: query.flags & 4 != 0,
        shared: query.flags & 8 != 0,
    };
    let device = u64::from(query.device[0]) << 24 | u64::from(query.device[1]);
    let file = FileId { device, inode: query.inode };
    let mapping = Mapping { start: query.start, end: query.end, permissions, file_offset: query.offset, file };
    // The name's size includes its NUL; 0 means that there is no name.
    Ok(Some((mapping, (query.name_size as usize).saturating_sub(1).min(path.len()))))
}

/// Returns the name of a mapping if it is a path, else nothing.
fn path(name: &[u8]) -> &[u8] {
    if name.first() == Some(&b'/') { name } else { &[] }
}

/// Returns the starts of the readable mappings of the file that is mapped at `address`.
///
/// In ascending order, up to that mapping: those without a mapping of another file in between, and
/// the last ones that fit. Empty if no file is mapped there. Reads `/proc/self/maps`.
pub(super) fn starts_of_file_at(address: u64, into: &mut [u64]) -> Result<&[u64]> {
    let descriptor = open_maps()?;
    let (mut file, mut count) = (FileId::default(), 0_usize);
    let found = each_line(&descriptor, &mut [], |line| {
        if line.mapping.file.is_file() && line.mapping.permissions.read {
            if file != line.mapping.file {
                (file, count) = (line.mapping.file, 0);
            }
            if count == into.len() {
                // Drops the first.
                let mut next = None;
                for start in into.iter_mut().rev() {
                    next = Some(core::mem::replace(start, next.unwrap_or(0)));
                }
                count = count.saturating_sub(1);
            }
            if let Some(to) = into.get_mut(count) {
                *to = line.mapping.start;
                count = count.saturating_add(1);
            }
        }
        line.mapping.end > address
    });
    drop(descriptor);
    let is_there = found?.is_some_and(|line| line.mapping.contains(address) && file == line.mapping.file);
    Ok(into.get(..if is_there { count } else { 0 }).unwrap_or(&[]))
}

/// Reads `/proc/self/maps` up to the mapping at or after `address`.
fn read_until(descriptor: &Descriptor, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
    let found = each_line(descriptor, path, |line| line.mapping.end > address)?;
    Ok(found.map(|line| (line.mapping, line.name)))
}

/// Reads lines of `/proc/self/maps` up to the one for which `is_last` returns true.
///
/// Returns that line; its name is in `path`.
fn each_line(descriptor: &Descriptor, path: &mut [u8], mut is_last: impl FnMut(&Line) -> bool) -> Result<Option<Line>> {
    let mut buffer = [0; 1024];
    let mut offset = 0_usize;
    let mut line = Line::default();
    loop {
        let into = buffer.as_mut_ptr();
        // SAFETY: the kernel writes at most the buffer's length into it. Async-signal-safe: one
        // system call.
        let read = unsafe { syscall!(libc::SYS_pread64, descriptor.number(), into, buffer.len(), offset) };
        let filled = match read {
            Ok(0) => return Ok(None),
            Ok(filled) => filled,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        for byte in buffer.get(..filled).unwrap_or(&[]) {
            if line.take(*byte, path) {
                if is_last(&line) {
                    return Ok(Some(line));
                }
                line = Line::default();
            }
        }
        offset = offset.saturating_add(filled);
    }
}

/// Calls `each` with the mappings in a text like `/proc/self/maps`.
///
/// Each comes with its path, as far as that fits into `path`.
pub fn each_of_text(text: &[u8], path: &mut [u8], mut each: impl FnMut(&Mapping, &[u8])) {
    let mut line = Line::default();
    for byte in text {
        if line.take(*byte, path) {
            each(&line.mapping, self::path(path.get(..line.name).unwrap_or(&[])));
            line = Line::default();
        }
    }
}

/// A line of `/proc/self/maps` during parsing: `start-end perms offset device inode name`.
#[derive(Default)]
struct Line {
    mapping: Mapping,
    field: u8,
    /// The major device number, shifted into place.
    major: u64,
    /// Position in the permissions field.
    place: u8,
    /// Number of bytes of the name that were written.
    name: usize,
    /// Whether the last field has begun: a path, or a name such as `[stack]` or `[anon:…]`.
    is_name: bool,
}

impl Line {
    /// Parses one byte; returns true at the end of the line.
    fn take(&mut self, byte: u8, name: &mut [u8]) -> bool {
        if byte == b'\n' {
            return true;
        }
        match (self.field, byte) {
            (0, b'-') => self.field = 1,
            (1..=5, b' ') => {
                if self.field == 4 {
                    self.mapping.file.device |= self.major;
                }
                self.field = self.field.saturating_add(1);
            }
            (0, digit) => push_digit(&mut self.mapping.start, digit),
            (1, digit) => push_digit(&mut self.mapping.end, digit),
            (2, letter) => {
                let permissions = &mut self.mapping.permissions;
                match (self.place, letter) {
                    (0, b'r') => permissions.read = true,
                    (1, b'w') => permissions.write = true,
                    (2, b'x') => permissions.execute = true,
                    (3, b's') => permissions.shared = true,
                    _ => {}
                }
                self.place = self.place.saturating_add(1);
            }
            (3, digit) => push_digit(&mut self.mapping.file_offset, digit),
            (4, b':') => {
                self.major = self.mapping.file.device << 24;
                self.mapping.file.device = 0;
            }
            (4, digit) => push_digit(&mut self.mapping.file.device, digit),
            (5, digit) => {
                let inode = &mut self.mapping.file.inode;
                *inode = inode.wrapping_mul(10).wrapping_add(u64::from(digit & 0xf));
            }
            // The inode is followed by spaces for alignment, and then the name, which may contain
            // spaces.
            (_, b' ') if !self.is_name => {}
            _ => {
                self.is_name = true;
                if let Some(to) = name.get_mut(self.name) {
                    *to = byte;
                    self.name = self.name.saturating_add(1);
                }
            }
        }
        false
    }
}

fn push_digit(number: &mut u64, digit: u8) {
    let value = match digit {
        b'0'..=b'9' => digit & 0xf,
        b'a'..=b'f' => (digit & 0xf).wrapping_add(9),
        _ => return,
    };
    *number = *number << 4 | u64::from(value);
}

fn open_maps() -> Result<File> {
    open(Descriptor::WORKING_DIRECTORY, c"/proc/self/maps", libc::O_RDONLY, 0)
}

#[cfg(test)]
mod tests;
