//! `cargo xtask windows`: an app on Windows, by Wine. Its launches are `crates/coroner/tests/portable.rs`; what it left is then read on this system by
//! `coroner show`. Where Wine or the linker is missing, Debian's packages are installed (`wine`, `wine64`, `gcc-mingw-w64-x86-64`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::{deadline, tools};

/// What is linked here.
const TARGET: &str = "x86_64-pc-windows-gnu";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
/// What Wine 8 lacks: its source says why.
const LIBRARY: &str = "bcryptprimitives";

/// Runs it.
///
/// # Errors
/// A tool is missing, or something is not as it should be: what was run says what.
pub(crate) fn run() -> anyhow::Result<()> {
    tools::rust_target(TARGET)?;
    tools::debian_package("gcc-mingw-w64-x86-64", LINKER)?;
    if !tools::on_path("wine") {
        tools::install_debian_package("wine64")?;
        tools::debian_package("wine", "wine")?;
    }
    let folder = tools::target_dir().join("windows");
    let prefix = prefix(&folder)?;
    let stores = folder.join("stores");
    let _ = std::fs::remove_dir_all(&stores);
    std::fs::create_dir_all(&stores)?;
    let mut test = cargo(&prefix);
    test.args(["test", "--quiet", "-p", "coroner", "--target", TARGET, "--no-default-features"]);
    test.args(["--features", "json,panics", "--test", "portable"]);
    // Wine has this system's files on its drive Z.
    test.env("PORTABLE_KEEP", format!("Z:{}", stores.display())).env("PORTABLE_WINE", "1");
    succeed(&mut test)?;
    read_here(&stores)
}

/// Cargo, whose programs of Windows are run by Wine.
fn cargo(prefix: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", "wine");
    command.env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
    command
}

/// Wine's own Windows, with what it lacks.
fn prefix(folder: &Path) -> anyhow::Result<PathBuf> {
    let prefix = folder.join("prefix");
    let system = prefix.join("drive_c/windows/system32");
    let library = system.join(format!("{LIBRARY}.dll"));
    if !library.is_file() {
        std::fs::create_dir_all(folder)?;
        let mut boot = Command::new("wine");
        boot.args(["wineboot", "--init"]).env("WINEPREFIX", &prefix).env("WINEDEBUG", "-all");
        // It speaks of a 32-bit Wine, which is not needed, on its standard error.
        boot.stderr(std::process::Stdio::null());
        succeed(&mut boot)?;
        ensure!(system.is_dir(), "wine has made no {}", system.display());
        let source = tools::workspace_root().join("fixtures/windows").join(format!("{LIBRARY}.c"));
        succeed(Command::new(LINKER).arg("-shared").arg("-o").arg(&library).arg(source).arg("-ladvapi32"))?;
    }
    Ok(prefix)
}

/// What Windows wrote is read by the command: a report of the folder, and the files of a run that nobody has delivered.
fn read_here(stores: &Path) -> anyhow::Result<()> {
    let show = |path: &Path| -> anyhow::Result<String> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .current_dir(tools::workspace_root())
            .args(["run", "--quiet", "-p", "coroner-cli", "--", "show"])
            .arg(path);
        let output = command.output().context("running coroner show")?;
        let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "coroner show {}: {error}", path.display());
        Ok(said.into_owned())
    };
    let entries = |folder: &str| -> anyhow::Result<Vec<PathBuf>> {
        Ok(std::fs::read_dir(stores.join(folder))?.flatten().map(|entry| entry.path()).collect())
    };
    let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let delivered = entries("panic/reports")?.into_iter().find(is_json);
    let waiting = entries("waits/runs")?.into_iter().next();
    for (path, what) in [(delivered, "the report in the folder"), (waiting, "the run that waits")] {
        let path = path.with_context(|| format!("{what} is not there"))?;
        let text = show(&path)?;
        for expected in
            ["there is no canvas", "portable::portable::paint", "portable.rs:", "Windows", "opens a picture"]
        {
            ensure!(text.contains(expected), "{what} says nothing of `{expected}`:\n{text}");
        }
        println!("{what} is read here: {}", path.display());
    }
    Ok(())
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let said = command.get_program().to_string_lossy().into_owned();
    let status = deadline::status(command).with_context(|| format!("running {said}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
