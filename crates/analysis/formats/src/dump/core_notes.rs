//! The notes in a core dump: threads, signal, files, auxiliary vector.
//!
//! Sources: Linux `include/uapi/linux/elfcore.h` (`elf_prstatus`, `elf_prpsinfo`),
//! `fs/binfmt_elf.c` (`NT_FILE`, `NT_SIGINFO`), `arch/x86/include/asm/user_64.h` and
//! `arch/arm64/include/uapi/asm/ptrace.h` (the registers), `include/uapi/linux/auxvec.h`.

use coroner_process::registers::Arch;
use coroner_report::model::Registers;

use crate::snapshot::elf_images::MappedFile;
use crate::snapshot::registers;
use crate::snapshot::user_regs::{general_registers, half, system_call, word};

pub(crate) const NT_PRSTATUS: u32 = 1;
pub(crate) const NT_PRPSINFO: u32 = 3;
pub(crate) const NT_AUXV: u32 = 6;
pub(crate) const NT_FILE: u32 = 0x4649_4c45;
pub(crate) const NT_SIGINFO: u32 = 0x5349_4749;

/// Offsets of a thread's id and registers in `elf_prstatus`.
const PR_PID: usize = 32;
const PR_REG: usize = 112;

/// A thread.
#[derive(Debug)]
pub(crate) struct CoreThread {
    pub(crate) tid: u32,
    /// The signal, for the crashed thread.
    pub(crate) signal: i16,
    pub(crate) registers: Registers,
    /// The system call that the thread was in, if known.
    pub(crate) system_call: Option<i64>,
}

/// Parses `NT_PRSTATUS`.
pub(crate) fn thread(desc: &[u8], arch: Arch) -> Option<CoreThread> {
    let user_regs = desc.get(PR_REG..)?;
    let general = general_registers(user_regs, arch);
    let signal = i16::from_le_bytes(*desc.get(12..)?.first_chunk()?);
    let system_call = system_call(user_regs, arch);
    Some(CoreThread { tid: half(desc, PR_PID)?, signal, registers: registers(arch, general?), system_call })
}

/// `NT_PRPSINFO`.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) ppid: u32,
    /// The process's name, up to 15 bytes.
    pub(crate) name: String,
}

pub(crate) fn process(desc: &[u8]) -> Option<Process> {
    let text = |from: usize, length: usize| {
        let bytes = desc.get(from..from + length)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned())
    };
    Some(Process { pid: half(desc, 24)?, ppid: half(desc, 28)?, name: text(40, 16)? })
}

/// `NT_SIGINFO`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SigInfo {
    pub(crate) number: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    /// `si_addr`, or the sender: `si_pid` and `si_uid`.
    pub(crate) value: u64,
}

pub(crate) fn signal(desc: &[u8]) -> Option<SigInfo> {
    Some(SigInfo {
        number: half(desc, 0)? as i32,
        errno: half(desc, 4)? as i32,
        code: half(desc, 8)? as i32,
        value: word(desc, 16)?,
    })
}

/// Parses `NT_FILE`.
///
/// The note contains count and page size; then start, end and offset in pages of each file; then
/// the names, each terminated by 0.
pub(crate) fn files(desc: &[u8], most: usize) -> Vec<MappedFile> {
    const HEAD: usize = 16;
    const ENTRY: usize = 24;
    let (Some(count), Some(page)) = (word(desc, 0), word(desc, 8)) else { return Vec::new() };
    let fit = desc.len().saturating_sub(HEAD) / ENTRY;
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(fit);
    let names = desc.get(HEAD + count * ENTRY..).unwrap_or_default();
    let names = names.split(|byte| *byte == 0);
    let entries = (0..count.min(most)).zip(names).filter_map(|(index, name)| {
        let at = HEAD + index * ENTRY;
        let offset = word(desc, at + 16)?.checked_mul(page)?;
        let path = String::from_utf8_lossy(name).into_owned();
        let file = MappedFile { start: word(desc, at)?, end: word(desc, at + 8)?, offset, path, is_code: false };
        (file.start < file.end).then_some(file)
    });
    entries.collect()
}
