use std::{process::Command, time::Duration};

use coroner_process::symtab::LookupAddress;

use crate::{NamingBudget, SymbolFile, naming_budget::Meter};

/// A line program as GNU's linkers leave it after dropping a function.
///
/// One sequence starts with the dropped function's rows at address 0 and continues with those of a
/// kept function. Before it is a similar sequence whose rows belong to code at higher addresses.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start: .space 0x3000
    .size _start, . - _start
    .section .debug_abbrev
    .byte 1, 0x11, 1, 0x03, 0x08, 0x10, 0x17, 0x11, 0x01, 0x55, 0x17, 0, 0
    .byte 2, 0x2e, 0, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0, 0
    .byte 0
    .section .debug_info
    .long 2f - 1f
1:  .short 4
    .long 0
    .byte 8
    .byte 1
    .asciz "dropped.c"
    .long 0
    .quad 0
    .long 0
    .byte 2
    .asciz "first"
    .quad 0x401010
    .long 0x20
    .byte 2
    .asciz "second"
    .quad 0x402000
    .long 0x10
    .byte 0
2:
    .section .debug_ranges
    .quad 0, 0x10, 0x401010, 0x401030, 0x402000, 0x402010, 0, 0
    .section .debug_line
    .long 2f - 1f
1:  .short 2
    .long 4f - 3f
3:  .byte 1, 1, -5, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1
    .byte 0
    .asciz "dropped.c"
    .byte 0, 0, 0, 0
4:  # address 0, line 20; address 0x402000, line 30, to 0x402010
    .byte 0, 9, 2
    .quad 0
    .byte 3, 19, 1
    .byte 0, 9, 2
    .quad 0x402000
    .byte 3, 10, 1, 2, 0x10, 0, 1, 1
    # address 0x401010, line 10, to 0x401030
    .byte 0, 9, 2
    .quad 0x401010
    .byte 3, 9, 1, 2, 0x20, 0, 1, 1
2:
"#;

#[test]
fn rows_of_dropped_functions_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a.s"), PROGRAM).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).current_dir(folder.path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("as", &["-o", "a.o", "a.s"]);
    run("ld", &["-Ttext=0x401000", "-o", "a", "a.o"]);
    let file = &SymbolFile::open(&path("a")).unwrap()[0];
    let expected = [(0x40_1014, "first", Some(10)), (0x40_2004, "second", Some(30)), (0x40_1f00, "_start", None)];
    for (address, function, line) in expected {
        let calls = file.calls(LookupAddress::of_instruction(address));
        let said: Vec<_> = calls.iter().map(|call| (call.name.as_deref().unwrap(), call.line)).collect();
        assert_eq!(said, [(function, line)], "{address:#x}");
    }
    let addresses = [0x40_1014, 0x40_2004];
    let unlimited = NamingBudget { memory: usize::MAX / 2, time: Duration::MAX, clock: || Duration::ZERO };
    let answers = file.pass_within(&addresses, &Meter::new(unlimited));
    let lines: Vec<_> = answers.iter().flat_map(|answer| answer.frames.iter().map(|frame| frame.line)).collect();
    assert_eq!(lines, [Some(10), Some(30)]);
    assert!(file.take_problems().is_empty());
}
