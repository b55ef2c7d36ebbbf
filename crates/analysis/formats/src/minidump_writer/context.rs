//! Registers, in the `CONTEXT` structures of `winnt.h`.
//!
//! Only the general registers are filled in and marked as valid.

use coroner_process::registers::{Aarch64Registers, X86_64Registers};
use coroner_report::model::Registers;
use minidump_common::format::{
    CONTEXT_AMD64, CONTEXT_ARM64, ContextFlagsAmd64, ContextFlagsArm64, MINIDUMP_LOCATION_DESCRIPTOR as Location,
};

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::File;

/// Writes a thread's registers; returns an empty location if it has none.
pub(crate) fn write(file: &mut File, registers: Option<&Registers>) -> Result<Location, MinidumpError> {
    let Some(registers) = registers else { return Ok(Location::default()) };
    if let Some(registers) = registers.x86_64() {
        return file.append(amd64(&registers));
    }
    registers.aarch64().map_or(Ok(Location::default()), |registers| file.append(arm64(&registers)))
}

fn amd64(registers: &X86_64Registers) -> CONTEXT_AMD64 {
    let [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15] = registers.gpr;
    let flags = ContextFlagsAmd64::CONTEXT_AMD64_CONTROL | ContextFlagsAmd64::CONTEXT_AMD64_INTEGER;
    CONTEXT_AMD64 {
        context_flags: flags.bits(),
        eflags: registers.flags as u32,
        rax,
        rdx,
        rcx,
        rbx,
        rsi,
        rdi,
        rbp,
        rsp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: registers.pc,
        ..CONTEXT_AMD64::default()
    }
}

fn arm64(registers: &Aarch64Registers) -> CONTEXT_ARM64 {
    let flags = ContextFlagsArm64::CONTEXT_ARM64_CONTROL | ContextFlagsArm64::CONTEXT_ARM64_INTEGER;
    CONTEXT_ARM64 {
        context_flags: flags.bits(),
        cpsr: registers.pstate as u32,
        iregs: registers.x,
        sp: registers.sp,
        pc: registers.pc,
        ..CONTEXT_ARM64::default()
    }
}
