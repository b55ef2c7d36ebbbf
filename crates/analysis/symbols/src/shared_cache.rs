//! The local symbols of images in a dyld shared cache; the images themselves only have exports.
//!
//! Apple's systems ship their libraries in one file, without local symbols. These are in a separate
//! chunk, since macOS 12 in a separate file (`dyld_shared_cache_arm64e.symbols`), which iOS devices
//! don't have. An image is found by its `LC_UUID` in the cache's list of images. Source: dyld's
//! `dyld_cache_format.h`.

use std::path::{Path, PathBuf};

use crate::{
    debug_id::DebugId,
    error::{Malformed, SymbolError},
    mapped_file::{Bytes, Fields},
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

/// Start of the magic, such as `dyld_v1  arm64e`.
const MAGIC: &[u8] = b"dyld_v1 ";
/// Header size above which a cache has 64-bit entries, and its local symbols in a separate file.
///
/// `offsetof(dyld_cache_header, symbolFileUUID)`.
const SYMBOL_FILE_UUID: u32 = 0x190;
/// Maximum number of images. The largest caches have about 3,000.
const MAX_IMAGES: u64 = 100_000;

/// A shared cache with its list of images.
#[derive(Debug)]
pub(crate) struct SharedCache {
    path: PathBuf,
    bytes: Bytes,
}

/// Whether the bytes start like a shared cache.
pub(crate) fn is_shared_cache(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl SharedCache {
    pub(crate) fn open(path: &Path) -> Result<Self, SymbolError> {
        let bytes = Bytes::open(path)?;
        if !is_shared_cache(&bytes) {
            let magic = bytes.iter().take(4).copied().collect();
            return Err(SymbolError::UnknownFormat { path: path.into(), magic });
        }
        Ok(Self { path: path.into(), bytes })
    }

    fn fields(&self) -> Fields<'_> {
        Fields { bytes: &self.bytes, big_endian: false }
    }

    /// Returns the ids of all images, with their addresses without a slide.
    ///
    /// `imagesTextOffset` 136, `imagesTextCount` 144; `dyld_cache_image_text_info`: uuid,
    /// loadAddress 16, textSegmentSize 24, pathOffset 28.
    pub(crate) fn images(&self) -> Result<Vec<(DebugId, u64)>, SymbolError> {
        let fields = self.fields();
        let list = || {
            let (offset, count) = (fields.u64(136)?, fields.u64(144)?);
            if count > MAX_IMAGES {
                return None;
            }
            (0..count)
                .map(|index| {
                    let at = offset.checked_add(index * 32)?;
                    let uuid = self.bytes.slice(at, 16)?;
                    Some((DebugId::new(&uuid), fields.u64(at.checked_add(16)?)?))
                })
                .collect::<Option<Vec<_>>>()
        };
        let images = list().ok_or_else(|| {
            Malformed::new(136, "the shared cache's image list extends past the end of the file").in_file(&self.path)
        })?;
        // An image without an id can't be looked up.
        Ok(images.into_iter().filter_map(|(id, address)| Some((id?, address))).collect())
    }

    /// Returns the cache's address without a slide.
    ///
    /// It is that of its first mapping (`dyld_cache_mapping_info`: address 0).
    fn base(&self) -> Option<u64> {
        self.fields().u64(u64::from(self.fields().u32(16)?))
    }

    /// Returns the file with the local symbols: the cache itself, or the one beside it.
    fn symbols_file(&self) -> Result<Bytes, SymbolError> {
        let fields = self.fields();
        if fields.u64(72).is_some_and(|offset| offset != 0) {
            return Ok(self.bytes.clone());
        }
        let mut name = self.path.clone().into_os_string();
        name.push(".symbols");
        Bytes::open(Path::new(&name))
    }

    /// Adds the local symbols of the image at an address without a slide. A cache may have none.
    pub(crate) fn collect(&self, builder: &mut TableBuilder, image_svma: u64) -> Result<(), SymbolError> {
        let bytes = self.symbols_file()?;
        local_symbols(builder, &bytes, self.base(), image_svma).map_err(|problem| problem.in_file(&self.path))
    }
}

/// Adds the local symbols of an image.
///
/// `mappingOffset` 16, `localSymbolsOffset` 72, `localSymbolsSize` 80;
/// `dyld_cache_local_symbols_info`: nlistOffset, nlistCount, stringsOffset, stringsSize,
/// entriesOffset, entriesCount, 32 bits each; entries: dylibOffset (32 or 64 bits),
/// nlistStartIndex, nlistCount.
fn local_symbols(
    builder: &mut TableBuilder,
    bytes: &Bytes,
    base: Option<u64>,
    image_svma: u64,
) -> Result<(), Malformed> {
    let header = Fields { bytes, big_endian: false };
    let malformed =
        |at: u64, what: &str| Malformed::new(at, format!("invalid local symbols in the shared cache: {what}"));
    let (Some(offset), Some(size), Some(mappings)) = (header.u64(72), header.u64(80), header.u32(16)) else {
        return Err(malformed(0, "the file ends within the header"));
    };
    let chunk = bytes.slice(offset, size).ok_or_else(|| malformed(72, "they extend past the end of the file"))?;
    let info = Fields { bytes: &chunk, big_endian: false };
    let field =
        |index: u64| info.u32(index * 4).map(u64::from).ok_or_else(|| malformed(offset, "their header is truncated"));
    let (nlists, nlist_count) = (field(0)?, field(1)?);
    let (strings, strings_size) = (field(2)?, field(3)?);
    let (entries, entry_count) = (field(4)?, field(5)?);
    let wide = mappings >= SYMBOL_FILE_UUID;
    let wanted = image_svma.wrapping_sub(base.ok_or_else(|| malformed(16, "the cache has no mapping"))?);
    let entry = (0..entry_count).find_map(|index| {
        let at = entries + index * if wide { 16 } else { 12 };
        let dylib = if wide { info.u64(at)? } else { u64::from(info.u32(at)?) };
        let first = at + if wide { 8 } else { 4 };
        (dylib == wanted).then(|| Some((info.u32(first)?, info.u32(first + 4)?)))?
    });
    // An image without local symbols has no entry.
    let Some((first, count)) = entry else { return Ok(()) };
    let (first, count) = (u64::from(first), u64::from(count));
    if first + count > nlist_count {
        return Err(malformed(offset, "an image's range extends past the last symbol"));
    }
    let table = chunk
        .slice(nlists + first * 16, count * 16)
        .ok_or_else(|| malformed(offset, "their table extends past the chunk"))?;
    let pool = chunk
        .slice(strings, strings_size)
        .and_then(|strings| builder.pool(strings))
        .ok_or_else(|| malformed(offset, "their names extend past the chunk"))?;
    let before = builder.added();
    for entry in table.as_chunks::<16>().0 {
        // nlist_64: n_strx, n_type (0x0e: the kind, 0xe0: a debugger's symbol), n_sect, n_desc,
        // n_value
        let name = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        if entry[4] & 0xee == 0x0e && name != 0 {
            let [.., a, b, c, d, e, f, g, h] = *entry;
            let svma = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let name = TableBuilder::name_at(pool, name);
            builder.add(svma, 0, SymbolSource::SharedCacheLocals, BindingRank::Local, name);
        }
    }
    builder.count(SymbolSource::SharedCacheLocals, builder.added() - before);
    Ok(())
}
