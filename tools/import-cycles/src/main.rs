//! Finds import cycles between files of a crate, and crates that depend on a later group.
//!
//! See the package's `README.md`.

mod crate_sources;
mod cycles;
mod groups;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser as _;
use serde_json::json;
use toolbox::tools;

use crate_sources::CrateSources;

#[derive(Debug, clap::Parser)]
#[command(about)]
struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Also print every import between two files of a cycle
    #[arg(long)]
    imports: bool,
    /// Check only crates whose folder contains this text
    filter: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    let mut files = 0;
    for folder in crate_folders(&tools::workspace_root())? {
        let name = folder.display().to_string();
        if arguments.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let sources = CrateSources::read(&tools::workspace_root().join(&folder).join("src"))?;
        files += sources.files().len();
        let imports = sources.imports();
        for cycle in cycles::cycles(sources.files().len(), &imports) {
            let paths: Vec<String> =
                cycle.iter().map(|file| sources.files()[*file].path.display().to_string()).collect();
            println!("{name}: {} files import each other: {}", paths.len(), paths.join(", "));
            for (from, to) in imports.iter().filter(|(from, to)| cycle.contains(from) && cycle.contains(to)) {
                if arguments.imports {
                    let path = |file: usize| sources.files()[file].path.display();
                    println!("    {} -> {}", path(*from), path(*to));
                }
            }
            rows.push(json!({ "crate": name, "files": paths }));
        }
    }
    let wrong = groups::wrong_dependencies(&tools::workspace_root())?;
    for dependency in &wrong {
        println!("against the order of the groups: {dependency}");
    }
    println!("{files} files, {} cycles, {} dependencies against the order of the groups", rows.len(), wrong.len());
    let pass = rows.is_empty() && wrong.is_empty();
    if arguments.json {
        println!(
            "{}",
            json!({ "tool": "import-cycles", "pass": pass, "files": files, "cycles": rows, "wrong_dependencies": wrong })
        );
    }
    if !pass {
        bail!("{} cycles, {} dependencies against the order of the groups", rows.len(), wrong.len());
    }
    Ok(())
}

/// Returns the folders of the published crates, relative to the workspace's root.
fn crate_folders(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = |folder: &Path| -> anyhow::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).with_context(|| format!("can't list `{}`", folder.display()))?;
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect())
    };
    let mut folders = Vec::new();
    for group in entries(&root.join("crates"))? {
        folders.extend(entries(&group)?.into_iter().filter_map(|path| Some(path.strip_prefix(root).ok()?.to_owned())));
    }
    folders.sort();
    Ok(folders)
}
