//! The cached index of symbol folders.

use std::fs;
use std::path::{Path, PathBuf};

use coroner_symbols::{Arch, FileKind, ImageKey, Match, Options, Symbolizer};

const SYM: &str = "MODULE mac arm64 00112233445566778899AABBCCDDEEFF0 app\nPUBLIC 10 0 f\n";

fn search(search: &[PathBuf], cache: Option<&Path>, reading: &mut dyn FnMut(&Path)) -> Symbolizer {
    let index_cache = cache.map(Path::to_owned);
    let mut symbolizer = Symbolizer::new(Options { search: search.to_vec(), index_cache, ..Options::default() });
    symbolizer.search(reading);
    symbolizer
}

/// Whether the image that [`SYM`] describes is found.
fn finds(search_in: &[PathBuf], cache: &Path) -> bool {
    let key = ImageKey {
        path: "app".into(),
        debug_id: Some("00112233445566778899aabbccddeeff".parse().unwrap()),
        kind: FileKind::MachO,
        arch: Arch::Aarch64,
        base_svma: 0,
        replaced: false,
    };
    search(search_in, Some(cache), &mut |_| {}).status(&key).matched == Match::Matched
}

#[test]
fn cached_files_are_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let symbols = folder.path().join("symbols");
    fs::create_dir(&symbols).unwrap();
    fs::write(symbols.join("app.sym"), SYM).unwrap();
    fs::write(symbols.join("notes with spaces.txt"), "nothing").unwrap();
    let cache = folder.path().join("cache/index");
    let folders = [symbols.clone()];
    let mut read = Vec::new();
    search(&folders, Some(&cache), &mut |path| read.push(path.to_owned()));
    assert_eq!(read.len(), 2, "{read:?}");
    assert!(finds(&folders, &cache));
    search(&folders, Some(&cache), &mut |path| panic!("{} is read again", path.display()));
    // A cache with other contents is trusted…
    let text = fs::read_to_string(&cache).unwrap();
    fs::write(&cache, text.replace("0011", "FF11")).unwrap();
    assert!(!finds(&folders, &cache));
    // …until the file changes,
    fs::write(symbols.join("app.sym"), format!("{SYM}PUBLIC 20 0 g\n")).unwrap();
    assert!(finds(&folders, &cache));
    assert!(finds(&folders, &cache));
    // and a damaged or impossible one is ignored.
    for cut in 0..text.len() {
        fs::write(&cache, &text[..cut]).unwrap();
        assert!(finds(&folders, &cache));
    }
    fs::write(&cache, text.replacen('1', "999999999", 1)).unwrap();
    assert!(finds(&folders, &cache));
    assert!(finds(&folders, &symbols));
    assert_eq!(search(&folders, Some(&symbols), &mut |_| {}).search_problems().len(), 1);
    assert!(fs::read_dir(folder.path()).unwrap().count() == 2, "no temporary file is left");
}

#[test]
fn a_named_path_that_cannot_be_searched_is_reported() {
    // A device could block forever and is not opened.
    let mut named = search(&["/dev/zero".into()], None, &mut |path| panic!("{} is read", path.display()));
    assert_eq!(named.search_problems().len(), 1, "{:?}", named.search_problems());
    let folder = tempfile::tempdir().unwrap();
    // The Darwin test host has no sockets.
    #[cfg(not(target_vendor = "apple"))]
    std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let mut below = search(&[folder.path().into()], None, &mut |path| panic!("{} is read", path.display()));
    assert_eq!(below.search_problems().len(), 0, "{:?}", below.search_problems());
}
