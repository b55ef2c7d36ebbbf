//! Load commands, valid and invalid.

use coroner_process::macho::{BadCommand, Command, Header, LC_SEGMENT_64, LC_UUID, SectionHeader};
use coroner_process::memory::{Snapshot, SnapshotRange};

/// `MH_MAGIC_64`.
const MAGIC: u32 = 0xfeed_facf;

#[test]
fn commands_end_at_the_first_bad_one() {
    let mut bytes = [0_u8; 32 + 72 + 80 + 8];
    let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    for (at, word) in
        [(0, MAGIC), (16, 3), (20, 72 + 80 + 8), (32, LC_SEGMENT_64), (36, 72 + 80), (96, 1), (184, LC_UUID)]
    {
        put(at, word);
    }
    put(188, 7);
    bytes[40..46].copy_from_slice(b"__TEXT");
    bytes[104..111].copy_from_slice(b"__stubs");
    bytes[120..126].copy_from_slice(b"__TEXT");
    let mut memory = Snapshot { ranges: &[SnapshotRange { address: 0x1000, bytes: &bytes }] };
    let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
    let mut commands = header.commands(0x1000);
    let command = commands.next(&mut memory).unwrap().unwrap();
    assert_eq!(command, Command { kind: LC_SEGMENT_64, address: 0x1020, size: 152 });
    let segment = command.segment(&mut memory).unwrap();
    assert!(segment.is_named(b"__TEXT") && !segment.is_named(b"__TEX") && segment.section_count == 1);
    let mut sections = 0;
    let mut each =
        |section: SectionHeader| sections += u32::from(section.is_named(b"__stubs") && section.is_in(b"__TEXT"));
    command.each_section(&mut memory, 1, &mut each).unwrap();
    assert_eq!(command.each_section(&mut memory, 2, &mut each), Err(BadCommand::BeyondEnd));
    assert_eq!(sections, 2);
    assert_eq!(commands.address(), 0x1000 + 184);
    assert_eq!(commands.next(&mut memory), Err(BadCommand::TooSmall));
    let mut commands = Header { commands_size: 151, ..header }.commands(0x1000);
    assert_eq!(commands.next(&mut memory), Err(BadCommand::BeyondEnd));
    let mut commands = header.commands(0x2000);
    assert_eq!(commands.next(&mut memory), Err(BadCommand::Unreadable));
    let mut commands = Header { command_count: 0, ..header }.commands(0x1000);
    assert_eq!(commands.next(&mut memory), Ok(None));
}
