//! Loaded images in the protocol's form.

use coroner_report::model::{Image, Report};
use coroner_report::wire::{ImageKind, Os};
use serde::{Deserialize, Serialize};

/// The debug id of an image without one.
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// A loaded image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugImage {
    /// `elf`, `macho` or `pe`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The path from which it was loaded.
    pub code_file: String,
    /// The id of its debug information.
    pub debug_id: String,
    /// The image's own id: the whole GNU build id, or the `LC_UUID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_id: Option<String>,
    /// Load address.
    pub image_addr: String,
    /// The address for which the file was linked.
    pub image_vmaddr: String,
    /// Size of the mapped range, in bytes.
    pub image_size: u64,
    /// Architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
}

/// Returns a report's images, and the paths of images without an id.
///
/// A server could find no debug file for an image without an id.
pub(super) fn from_report(report: &Report) -> (Vec<DebugImage>, Vec<String>) {
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
        // An image kind from a later version: assume the system's own format.
        _ if matches!(os, Os::LINUX | Os::ANDROID) => "elf",
        _ => "macho",
    }
}

/// Returns the image's path, or a placeholder name for an image without one.
///
/// The kernel's vdso and code unpacked into memory have no path.
fn code_file(image: &Image) -> String {
    if image.path.is_empty() { format!("[image at {}]", image.load_address) } else { image.path.clone() }
}

/// Returns the image's architecture from its Mach-O CPU type and subtype (`mach/machine.h`).
///
/// If these are unknown, returns the report's architecture.
fn arch(report: &Report, image: &Image) -> Option<String> {
    const X86_64: i32 = 0x0100_0007;
    const ARM64: i32 = 0x0100_000c;
    // The subtype's high byte contains flags: for arm64e, the pointer authentication version.
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
