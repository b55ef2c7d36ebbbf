//! The kernel's list of this process's mappings: which one an address lies in, what may be done there, which file it is.
//!
//! One address is asked of the kernel directly where it knows `PROCMAP_QUERY` (Linux 6.11, `linux/fs.h`), which costs a
//! microsecond; else `/proc/self/maps` is read as a stream (proc_pid_maps(5)), which costs a millisecond where a thousand
//! threads have their stacks. So this is for addresses that no image holds, and not for every frame.

use crate::linux::syscall::{Errno, Result, syscall};
use crate::linux::threads::process_id;

/// What may be done with a mapping's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
    /// It is shared (`MAP_SHARED`) with other processes.
    pub shared: bool,
}

impl Permissions {
    /// No access at all, as a stack's guard page has.
    pub fn is_guard(self) -> bool {
        !(self.read || self.write || self.execute)
    }
}

/// One mapping of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// Address behind its last byte.
    pub end: u64,
    /// What may be done with its memory.
    pub permissions: Permissions,
    /// Where in its file it starts, in bytes; 0 without a file.
    pub file_offset: u64,
}

impl Mapping {
    /// Whether an address is in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// An open `/proc/self/maps`.
#[derive(Debug)]
pub struct Mappings {
    descriptor: i32,
    pid: i32,
}

impl Mappings {
    /// Opens it (normal life); it is kept for when no descriptor is free.
    ///
    /// # Errors
    /// What open answered.
    pub fn open() -> Result<Mappings> {
        Ok(Mappings { descriptor: open_maps()?, pid: process_id() })
    }

    /// The kept descriptor, so that it can be told from the app's own.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Closes it (normal life).
    pub fn close(self) {
        close(self.descriptor);
    }

    /// The mapping that holds `address`.
    ///
    /// # Errors
    /// What open, ioctl or read answered.
    pub fn at(&self, address: u64) -> Result<Option<Mapping>> {
        Ok(self.at_or_after(address)?.filter(|mapping| mapping.contains(address)))
    }

    /// The mapping that holds `address`, else the first one above it.
    ///
    /// # Errors
    /// What open, ioctl or read answered.
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>> {
        self.look_up(address, &mut []).map(|found| found.map(|(mapping, _)| mapping))
    }

    /// Writes the path of the file that is mapped at `address` into `into`, as far as it fits; answers its bytes there,
    /// none if nothing or no file is mapped there. The kernel appends ` (deleted)` to the path of a deleted file.
    ///
    /// # Errors
    /// What open, ioctl or read answered.
    pub fn path_at<'p>(&self, address: u64, into: &'p mut [u8]) -> Result<&'p [u8]> {
        let found = self.look_up(address, into)?;
        let length = found.filter(|(mapping, _)| mapping.contains(address)).map_or(0, |(_, length)| length);
        Ok(into.get(..length).unwrap_or(&[]))
    }

    fn look_up(&self, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
        // A fresh descriptor first: the kept one may be the parent's, or closed by the app and something else by now.
        // (And under qemu-user it is a snapshot of the moment of its opening.)
        let (descriptor, fresh) = match open_maps() {
            Ok(descriptor) => (descriptor, true),
            Err(error) if self.pid != process_id() => return Err(error),
            Err(_) => (self.descriptor, false),
        };
        let answer = match query(descriptor, address, path) {
            // ENOTTY: a kernel before 6.11, or something that is not a kernel. ENAMETOOLONG: the path buffer is short.
            Err(Errno(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::ENAMETOOLONG | libc::EPERM)) => {
                read_until(descriptor, address, path)
            }
            answer => answer,
        };
        if fresh {
            close(descriptor);
        }
        answer
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
fn query(descriptor: i32, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
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
    // SAFETY: the kernel writes one `Query`, and at most `name_size` bytes at `name`. Async-signal-safe: one system call.
    match unsafe { syscall!(libc::SYS_ioctl, descriptor, PROCMAP_QUERY, &raw mut query) } {
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
    let mapping = Mapping { start: query.start, end: query.end, permissions, file_offset: query.offset };
    // The name's size counts its NUL; 0 is "no name".
    let length = (query.name_size as usize).saturating_sub(1).min(path.len());
    let is_file = path.first() == Some(&b'/');
    Ok(Some((mapping, if is_file { length } else { 0 })))
}

/// Reads `/proc/self/maps` up to the mapping at or after `address`.
fn read_until(descriptor: i32, address: u64, path: &mut [u8]) -> Result<Option<(Mapping, usize)>> {
    let mut buffer = [0; 1024];
    let mut offset = 0_usize;
    let mut line = Line::default();
    loop {
        let into = buffer.as_mut_ptr();
        // SAFETY: the kernel writes at most the buffer's length into it. Async-signal-safe: one system call.
        let read = unsafe { syscall!(libc::SYS_pread64, descriptor, into, buffer.len(), offset) };
        let filled = match read {
            Ok(0) => return Ok(None),
            Ok(filled) => filled,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        for byte in buffer.get(..filled).unwrap_or(&[]) {
            if line.take(*byte, path) {
                if line.mapping.end > address {
                    return Ok(Some((line.mapping, line.path)));
                }
                line = Line::default();
            }
        }
        offset = offset.saturating_add(filled);
    }
}

/// A line of `/proc/self/maps` as its bytes come: `start-end perms offset device inode path`.
#[derive(Default)]
struct Line {
    mapping: Mapping,
    field: u8,
    /// Place in the field of permissions.
    place: u8,
    /// Bytes of the path that were written.
    path: usize,
    /// The last field has begun, and is a path.
    is_path: bool,
    /// The last field has begun, and is a name such as `[stack]` or `[anon:…]`.
    is_name: bool,
}

impl Line {
    /// Takes one byte; true at the end of the line.
    fn take(&mut self, byte: u8, path: &mut [u8]) -> bool {
        if byte == b'\n' {
            return true;
        }
        match (self.field, byte) {
            (0, b'-') => self.field = 1,
            // Behind the inode stand spaces, as many as it takes to align, and then the path, which may hold spaces.
            (5, b' ') if !self.is_path => {}
            (1..=4, b' ') => self.field = self.field.saturating_add(1),
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
            // The device and the inode.
            (4, _) => {}
            _ => self.take_path(byte, path),
        }
        false
    }

    fn take_path(&mut self, byte: u8, path: &mut [u8]) {
        // The inode's digits share field 5 with what follows them, which begins with one of these.
        match byte {
            b'/' if !self.is_name => self.is_path = true,
            b'[' if !self.is_path => self.is_name = true,
            _ => {}
        }
        if self.is_path
            && let Some(to) = path.get_mut(self.path)
        {
            *to = byte;
            self.path = self.path.saturating_add(1);
        }
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

fn open_maps() -> Result<i32> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated constant. Async-signal-safe: one system call.
    let opened = unsafe { syscall!(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/maps".as_ptr(), flags) };
    opened.map(|descriptor| descriptor as i32)
}

fn close(descriptor: i32) {
    // SAFETY: the descriptor is one that this file opened. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_close, descriptor) };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn parse<'p>(text: &[u8], path: &'p mut [u8]) -> (Mapping, &'p [u8]) {
        let mut line = Line::default();
        for byte in text {
            assert!(!line.take(*byte, path));
        }
        assert!(line.take(b'\n', path));
        (line.mapping, &path[..line.path])
    }

    #[test]
    fn lines_of_the_maps_file() {
        let mut path = [0; 64];
        let text = b"7f3a00001000-7f3a00022000 r-xp 00001000 fe:01 137847                     /usr/lib/a b (deleted)";
        let (mapping, path) = parse(text, &mut path);
        assert_eq!((mapping.start, mapping.end, mapping.file_offset), (0x7f3a_0000_1000, 0x7f3a_0002_2000, 0x1000));
        let permissions = mapping.permissions;
        assert!(permissions.read && !permissions.write && permissions.execute && !permissions.shared);
        assert_eq!(path, b"/usr/lib/a b (deleted)");

        let mut path = [0; 64];
        let (mapping, path) = parse(b"7ffd0-7ffd1 ---s 00000000 00:00 0                          [anon:/x]", &mut path);
        assert!(mapping.permissions.is_guard() && mapping.permissions.shared);
        assert_eq!(path, b"");
        let mut path = [0; 4];
        assert_eq!(parse(b"1000-2000 rw-p 0 00:00 12 /longer", &mut path).1, b"/lon");
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let mappings = Mappings::open().unwrap();
        let here = lines_of_the_maps_file as *const () as u64;
        let local = 0_u64;
        for address in [here, &raw const local as u64, 0, 1 << 46] {
            let (mut asked, mut read) = ([0; 512], [0; 512]);
            let streamed = read_until(mappings.descriptor, address, &mut read).unwrap();
            assert_eq!(mappings.look_up(address, &mut asked).unwrap(), streamed);
            let length = streamed.map_or(0, |(_, length)| length);
            assert_eq!(asked[..length], read[..length]);
            let found = mappings.at(address).unwrap();
            assert_eq!(found.is_some(), streamed.is_some_and(|(mapping, _)| mapping.contains(address)));
        }
        assert!(mappings.at(here).unwrap().unwrap().permissions.execute);
        let mut path = [0; 512];
        let path = mappings.path_at(here, &mut path).unwrap();
        assert_eq!(path, std::env::current_exe().unwrap().as_os_str().as_encoded_bytes());
        assert_eq!(mappings.at(0), Ok(None), "nothing is mapped at null");
        mappings.close();
    }
}
