//! Libraries in a ZIP archive, as Android's linker loads them from an APK.
//!
//! They are stored uncompressed, so that they can be mapped in place. Such a library's path is
//! written `base.apk!/lib/arm64-v8a/libapp.so`.

use std::path::{Path, PathBuf};

use object::Object;

use crate::{error::Malformed, mapped_file::Bytes};

/// The separator between the archive's path and the name in it.
const SEPARATOR: &str = "!/";

/// Maximum number of entries; no app has as many.
const MAX_ENTRIES: usize = 1 << 18;

/// An ELF file in an archive.
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Bytes,
    /// The library's offset in the archive.
    pub(crate) offset: u64,
}

pub(crate) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// Splits the path of a library in an archive into the archive's path and the name in it.
pub(crate) fn split(path: &Path) -> Option<(&Path, &str)> {
    let (archive, name) = path.to_str()?.split_once(SEPARATOR)?;
    Some((Path::new(archive), name))
}

/// Returns the libraries in the archive at `path`: the one with this name, or all that have a build
/// id.
pub(crate) fn libraries(path: &Path, archive: &Bytes, name: Option<&str>) -> Result<Vec<Library>, Malformed> {
    let malformed = |error: rawzip::Error| Malformed::new(0, format!("invalid archive: {error}"));
    let zip = rawzip::ZipArchive::from_slice(&**archive).map_err(malformed)?;
    let mut libraries = Vec::new();
    for entry in zip.entries().take(MAX_ENTRIES) {
        let entry = entry.map_err(malformed)?;
        let file = entry.file_path();
        let is_wanted = name.is_none_or(|name| file.as_ref() == name.as_bytes());
        if !is_wanted || entry.compression_method() != rawzip::CompressionMethod::STORE {
            continue;
        }
        let (start, end) = zip.get_entry(entry.wayfinder()).map_err(malformed)?.compressed_data_range();
        let Some(bytes) = end.checked_sub(start).and_then(|size| archive.slice(start, size)) else { continue };
        let has_id = || object::File::parse(&*bytes).is_ok_and(|file| file.build_id().is_ok_and(|id| id.is_some()));
        if bytes.starts_with(b"\x7fELF") && (name.is_some() || has_id()) {
            let path = format!("{}{SEPARATOR}{}", path.display(), String::from_utf8_lossy(file.as_ref())).into();
            libraries.push(Library { path, bytes, offset: start });
        }
    }
    Ok(libraries)
}
