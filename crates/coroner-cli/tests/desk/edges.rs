//! What people do that is not the usual.

use super::*;

#[test]
fn all_frames_are_all() {
    let bench = Bench::new();
    let recursion = report(1, |report| {
        let frame = |function: &str, address: u32| json!({"address": format!("{address:#x}"), "module": "/opt/paint/paint", "function": function});
        let mut frames: Vec<Value> = (0..9).map(|_| frame("paint::fill", 0x1010)).collect();
        frames.push(frame("paint::main", 0x1020));
        report["threads"][0]["frames"] = json!(frames);
        let thrower = json!({"address": "0x7010", "module": "/usr/lib/libstdc++.so.6", "function": "__cxa_throw"});
        report["exceptions"] = json!([{"type_name": "E", "frames": [thrower, frame("paint::open", 0x1030)]}]);
    });
    std::fs::write(bench.path("deep.json"), recursion.to_string()).unwrap();
    let shown = bench.run(&["show", "deep.json"]).out;
    assert!(shown.contains("this frame 7 times more") && shown.contains("1 frame of the runtime"), "{shown}");
    assert!(!shown.contains("__cxa_throw"), "{shown}");
    let all = bench.run(&["show", "deep.json", "--all-frames"]).out;
    let lines = |function: &str| all.lines().filter(|line| line.contains(function)).count();
    assert_eq!((lines("0x0000000000001010 paint::fill"), lines("__cxa_throw")), (9, 1), "{all}");
    assert!(all.contains("\n   8 paint") && !all.contains('…'), "{all}");
}
