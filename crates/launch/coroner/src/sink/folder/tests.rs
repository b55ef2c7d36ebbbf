use coroner_report::model::{Attachment, Crash, Header, Id, RunFacts};

use super::*;
use crate::store::RawRun;

fn report(event: u8, seconds: u64) -> Report {
    let header = Header { event_id: Id([event; 16]), ..Header::default() };
    let crash = Crash { time: Timestamp(seconds * 1_000_000_000), ..Crash::default() };
    Report { header, crash: Some(crash), ..Report::default() }
}

fn deliver(sink: &FolderSink, report: &Report) -> SinkAnswer {
    let raw = RawRun {
        run: None,
        reports: vec![b"raw".to_vec()],
        state: b"state".to_vec(),
        system: Vec::new(),
        termination: None,
        made_of_system: None,
        minidump: None,
    };
    sink.deliver(&Submission { run: Id([1; 16]), report, index: 0, raw: &raw, tries: 0, launches: 0 })
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn a_report_delivered_again_is_still_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("created/on/demand");
    let sink = FolderSink::new(&path);
    for _ in 0..2 {
        assert_eq!(deliver(&sink, &report(0xab, 1_000_000_000)), SinkAnswer::Delivered);
    }
    let stem = format!("20010909T014640Z-{}", "ab".repeat(16));
    assert_eq!(names(&path), [format!("{stem}.coroner"), format!("{stem}.json")]);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path.join(format!("{stem}.json"))).unwrap()).unwrap();
    assert_eq!(json["header"]["event_id"], "ab".repeat(16));
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn an_interrupted_report_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let sink = FolderSink::new(folder.path());
    deliver(&sink, &report(1, 5));
    let json = names(folder.path()).into_iter().find(|name| name.contains(".json")).unwrap();
    std::fs::remove_file(folder.path().join(&json)).unwrap();
    assert_eq!(deliver(&sink, &report(1, 5)), SinkAnswer::Delivered);
    assert!(names(folder.path()).contains(&json));
}

#[test]
fn a_folder_that_cannot_be_created_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"").unwrap();
    let sink = FolderSink::new(folder.path().join("file/below"));
    let SinkAnswer::Retry { reason, .. } = deliver(&sink, &report(1, 5)) else {
        panic!("delivered to a folder that can't be created")
    };
    assert!(reason.contains("file/below"), "{reason}");
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn limits_remove_only_old_reports() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.json"), b"mine").unwrap();
    let sink = FolderSink::new(folder.path()).retention(Retention { number: 2, ..Retention::default() });
    for (event, seconds) in [(1, 10), (2, 20), (3, 30)] {
        deliver(&sink, &report(event, seconds));
        for name in names(folder.path()).into_iter().filter(|name| name.contains(&format!("{event:02x}").repeat(16))) {
            let file = std::fs::File::options().write(true).open(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100 - seconds)).unwrap();
        }
    }
    let left = names(folder.path());
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.contains(&"notes.json".to_owned()));
    assert!(!left.iter().any(|name| name.contains(&"01".repeat(16))), "{left:?}");
}

#[test]
#[cfg_attr(not(feature = "json"), ignore = "reads JSON")]
fn attachments_are_stored_and_removed_with_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let (log, large) = (folder.path().join("a.log"), folder.path().join("large"));
    std::fs::write(&log, b"it was warm").unwrap();
    std::fs::File::create(&large).unwrap().set_len(MAX_ATTACHMENTS).unwrap();
    let path = folder.path().join("reports");
    let sink = FolderSink::new(&path).retention(Retention { number: 1, ..Retention::default() });
    let attached = |name: &str, path: &Path| Attachment {
        name: name.to_owned(),
        path: path.display().to_string(),
        content_type: None,
    };
    let mut first = report(1, 5);
    let run = RunFacts {
        attachments: vec![
            attached("../a log.txt", &log),
            attached("large", &large),
            attached("missing", Path::new("/nowhere/at/all")),
        ],
        ..RunFacts::default()
    };
    first.run = Some(run);
    assert_eq!(deliver(&sink, &first), SinkAnswer::Delivered);
    let stem = stem(&first);
    let file = format!("{stem}.attachment-.._a_log.txt");
    assert_eq!(names(&path), [file.clone(), format!("{stem}.coroner"), format!("{stem}.json")], "within 20 MiB");
    assert_eq!(std::fs::read(path.join(&file)).unwrap(), b"it was warm");

    deliver(&sink, &report(2, 6));
    assert!(names(&path).iter().all(|name| !name.starts_with(&stem)), "{:?}", names(&path));
}

/// Replaces the attachment by a named pipe, and back, while it is read.
#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_an_attachment_does_not_block() {
    const ROUNDS: usize = 3000;
    let folder = tempfile::tempdir().unwrap();
    let [file, pipe, place, next] = ["file", "pipe", "place", "next"].map(|name| folder.path().join(name));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::fs::write(&file, b"a log").unwrap();
    std::fs::hard_link(&file, &place).unwrap();
    let path = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let (finished, finishes) = std::sync::mpsc::channel();
    let reads = place.clone();
    let reader = std::thread::spawn(move || {
        let (mut read, mut rounds) = (0, 0);
        // At least once, the file must have been in its place.
        while rounds < ROUNDS || read == 0 {
            read += usize::from(matches!(read_attachment(&reads, 100), Ok(Some(_))));
            rounds += 1;
        }
        finished.send(()).unwrap();
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for source in [&file, &pipe] {
                    // Renaming one name of a file to another does nothing.
                    let _ = std::fs::remove_file(&next);
                    std::fs::hard_link(source, &next).unwrap();
                    std::fs::rename(&next, &place).unwrap();
                }
            }
        });
        let read = finishes.recv_timeout(Duration::from_secs(60));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(read.is_ok(), "the reader waits for the pipe");
    });
    reader.join().unwrap();
}
