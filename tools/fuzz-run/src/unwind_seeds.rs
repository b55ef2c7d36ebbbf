//! Seeds for the unwinder's targets, in the layout of `coroner_fuzz::case::Case`.
//!
//! They are sections, code and instructions of the oracle's programs, truncated.

use std::{collections::HashMap, fs, path::Path};

use anyhow::Context;
use object::{Object, ObjectSection};

use oracle::Build;
use toolbox::tools;

// Flags of `coroner_fuzz::case`.
const ARM64: u8 = 1;
const MACHO: u8 = 2;
const RETURN_ADDRESS: u8 = 4;
const OWN: u8 = 8;

/// Limit of a part in bytes.
const MAX_PART_BYTES: usize = 12 << 10;

/// A part of a seed with its address.
type Part<'a> = (u64, &'a [u8]);

/// Writes the seeds.
///
/// # Errors
/// An error if a program can't be built or read, or a file can't be written.
pub(crate) fn collect(corpus: &Path) -> anyhow::Result<()> {
    let cache = tools::workspace_root().join("target/oracle");
    fs::create_dir_all(&cache)?;
    let wanted = |build: &Build| {
        let name = build.name();
        name.contains("-c-Os") || name.ends_with("-c-O2-nofp")
    };
    for build in oracle::builds().into_iter().filter(wanted) {
        let data = fs::read(build.file(&cache)?)?;
        seeds_of(&data, &build.name(), corpus).with_context(|| build.name())?;
    }
    sframe(corpus)?;
    handwritten(corpus)
}

/// Writes the `.sframe` of each library in `fixtures/sframe`.
///
/// Each is written for an interrupted instruction and for a return address.
fn sframe(corpus: &Path) -> anyhow::Result<()> {
    for library in ["v2-x86_64", "v3-x86_64", "v2-aarch64", "v3-aarch64"] {
        let data = fs::read(tools::workspace_root().join(format!("fixtures/sframe/{library}.so")))?;
        let file = object::File::parse(&*data)?;
        let arch = if file.architecture() == object::Architecture::Aarch64 { ARM64 } else { 0 };
        let section = |name: &str| file.section_by_name(name).with_context(|| format!("missing {name} in {library}"));
        let (text, table) = (section(".text")?, section(".sframe")?);
        let middle = text.address() + text.size() / 2 / 4 * 4;
        for (kind, flags) in [("instruction", arch), ("return", arch | RETURN_ADDRESS)] {
            let name = format!("{library}-{kind}");
            let part1 = (table.address(), table.data()?);
            write(corpus, "sframe", &name, flags, middle, (text.address(), text.size()), part1, (0, &[]))?;
        }
    }
    Ok(())
}

fn seeds_of(data: &[u8], name: &str, corpus: &Path) -> anyhow::Result<()> {
    let file = object::File::parse(data)?;
    let arm64 = file.architecture() == object::Architecture::Aarch64;
    let flags = if arm64 { ARM64 } else { 0 };
    let mut sections: HashMap<String, Part<'_>> = HashMap::new();
    for section in file.sections() {
        sections.insert(section.name()?.to_owned(), (section.address(), section.data().unwrap_or_default()));
    }
    let section = |name: &str| sections.get(name).copied().unwrap_or((0, &[]));
    let (text_address, code) = if name.starts_with("elf") { section(".text") } else { section("__text") };
    let text = (text_address, code.len() as u64);
    // Inside the code, at an instruction on either architecture.
    let pc = text_address + 0x200;
    let write = |target: &str, name: &str, flags: u8, part1: Part<'_>, part2: Part<'_>| {
        write(corpus, target, name, flags, pc, text, part1, part2)
    };
    let cut = |(address, bytes): Part<'_>, length: usize| -> (u64, Vec<u8>) {
        (address, bytes[..bytes.len().min(length)].to_vec())
    };
    if name.starts_with("elf") {
        let hdr = cut(section(".eh_frame_hdr"), MAX_PART_BYTES);
        let eh_frame = cut(section(".eh_frame"), MAX_PART_BYTES);
        write("eh_frame_hdr", name, flags, (hdr.0, &hdr.1), (eh_frame.0, &eh_frame.1))?;
        let short = cut(section(".eh_frame"), 2048);
        write("eh_frame", name, flags | RETURN_ADDRESS, (pc, &code[0x200..0x280]), (short.0, &short.1))?;
    } else {
        let info = cut(section("__unwind_info"), MAX_PART_BYTES);
        let eh_frame = cut(section("__eh_frame"), 4096);
        write("compact_unwind", name, flags | OWN, (info.0, &info.1), (eh_frame.0, &eh_frame.1))?;
        write("eh_frame", name, flags | MACHO, (pc, &code[0x200..0x280]), (eh_frame.0, &eh_frame.1))?;
    }
    // Code from its start, the pc at an instruction of a prologue or a body.
    let start = cut((text_address, code), 1024);
    let frame: u32 = if arm64 { 0x0400_0000 } else { 0x0100_0000 };
    let frameless: u32 = if arm64 { 0x0200_2000 } else { 0x0204_0c00 };
    for (kind, encoding) in [("frame", frame), ("frameless", frameless)] {
        let encoding = encoding.to_le_bytes();
        write("code", &format!("{name}-{kind}"), flags | OWN, (start.0, &start.1), (0, &encoding))?;
    }
    write("code", name, flags, (start.0, &start.1), (0, &[]))?;
    // A stack of frame records and return addresses.
    let words: Vec<u8> = (0..64u64)
        .flat_map(|index| {
            let value = match index % 4 {
                0 => 0x7_0000_0000 + 8 * (index + 4),
                1 => text_address + 4 * index * 7,
                2 => index,
                _ => 0,
            };
            value.to_le_bytes()
        })
        .collect();
    write("walk", name, flags, (start.0, &start.1), (0, &words))
}

/// Writes seeds that are not taken from a program.
fn handwritten(corpus: &Path) -> anyhow::Result<()> {
    let text = (0x1000, 0x1000);
    let expressions: [(&str, &[u8]); 6] = [
        // DW_OP_breg7 8; DW_OP_deref
        ("deref", &[0x77, 8, 0x06]),
        // gcc's expression for realigned stacks: DW_OP_breg6 -24; DW_OP_deref
        ("realigned", &[0x76, 0x68, 0x06]),
        // The linkers' expression for the x86_64 .plt: breg7 8; breg16 0; lit15; and; lit11; ge;
        // lit3; shl; plus
        ("plt", &[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]),
        // dup, drop, over, pick, swap, rot, abs, minus, mul, neg, not, or, plus_uconst, shr, shra,
        // xor
        (
            "stack",
            &[0x31, 0x32, 0x33, 0x12, 0x13, 0x14, 0x15, 1, 0x16, 0x17, 0x19, 0x1c, 0x1e, 0x1f, 0x20, 0x21, 0x23, 5],
        ),
        // const1u … consts, div, mod, bra and skip, deref_size, bregx
        ("numbers", &[0x08, 9, 0x0a, 1, 2, 0x1b, 0x0c, 1, 2, 3, 4, 0x1d, 0x28, 0, 0, 0x2f, 0, 0, 0x94, 4, 0x92, 7, 8]),
        // skip -3: an endless loop
        ("circle", &[0x2f, 0xfd, 0xff]),
    ];
    for (name, expression) in expressions {
        for (arch, flags) in [("x86_64", 0), ("arm64", ARM64)] {
            for (kind, own) in [("cfa", 0), ("register", OWN)] {
                let name = format!("{name}-{arch}-{kind}");
                write(corpus, "expression", &name, flags | own, 0x1100, text, (0, &[]), (0, expression))?;
            }
        }
    }
    // (common entry, frame description): DW_CFA_def_cfa, _offset; then each kind of instruction.
    let x86: (&[u8], &[u8]) = (
        &[0x0c, 7, 8, 0x90, 1],
        &[
            0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 0x10, 0x0a, 0x0c, 7, 8, 0xc6, 0x41, 0x0b, 0x2e, 16, 0x09, 3,
            12,
        ],
    );
    let arm64: (&[u8], &[u8]) = (
        &[0x0c, 31, 0],
        &[0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x41, 0x0d, 29, 0x41, 0x93, 2, 0x2d, 0x48, 0xde, 0xdd, 0xd3, 0x0c, 31, 0],
    );
    // advance_loc2/4, offset_extended(_sf), restore_extended, undefined, same_value, def_cfa_sf,
    // val_offset(_sf), expression, val_expression, GNU_negative_offset_extended
    let rare: (&[u8], &[u8]) = (
        &[0x12, 7, 0x7f, 0x90, 1],
        &[
            0x03, 4, 0, 0x04, 4, 0, 0, 0, 0x05, 3, 2, 0x11, 12, 0x7e, 0x06, 3, 0x07, 13, 0x08, 14, 0x13, 0x7e, 0x14,
            15, 2, 0x15, 3, 0x7d, 0x10, 6, 2, 0x77, 8, 0x16, 12, 1, 0x32, 0x2f, 13, 3,
        ],
    );
    for (name, flags, (initial, instructions)) in
        [("x86_64", 0, x86), ("arm64", ARM64, arm64), ("rare-x86_64", 0, rare), ("rare-arm64", ARM64, rare)]
    {
        write(corpus, "cfa_instructions", name, flags, 0x1f00, text, (0, initial), (0, instructions))?;
    }
    // A .debug_frame of one common entry (version 4, with address and segment sizes) and one
    // description.
    let mut debug_frame = Vec::new();
    let mut entry = |body: &[u8]| {
        debug_frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        debug_frame.extend_from_slice(body);
    };
    entry(&[0xff, 0xff, 0xff, 0xff, 4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1]);
    let mut description = vec![0, 0, 0, 0];
    description.extend_from_slice(&0x1000u64.to_le_bytes());
    description.extend_from_slice(&0x1000u64.to_le_bytes());
    description.extend_from_slice(&[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6]);
    entry(&description);
    for (name, flags) in [("through", 0), ("table", OWN), ("table-arm64", OWN | ARM64)] {
        write(
            corpus,
            "debug_frame",
            name,
            flags,
            0x1100,
            text,
            (0x1000, &[0x55, 0x48, 0x89, 0xe5]),
            (0x8000, &debug_frame),
        )?;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the fields of a case")]
fn write(
    corpus: &Path,
    target: &str,
    name: &str,
    flags: u8,
    pc: u64,
    text: (u64, u64),
    part1: Part<'_>,
    part2: Part<'_>,
) -> anyhow::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    let mut bytes = vec![flags, 1];
    bytes.extend_from_slice(&(part1.1.len() as u16).to_le_bytes());
    for word in [pc, text.0, text.1, part1.0, part2.0] {
        bytes.extend_from_slice(&(word as u32).to_le_bytes());
    }
    bytes.extend_from_slice(part1.1);
    bytes.extend_from_slice(part2.1);
    fs::write(folder.join(name), bytes).with_context(|| format!("can't write a seed of {target}"))
}
