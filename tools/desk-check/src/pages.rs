//! Opens pages in headless Chromium.
//!
//! Checks a large page's load time, an empty console, and that a hostile report runs no script.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::{Desk, Row, failure_text, write};
use toolbox::tools;

const PART: &str = "pages";
const THREADS: u32 = 4096;
const LIMIT: Duration = Duration::from_secs(2);
/// Text that marks the page if it runs as a script.
const EVIL: &str = "\"'><script>document.documentElement.setAttribute('data-ran','1')</script>\
                    <img src=x onerror=\"document.documentElement.setAttribute('data-ran','2')\"><svg onload=alert(1)>\
                    </title></style><iframe src=javascript:alert(1)>";

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !tools::on_path("chromium") {
        eprintln!("pages: skipped: missing `chromium` (Debian's package)");
        return Ok(Vec::new());
    }
    write(&desk.path("empty.html"), "<!DOCTYPE html><title>empty</title>")?;
    let empty = fastest(desk, "empty.html")?.0;
    write(&desk.path("large.json"), &large().to_string())?;
    desk.run(&["show", "large.json", "--html", "-o", "large.html"])?;
    let (time, large) = fastest(desk, "large.html")?;
    write(&desk.path("evil.json"), &evil().to_string())?;
    desk.run(&["show", "evil.json", "--html", "-o", "evil.html"])?;
    let (_, hostile) = fastest(desk, "evil.html")?;
    let threads = format!("{THREADS} threads");
    let has_all = large.dom.contains("thread-4095") || large.dom.contains("function_63_");
    let ran = hostile.dom.contains("data-ran=\"");
    let shown = hostile.dom.contains("&lt;script&gt;");
    let console = |opened: &Opened| opened.console.first().cloned().unwrap_or_else(|| "nothing".to_owned());
    Ok(vec![
        Row::time(desk, PART, &format!("a report of {threads} opens"), LIMIT, time.saturating_sub(empty)),
        Row::new(PART, "its last stack is shown", "yes", yes(has_all), has_all),
        Row::new(PART, "its console", "nothing", console(&large), large.console.is_empty()),
        Row::new(PART, "scripts run by a hostile report", "no", yes(ran), !ran),
        Row::new(PART, "its script is shown as text", "yes", yes(shown), shown),
        Row::new(PART, "its console", "nothing", console(&hostile), hostile.console.is_empty()),
    ])
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// A page as the browser rendered it.
struct Opened {
    dom: String,
    /// The lines of its console.
    console: Vec<String>,
}

/// Returns the shortest of three times, because the browser's own start varies.
fn fastest(desk: &Desk, page: &str) -> anyhow::Result<(Duration, Opened)> {
    let mut best = open(&desk.path(page), &desk.path("profile"))?;
    for _ in 0..if desk.short { 0 } else { 2 } {
        let again = open(&desk.path(page), &desk.path("profile"))?;
        if again.0 < best.0 {
            best = again;
        }
    }
    Ok(best)
}

fn open(page: &Path, profile: &Path) -> anyhow::Result<(Duration, Opened)> {
    let began = Instant::now();
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-extensions", "--disable-background-networking", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .context("running chromium")?;
    let time = began.elapsed();
    ensure!(output.status.success(), "chromium: {}", failure_text(&output));
    let log = String::from_utf8_lossy(&output.stderr);
    let console = log.lines().filter(|line| line.contains(":CONSOLE")).map(ToOwned::to_owned).collect();
    Ok((time, Opened { dom: String::from_utf8_lossy(&output.stdout).into_owned(), console }))
}

/// Returns a report with many threads, in 64 stacks of 24 frames.
pub(super) fn large() -> Value {
    let frames = |stack: u32| -> Vec<Value> {
        let frame = |depth: u32| {
            json!({"address": format!("{:#x}", 0x1000 + stack * 100 + depth), "module": "/opt/paint/paint", "module_offset": "0x10",
                "function": format!("paint::module::function_{stack}_{depth}"), "file": "/src/paint/module.rs", "line": depth + 1})
        };
        (0..24).map(frame).collect()
    };
    let thread = |number: u32| {
        json!({"tid": 1000 + number, "crashed": number == 0, "main": number == 0, "name": format!("thread-{number}"),
            "frames": frames(number % 64)})
    };
    let mut report = base();
    report["threads"] = (0..THREADS).map(thread).collect();
    report
}

fn base() -> Value {
    json!({
        "complete": true,
        "header": {"event_id": "000102030405060708090a0b0c0d0e0f", "process_name": "paint", "os": "linux", "arch": "x86_64"},
        "crash": {"time": "2026-11-20T10:00:00Z", "tid": 1000, "signal": {"number": 11, "code": 1}, "address": "0x0"},
        "threads": [{"tid": 1000, "crashed": true, "frames": [{"address": "0x1010", "function": "paint::fill"}]}],
        "images": [{"path": "/opt/paint/paint", "is_main": true, "load_address": "0x1000", "size": 65536}],
        "run": {"app": {"name": "paint", "version": "1.2.3"}},
    })
}

/// Returns a report with a part of each kind.
pub(super) fn rich() -> Value {
    let mut report = base();
    let frame = |function: &str, line: u32| {
        json!({"address": format!("{:#x}", 0x1000 + line), "module": "/opt/paint/paint", "module_offset": "0x10",
        "function": function, "file": "/src/paint/fill.rs", "line": line, "inlined": [{"function": "paint::blend", "file": "/src/paint/blend.rs", "line": 7}]})
    };
    report["threads"] = json!([
        {"tid": 1000, "crashed": true, "main": true, "name": "main", "registers": {"rip": "0x1010", "rsp": "0x7ffc0000", "rax": "0x0"},
            "frames": [frame("paint::fill", 16), frame("paint::main", 32)]},
        {"tid": 1001, "name": "worker-1", "state": "blocked", "frames": [frame("paint::wait", 48)]},
        {"tid": 1002, "name": "worker-2", "state": "blocked", "frames": [frame("paint::wait", 48)]},
    ]);
    report["crash"]["message"] = json!("no such colour");
    report["exceptions"] = json!([{"language": "rust", "type_name": "panic", "message": "no such colour", "location": "fill.rs:16:2",
        "frames": [frame("paint::fill", 16)]}]);
    report["annotations"] = json!([{"source": "/usr/lib/libc.so.6", "text": "free(): invalid pointer"}]);
    report["stack_memory"] = json!([{"tid": 1000, "address": "0x7ffc0000", "bytes": "00".repeat(256)}]);
    report["run"] = json!({"app": {"name": "paint", "version": "1.2.3", "release": "paint@1.2.3"}, "os": {"name": "Linux"},
        "device": {"arch": "x86_64"}, "tags": {"country": "at"}, "contexts": {"canvas": {"width": 640}}, "user": {"id": "7"},
        "lifecycle": {"foreground": "foreground"},
        "breadcrumbs": [{"time": "2026-11-20T09:59:00Z", "message": "opened a picture", "category": "ui", "level": "info"},
            {"time": "2026-11-20T09:59:30Z", "message": "no room", "category": "disk", "level": "error"}]});
    report
}

/// Returns a report whose every string tries to run as a script.
fn evil() -> Value {
    let mut report = base();
    report["header"]["process_name"] = json!(EVIL);
    report["crash"]["message"] = json!(EVIL);
    report["threads"][0]["name"] = json!(EVIL);
    report["threads"][0]["frames"][0] =
        json!({"address": "0x1010", "function": EVIL, "file": EVIL, "module": EVIL, "line": 1});
    report["images"][0]["path"] = json!(EVIL);
    report["annotations"] = json!([{"source": EVIL, "text": EVIL}]);
    report["exceptions"] = json!([{"type_name": EVIL, "message": EVIL, "frames": [{"function": EVIL, "file": EVIL}]}]);
    report["run"]["tags"] = json!({EVIL: EVIL});
    report["run"]["contexts"] = json!({EVIL: {EVIL: EVIL}});
    report["run"]["breadcrumbs"] = json!([{"time": "2026-11-20T09:00:00Z", "message": EVIL, "category": EVIL}]);
    report
}
