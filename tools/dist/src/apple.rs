//! Builds the Swift package for Apple systems, for Xcode and SwiftPM.
//!
//! The output is `target/dist/coroner-VERSION-apple`. An XCFramework is a folder with one library
//! per platform and an `Info.plist` that lists them (Apple, "Creating a multiplatform binary
//! framework bundle"). Targets that rustup doesn't have are left out. The libraries are static, so
//! nothing has to be signed or embedded; Cargo builds them without Apple's SDK, because nothing is
//! linked. Checked without a Mac: each library has code of its architectures and for its platform,
//! and the property lists are well formed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use object::macho;
use object::read::archive::ArchiveFile;
use object::read::macho::{FatArch as _, MachHeader as _, MachOFatFile32};
use object::{FileKind, LittleEndian};
use plist::{Dictionary, Value};

use super::{Arguments, pack};
use toolbox::{deadline, tools};

/// A library of the XCFramework.
struct Library {
    /// The folder's name, as in `xcodebuild -create-xcframework`.
    identifier: &'static str,
    platform: &'static str,
    variant: Option<&'static str>,
    /// `PLATFORM_*` of <mach-o/loader.h>.
    number: macho::Platform,
    targets: &'static [&'static str],
}

const LIBRARIES: &[Library] = &[
    Library {
        identifier: "macos-arm64_x86_64",
        platform: "macos",
        variant: None,
        number: macho::PLATFORM_MACOS,
        targets: &["aarch64-apple-darwin", "x86_64-apple-darwin"],
    },
    Library {
        identifier: "ios-arm64",
        platform: "ios",
        variant: None,
        number: macho::PLATFORM_IOS,
        targets: &["aarch64-apple-ios"],
    },
    Library {
        identifier: "ios-arm64_x86_64-simulator",
        platform: "ios",
        variant: Some("simulator"),
        number: macho::PLATFORM_IOSSIMULATOR,
        targets: &["aarch64-apple-ios-sim", "x86_64-apple-ios"],
    },
    Library {
        identifier: "ios-arm64_x86_64-maccatalyst",
        platform: "ios",
        variant: Some("maccatalyst"),
        number: macho::PLATFORM_MACCATALYST,
        targets: &["aarch64-apple-ios-macabi", "x86_64-apple-ios-macabi"],
    },
];

const FILE: &str = "libcoroner_ffi.a";

/// Builds the package, checks it, and packs it; returns the archive's path.
///
/// # Errors
/// An error if a build fails, or a check of the package fails.
pub(super) fn make(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let root = tools::workspace_root();
    let name = super::name("apple");
    let place = tools::target_dir().join("dist");
    let folder = place.join(&name);
    if folder.is_dir() {
        fs::remove_dir_all(&folder)?;
    }
    let framework = folder.join("CCoroner.xcframework");
    let headers = root.join("crates/bindings/ffi/include");
    let (mut libraries, mut left_out) = (Vec::new(), Vec::new());
    for library in LIBRARIES {
        match library.targets.iter().try_for_each(|target| tools::rust_target(target)) {
            Ok(()) => libraries.push(library),
            Err(error) => left_out.push((library, error)),
        }
    }
    ensure!(libraries.iter().any(|library| library.platform == "macos"), "rustup has no macOS target");
    for library in &libraries {
        let own = framework.join(library.identifier);
        fs::create_dir_all(own.join("Headers"))?;
        for header in ["coroner.h", "coroner_apple.h"] {
            let text = fs::read_to_string(headers.join(header)).with_context(|| header.to_owned())?;
            fs::write(own.join("Headers").join(header), with_features(&text, arguments.features.as_deref()))?;
        }
        fs::write(own.join("Headers/module.modulemap"), include_str!("apple/module.modulemap"))?;
        let mut built = Vec::new();
        for target in library.targets {
            built.push((build(arguments, target)?, *target));
        }
        join(&built, &own.join(FILE))?;
        check(library, &own.join(FILE)).with_context(|| library.identifier)?;
        println!("{:>10} {}/{FILE}", own.join(FILE).metadata()?.len(), library.identifier);
    }
    information(&libraries).to_file_xml(framework.join("Info.plist"))?;
    let sources = folder.join("Sources/Coroner");
    fs::create_dir_all(&sources)?;
    for source in fs::read_dir(root.join("crates/bindings/ffi/swift/Sources/Coroner"))? {
        let source = source?;
        fs::copy(source.path(), sources.join(source.file_name()))?;
    }
    fs::write(sources.join("PrivacyInfo.xcprivacy"), include_str!("apple/PrivacyInfo.xcprivacy"))?;
    let settings = conditions(arguments.features.as_deref())
        .map(|name| format!(".define(\"{name}\")"))
        .collect::<Vec<_>>()
        .join(", ");
    let manifest = include_str!("apple/Package.swift");
    let filled = manifest.replace("features: [SwiftSetting] = []", &format!("features: [SwiftSetting] = [{settings}]"));
    ensure!(settings.is_empty() || filled != manifest, "no place for features in the package's manifest");
    fs::write(folder.join("Package.swift"), filled)?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root.join(file), folder.join(file)).with_context(|| file.to_owned())?;
    }
    check_layout(&folder, libraries.len())?;
    let archive = place.join(format!("{name}.tar.gz"));
    pack(&folder, &name, &archive)?;
    for (library, error) in left_out {
        println!("left out: {} ({error:#})", library.identifier);
    }
    Ok(archive)
}

/// Returns the macros that declare the features' functions in the header and Swift module.
fn conditions(features: Option<&str>) -> impl Iterator<Item = &'static str> {
    let features: Vec<&str> = features.iter().flat_map(|given| given.split([',', ' '])).collect();
    let known = [("sentry", "CORONER_SENTRY"), ("otlp", "CORONER_OTLP")];
    known.into_iter().filter_map(move |(feature, name)| features.contains(&feature).then_some(name))
}

/// Returns a header with the libraries' features.
///
/// An importer of a module can't define macros for it.
pub(super) fn with_features(header: &str, features: Option<&str>) -> String {
    let defined: String = conditions(features).map(|name| format!("#define {name} 1\n")).collect();
    match header.split_once("#define CORONER_H\n") {
        Some((before, after)) if !defined.is_empty() => format!("{before}#define CORONER_H\n{defined}{after}"),
        _ => header.to_owned(),
    }
}

/// Builds a target's static library.
fn build(arguments: &Arguments, target: &str) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(["rustc", "--quiet", "-p", "coroner-ffi", "--lib"]);
    // The shared library would have to be linked, which requires Apple's SDK.
    command.args(["--crate-type", "staticlib", "--profile", &arguments.profile, "--target", target]);
    command.args(["--features", arguments.features.as_deref().unwrap_or("system-reports")]);
    let status = deadline::status(&mut command)?;
    ensure!(status.success(), "can't build coroner-ffi for {target}: {status}");
    let profile = if arguments.profile == "dev" { "debug" } else { &arguments.profile };
    Ok(tools::target_dir().join(target).join(profile).join(FILE))
}

/// Joins the libraries of several architectures: <mach-o/fat.h>, all numbers big-endian.
///
/// (A distribution's LLVM `lipo` doesn't read objects of a later LLVM.)
fn join(built: &[(PathBuf, &str)], to: &Path) -> anyhow::Result<()> {
    const ALIGNMENT: u32 = 14;
    let mut parts = Vec::new();
    for (path, target) in built {
        let content = fs::read(path).with_context(|| path.display().to_string())?;
        let kind = match architecture(target) {
            "arm64" => (macho::CPU_TYPE_ARM64.0, macho::CPU_SUBTYPE_ARM64_ALL.0),
            _ => (macho::CPU_TYPE_X86_64.0, macho::CPU_SUBTYPE_X86_64_ALL.0),
        };
        parts.push((kind, content));
    }
    if let [(_, one)] = parts.as_slice() {
        return Ok(fs::write(to, one)?);
    }
    let mut header: Vec<u8> =
        [macho::FAT_MAGIC, u32::try_from(parts.len())?].into_iter().flat_map(u32::to_be_bytes).collect();
    let mut offset = 1_usize << ALIGNMENT;
    let mut content = Vec::new();
    for ((processor, variant), part) in &parts {
        let place = [u32::try_from(offset)?, u32::try_from(part.len())?, ALIGNMENT];
        header.extend([*processor, *variant].into_iter().chain(place).flat_map(u32::to_be_bytes));
        content.extend_from_slice(part);
        content.resize(content.len().next_multiple_of(1 << ALIGNMENT), 0);
        offset = (1 << ALIGNMENT) + content.len();
    }
    header.resize(1 << ALIGNMENT, 0);
    header.extend(content);
    Ok(fs::write(to, header)?)
}

/// Returns the `Info.plist` that `xcodebuild -create-xcframework` would write.
fn information(libraries: &[&Library]) -> Value {
    let text = |text: &str| Value::String(text.to_owned());
    let libraries = libraries.iter().map(|library| {
        let mut own = Dictionary::new();
        own.insert("LibraryIdentifier".to_owned(), text(library.identifier));
        own.insert("LibraryPath".to_owned(), text(FILE));
        own.insert("HeadersPath".to_owned(), text("Headers"));
        let architectures = library.targets.iter().map(|target| text(architecture(target))).collect();
        own.insert("SupportedArchitectures".to_owned(), Value::Array(architectures));
        own.insert("SupportedPlatform".to_owned(), text(library.platform));
        if let Some(variant) = library.variant {
            own.insert("SupportedPlatformVariant".to_owned(), text(variant));
        }
        Value::Dictionary(own)
    });
    let mut all = Dictionary::new();
    all.insert("AvailableLibraries".to_owned(), Value::Array(libraries.collect()));
    all.insert("CFBundlePackageType".to_owned(), text("XFWK"));
    all.insert("XCFrameworkFormatVersion".to_owned(), text("1.0"));
    Value::Dictionary(all)
}

/// Returns Apple's name of an architecture.
fn architecture(target: &str) -> &'static str {
    if target.starts_with("aarch64") { "arm64" } else { "x86_64" }
}

/// Checks that a library has code of its architectures, all of it for its platform.
fn check(library: &Library, path: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(path)?;
    let mut parts: Vec<(macho::CpuType, &[u8])> = Vec::new();
    if FileKind::parse(bytes.as_slice())? == FileKind::MachOFat32 {
        for part in MachOFatFile32::parse(bytes.as_slice())?.arches() {
            parts.push((part.cputype(), part.data(bytes.as_slice())?));
        }
    } else {
        parts.push((macho::CPU_TYPE_ARM64, &bytes));
    }
    let wanted = library.targets.iter().map(|target| match architecture(target) {
        "arm64" => macho::CPU_TYPE_ARM64,
        _ => macho::CPU_TYPE_X86_64,
    });
    let mut wanted: Vec<macho::CpuType> = wanted.collect();
    let mut found: Vec<macho::CpuType> = parts.iter().map(|(processor, _)| *processor).collect();
    wanted.sort_unstable();
    found.sort_unstable();
    ensure!(found == wanted, "unexpected processors: expected {wanted:?}, got {found:?}");
    for (processor, part) in parts {
        let mut members = 0;
        let archive = ArchiveFile::parse(part)?;
        for member in archive.members() {
            let data = member?.data(part)?;
            if !matches!(FileKind::parse(data), Ok(FileKind::MachO64)) {
                continue;
            }
            let header = macho::MachHeader64::<LittleEndian>::parse(data, 0)?;
            ensure!(header.cputype(LittleEndian) == processor, "an object is for another processor");
            let mut commands = header.load_commands(LittleEndian, data, 0)?;
            while let Some(command) = commands.next()? {
                // For the oldest x86_64 systems, each platform has its own command.
                let platform = match (command.build_version(LittleEndian)?, command.cmd()) {
                    (Some((version, _)), _) => Some(version.platform.get(LittleEndian)),
                    (None, macho::LC_VERSION_MIN_MACOSX) => Some(macho::PLATFORM_MACOS),
                    (None, macho::LC_VERSION_MIN_IPHONEOS) if processor == macho::CPU_TYPE_X86_64 => {
                        Some(macho::PLATFORM_IOSSIMULATOR)
                    }
                    (None, macho::LC_VERSION_MIN_IPHONEOS) => Some(macho::PLATFORM_IOS),
                    (None, _) => None,
                };
                if let Some(platform) = platform {
                    ensure!(platform == library.number, "an object is for the platform {platform:?}");
                    members += 1;
                }
            }
        }
        ensure!(members > 0, "no object has a platform load command");
    }
    Ok(())
}

/// Checks that the files match those named in the property lists and the manifest.
fn check_layout(folder: &Path, libraries: usize) -> anyhow::Result<()> {
    let framework = folder.join("CCoroner.xcframework");
    let written = Value::from_file(framework.join("Info.plist"))?;
    let all = written.as_dictionary().and_then(|all| all.get("AvailableLibraries")).and_then(Value::as_array);
    let all = all.context("Info.plist has no libraries")?;
    ensure!(all.len() == libraries, "Info.plist has {} libraries", all.len());
    for library in all {
        let text = |key: &str| library.as_dictionary().and_then(|own| own.get(key)).and_then(Value::as_string);
        let place = framework.join(text("LibraryIdentifier").context("a library without an identifier")?);
        for key in ["LibraryPath", "HeadersPath"] {
            let path = place.join(text(key).context(key)?);
            ensure!(path.exists(), "missing file: {}", path.display());
        }
    }
    let privacy = Value::from_file(folder.join("Sources/Coroner/PrivacyInfo.xcprivacy"))?;
    let privacy = privacy.as_dictionary().context("the privacy manifest is not a dictionary")?;
    for key in ["NSPrivacyTracking", "NSPrivacyCollectedDataTypes", "NSPrivacyAccessedAPITypes"] {
        ensure!(privacy.contains_key(key), "the privacy manifest has no {key}");
    }
    Ok(())
}
