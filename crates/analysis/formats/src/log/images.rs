//! The images in the frames of a log.

use std::collections::BTreeMap;

use coroner_report::model::{Address, Bytes, Image};
use coroner_report::wire::ImageKind;

use crate::MAX_IMAGES;

/// The images in frames, by path.
#[derive(Default)]
pub(super) struct Images(BTreeMap<String, FoundImage>);

struct FoundImage {
    load_address: u64,
    size: u64,
    build_id: String,
}

impl Images {
    /// Adds the image of a frame at `offset` in it.
    pub(super) fn add(&mut self, path: &str, load_address: u64, offset: u64, build_id: &str) {
        if !path.starts_with('/') || (self.0.len() >= MAX_IMAGES && !self.0.contains_key(path)) {
            return;
        }
        let found = self.0.entry(path.to_owned()).or_insert_with(|| FoundImage {
            load_address,
            size: 0,
            build_id: build_id.to_owned(),
        });
        if found.load_address == load_address {
            found.size = found.size.max(offset.saturating_add(1));
        }
    }

    /// Returns the images, each with its path, load address and build id.
    pub(super) fn into_images(self) -> Vec<Image> {
        self.0.into_iter().map(|(path, found)| found.image(path)).collect()
    }
}

impl FoundImage {
    fn image(self, path: String) -> Image {
        let load_address = Address(self.load_address);
        let is_whole =
            self.build_id.len().is_multiple_of(2) && self.build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = if is_whole { self.build_id.as_bytes() } else { b"" };
        let pair = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16).unwrap_or(0);
        Image {
            kind: ImageKind::ELF,
            path,
            load_address,
            slide: load_address,
            size: self.size,
            build_id: Bytes(digits.as_chunks::<2>().0.iter().map(pair).collect()),
            ..Image::default()
        }
    }
}
