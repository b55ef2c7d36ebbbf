use super::*;

#[test]
fn x86_64_plt_stubs_are_recognized() {
    // objdump -d of a .plt, a .plt.sec with endbr64 and bnd, and a .plt.got of 8-byte entries
    let plt = [
        0xff, 0x35, 0xe2, 0x2f, 0, 0, 0xff, 0x25, 0xe4, 0x2f, 0, 0, 0x0f, 0x1f, 0x40, 0, // PLT0
        0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
    ];
    // PLT0 starts with a `push`, so no stub starts there.
    assert_eq!(x86_64_stubs(&plt, 0x1020), [Stub { start: 0x1030, size: 16, slot: 0x4018 }]);
    let sec = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
    assert_eq!(x86_64_stubs(&sec, 0x1050), [Stub { start: 0x1050, size: 16, slot: 0x3fd0 }]);
    let got = [0xff, 0x25, 0xba, 0x2f, 0, 0, 0x66, 0x90];
    assert_eq!(x86_64_stubs(&got, 0x1040), [Stub { start: 0x1040, size: 8, slot: 0x4000 }]);
}

#[test]
fn aarch64_plt_stubs_are_recognized() {
    // adrp x16, 0x11000; ldr x17, [x16, #16]; add x16, x16, #0x10; br x17   at 0x5d0
    let words: [u32; 4] = [0xb000_0090 & !(1 << 29) | (1 << 29), 0xf940_0a11, 0x9100_4210, 0xd61f_0220];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(aarch64_stubs(&code, 0x5d0), [Stub { start: 0x5d0, size: 16, slot: 0x1_1010 }]);
}

#[test]
fn layout_errors_have_an_offset() {
    assert_eq!(check_layout(b"\x7fELF").unwrap_err().offset, 0);
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    assert_eq!(check_layout(&header[..40]).unwrap_err().offset, 40);
    header[4] = 9;
    assert_eq!(check_layout(&header).unwrap_err().offset, 4);
    header[4] = 2;
    assert_eq!(check_layout(&header), Ok(()));
    // One section header at 1 TiB.
    header[45] = 1;
    header[58] = 64;
    header[60] = 1;
    let error = check_layout(&header).unwrap_err();
    assert_eq!(error.offset, 40, "{error:?}");
}
