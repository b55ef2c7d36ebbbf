use super::*;

#[test]
fn progress_is_read_back_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let run = Directory::open(folder.path()).unwrap();
    assert_eq!(Progress::read(&run).unwrap(), Progress::default());

    let mut progress = Progress { attempts: 2, notified: true, ..Progress::default() };
    let waits = SinkState::Retry { not_before: 7, tries: 1, reason: "no network".into() };
    let rejected = SinkState::Rejected { reason: "too large".into() };
    let sinks = [("folder", SinkState::Delivered), ("otlp", rejected), ("sentry", waits)];
    let mut answers = Answers::default();
    for (name, state) in sinks {
        answers.insert(name.to_owned(), state);
    }
    progress.reports.insert(1, answers);
    progress.write(&run).unwrap();
    assert_eq!(Progress::read(&run).unwrap(), progress);
    let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    assert!(text.starts_with(r#"{"attempts":2,"notified":true,"stored_early":false,"#), "{text}");
    let sinks = r#""reports":{"1":{"folder":"delivered","otlp":{"rejected":{"reason":"too large"}},"sentry":{"retry":{"not_before":7,"tries":1,"reason":"no network"}}}}}"#;
    assert!(text.ends_with(sinks), "{text}");
}

#[test]
fn damage_counts_as_an_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let run = Directory::open(folder.path()).unwrap();
    run.write_atomically(OsStr::new(FILE), b"{\"attempts\": ").unwrap();
    assert_eq!(Progress::read(&run).unwrap().attempts, 1);
    run.write_atomically(OsStr::new(FILE), b"").unwrap();
    assert_eq!(Progress::read(&run).unwrap(), Progress::default());
}

#[test]
fn an_entry_that_is_not_a_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = Directory::open(folder.path()).unwrap();
    let path = folder.path().join(FILE);
    std::fs::create_dir_all(path.join("with/more")).unwrap();
    assert_eq!(Progress::read(&run).unwrap(), Progress::default());
    std::os::unix::fs::symlink("/", &path).unwrap();
    assert_eq!(Progress::read(&run).unwrap(), Progress::default());
    Progress::default().write(&run).unwrap();
    assert!(path.is_file());
}

#[test]
fn a_wrong_clock_does_not_delay_a_report() {
    let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let waits = |not_before| SinkState::Retry { not_before, tries: 1, reason: String::new() };
    assert!(waits(999_999).may_be_asked(now));
    assert!(waits(1_000_000).may_be_asked(now));
    assert!(!waits(1_000_900).may_be_asked(now));
    assert!(waits(2_000_000_000).may_be_asked(now));
}
