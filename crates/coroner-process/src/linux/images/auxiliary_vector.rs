//! The auxiliary vector: what the kernel passes to a program at its start, getauxval(3).

/// The entries of the auxiliary vector that lead to the program, its dynamic linker and the vdso. 0 is "absent".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuxiliaryVector {
    /// `AT_PHDR`: address of the main program's program headers.
    pub headers: u64,
    /// `AT_PHNUM`: how many there are.
    pub header_count: u16,
    /// `AT_ENTRY`: address of the main program's first instruction.
    pub entry: u64,
    /// `AT_BASE`: where the dynamic linker is.
    pub linker: u64,
    /// `AT_SYSINFO_EHDR`: where the vdso is.
    pub vdso: u64,
    /// `AT_PAGESZ`: bytes of a page.
    pub page: u64,
}

impl AuxiliaryVector {
    /// That of this process (not async-signal-safe: it asks the C library, whose copy is readable even where
    /// `/proc/self/auxv` is not).
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
}
