//! A Swift runtime's crash log: shown, and imported.

use std::process::Command;

const LOG: &str = r#"the app's own words
{ "timestamp": "2025-06-01T10:11:12.500000Z", "kind": "crashReport", "description": "Bad pointer dereference at 0x0000000000000010", "faultAddress": "0x0000000000000010", "platform": "Linux (Ubuntu 24.04)", "architecture": "x86_64", "threads": [ { "name": "shop", "crashed": true, "registers": { "rip": "0x0000555500001234" }, "frames": [ { "kind": "programCounter", "address": "0x0000555500001234", "symbol": "$s4shop5totalSiyF", "offset": 20, "description": "total() + 20", "image": "shop", "sourceLocation": { "file": "/src/shop.swift", "line": 12, "column": 9 } } ] } ], "images": [], "backtraceTime": 0.25 }
"#;

fn run(words: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_coroner")).args(words).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_swift_crash_log_is_shown_and_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (log, cut) = (folder.path().join("crash.json"), folder.path().join("cut.json"));
    std::fs::write(&log, LOG).unwrap();
    // Without other output the whole file is JSON.
    let bare = &LOG[LOG.find('{').unwrap()..];
    std::fs::write(&cut, &bare[..bare.len() / 2]).unwrap();
    let (shown, text) = run(&["show", log.to_str().unwrap()]);
    assert!(shown && text.contains("total() + 20 (/src/shop.swift:12:9)") && text.contains("SIGSEGV"), "{text}");
    let (shown, text) = run(&["show", cut.to_str().unwrap()]);
    assert!(!shown && text.contains("the Swift crash log at byte 0 is damaged or truncated"), "{text}");
    std::fs::write(&log, bare).unwrap();
    let (imported, text) =
        run(&["import", log.to_str().unwrap(), "--output", folder.path().join("in").to_str().unwrap()]);
    assert!(imported, "{text}");
    let kept = std::fs::read_dir(folder.path().join("in")).unwrap().next().unwrap().unwrap().path();
    let (shown, text) = run(&["show", kept.to_str().unwrap()]);
    assert!(shown && text.contains("total() + 20 (/src/shop.swift:12:9)"), "{text}");
}
