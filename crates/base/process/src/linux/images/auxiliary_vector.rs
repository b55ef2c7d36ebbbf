//! The auxiliary vector, which the kernel passes to a program at its start: getauxval(3).

use core::ffi::CStr;

use crate::elf::FileHeader;
use crate::files;

/// The auxiliary vector entries for the program, its dynamic linker and the vDSO. 0 means absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuxiliaryVector {
    /// `AT_PHDR`: address of the main program's program headers.
    pub headers: u64,
    /// `AT_PHNUM`: number of program headers.
    pub header_count: u16,
    /// `AT_ENTRY`: address of the main program's first instruction.
    pub entry: u64,
    /// `AT_BASE`: address of the dynamic linker.
    pub linker: u64,
    /// `AT_SYSINFO_EHDR`: address of the vDSO.
    pub vdso: u64,
    /// `AT_PAGESZ`: page size in bytes.
    pub page: u64,
}

impl AuxiliaryVector {
    /// Returns the vector of this process (not async-signal-safe).
    ///
    /// It calls the C library, whose copy is readable even if `/proc/self/auxv` is not.
    pub fn of_this_process() -> AuxiliaryVector {
        // SAFETY: getauxval reads a table that the C library set up before `main`.
        let get = |entry| unsafe { libc::getauxval(entry) };
        AuxiliaryVector {
            headers: get(libc::AT_PHDR),
            header_count: get(libc::AT_PHNUM) as u16,
            entry: get(libc::AT_ENTRY),
            linker: get(libc::AT_BASE),
            vdso: get(libc::AT_SYSINFO_EHDR),
            page: get(libc::AT_PAGESZ),
        }
    }

    /// Whether the file at `path` is the program that this vector describes.
    ///
    /// Its entry point's page offset and its number of program headers must be the same.
    pub(crate) fn is_of(&self, path: &CStr) -> bool {
        let Ok(file) = files::open(files::Descriptor::WORKING_DIRECTORY, path, libc::O_RDONLY | libc::O_NONBLOCK, 0)
        else {
            return false;
        };
        let mut bytes = [0; FileHeader::SIZE];
        let read = files::read_at(&file, &mut bytes, 0);
        // A file's addresses and those of its image differ by whole pages.
        let is_begin = |entry: u64| self.entry.wrapping_sub(entry).is_multiple_of(4096);
        read == Ok(bytes.len())
            && FileHeader::parse(&bytes)
                .is_some_and(|header| is_begin(header.entry) && header.header_count == self.header_count)
    }
}
