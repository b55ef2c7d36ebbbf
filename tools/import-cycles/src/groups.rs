//! The order of the groups of crates: a crate depends only on crates of its own or earlier groups.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

/// The folders of `crates/`, in order.
const GROUPS: [&str; 6] = ["base", "crash", "analysis", "launch", "desk", "bindings"];

/// Returns the dependencies against the order, as `CRATE (GROUP) -> CRATE (GROUP)`.
///
/// Dependencies of tests don't count.
///
/// # Errors
/// An error if Cargo can't describe the workspace.
pub(crate) fn wrong_dependencies(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let output = cargo.output().context("can't run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("can't read cargo's metadata")?;
    Ok(wrong_in(&metadata))
}

fn wrong_in(metadata: &Value) -> Vec<String> {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let group_of = |package: &Value| {
        let path = Path::new(package["manifest_path"].as_str()?);
        let mut folders = path.iter().rev().skip(2).map(|folder| folder.to_str().unwrap_or_default());
        let group = folders.next().filter(|_| folders.next() == Some("crates"))?;
        GROUPS.iter().position(|known| *known == group)
    };
    let groups: BTreeMap<&str, usize> =
        packages().filter_map(|package| Some((package["name"].as_str()?, group_of(package)?))).collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(group) = groups.get(name) else { continue };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies.filter(|dependency| dependency["kind"] != "dev") {
            let other = dependency["name"].as_str().unwrap_or_default();
            if let Some(used) = groups.get(other).filter(|used| *used > group) {
                wrong.push(format!("{name} ({}) -> {other} ({})", GROUPS[*group], GROUPS[*used]));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dependency_on_a_later_group_is_found() {
        let package = |name: &str, group: &str, dependencies: Value| {
            json!({
                "name": name,
                "manifest_path": format!("/w/crates/{group}/{name}/Cargo.toml"),
                "dependencies": dependencies,
            })
        };
        let metadata = json!({ "packages": [
            package("a", "base", json!([{ "name": "b", "kind": null }, { "name": "c", "kind": "dev" }])),
            package("b", "crash", json!([{ "name": "a", "kind": null }, { "name": "serde", "kind": null }])),
            package("c", "launch", json!([{ "name": "b", "kind": null }])),
        ] });
        assert_eq!(wrong_in(&metadata), ["a (base) -> b (crash)"]);
    }
}
