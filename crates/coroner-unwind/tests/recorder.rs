//! Both ends of a stack are kept.

use coroner_unwind::{AddressKind, Found, Frame, Recorder};

fn frame(pc: u64) -> Frame {
    Frame { pc, sp: 0, cfa: None, found: Found::Cfi, kind: AddressKind::ReturnAddress }
}

#[test]
fn keeps_both_ends() {
    for first_room in 0..4u64 {
        for last_room in 0..4u64 {
            for total in 0..12u64 {
                let mut first = std::vec![frame(99); first_room as usize];
                let mut last = std::vec![frame(99); last_room as usize];
                let mut recorder = Recorder::new(&mut first, &mut last);
                (0..total).for_each(|pc| recorder.push(frame(pc)));
                let pcs = |frames: Vec<&Frame>| frames.iter().map(|frame| frame.pc).collect::<Vec<_>>();
                let begin = pcs(recorder.first().iter().collect());
                let end = pcs(recorder.last().collect());
                let split = first_room.min(total);
                assert_eq!(begin, (0..split).collect::<Vec<_>>());
                let from = total.saturating_sub(last_room).max(split);
                assert_eq!(end, (from..total).collect::<Vec<_>>(), "{first_room} {last_room} {total}");
                assert_eq!(recorder.skipped(), from - split);
            }
        }
    }
}
