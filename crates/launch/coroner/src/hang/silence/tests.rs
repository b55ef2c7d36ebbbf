use super::*;

const TICK: Duration = Duration::from_millis(100);
const BUSY: u64 = 7;

fn silence() -> Silence {
    Silence::new(5 * TICK, TICK, BUSY)
}

#[test]
fn a_hang_begins_once_and_ends_once() {
    let mut silence = silence();
    for _ in 0..4 {
        assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing);
    }
    assert_eq!(silence.look(BUSY, TICK), Verdict::Hangs);
    assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing, "a hang must be reported once");
    assert_eq!((silence.hangs, silence.lasted()), (true, 6 * TICK));
    assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Answers(6 * TICK));
    assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Nothing);
    assert_eq!((silence.hangs, silence.lasted()), (false, TICK));
}

#[test]
fn a_thread_that_beats_in_time_or_is_idle_does_not_hang() {
    let mut silence = silence();
    for beat in 1..50 {
        for _ in 0..4 {
            assert_eq!(silence.look(BUSY + 2 * beat, TICK), Verdict::Nothing);
        }
    }
    for _ in 0..50 {
        assert_eq!(silence.look(BUSY + 101, TICK), Verdict::Nothing, "an even number means idle");
    }
}

#[test]
fn unwatched_time_does_not_count_as_silence() {
    let mut silence = silence();
    for _ in 0..4 {
        assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing);
    }
    // Stopped or asleep for an hour; slow machines are sometimes late, too.
    assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
    assert_eq!(silence.lasted(), 4 * TICK);
    assert_eq!(silence.look(BUSY, TICK * 3 / 2), Verdict::Hangs, "earlier silence must count");
    assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
    assert_eq!(silence.look(BUSY + 1, TICK), Verdict::Answers(TICK * 11 / 2));
}
