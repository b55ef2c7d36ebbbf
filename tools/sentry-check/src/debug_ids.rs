//! Compares images' debug IDs with those that `sentry-cli` prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use coroner_report::model::{Bytes, Image};
use coroner_report::wire::ImageKind;
use object::Object as _;
use object::read::macho::{FatArch as _, MachOFatFile32};
use serde_json::Value;

use super::{Bench, Row, output};
use toolbox::tools;

/// Compares an ELF program's and its images' debug IDs, and Mach-O libraries with their dSYM.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let store = bench.folder("debug-ids")?;
    let library = library_without_build_id(bench)?;
    // A process's start time has a resolution of a clock tick (10 ms), rounded down; a file newer
    // than that may differ from the one that was loaded.
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.program("crash_program").arg(&store).args(["null-store", "0"]).env("LD_PRELOAD", &library).output()?;
    let run = std::fs::read_dir(store.join("runs"))?.next().context("no run")??.path();
    let event = output(bench.program("coroner").arg("convert").arg(run).args(["--to", "sentry"]))?;
    let event: Value = serde_json::from_str(&event)?;
    let images = event["debug_meta"]["images"].as_array().context("no images")?;
    let mut rows = Vec::new();
    for image in images {
        let path = Path::new(image["code_file"].as_str().unwrap_or_default());
        let path = bench.programs.join(path.file_name().unwrap_or_default());
        // For system images use the event's path; ours may be below a home directory, which events
        // hide.
        let path = if path.is_file() { path } else { image["code_file"].as_str().unwrap_or_default().into() };
        if path.is_file() {
            rows.push(compare(bench, &path, &image["debug_id"], &image["code_id"])?);
        }
    }
    ensure!(rows.len() >= 2, "too few images are files: {}", rows.len());
    let derived = images.iter().any(|image| image["code_file"].as_str().is_some_and(|path| Path::new(path) == library));
    let named: Vec<_> = images.iter().map(|image| &image["code_file"]).collect();
    ensure!(derived, "missing debug ID for {}, which has no build ID, among {named:?}", library.display());
    let fixtures = tools::workspace_root().join("fixtures/symbols");
    for file in [
        "program.dylib",
        "classes-arm64.dylib",
        "classes-x86_64.dylib",
        "program.dylib.dSYM/Contents/Resources/DWARF/program.dylib",
    ] {
        let path = fixtures.join(file);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let ids = uuids(&bytes).with_context(|| path.display().to_string())?;
        ensure!(!ids.is_empty(), "{file} has no LC_UUID");
        for id in ids {
            let image = Image { kind: ImageKind::MACHO, build_id: Bytes(id.to_vec()), ..Image::default() };
            rows.push(compare(bench, &path, &image.debug_id().into(), &image.code_id().into())?);
        }
    }
    Ok(rows)
}

/// Builds a library without a build ID from the linker.
fn library_without_build_id(bench: &Bench) -> anyhow::Result<PathBuf> {
    let folder = bench.folder("debug-ids-library")?;
    let (source, library) = (folder.join("unidentified.c"), folder.join("libunidentified.so"));
    // More than the page of code that is hashed.
    std::fs::write(
        &source,
        "#define T(n) int f##n(int a) { return a * n ? a ^ n : f(a); }\nint f(int a) { return a; }\nT(1) T(2)\n__asm__(\".rept 1500\\n.long 0x12345678\\n.endr\");\nT(3)\n",
    )?;
    output(
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-Wl,--build-id=none", "-o"]).arg(&library).arg(&source),
    )?;
    Ok(library)
}

/// Returns the `LC_UUID` of each architecture in a Mach-O file.
fn uuids(bytes: &[u8]) -> anyhow::Result<Vec<[u8; 16]>> {
    let mut slices = vec![bytes];
    if object::FileKind::parse(bytes)? == object::FileKind::MachOFat32 {
        let file = MachOFatFile32::parse(bytes)?;
        slices = file.arches().iter().map(|arch| arch.data(bytes)).collect::<Result<_, _>>()?;
    }
    let mut ids = Vec::new();
    for slice in slices {
        ids.extend(object::File::parse(slice)?.mach_uuid()?);
    }
    Ok(ids)
}

fn compare(bench: &Bench, path: &Path, debug_id: &Value, code_id: &Value) -> anyhow::Result<Row> {
    let printed = bench.tool("sentry-cli").args(["debug-files", "check", "--json"]).arg(path).output()?;
    let printed: Value = serde_json::from_slice(&printed.stdout)
        .with_context(|| format!("sentry-cli on {}: {}", path.display(), String::from_utf8_lossy(&printed.stderr)))?;
    let variants = printed["variants"].as_array().cloned().unwrap_or_default();
    let agrees = variants.iter().any(|variant| &variant["debug_id"] == debug_id && &variant["code_id"] == code_id);
    let problems =
        if agrees { Vec::new() } else { vec![format!("{debug_id} and {code_id} are not among {variants:?}")] };
    Ok(Row::new("debug-ids", path.file_name().unwrap_or_default().to_string_lossy(), problems))
}
