//! The Mach-O export trie: exported names as a prefix tree, the only names in a stripped library.
//!
//! A node is `terminal size (LEB128), terminal data, number of children (1 byte), children`; a
//! child is `the continuation of its name, NUL, offset of its node (LEB128)`. Terminal data is
//! `flags, address` (LEB128, relative to the header), or `flags, ordinal, name` for a re-export, or
//! `flags, stub, resolver`. Source: dyld's `Trie.hpp` and `mach-o/loader.h`.

use crate::memory::Memory;

use super::{CHUNK, Extent, MAX_TRIE_DEPTH, Problem, ScanError, Window};

const REEXPORT: u64 = 0x08;
const KIND_MASK: u64 = 0x03;
/// `EXPORT_SYMBOL_FLAGS_KIND_ABSOLUTE`: not an address in the image.
const KIND_ABSOLUTE: u64 = 0x02;

/// A node on the way from the root to the current one.
#[derive(Clone, Copy)]
struct Level {
    /// Offset of the next child to visit.
    next: u64,
    children: u8,
    /// Length of the name at this node.
    name: usize,
}

/// Calls `each` with every exported address.
///
/// The arguments are the node's offset, the address relative to the header, and the name, truncated
/// to the size of `name`.
///
/// A trie has at most as many nodes as a quarter of its bytes (a node with its edge takes four), so
/// more visits than that mean that nodes are shared or cyclic: the walk ends there.
///
/// # Errors
/// [`ScanError`], with offsets from the start of the trie.
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

/// Copies as much as fits of an edge's string.
///
/// Returns that length, and the offset after the string's NUL.
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
