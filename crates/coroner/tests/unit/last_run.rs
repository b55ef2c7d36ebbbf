use super::*;

#[test]
fn what_is_noted_is_read_again_and_damage_is_a_first_launch() {
    let folder = tempfile::tempdir().unwrap();
    let store = Directory::open(folder.path()).unwrap();
    assert_eq!(LastRun::read(&store), LastRun::FIRST_LAUNCH);
    let last = LastRun {
        outcome: Outcome::Crashed,
        run: Some(Id([9; 16])),
        event_id: Some(Id([0xab; 16])),
        began: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        ran_for: Some(Duration::from_millis(1500)),
        signals_taken: Some("signal 11 is handled by /usr/bin/redis-server now".to_owned()),
    };
    last.write(&store).unwrap();
    assert_eq!(LastRun::read(&store), last);
    store.write_atomically(FILE.as_ref(), b"{\"outcome\":").unwrap();
    assert_eq!(LastRun::read(&store), LastRun::FIRST_LAUNCH);
}
