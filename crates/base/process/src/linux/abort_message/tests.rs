//! Messages of `abort` as bionic stores them.

extern crate std;
use std::vec::Vec;

use crate::memory::LoadGuarded;

use super::*;

/// A page with bionic's data: optional magic words, the size, the text and its NUL.
#[repr(C, align(4096))]
struct Page([u8; 4096]);

fn page(magic: &[u64], size: u64, text: &[u8]) -> Page {
    let words = magic.iter().chain([&size]).flat_map(|word| word.to_le_bytes());
    let bytes: Vec<u8> = words.chain(text.iter().copied()).collect();
    let mut page = Page([0; 4096]);
    page.0[..bytes.len()].copy_from_slice(&bytes);
    page
}

/// Returns the text found through variables, one of which points to `place` in the page.
fn found(page: &Page, place: u64) -> Option<Vec<u8>> {
    found_near(page, place, None)
}

fn found_near(page: &Page, place: u64, near: Option<u64>) -> Option<Vec<u8>> {
    let mut variables = [0x1234_u64; 200];
    variables[150] = page.0.as_ptr() as u64 + place;
    // SAFETY: everything that is pointed to can be read.
    let mut memory = unsafe { LoadGuarded::new() };
    let start = variables.as_ptr() as u64;
    let text = find_in_words(&mut memory, (start, start + size_of_val(&variables) as u64), near)?;
    let mut into = [0; MAX_MESSAGE];
    Some(read_text(&mut memory, text, &mut into).to_vec())
}

#[test]
fn messages_of_all_bionics_are_found_and_nothing_else_is() {
    const MAGIC: [u64; 2] = [0xb18e_4088_6ac3_88f0, 0xc6df_ba75_5a1d_e0b5];
    let text: &[u8] = b"all is lost";
    let length = text.len() as u64;
    assert_eq!(found(&page(&[], 8 + length + 1, text), 0).as_deref(), Some(text));
    assert_eq!(found(&page(&MAGIC, 24 + length + 1, text), 16).as_deref(), Some(text));
    // Another length, other magic words, another place, no text.
    for size in [0, 8, length, 8 + length, 8 + length + 2, 2000, u64::MAX] {
        assert_eq!(found(&page(&[], size, text), 0), None, "{size}");
    }
    assert_eq!(found(&page(&[MAGIC[1], MAGIC[0]], 24 + length + 1, text), 16), None);
    assert_eq!(found(&page(&MAGIC, 8 + length + 1, text), 0), None);
    assert_eq!(found(&page(&[], 9, b""), 0), None);
    assert_eq!(found(&page(&[], 10, b"\0"), 0), None);
    // A page that begins with a small number but isn't a text.
    assert_eq!(found(&page(&[], 8 + 3 + 1, b"\xe8i\x18"), 0), None);
}

#[test]
fn memory_far_from_the_linker_is_not_searched() {
    let text: &[u8] = b"all is lost";
    let page = page(&[], 8 + text.len() as u64 + 1, text);
    let at = page.0.as_ptr() as u64;
    for (near, is_found) in [(at, true), (at + (1 << 37), true), (at + (1 << 39), false)] {
        assert_eq!(found_near(&page, 0, Some(near)).is_some(), is_found, "{near:#x}");
    }
}
