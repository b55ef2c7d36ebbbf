//! The system and process streams.

use coroner_process::registers::Arch;
use coroner_report::model::Report;
use coroner_report::wire::Os;
use minidump_common::format::{
    CPU_INFORMATION, MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_MISC_INFO, MINIDUMP_SYSTEM_INFO, MiscInfoFlags,
    PlatformId, ProcessorArchitecture,
};

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::{File, seconds, size_of};

/// Returns the format's platform id for a system.
pub(crate) fn platform(os: Os) -> Option<PlatformId> {
    match os {
        Os::LINUX => Some(PlatformId::Linux),
        Os::ANDROID => Some(PlatformId::Android),
        Os::MACOS => Some(PlatformId::MacOs),
        // The format has no ids for Apple's other systems.
        Os::IOS | Os::TVOS | Os::WATCHOS | Os::VISIONOS => Some(PlatformId::Ios),
        _ => None,
    }
}

pub(crate) fn info(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let architecture = match report.header.arch {
        Some(Arch::X86_64) => ProcessorArchitecture::PROCESSOR_ARCHITECTURE_AMD64,
        Some(Arch::Aarch64) => ProcessorArchitecture::PROCESSOR_ARCHITECTURE_ARM64,
        None => return Err(MinidumpError::Platform),
    };
    let platform = platform(report.header.os).ok_or(MinidumpError::Platform)?;
    let facts = report.run.as_ref().map(|run| &run.os);
    let version = facts.and_then(|os| os.kernel_version.as_deref().filter(|_| platform == PlatformId::Linux));
    let version = version.or_else(|| facts.and_then(|os| os.version.as_deref())).unwrap_or_default();
    let mut parts = version.split(|character: char| !character.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let processors = report.run.as_ref().and_then(|run| run.device.processor_count).unwrap_or(0);
    let build = facts.and_then(|os| os.build.as_deref()).unwrap_or(version);
    let info = MINIDUMP_SYSTEM_INFO {
        processor_architecture: architecture as u16,
        processor_level: 0,
        processor_revision: 0,
        number_of_processors: u8::try_from(processors).unwrap_or(u8::MAX),
        product_type: 0,
        major_version: part(),
        minor_version: part(),
        build_number: part(),
        platform_id: platform as u32,
        csd_version_rva: file.append_text(build),
        suite_mask: 0,
        reserved2: 0,
        cpu: CPU_INFORMATION { data: [0; 24] },
    };
    file.append(info).map(Some)
}

pub(crate) fn process(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let flags = MiscInfoFlags::MINIDUMP_MISC1_PROCESS_ID | MiscInfoFlags::MINIDUMP_MISC1_PROCESS_TIMES;
    let info = MINIDUMP_MISC_INFO {
        size_of_info: size_of::<MINIDUMP_MISC_INFO>() as u32,
        flags1: flags.bits(),
        process_id: report.header.pid,
        process_create_time: seconds(report.header.process_start),
        process_user_time: 0,
        process_kernel_time: 0,
    };
    file.append(info).map(Some)
}
