extern crate std;

use super::*;

fn habits() -> Habits {
    Habits { places: [const { AtomicU8::new(0) }; PLACES] }
}

#[test]
fn a_new_thread_is_polled() {
    assert_eq!(habits().spin_time(7), MAX_TIME);
}

#[test]
fn polling_lasts_about_as_long_as_the_last_answers() {
    for time in [0, 300, 3_000, 20_000, MAX_TIME - 1] {
        let habits = habits();
        habits.note(7, Answered::After(time));
        let spin_time = habits.spin_time(7);
        assert!(spin_time > time && spin_time <= MAX_TIME, "{time}: {spin_time}");
    }
    let habits = habits();
    habits.note(7, Answered::After(20_000));
    (0..20).for_each(|_| habits.note(7, Answered::After(1_000)));
    assert!(habits.spin_time(7) < 12_000, "{}", habits.spin_time(7));
}

#[test]
fn a_thread_that_answers_on_the_askers_cpu_is_not_polled_until_that_helps() {
    let habits = habits();
    habits.note(7, Answered::InPlaceOfTheAsker);
    assert_eq!(habits.spin_time(7), 0);
    assert_ne!(habits.spin_time(8), 0, "another thread");
    habits.note(7, Answered::After(4_000));
    assert!(habits.spin_time(7) > 4_000);
    habits.note(7, Answered::InPlaceOfTheAsker);
    assert_eq!(habits.spin_time(7), 0);
}

#[test]
fn a_repeatedly_late_thread_is_not_polled_until_that_helps() {
    let habits = habits();
    for _ in 0..50 {
        for late in [Answered::After(MAX_TIME), Answered::Not] {
            assert!(habits.spin_time(7) > 0);
            habits.note(7, late);
        }
        habits.note(7, Answered::After(4_000));
    }
    (0..50).for_each(|_| habits.note(7, Answered::After(u64::MAX)));
    assert_eq!(habits.spin_time(7), 0);
    habits.note(7, Answered::After(4_000));
    assert!(habits.spin_time(7) > 4_000);
    habits.note(7, Answered::Not);
    assert_eq!(habits.spin_time(7), 0, "one quick answer is chance, too");
}

#[test]
fn polling_ends_with_the_answer_or_the_time_limit() {
    let word = AtomicU32::new(5);
    assert_eq!(while_it_is(&word, 4, u64::MAX), 5);
    assert_eq!(while_it_is(&word, 5, 0), 5);
    assert_eq!(while_it_is(&word, 5, 1_000), 5);
    std::thread::scope(|scope| {
        scope.spawn(|| word.store(6, SeqCst));
        assert_eq!(while_it_is(&word, 5, u64::MAX), 6);
    });
}
