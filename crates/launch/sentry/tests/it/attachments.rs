//! The memory that an event's attachments cost the launch that reads them.

use std::fs::{self, File};

use coroner_report::model::{Address, Attachment, Bytes, Crash, Image, Report, RunFacts};
use coroner_report::wire::{ImageKind, Monitor};
use coroner_sentry::attachments;
use coroner_sentry::envelope::AttachmentType;
use coroner_sentry::event::{Event, EventOptions};
use coroner_test_support::isolated;

/// The most memory that this process has had at once, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_system_minidump_is_attached_and_windows_images_have_ids() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFacts::default();
    for (name, bytes) in [("minidump.dmp", &b"MDMP of the system"[..]), ("cut.dmp", &[]), ("log.txt", b"MDMP")] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let content_type = name.ends_with(".dmp").then(|| Attachment::MINIDUMP.to_owned());
        run.attachments.push(Attachment {
            name: name.to_owned(),
            path: path.to_str().unwrap().to_owned(),
            content_type,
        });
    }
    let identity = [&[0xe5, 0x32, 0x98, 0x5a, 0, 0x70, 0x28, 0][..], &[1; 16], &[10, 0, 0, 0]].concat();
    let image = |id: &[u8]| Image {
        kind: ImageKind::PE,
        path: "C:\\app\\paint.exe".to_owned(),
        load_address: Address(0x1_4000_0000),
        slide: Address(0x1_4000_0000),
        size: 0x28_7000,
        build_id: Bytes(id.to_vec()),
        ..Image::default()
    };
    let images = vec![image(&identity), image(&identity[..8])];
    let kinds = |monitor, minidump| {
        let crash = Some(Crash { monitor, ..Crash::default() });
        let report = Report { run: Some(run.clone()), crash, images: images.clone(), ..Report::default() };
        let mut event = Event::from_report(&report, &EventOptions::default());
        let (attached, _) = attachments::from_run(&report, &mut event, 1 << 20, minidump);
        (event, attached.into_iter().map(|attachment| attachment.ty).collect::<Vec<_>>())
    };
    let (event, of_crash) = kinds(Monitor::SEH, true);
    assert_eq!(of_crash, [Some(AttachmentType::Minidump), None, None]);
    assert_eq!(kinds(Monitor::SEH, false).1, [None, None], "not unless it is asked for");
    assert_eq!(kinds(Monitor::PANIC, false).1, [None, None, None]);
    let event = serde_json::to_value(&event).unwrap();
    let images = &event["debug_meta"]["images"];
    assert_eq!((&images[0]["type"], &images[0]["code_id"]), (&"pe".into(), &"5a9832e5287000".into()));
    assert_eq!(images[0]["debug_id"], "01010101-0101-0101-0101-010101010101-a");
    assert_eq!(images[1]["debug_id"], "00000000-0000-0000-0000-000000000000");
    assert_eq!(images[1]["code_id"], "5a9832e5287000");
}

#[test]
fn the_largest_files_are_left_out_unread() {
    isolated(concat!(module_path!(), "::the_largest_files_are_left_out_unread"), || {
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
        let (mut attached, left_out) = attachments::from_run(&report, &mut event, MOST, false);
        let left_out = attachments::limit(&mut attached, MOST, left_out, &mut event);
        let names: Vec<&str> = attached.iter().map(|attachment| attachment.filename.as_str()).collect();
        assert_eq!((names, left_out.len()), (vec!["0.bin"], 29), "the smallest, as far as they go");
        let noted = &event.to_value()["contexts"]["coroner"]["attachments_left_out"];
        assert_eq!(noted.as_array().unwrap().len(), 29);
        let grown = peak() - before;
        assert!(grown < 100 << 10, "{grown} KiB of memory");
    });
}
