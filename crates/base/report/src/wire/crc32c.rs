//! CRC-32C (Castagnoli; RFC 3720 appendix B.4).
//!
//! Reflected polynomial 0x82F63B78, initial value and final XOR all ones. Implemented in software
//! with compile-time tables, eight bytes per step ("slicing-by-8", Kounavis and Berry 2005). The
//! processor's own instruction would have to be detected first, which requires lazy initialization.

/// `TABLES[k][b]`: the CRC of byte `b` followed by `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut slice = 1;
    while slice < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[slice - 1][byte];
            tables[slice][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

/// Continues a CRC-32C: `crc32c(crc32c(0, a), b)` is the CRC of `a` followed by `b`.
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        crc = step(crc, u64::from_le_bytes(*word));
    }
    for byte in rest {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xFF) as usize];
    }
    !crc
}

#[inline]
fn step(crc: u32, word: u64) -> u32 {
    let [a, b, c, d, e, f, g, h] = (word ^ u64::from(crc)).to_le_bytes();
    // The indices are bytes and the tables have 256 entries, so the compiler proves every bound.
    TABLES[7][a as usize]
        ^ TABLES[6][b as usize]
        ^ TABLES[5][c as usize]
        ^ TABLES[4][d as usize]
        ^ TABLES[3][e as usize]
        ^ TABLES[2][f as usize]
        ^ TABLES[1][g as usize]
        ^ TABLES[0][h as usize]
}
