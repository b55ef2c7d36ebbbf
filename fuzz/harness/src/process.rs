//! `/proc` texts, which contain names chosen by others, and the dynamic linker's list of images,
//! which is in memory that a crash may have overwritten.

use coroner_process::images::{Images, fingerprint};
use coroner_process::proc_text;

use crate::case::Ranges;

/// `maps` and `stat` of `/proc`.
pub fn proc_text(input: &[u8]) {
    let mut path = [0; 64];
    proc_text::each_mapping(input, &mut path, |mapping, path| {
        assert!(path.len() <= 64);
        let _ = (mapping.contains(mapping.start), mapping.permissions.is_guard());
    });
    let _ = proc_text::parse_stat(input);
    let _ = (proc_text::state_of_stat(input), proc_text::is_worker_by_stat(input));
}

/// Address of the input.
const AT: u64 = 0x10_0000;

/// The dynamic linker's list of images. The input is memory with `r_debug`, `link_map`s, names and
/// program headers.
pub fn link_map(input: &[u8]) {
    let ranges = [(AT, input)];
    let mut memory = Ranges(&ranges);
    let state = fingerprint(&mut memory, AT);
    assert_eq!(fingerprint(&mut memory, AT), state, "different answers for the same memory");
    let mut images = Images::map(16).expect("memory").with_debug_address(AT);
    let first = images.refresh(&mut memory);
    assert!(first.images == images.len() && first.images <= 16);
    for image in images.iter() {
        let _ = (images.path(image), image.segments(), image.build_id());
        assert!(image.range.start <= image.range.end);
    }
    let second = images.refresh(&mut memory);
    assert_eq!(
        (second.images, second.fingerprint),
        (first.images, first.fingerprint),
        "different lists for the same memory"
    );
    images.unmap();
}
