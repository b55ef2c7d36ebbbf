//! Export tries, whole and damaged.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::symtab::{CHUNK, Extent, MAX_TRIE_DEPTH, Problem, ScanError, walk_export_trie};

fn walked(bytes: &[u8]) -> (Vec<(u64, String)>, Result<(), ScanError>) {
    let ranges = [SnapshotRange { address: 0x100, bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let mut found = vec![];
    let trie = Extent { address: 0x100, size: bytes.len() as u64 };
    let outcome = walk_export_trie(&mut memory, trie, &mut [0; CHUNK], u32::MAX, &mut [0; 64], |address, name| {
        found.push((address, String::from_utf8(name.to_vec()).unwrap()));
    });
    (found, outcome)
}

#[test]
fn names_grow_along_the_edges() {
    #[rustfmt::skip]
    let trie = [
        0, 1, b'_', b'a', 0, 6,             // root: "_a" -> 6
        2, 0, 0x10, 2,                      // 6: _a at 0x10, two children
        b'b', 0, 18, b'c', b'd', 0, 23, 0,  // "b" -> 18, "cd" -> 23
        3, 0, 0x80, 0x02, 0,                // 18: _ab at 0x100
        3, 8, 1, 0, 0,         // 23: _acd is another library's
    ];
    assert_eq!(walked(&trie), (vec![(0x10, "_a".into()), (0x100, "_ab".into())], Ok(())));
}

#[test]
fn cycles_and_ends() {
    // The child is the root: visits end, by size or by depth.
    let (found, outcome) = walked(&[2, 0, 5, 1, b'x', 0, 0, 0, 0, 0, 0, 0]);
    assert!(found.len() < 10);
    assert!(matches!(outcome, Err(ScanError { problem: Problem::Limit | Problem::TooDeep, .. })), "{outcome:?}");
    let mut long = vec![0; 4096];
    long[..7].copy_from_slice(&[2, 0, 5, 1, b'x', 0, 0]);
    let (found, outcome) = walked(&long);
    assert_eq!((found.len(), outcome.unwrap_err().problem), (MAX_TRIE_DEPTH + 1, Problem::TooDeep));
    for broken in [&[9u8, 0][..], &[0, 1, b'x'], &[0, 1, b'x', 0], &[0, 1, b'x', 0, 200, 1], &[0x80; 12]] {
        assert!(walked(broken).1.is_err(), "{broken:?}");
    }
}
