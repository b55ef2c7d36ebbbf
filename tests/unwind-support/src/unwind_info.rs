//! `__unwind_info` as a linker would write it.

/// The bytes of little-endian words.
pub fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `__unwind_info` of functions of 0x100 bytes each from offset 0x1000 on: the first half of the
/// encodings in a regular page, the rest in a compressed one, whose encodings are the section's
/// (even ones) and the page's own (odd ones).
pub fn unwind_info(encodings: &[u32]) -> Vec<u8> {
    let half = encodings.len() / 2;
    let offset = |index: usize| 0x1000 + 0x100 * index as u32;
    let rest = &encodings[half..];
    let common: Vec<u32> = rest.iter().step_by(2).copied().collect();
    let own: Vec<u32> = rest.iter().skip(1).step_by(2).copied().collect();
    let common_at = 28;
    let index_at = common_at + 4 * common.len() as u32;
    let regular_at = index_at + 3 * 12;
    let compressed_at = regular_at + 8 + 8 * half as u32;
    let own_at = 12 + 4 * rest.len() as u32;
    let mut words = vec![1, common_at, common.len() as u32, 0, 0, index_at, 3];
    words.extend(&common);
    for (function, page) in [(0, regular_at), (half, compressed_at), (encodings.len(), 0)] {
        words.extend([offset(function), page, 0]);
    }
    words.extend([2, 0x8 | ((half as u32) << 16)]);
    for (index, encoding) in encodings[..half].iter().enumerate() {
        words.extend([offset(index), *encoding]);
    }
    words.extend([3, 0xc | ((rest.len() as u32) << 16), own_at | ((own.len() as u32) << 16)]);
    for index in 0..rest.len() {
        let number = index / 2 + if index % 2 == 0 { 0 } else { common.len() };
        words.push(((number as u32) << 24) | (offset(half + index) - offset(half)));
    }
    words.extend(own);
    u32s(&words)
}
