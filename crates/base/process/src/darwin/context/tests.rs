use super::*;

#[test]
fn the_kernels_codes_are_removed_where_it_says_that_it_signed() {
    const CODE: u64 = 0x00a5_8000_0000_0000;
    let mut context = Context::default();
    let signed = |address: u64| CODE | address;
    context.thread.__pc = signed(0x1_0000_1000);
    context.thread.__lr = signed(0x1_0000_2000);
    context.thread.__fp = signed(0x16_0000_0010);
    context.thread.__sp = signed(0x16_0000_0000);
    context.thread.__x[0] = signed(8);
    assert_eq!(context.pc(), signed(0x1_0000_1000), "as it is, where the kernel says nothing");
    for flag in [2, 4, 8] {
        context.thread.__pad = flag;
        let registers = context.registers();
        assert_eq!((registers.pc, registers.sp), (0x1_0000_1000, 0x16_0000_0000));
        assert_eq!((registers.fp(), registers.lr()), (0x16_0000_0010, 0x1_0000_2000));
        assert_eq!(registers.x[0], signed(8), "the others are the app's own");
    }
}
