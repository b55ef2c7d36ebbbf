//! The export trie of Mach-O: exported names as a prefix tree, the only names that a stripped library keeps.
//!
//! A node is `terminal size (LEB128), terminal data, number of children (1 byte), children`; a child is `the bytes that
//! its name goes on with, NUL, offset of its node (LEB128)`. Terminal data is `flags, address` (LEB128, relative to the
//! header), or `flags, ordinal, name` for a re-export, or `flags, stub, resolver`. Source: dyld's `Trie.hpp` and
//! `mach-o/loader.h`.

use coroner_process::memory::Memory;

use crate::{CHUNK, Extent, MAX_TRIE_DEPTH, Problem, ScanError, Window};

const REEXPORT: u64 = 0x08;
const KIND_MASK: u64 = 0x03;
/// `EXPORT_SYMBOL_FLAGS_KIND_ABSOLUTE`: no address of the image.
const KIND_ABSOLUTE: u64 = 0x02;

/// A node on the way from the root to the current one.
#[derive(Clone, Copy)]
struct Level {
    /// Offset of the next child to visit.
    next: u64,
    /// How many children are left.
    children: u8,
    /// How long the name is at this node.
    name: usize,
}

/// Calls `each` with the offset of each node that exports an address, that address relative to the header, and the name as
/// far as `name` takes it.
///
/// A trie has at most as many nodes as a quarter of its bytes (a node with its edge takes four), so more visits than
/// that mean that nodes are shared or cyclic: the walk ends there.
///
/// # Errors
/// [`ScanError`], offsets counted from the start of the trie.
pub(crate) fn walk<M: Memory>(
    memory: &mut M,
    trie: Extent,
    chunk: &mut [u8; CHUNK],
    limit: u32,
    name: &mut [u8],
    mut each: impl FnMut(u64, u64, &[u8]),
) -> Result<(), ScanError> {
    if trie.size == 0 {
        return Ok(());
    }
    let mut window = Window::new(memory, trie, chunk);
    let mut levels = [Level { next: 0, children: 0, name: 0 }; MAX_TRIE_DEPTH];
    let mut depth = 0usize;
    let mut visits = (trie.size / 4).saturating_add(1).min(u64::from(limit));
    let mut node = 0u64;
    let mut name_length = 0usize;
    loop {
        visits = visits.checked_sub(1).ok_or(ScanError { offset: node, problem: Problem::Limit })?;
        let (terminal_size, terminal) = window.uleb128(node)?;
        let children_at = terminal.checked_add(terminal_size).filter(|&at| at < trie.size);
        let children_at = children_at.ok_or(ScanError { offset: node, problem: Problem::BeyondEnd })?;
        if terminal_size > 0 {
            let (flags, address_at) = window.uleb128(terminal)?;
            if flags & REEXPORT == 0 && flags & KIND_MASK != KIND_ABSOLUTE {
                let (address, _) = window.uleb128(address_at)?;
                each(node, address, name.get(..name_length).unwrap_or(&[]));
            }
        }
        let level = levels.get_mut(depth).ok_or(ScanError { offset: node, problem: Problem::TooDeep })?;
        *level = Level { next: children_at.saturating_add(1), children: window.byte(children_at)?, name: name_length };
        depth = depth.saturating_add(1);
        // Down to the next child, from the deepest node that has one left.
        loop {
            let Some(above) = depth.checked_sub(1) else { return Ok(()) };
            let Some(level) = levels.get_mut(above) else { return Ok(()) };
            if level.children == 0 {
                depth = above;
                continue;
            }
            level.children = level.children.wrapping_sub(1);
            let room = name.get_mut(level.name..).unwrap_or(&mut []);
            let edge = level.next;
            let (length, behind) = edge_string(&mut window, edge, room)?;
            let (child, next) = window.uleb128(behind)?;
            level.next = next;
            name_length = level.name.saturating_add(length);
            if child >= trie.size {
                return Err(ScanError { offset: edge, problem: Problem::BeyondEnd });
            }
            node = child;
            break;
        }
    }
}

/// Copies what fits of an edge's string; how much that was, and the offset behind the string's NUL.
fn edge_string<M: Memory>(
    window: &mut Window<'_, M>,
    mut offset: u64,
    into: &mut [u8],
) -> Result<(usize, u64), ScanError> {
    let mut length = 0usize;
    loop {
        let byte = window.byte(offset)?;
        offset = offset.saturating_add(1);
        if byte == 0 {
            return Ok((length, offset));
        }
        if let Some(to) = into.get_mut(length) {
            *to = byte;
            length = length.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{string::String, vec, vec::Vec};

    use coroner_process::memory::{Snapshot, SnapshotRange};

    use super::*;

    fn walked(bytes: &[u8]) -> (Vec<(u64, String)>, Result<(), ScanError>) {
        let ranges = [SnapshotRange { address: 0x100, bytes }];
        let mut memory = Snapshot { ranges: &ranges };
        let mut found = vec![];
        let trie = Extent { address: 0x100, size: bytes.len() as u64 };
        let outcome = walk(&mut memory, trie, &mut [0; CHUNK], u32::MAX, &mut [0; 64], |_, address, name| {
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
            3, REEXPORT as u8, 1, 0, 0,         // 23: _acd is another library's
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
}
