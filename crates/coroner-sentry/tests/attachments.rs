//! What an event's declared files cost the launch that reads them. By itself, because it looks at the memory of the process.
#![cfg(target_os = "linux")]

use std::fs::{self, File};

use coroner_report::model::{Attachment, Report, RunFacts};
use coroner_sentry::attachments;
use coroner_sentry::event::{Event, EventOptions};

/// The most memory that this process has had at once, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn files_that_are_too_large_together_are_not_all_read() {
    const MOST: usize = 20 << 20;
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFacts::default();
    for number in 0..30_u64 {
        let path = folder.path().join(format!("{number}.bin"));
        // Sparse: they need no room on the disk.
        File::create(&path).unwrap().set_len((10 << 20) + number).unwrap();
        let name = format!("{number}.bin");
        run.attachments.push(Attachment { name, path: path.to_str().unwrap().to_owned(), ..Default::default() });
    }
    let report = Report { run: Some(run), ..Report::default() };
    let mut event = Event::from_report(&report, &EventOptions::default());
    let before = peak();
    let (mut attached, left_out) = attachments::of_run(&report, &mut event, MOST);
    let left_out = attachments::limit(&mut attached, MOST, left_out, &mut event);
    let names: Vec<&str> = attached.iter().map(|attachment| attachment.filename.as_str()).collect();
    assert_eq!((names, left_out.len()), (vec!["0.bin"], 29), "the smallest, as far as they go");
    assert_eq!(event.contexts["coroner"]["attachments_left_out"].as_array().unwrap().len(), 29);
    let grown = peak() - before;
    assert!(grown < 100 << 10, "{grown} KiB of memory");
}
