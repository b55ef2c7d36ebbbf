//! The parts of a Mach-O file that loading needs.
//!
//! Layouts and numbers: <mach-o/loader.h>, <mach-o/nlist.h>.

use std::{fs, path::Path};

pub(crate) const MH_MAGIC_64: u32 = 0xfeed_facf;
pub(crate) const MH_EXECUTE: u32 = 2;
pub(crate) const MH_DYLIB: u32 = 6;
pub(crate) const MH_BUNDLE: u32 = 8;
pub(crate) const CPU_TYPE: u32 = if cfg!(target_arch = "aarch64") { 0x0100_000c } else { 0x0100_0007 };

const LC_REQ_DYLD: u32 = 0x8000_0000;
const LC_SYMTAB: u32 = 0x2;
const LC_SEGMENT_64: u32 = 0x19;
const LC_LOAD_DYLIB: u32 = 0xc;
const LC_LOAD_WEAK_DYLIB: u32 = 0x18 | LC_REQ_DYLD;
const LC_REEXPORT_DYLIB: u32 = 0x1f | LC_REQ_DYLD;
const LC_DYLD_INFO: u32 = 0x22;
const LC_DYLD_INFO_ONLY: u32 = 0x22 | LC_REQ_DYLD;
const LC_MAIN: u32 = 0x28 | LC_REQ_DYLD;
const LC_DYLD_CHAINED_FIXUPS: u32 = 0x34 | LC_REQ_DYLD;

/// Section types, the low byte of a section's flags.
pub(crate) const S_MOD_INIT_FUNC_POINTERS: u32 = 0x9;
pub(crate) const S_THREAD_LOCAL_REGULAR: u32 = 0x11;
pub(crate) const S_THREAD_LOCAL_ZEROFILL: u32 = 0x12;
pub(crate) const S_THREAD_LOCAL_VARIABLES: u32 = 0x13;
pub(crate) const S_INIT_FUNC_OFFSETS: u32 = 0x16;

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) file_offset: u64,
    pub(crate) file_size: u64,
    pub(crate) protection: i32,
    /// SG_READ_ONLY: made read-only after fixups.
    pub(crate) read_only_after_fixups: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) segment: String,
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) kind: u32,
}

/// A range of the file.
pub(crate) type FileRange = (usize, usize);

/// A parsed file: the contents of its load commands.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    /// The file type, such as MH_EXECUTE.
    pub(crate) kind: u32,
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    /// The offset of `main` in `__TEXT`.
    pub(crate) entry: Option<u64>,
    /// Paths of the required dylibs, in the order of their ordinals.
    pub(crate) dylibs: Vec<String>,
    /// symoff, nsyms, stroff, strsize.
    pub(crate) symbols: Option<[u32; 4]>,
    pub(crate) rebase: FileRange,
    /// Ordinary, weak and lazy binds.
    pub(crate) binds: [FileRange; 3],
    pub(crate) chained: Option<FileRange>,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Returns the zero-terminated string at `at`.
pub(crate) fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).ok()
}

fn name16(bytes: &[u8], at: usize) -> Option<String> {
    let name = bytes.get(at..at + 16)?;
    text_at(name, 0).map(str::to_owned)
}

/// Whether the file starts like a Mach-O file (thin or fat).
pub(crate) fn is_macho(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    fs::File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
        && matches!(u32::from_le_bytes(magic), MH_MAGIC_64 | 0xbeba_feca | 0xcafe_babe)
}

impl File {
    /// Reads and parses a file; from a fat one, the slice for this architecture.
    ///
    /// # Errors
    /// A description of the problem, as a sentence, if the file can't be read or is invalid.
    pub(crate) fn read(path: &Path) -> Result<File, String> {
        let mut bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        if bytes.get(..4) == Some(&[0xca, 0xfe, 0xba, 0xbe]) {
            bytes = fat_slice(&bytes).ok_or_else(|| format!("{}: no slice for this CPU", path.display()))?;
        }
        if u32_at(&bytes, 0) != Some(MH_MAGIC_64) {
            return Err(format!("{}: not a 64-bit Mach-O file", path.display()));
        }
        if u32_at(&bytes, 4) != Some(CPU_TYPE) {
            return Err(format!("{}: built for another CPU than this darwin-host", path.display()));
        }
        Self::parse(bytes).ok_or_else(|| format!("{}: a load command is cut off or malformed", path.display()))
    }

    fn parse(bytes: Vec<u8>) -> Option<File> {
        let count = u32_at(&bytes, 16)?;
        let mut file = File {
            kind: u32_at(&bytes, 12)?,
            segments: Vec::new(),
            sections: Vec::new(),
            entry: None,
            dylibs: Vec::new(),
            symbols: None,
            rebase: (0, 0),
            binds: [(0, 0); 3],
            chained: None,
            bytes,
        };
        let mut at = 32;
        for _ in 0..count {
            let bytes = &file.bytes;
            let (command, size) = (u32_at(bytes, at)?, u32_at(bytes, at + 4)? as usize);
            let range =
                |offset: usize| Some((u32_at(bytes, at + offset)? as usize, u32_at(bytes, at + offset + 4)? as usize));
            match command {
                LC_SEGMENT_64 => {
                    let segment = Segment {
                        name: name16(bytes, at + 8)?,
                        address: u64_at(bytes, at + 24)?,
                        size: u64_at(bytes, at + 32)?,
                        file_offset: u64_at(bytes, at + 40)?,
                        file_size: u64_at(bytes, at + 48)?,
                        protection: u32_at(bytes, at + 60)? as i32,
                        read_only_after_fixups: u32_at(bytes, at + 68)? & 0x10 != 0,
                    };
                    for index in 0..u32_at(bytes, at + 64)? as usize {
                        let s = at + 72 + index * 80;
                        file.sections.push(Section {
                            name: name16(bytes, s)?,
                            segment: name16(bytes, s + 16)?,
                            address: u64_at(bytes, s + 32)?,
                            size: u64_at(bytes, s + 40)?,
                            kind: u32_at(bytes, s + 64)? & 0xff,
                        });
                    }
                    file.segments.push(segment);
                }
                LC_MAIN => file.entry = Some(u64_at(bytes, at + 8)?),
                LC_LOAD_DYLIB | LC_LOAD_WEAK_DYLIB | LC_REEXPORT_DYLIB => {
                    let name = at + u32_at(bytes, at + 8)? as usize;
                    file.dylibs.push(text_at(bytes, name)?.to_owned());
                }
                LC_SYMTAB => {
                    file.symbols = Some([
                        u32_at(bytes, at + 8)?,
                        u32_at(bytes, at + 12)?,
                        u32_at(bytes, at + 16)?,
                        u32_at(bytes, at + 20)?,
                    ]);
                }
                LC_DYLD_INFO | LC_DYLD_INFO_ONLY => {
                    file.rebase = range(8)?;
                    file.binds = [range(16)?, range(24)?, range(32)?];
                }
                LC_DYLD_CHAINED_FIXUPS => file.chained = Some(range(8)?),
                _ => {}
            }
            at += size.max(8);
        }
        Some(file)
    }
}

/// Returns a fat file's slice for this CPU (<mach-o/fat.h>; big-endian).
fn fat_slice(bytes: &[u8]) -> Option<Vec<u8>> {
    let big = |at: usize| u32_at(bytes, at).map(u32::swap_bytes);
    for index in 0..big(4)? as usize {
        let at = 8 + index * 20;
        if big(at)? == CPU_TYPE {
            let (offset, size) = (big(at + 8)? as usize, big(at + 12)? as usize);
            return bytes.get(offset..offset + size).map(<[u8]>::to_vec);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_a_program_is_an_error() {
        let own = std::env::current_exe().expect("a path");
        let error = File::read(&own).expect_err("an ELF file");
        assert!(error.contains("not a 64-bit Mach-O file"), "{error}");
        let mut header = vec![0; 32];
        header[..4].copy_from_slice(&MH_MAGIC_64.to_le_bytes());
        header[16] = 3; // commands that are not there
        assert!(File::parse(header).is_none());
    }
}
