//! What the user said is what is believed, whatever becomes of the files.

use std::fs;
use std::os::unix::fs::symlink;

use coroner_outbox::Outbox;

#[test]
fn a_refusal_outlives_damage() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Outbox::open(folder.path(), "message").unwrap();
    let outbox = open();
    assert_eq!(outbox.consent().unwrap(), None);
    for given in [false, true, false] {
        outbox.set_consent(given).unwrap();
        assert_eq!(open().consent().unwrap(), Some(given));
    }
    fs::write(folder.path().join("state.json"), "{\"done\":").unwrap();
    assert!(open().is_refused().unwrap());
    let file = folder.path().join("consent");
    for damaged in ["", "giv", "given\nindeed", "\0\0\0\0\0\0"] {
        fs::write(&file, damaged).unwrap();
        assert!(outbox.is_refused().unwrap(), "{damaged:?}");
    }
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "given\n").unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(outbox.is_refused().unwrap(), "a link is not followed");
    outbox.set_consent(true).unwrap();
    fs::remove_file(&elsewhere).unwrap();
    assert_eq!(outbox.consent().unwrap(), Some(true));
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("inside")).unwrap();
    assert!(outbox.is_refused().unwrap(), "a directory says nothing");
    outbox.set_consent(true).unwrap();
    assert_eq!(outbox.consent().unwrap(), Some(true));
}
