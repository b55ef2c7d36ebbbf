//! Generates the JSON Schema of reports from their model, or checks that it is current.

use anyhow::{Context, bail};
use clap::Parser as _;
use coroner_report::json_schema::json_schema_of_reports;

use toolbox::tools;

const PATH: &str = "docs/report.schema.json";

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Fail if the schema is not current; change nothing
    #[arg(long)]
    check: bool,
}

/// Writes `docs/report.schema.json`, or checks that it is current.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = tools::workspace_root().join(PATH);
    let schema = serde_json::to_string_pretty(&json_schema_of_reports())? + "\n";
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    if current == schema {
        println!("{PATH} is current");
    } else if arguments.check {
        bail!("{PATH} is not current; run `cargo xtask schema` and commit it");
    } else {
        std::fs::write(&path, schema).with_context(|| format!("writing {PATH}"))?;
        println!("wrote {PATH}");
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}
