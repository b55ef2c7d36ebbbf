//! Lists a folder of many reports, first without an index and then with it.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Desk, Row, write};

const PART: &str = "lists";
/// Time limits for a hundred thousand reports.
const FIRST: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(300);

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    let folder = desk.path("reports");
    std::fs::create_dir_all(&folder)?;
    for number in 0..desk.reports {
        let id = format!("{:032x}", u128::from(number) + 1);
        let (day, hour, minute, second) = (number / 86_400 % 28 + 1, number / 3600 % 24, number / 60 % 60, number % 60);
        let frames: Vec<_> = (0..12)
            .map(|depth| {
                json!({"address": format!("{:#x}", 0x1000 + depth), "module": "/opt/paint/paint", "module_offset": "0x10",
                    "function": format!("paint::step_{}_{depth}", number % 300), "file": "/src/paint.rs", "line": depth + 1})
            })
            .collect();
        let report = json!({
            "complete": true,
            "header": {"event_id": id, "process_name": "paint", "os": "linux", "arch": "x86_64"},
            "crash": {"time": format!("2026-11-{day:02}T{hour:02}:{minute:02}:{second:02}Z"), "tid": 7,
                "signal": {"number": if number % 100 == 0 { 7 } else { 11 }, "code": 1}, "address": "0x8"},
            "threads": [{"tid": 7, "crashed": true, "frames": frames}],
            "images": [{"path": "/opt/paint/paint", "is_main": true, "load_address": "0x1000", "size": 4096}],
            "run": {"app": {"name": "paint", "version": "1.2.3"}},
        });
        let name = format!("202611{day:02}T{hour:02}{minute:02}{second:02}Z-{id}.json");
        write(&folder.join(name), &report.to_string())?;
    }
    let list = || -> anyhow::Result<(Duration, usize)> {
        let began = Instant::now();
        let listed = desk.run(&["list", "reports", "--signal", "SIGBUS"])?;
        Ok((began.elapsed(), listed.lines().filter(|line| line.starts_with("2026-")).count()))
    };
    let (first, found) = list()?;
    let mut again = list()?;
    for _ in 0..2 {
        let other = list()?;
        again = if other.0 < again.0 { other } else { again };
    }
    std::fs::remove_dir_all(&folder)?;
    let wanted = desk.reports.div_ceil(100) as usize;
    let is_right = found == wanted && again.1 == wanted;
    Ok(vec![
        Row::time(desk, PART, &format!("{} reports, first time", desk.reports), FIRST, first),
        Row::time(desk, PART, "from the index", AGAIN, again.0),
        Row::new(PART, "reports with one signal", wanted.to_string(), format!("{found}, {}", again.1), is_right),
    ])
}
