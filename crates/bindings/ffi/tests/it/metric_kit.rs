//! A MetricKit payload added by a C program.
//!
//! Without the feature `system-reports` the program gets an error.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common;

/// Returns a payload with one crash of a process that has just ended.
fn payload(pid: u32) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let time = coroner_report::model::Timestamp(now as u64).to_string()[..19].replace('T', " ");
    serde_json::json!({
        "timeStampBegin": time, "timeStampEnd": time,
        "crashDiagnostics": [{
            "callStackTree": { "callStackPerThread": true, "callStacks": [{
                "threadAttributed": true,
                "callStackRootFrames": [{ "binaryUUID": "C42F630F-A71A-3EDC-9225-CF2C231A6669", "binaryName": "shop",
                    "offsetIntoBinaryTextSegment": 0x4000, "address": 0x1_0000_4000_u64, "sampleCount": 1 }],
            }] },
            "diagnosticMetaData": { "pid": pid, "signal": 9, "exceptionType": 10, "exceptionCode": 0,
                "terminationReason": "Namespace FRONTBOARD, Code 0x8badf00d", "platformArchitecture": "arm64e" },
        }],
    })
    .to_string()
}

#[test]
fn a_death_recorded_only_by_the_system_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let (store, payload_file) = (folder.path().join("store"), folder.path().join("payload"));
    let program = common::c_program("metric_kit.c", &[], folder.path());
    let run = |how: &str| Command::new(&program).arg(&store).arg(&payload_file).arg(how).output().unwrap();
    let spawned = Command::new(&program).arg(&store).args(["-", "killed"]).spawn().unwrap();
    let pid = spawned.id();
    assert_eq!(spawned.wait_with_output().unwrap().status.code(), None);

    // The same payload at each launch, as from MetricKit.
    std::fs::write(&payload_file, payload(pid)).unwrap();
    for _ in 0..2 {
        let ran = run("deliver");
        let words = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(ran.status.code(), Some(0), "{words}");
        if !cfg!(feature = "system-reports") {
            assert!(words.contains("without the feature `system-reports`") && words.contains("status 4"), "{words}");
            return;
        }
        assert!(words.contains("status 0"), "{words}");
    }
    let files = std::fs::read_dir(store.join("reports")).unwrap().map(|file| file.unwrap().path());
    let reports: Vec<Value> = files
        .filter(|file| file.extension().is_some_and(|kind| kind == "json"))
        .map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap())
        .collect();
    let [report] = &reports[..] else { panic!("expected one report, got {}", reports.len()) };
    assert_eq!(report["header"]["pid"], pid);
    assert!(report.to_string().contains("0x8badf00d"), "{report}");
    assert_eq!(report["threads"][0]["frames"][0]["address"].to_string().trim_matches('"'), "0x100004000");

    std::fs::write(&payload_file, "no payload").unwrap();
    let refused = String::from_utf8_lossy(&run("deliver").stdout).into_owned();
    assert!(refused.contains("not the JSON of an MXDiagnosticPayload") && refused.contains("status 1"), "{refused}");
}
