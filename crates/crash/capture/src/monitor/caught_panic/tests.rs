use super::*;

fn panic(message: &'static str) -> Exception<'static> {
    const FRAME: Frame = Frame { pc: 0x1234, ..NO_FRAME };
    Exception { message: Some(message.as_bytes()), frames: &[FRAME], ..Exception::default() }
}

fn message(pid: i32, tid: Tid) -> Option<&'static str> {
    with_that_of_aborting(pid, tid, |panic| {
        assert_eq!((panic.location, panic.frames.len()), (None, 1));
        ["first", "second", "third"].into_iter().find(|text| Some(text.as_bytes()) == panic.message).unwrap()
    })
}

#[test]
fn a_threads_last_panic_is_used_once_and_expires() {
    let (pid, tid) = (process_id(), this_thread());
    assert_eq!(message(pid, tid), None);
    keep(&panic("first"));
    keep(&panic("second"));
    assert_eq!(message(pid, tid + 1), None, "another thread");
    assert_eq!(message(pid + 1, tid), None, "a child made by fork");
    assert_eq!(message(pid, tid), Some("second"));
    assert_eq!(message(pid, tid), None, "another abort");

    keep(&panic("third"));
    let slot = SLOTS.iter().find(|slot| slot.owner.load(Ordering::Acquire) == thread_word(pid, tid)).unwrap();
    slot.time.store(monotonic_now() - RECENT_NS - 1, Ordering::Release);
    assert_eq!(message(pid, tid), None, "long ago");
    unwinds();
    assert_eq!(message(pid, tid), Some("third"), "its hooks took as long");
}
