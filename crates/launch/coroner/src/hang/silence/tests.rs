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
    assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing, "it is reported once");
    assert_eq!((silence.hangs, silence.lasted()), (true, 6 * TICK));
    assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Answers(6 * TICK));
    assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Nothing);
    assert_eq!((silence.hangs, silence.lasted()), (false, TICK));
}

#[test]
fn who_answers_in_time_or_is_idle_does_not_hang() {
    let mut silence = silence();
    for beat in 1..50 {
        for _ in 0..4 {
            assert_eq!(silence.look(BUSY + 2 * beat, TICK), Verdict::Nothing);
        }
    }
    for _ in 0..50 {
        assert_eq!(silence.look(BUSY + 101, TICK), Verdict::Nothing, "idle: the number is even");
    }
}

#[test]
fn time_that_nobody_watched_is_no_silence() {
    let mut silence = silence();
    for _ in 0..4 {
        assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing);
    }
    // Stopped for an hour, or asleep; slow machines are also late now and then.
    assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
    assert_eq!(silence.lasted(), 4 * TICK);
    assert_eq!(silence.look(BUSY, TICK * 3 / 2), Verdict::Hangs, "that it was silent before still counts");
    assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
    assert_eq!(silence.look(BUSY + 1, TICK), Verdict::Answers(TICK * 11 / 2));
}
