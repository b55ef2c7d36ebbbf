//! Opens pages in Chromium at two widths, in light and dark.
//!
//! Nothing may overflow the window, and axe must report nothing.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Desk, Row, failure_text, pages, write};
use toolbox::tools;

const PART: &str = "accessibility";
/// A desktop's and a phone's window width.
const WIDTHS: [u32; 2] = [1280, 390];
/// npm packages.
const PACKAGES: [&str; 2] = ["axe-core@4.14.1", "puppeteer-core@24.43.1"];

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !(tools::on_path("chromium") && tools::on_path("npm")) {
        eprintln!("accessibility: skipped: missing `chromium` or `npm` (Debian's packages)");
        return Ok(Vec::new());
    }
    let modules = tools::npm_packages("desk-npm", &PACKAGES)?;
    let reports = [("a report of all kinds", pages::rich()), ("4,096 threads", pages::large())];
    let mut rows = Vec::new();
    for (number, (name, report)) in reports.iter().enumerate() {
        let (json, html) = (format!("page-{number}.json"), format!("page-{number}.html"));
        write(&desk.path(&json), &report.to_string())?;
        desk.run(&["show", &json, "--html", "-o", &html])?;
        for width in WIDTHS {
            for scheme in ["light", "dark"] {
                let seen = scan(desk, &modules, &html, width, scheme)?;
                let what = format!("{name}, {width} pixels, {scheme}");
                let wrong = seen["violations"].as_array().context("violations")?;
                let first = wrong.first().and_then(Value::as_str).unwrap_or("nothing");
                let found = if wrong.is_empty() { first.to_owned() } else { format!("{}: {first}", wrong.len()) };
                rows.push(Row::new(PART, &format!("axe, {what}"), "nothing", found, wrong.is_empty()));
                let (page, window) = (seen["scroll_width"].as_u64(), seen["window"].as_u64());
                let fits = page.is_some() && page <= window;
                let found = format!("{} of {}", page.unwrap_or_default(), window.unwrap_or_default());
                rows.push(Row::new(PART, &format!("its width, {what}"), "within the window", found, fits));
            }
        }
    }
    Ok(rows)
}

fn scan(desk: &Desk, modules: &Path, page: &str, width: u32, scheme: &str) -> anyhow::Result<Value> {
    let script = tools::workspace_root().join("tools/desk-check/src/axe.cjs");
    let output = Command::new("node")
        .arg(script)
        .arg(desk.path(page))
        .args([width.to_string().as_str(), scheme])
        .arg(desk.path(&format!("{page}-{width}-{scheme}.png")))
        .env("NODE_PATH", modules)
        .env("HOME", desk.folder.path())
        .output()
        .context("running node")?;
    ensure!(output.status.success(), "{}", failure_text(&output));
    serde_json::from_slice(&output.stdout).context("can't parse the output of axe.cjs")
}
