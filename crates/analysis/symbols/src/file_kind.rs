//! The format and architecture of a symbol file.

use std::fmt;

/// The architecture of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Arch {
    /// 32-bit x86.
    X86,
    /// x86-64.
    X86_64,
    /// 32-bit ARM.
    Arm,
    /// 64-bit ARM, arm64e included.
    Aarch64,
    /// Any other.
    Other,
}

impl Arch {
    pub(crate) fn from_object(architecture: object::Architecture) -> Self {
        match architecture {
            object::Architecture::I386 => Self::X86,
            object::Architecture::X86_64 => Self::X86_64,
            object::Architecture::Arm => Self::Arm,
            object::Architecture::Aarch64 => Self::Aarch64,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86 => "x86",
            Self::X86_64 => "x86_64",
            Self::Arm => "arm",
            Self::Aarch64 => "arm64",
            Self::Other => "unknown processor",
        })
    }
}

/// The format of a symbol file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum FileKind {
    /// ELF: Linux and Android.
    Elf,
    /// Mach-O: Apple's systems.
    MachO,
    /// Portable Executable: Windows. Addresses are relative to the image's first byte.
    Pe,
    /// Breakpad's text format.
    Breakpad,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elf => "ELF",
            Self::MachO => "Mach-O",
            Self::Pe => "PE",
            Self::Breakpad => "breakpad symbols",
        })
    }
}
