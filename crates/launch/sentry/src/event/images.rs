//! Loaded images in the protocol's form.

use coroner_report::model::{Image, Report};
use coroner_report::wire::{ImageKind, Os};
use sentry_types::protocol::v7::SymbolicDebugImage;
use sentry_types::protocol::v7::debugid::{CodeId, DebugId};

use super::Event;

/// Adds a report's images to the event. Returns the paths of images without an id, for which a
/// server could find no debug file.
pub(super) fn add(event: &mut Event, report: &Report) -> Vec<String> {
    let mut unidentified = Vec::new();
    let mut images = Vec::new();
    for image in &report.images {
        // A PE file without CodeView data is found by its code id.
        let nil = || (image.kind == ImageKind::PE && image.code_id().is_some()).then(DebugId::nil);
        let Some(id) = image.debug_id().and_then(|id| id.parse().ok()).or_else(nil) else {
            unidentified.push(image.path.clone());
            continue;
        };
        let load_address = image.load_address.0;
        event.extensions.images.insert(load_address, kind(image, report.header.os));
        let image = SymbolicDebugImage {
            name: code_file(image),
            arch: arch(report, image),
            image_addr: load_address.into(),
            image_size: image.size,
            image_vmaddr: image.to_svma(image.load_address).into(),
            id,
            code_id: image.code_id().map(CodeId::new),
            debug_file: None,
        };
        images.push(image.into());
    }
    event.debug_meta.to_mut().images = images;
    unidentified
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
