//! Loaded images in the protocol's words.

use coroner_report::model::{Image, Report};
use coroner_report::wire::{ImageKind, Os};
use serde::{Deserialize, Serialize};

/// No debug id.
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// A loaded image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugImage {
    /// `elf`, `macho` or `pe`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it was loaded from.
    pub code_file: String,
    /// Identity of its debug information.
    pub debug_id: String,
    /// Its own identity: the whole GNU build id, or the `LC_UUID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_id: Option<String>,
    /// Where it was loaded.
    pub image_addr: String,
    /// Where its file says that it should be.
    pub image_vmaddr: String,
    /// Bytes of memory from its start to its end.
    pub image_size: u64,
    /// Its architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
}

/// The images of a report, and the paths of those that have no identity, by which nothing could be found.
pub(super) fn of(report: &Report) -> (Vec<DebugImage>, Vec<String>) {
    let mut images = Vec::new();
    let mut unidentified = Vec::new();
    for image in &report.images {
        // A PE file without CodeView data is found by its code id.
        let nil = || image.code_id().filter(|_| image.kind == ImageKind::PE).map(|_| NIL.to_owned());
        match image.debug_id().or_else(nil) {
            Some(debug_id) => images.push(DebugImage {
                kind: kind(image, report.header.os).to_owned(),
                code_file: code_file(image),
                debug_id,
                code_id: image.code_id(),
                image_addr: image.load_address.to_string(),
                image_vmaddr: format!("{:#x}", image.to_svma(image.load_address)),
                image_size: image.size,
                arch: arch(report, image),
            }),
            None => unidentified.push(image.path.clone()),
        }
    }
    (images, unidentified)
}

fn kind(image: &Image, os: Os) -> &'static str {
    match image.kind {
        ImageKind::ELF => "elf",
        ImageKind::MACHO => "macho",
        ImageKind::PE => "pe",
        // A kind of a later version: what its system loads.
        _ if matches!(os, Os::LINUX | Os::ANDROID) => "elf",
        _ => "macho",
    }
}

/// Its path; an image without one (the kernel's vdso, code that was unpacked into memory) still has a name to be shown by.
fn code_file(image: &Image) -> String {
    if image.path.is_empty() { format!("[image at {}]", image.load_address) } else { image.path.clone() }
}

/// By Mach-O CPU type and subtype, as `mach/machine.h` has them, where they are known; else the report's.
fn arch(report: &Report, image: &Image) -> Option<String> {
    const X86_64: i32 = 0x0100_0007;
    const ARM64: i32 = 0x0100_000c;
    // The subtype's high byte is for flags: of arm64e, the version of its pointer authentication.
    let name = match image.cpu.map(|(cpu, subtype)| (cpu, subtype & 0x00ff_ffff)) {
        Some((X86_64, 8)) => "x86_64h",
        Some((X86_64, _)) => "x86_64",
        Some((ARM64, 2)) => "arm64e",
        Some((ARM64, _)) => "arm64",
        _ => report.header.arch?.name(),
    };
    // Sentry's name for it (symbolic's `Arch`) on every system.
    Some(if name == "aarch64" { "arm64" } else { name }.to_owned())
}
