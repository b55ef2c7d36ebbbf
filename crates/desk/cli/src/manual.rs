//! Shell completions and manual pages, generated from the command's definition.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::{Context, Failure};
use crate::terminal::NamedOutput;
use crate::{Arguments, atomic_file};

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "coroner", &mut script);
    Ok(NamedOutput(std::io::stdout().lock()).write_all(&script)?)
}

/// Writes a page for the command and each subcommand to a folder.
///
/// Without a folder, writes the command's own page to standard output.
pub(crate) fn pages(folder: Option<&Path>) -> Result<(), Failure> {
    let mut command = Arguments::command();
    // Gives subcommands their full names: `coroner-show`.
    command.build();
    let page = |command: clap::Command| -> Result<Vec<u8>, Failure> {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        Ok(page)
    };
    let Some(folder) = folder else {
        return Ok(NamedOutput(std::io::stdout().lock()).write_all(&page(command)?)?);
    };
    std::fs::create_dir_all(folder).context(format!("can't create `{}`", folder.display()))?;
    let shown = |part: &&clap::Command| !part.is_hide_set() && part.get_name() != "help";
    for part in command.get_subcommands().filter(shown) {
        let name = format!("coroner-{}", part.get_name());
        atomic_file::write(&folder.join(format!("{name}.1")), &page(part.clone())?)?;
    }
    atomic_file::write(&folder.join("coroner.1"), &page(command)?)
}
