//! Unusual uses.

use super::*;

#[test]
fn all_frames_disables_folding() {
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
    assert!(shown.contains("this frame 7 more times") && shown.contains("1 runtime frame"), "{shown}");
    assert!(!shown.contains("__cxa_throw"), "{shown}");
    let all = bench.run(&["show", "deep.json", "--all-frames"]).out;
    let lines = |function: &str| all.lines().filter(|line| line.contains(function)).count();
    assert_eq!((lines("0x0000000000001010 paint::fill"), lines("__cxa_throw")), (9, 1), "{all}");
    assert!(all.contains("\n   8 paint") && !all.contains('…'), "{all}");
}

/// A report written before the process aborted contains no signal.
#[test]
fn the_signal_filter_finds_crashes_by_that_signal() {
    let bench = Bench::new();
    let folder = folder(&bench, 70);
    let ends = |number: u32, monitor: &str, kind: &str, fatal: bool| {
        let text = report(number, |report| {
            report["header"]["run_id"] = json!(format!("{number:032x}"));
            report["crash"].as_object_mut().unwrap().remove("signal");
            report["crash"]["monitor"] = json!(monitor);
            report["crash"]["flags"] = json!(if fatal { vec![] } else { vec!["not_fatal"] });
            report["threads"][0]["main"] = json!(true);
            report["exceptions"] = json!([{"type_name": kind, "tid": 7}]);
        });
        std::fs::write(folder.join(format!("{number}.json")), text.to_string()).unwrap();
    };
    ends(100, "cpp_exception", "std::runtime_error", true);
    ends(101, "nsexception", "NSRangeException", true);
    ends(102, "panic", "panic in a function that cannot unwind", true);
    // One that ended its thread, one that was handled, and one after which the program exits with
    // 101.
    ends(103, "panic", "panic that ended its thread", false);
    ends(104, "user", "ParseError", true);
    ends(105, "panic", "panic", true);
    std::thread::sleep(std::time::Duration::from_millis(150));
    let died = |signal: &str| -> Vec<u64> {
        let list = bench.run(&["list", "reports", "--format", "json", "--signal", signal]).json();
        let id = |entry: &Value| u64::from_str_radix(entry["event_id"].as_str().unwrap(), 16).unwrap() - 1;
        list.as_array().unwrap().iter().map(id).collect()
    };
    // From the files, and from the index.
    for _ in 0..2 {
        assert_eq!((died("SIGABRT"), died("abrt")), (vec![100, 101, 102], vec![100, 101, 102]));
        assert_eq!(died("SIGSEGV").len(), 70);
    }
}

#[test]
fn list_lines_are_truncated_to_their_columns() {
    let bench = Bench::new();
    let long = |letter: &str| letter.repeat(10_000);
    let named = report(1, |report| {
        report["threads"][0]["frames"][0]["function"] = json!(long("f"));
        report["run"]["app"] = json!({"name": long("n"), "version": long("v"), "release": long("r")});
        report["exceptions"] = json!([{"type_name": long("t"), "message": long("m")}]);
    });
    std::fs::create_dir(bench.path("reports")).unwrap();
    std::fs::write(bench.path("reports/1.json"), named.to_string()).unwrap();
    for command in ["list", "group", "top"] {
        let text = bench.run(&[command, "reports"]).out;
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!((400..=900).contains(&widest), "{command}: {widest}");
        let json = bench.run(&[command, "reports", "--format", "json"]).out;
        assert!(json.contains(&long("f")) && json.contains(&long("t")), "{command}");
    }
}

#[test]
fn an_id_stays_whole_on_a_narrow_terminal() {
    let bench = Bench::new();
    let (id, build) = (format!("{:032x}", 8), "0123456789abcdef0123456789abcdef01234567");
    let text = report(7, |report| {
        report["images"][0]["build_id"] = json!(build);
        report["problems"] = json!([{"offset": 0, "what": format!("no file with the build id ({build}) was found")}]);
    });
    std::fs::write(bench.path("one.json"), text.to_string()).unwrap();
    for columns in ["40", "44", "60"] {
        let mut command = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["show", "one.json"]);
        let narrow = command_output(&command.env("COLUMNS", columns).output().unwrap()).out;
        assert!(narrow.contains(&id) && narrow.contains(build), "{columns}: {narrow}");
        let (words, columns) = (narrow.split_whitespace(), columns.parse::<usize>().unwrap());
        assert!(words.filter(|word| word.len() == columns).count() <= 1, "words are not cut: {narrow}");
        // Only an id with its parentheses is wider.
        let widest = narrow.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(widest <= columns.max(build.len() + 2), "{widest}: {narrow}");
    }
}

const PANIC: &str = "thread 'main' panicked at src/main.rs:4:5:\nout of cheese\n";

#[test]
#[cfg(target_os = "linux")]
fn a_log_can_be_a_pipe_with_a_writer() {
    use std::io::Write;
    let bench = Bench::new();
    let pipe = bench.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let arguments = ["import", "--log", "pipe", "-o", "imported"];
    let none = bench.run(&arguments);
    assert!(none.code == 1 && none.err.contains("the pipe has no writer"), "{none:?}");
    let import = |arguments: &[&str]| {
        let mut command = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), arguments);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    // A pipe that is open, and written to later. Both ends are open, so that opening it doesn't
    // block.
    let mut writer = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let child = import(&arguments);
    writer.write_all(PANIC.as_bytes()).unwrap();
    let mut waiting = 1;
    while waiting > 0 {
        std::thread::yield_now();
        // SAFETY: one number is written.
        let asked = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&writer), libc::FIONREAD, &raw mut waiting) };
        assert_eq!(asked, 0);
    }
    drop(writer);
    let imported = command_output(&child.wait_with_output().unwrap());
    assert!(imported.code == 0 && imported.out.contains("  pipe"), "{imported:?}");
    // Standard input.
    let mut child = import(&["import", "--log", "-", "-o", "imported"]);
    child.stdin.take().unwrap().write_all(PANIC.as_bytes()).unwrap();
    let imported = command_output(&child.wait_with_output().unwrap());
    assert!(imported.code == 0 && imported.out.ends_with("  -\n"), "{imported:?}");
}

#[test]
fn logs_are_a_failure_if_none_has_a_crash() {
    let bench = Bench::new();
    std::fs::write(bench.path("empty.log"), "").unwrap();
    std::fs::write(bench.path("good.log"), "started\nstopped\n").unwrap();
    let imported = bench.run(&["import", "--log", "empty.log", "--log", "good.log"]);
    assert!(imported.code == 1 && imported.out.is_empty(), "{imported:?}");
    for name in ["`empty.log`: ", "`good.log`: "] {
        assert!(imported.err.contains(name), "{imported:?}");
    }
    std::fs::write(bench.path("crash.log"), PANIC).unwrap();
    assert_eq!(bench.run(&["import", "--log", "empty.log", "--log", "crash.log"]).code, 0);
    assert_eq!(bench.run(&["import", "--log", "none.log"]).code, 1);
}

#[test]
fn show_reads_a_log_with_one_crash_and_describes_other_files() {
    let bench = Bench::new();
    std::fs::write(bench.path("one.log"), format!("started\n{PANIC}")).unwrap();
    let shown = bench.run(&["show", "one.log"]);
    assert!(
        shown.code == 0 && shown.out.starts_with("Panic: out of cheese") && !shown.out.contains("1970"),
        "{shown:?}"
    );
    std::fs::write(bench.path("two.log"), format!("{PANIC}\n{PANIC}")).unwrap();
    let shown = bench.run(&["show", "two.log"]);
    assert!(shown.code == 1 && shown.err.contains("a log with 2 crashes: `coroner import --log FILE`"), "{shown:?}");
    std::fs::write(bench.path("app.sym"), "MODULE Linux x86_64 0 app\n").unwrap();
    let shown = bench.run(&["show", "app.sym"]);
    assert!(shown.code == 1 && shown.err.contains("not a report, but a symbol file (Breakpad)"), "{shown:?}");
}

const DIAGNOSTIC: &str = r#"{"version":"1.0.0","callStackTree":{"callStacks":[{"threadAttributed":true,"callStackRootFrames":[
    {"binaryUUID":"B215A491-8BCA-3D2D-81CD-39E3C145EA07","offsetIntoBinaryTextSegment":213664,"sampleCount":1,"subFrames":[
    {"binaryUUID":"6934E19E-BF21-3C57-AAE8-D3B4192615D1","offsetIntoBinaryTextSegment":118160,"sampleCount":1,"subFrames":[],
    "binaryName":"shop","address":4378332560}],"binaryName":"libswiftCore.dylib","address":6885675680}]}],
    "callStackPerThread":true},"diagnosticMetaData":{"platformArchitecture":"arm64e","exceptionType":6,"appBuildVersion":"34",
    "osVersion":"iPhone OS 18.5 (22F76)","bundleIdentifier":"com.example.shop","deviceType":"iPhone14,6","exceptionCode":1,
    "signal":5,"appVersion":"1.2"}}"#;

#[test]
fn show_reads_metric_kits_payloads_and_diagnostics() {
    let bench = Bench::new();
    std::fs::write(bench.path("diagnostic.json"), DIAGNOSTIC).unwrap();
    let payload = format!(r#"{{"timeStampEnd":"2025-07-01 09:00:00","crashDiagnostics":[{DIAGNOSTIC}]}}"#);
    std::fs::write(bench.path("payload.json"), payload).unwrap();
    for (file, time) in [("diagnostic.json", ""), ("payload.json", "2025-07-01T09:00:00Z")] {
        let shown = bench.run(&["show", file, "--no-debuginfod"]);
        assert_eq!(shown.code, 0, "{shown:?}");
        for text in ["com.example.shop 1.2 (34)", "iOS 18.5 (22F76) arm64 on iPhone14,6", "EXC_BREAKPOINT", time] {
            assert!(shown.out.contains(text), "{text}: {}", shown.out);
        }
        let event = bench.run(&["convert", file, "--to", "sentry"]).json();
        let frames = &event["exception"]["values"][0]["stacktrace"]["frames"];
        let own: Vec<_> = frames.as_array().unwrap().iter().map(|frame| frame["in_app"].as_bool()).collect();
        assert_eq!(own, [Some(true), Some(false)], "{event:#}");
        assert_eq!(event["release"], "com.example.shop@1.2+34");
    }
}

#[test]
fn errors_name_the_requested_file() {
    let bench = Bench::new();
    std::fs::write(bench.path("one.json"), report(1, |_| {}).to_string()).unwrap();
    let failed = bench.run(&["show", "one.json", "--html", "-o", "no/page.html"]);
    assert!(failed.code == 1 && failed.err.contains("can't write `no/page.html`: no folder `no`"), "{failed:?}");
    let failed = bench.run(&["show", "one.json", "-o", "one.json/page.txt"]);
    assert!(failed.code == 1 && failed.err.contains("`one.json` is not a folder"), "{failed:?}");
    let name = "n".repeat(300);
    let failed = bench.run(&["show", "one.json", "-o", &name]);
    assert!(failed.code == 1 && failed.err.contains(&name) && !failed.err.contains(".coroner-"), "{failed:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn list_watch_survives_the_stores_removal() {
    use std::io::{BufRead, BufReader};
    let bench = Bench::new();
    let folder = folder(&bench, 1);
    let mut command =
        bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &["list", "reports", "--watch", "--format", "json"]);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains(&format!("{:032x}", 1)), "{line}");
    std::fs::remove_dir_all(&folder).unwrap();
    let mut result = String::new();
    errors.read_line(&mut result).unwrap();
    errors.read_line(&mut result).unwrap();
    assert!(result.contains("`reports`") && result.contains("waiting for it to come back"), "{result}");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("1.json"), report(5, |_| {}).to_string()).unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    assert!(line.contains(&format!("{:032x}", 6)), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_send_timeout_of_zero_is_invalid_usage() {
    let bench = Bench::new();
    std::fs::write(bench.path("one.json"), report(1, |_| {}).to_string()).unwrap();
    for seconds in ["0", "-1", "18446744073709551615", "soon"] {
        let none = bench.run(&["send", "one.json", "--dsn", "http://key@127.0.0.1:9/1", "--timeout", seconds]);
        assert!(
            none.code == 2 && none.err.contains("'--timeout <SECONDS>': expected a number of seconds from 1"),
            "{none:?}"
        );
    }
}

/// A program is its own symbol file, and has a build ID if the linker writes one.
#[test]
#[cfg(target_os = "linux")]
fn symbols_of_another_build_are_reported() {
    let bench = Bench::new();
    std::fs::write(bench.path("paint.c"), "int fill(int n) { return n; } int main(void) { return fill(0); }").unwrap();
    let built = |id: &str, to: &str| {
        let option = format!("-Wl,--build-id=0x{id}");
        let built = bench.command(Path::new("cc"), &["-g", &option, "-o", to, "paint.c"]).output().unwrap();
        assert!(built.status.success(), "{built:?}");
    };
    let (own, other) = ("0a".repeat(20), "0b".repeat(20));
    built(&own, "own");
    std::fs::create_dir(bench.path("new")).unwrap();
    built(&other, "new/paint");
    built(&other, "another");
    let text = |named: bool| {
        report(1, |report| {
            report["images"][0]["build_id"] = json!(own);
            report["images"][0]["load_address"] = json!("0x0");
            report["images"][0]["size"] = json!(1 << 20);
            for frame in report["threads"][0]["frames"].as_array_mut().unwrap() {
                frame["address"] = json!("0x1130");
                if !named {
                    frame.as_object_mut().unwrap().remove("function");
                }
            }
        })
        .to_string()
    };
    std::fs::write(bench.path("named.json"), text(true)).unwrap();
    std::fs::write(bench.path("bare.json"), text(false)).unwrap();
    for report in ["named.json", "bare.json"] {
        for file in ["another", "new/paint"] {
            let result = bench.run(&["symbolicate", report, "--symbols", file]);
            let both = result.err.contains(&format!("{file}` (ID {other}) matches none of the report's images"));
            assert!(both && result.err.contains(&format!("`paint` has ID {own}")) && result.code == 1, "{result:?}");
        }
        let result = bench.run(&["symbolicate", report, "--symbols", "own", "--symbols", "another"]);
        assert!(result.code == 0 && result.err.contains("another` (ID "), "one of the files matches: {result:?}");
    }
    // For a folder, the image is reported.
    let result = bench.run(&["symbolicate", "bare.json", "--symbols", "new"]);
    let in_folder = format!("new/paint` is another build: it has ID {other}, the report has ID {own}");
    assert!(result.code == 1 && result.err.contains(&in_folder), "{result:?}");
    assert!(bench.run(&["show", "bare.json", "--symbols", "another"]).err.contains(&other));
}

#[test]
fn go_frames_are_not_labeled_java() {
    let bench = Bench::new();
    let log = "panic: out of cheese\n\ngoroutine 1 [running]:\nmain.(*Cart).Total(...)\n\t/home/shop/main.go:10\nmain.lost()\n\
        runtime.goexit({})\n\t/usr/local/go/src/runtime/asm_amd64.s:1650 +0x1\n";
    std::fs::write(bench.path("shop.log"), log).unwrap();
    std::fs::write(bench.path("rust.log"), format!("{PANIC}stack backtrace:\n   0: paint::fill\n   1: paint::main\n"))
        .unwrap();
    for (log, language, frames) in [("shop.log", "go", 3), ("rust.log", "rust", 2)] {
        let imported = bench.run(&["import", "--log", log]);
        assert_eq!(imported.code, 0, "{imported:?}");
        let id = &imported.out[..32];
        let lines = bench.run(&["show", id, "--thread", "all"]).out;
        assert_eq!(lines.matches("java").count(), 0, "{lines}");
        let event = bench.run(&["convert", id, "--to", "sentry"]).json();
        let stack = event["exception"]["values"][0]["stacktrace"]["frames"].as_array().unwrap();
        assert_eq!(stack.len(), frames, "{event:#}");
        assert!(stack.iter().all(|frame| frame["platform"] == language), "{stack:#?}");
    }
}

/// Redis and others print their report of a fault and then send its signal again.
#[test]
fn a_resent_fault_names_the_interrupted_function() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("reports")).unwrap();
    let again = |number: u32, signal: u32| {
        let text = report(number, |report| {
            report["header"]["pid"] = json!(7);
            report["crash"]["signal"] = json!({"number": signal, "code": -6, "sender_pid": 7});
            let frame = |function: &str, found_by: &str| json!({"address": "0x1010", "module": "/opt/paint/paint", "function": function, "found_by": found_by});
            let frames =
                [frame("paint::report", "context"), frame("__restore_rt", "cfi"), frame("paint::fill", "signal_frame")];
            report["threads"][0]["frames"] = json!(frames);
        });
        std::fs::write(bench.path(&format!("reports/{number}.json")), text.to_string()).unwrap();
    };
    again(0, 11);
    // The handler may itself handle an abort.
    again(1, 6);
    let list = bench.run(&["list", "reports", "--format", "json"]).json();
    assert_eq!((&list[0]["function"], &list[1]["function"]), (&json!("paint::fill"), &json!("paint::report")));
    assert_eq!(list[0]["signature"]["frames"], json!(["paint::fill"]));
    let shown = bench.run(&["show", "reports/0.json"]).out;
    assert!(
        shown.starts_with("SIGSEGV, sent by the process itself, in a handler that interrupted paint::fill\n"),
        "{shown}"
    );
}
