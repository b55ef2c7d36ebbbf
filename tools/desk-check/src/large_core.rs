//! Reads a core dump of 8 GB, and measures time and memory.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{Desk, Row, failure_text, write};

const PART: &str = "large-core";
/// A program with 8 GB of memory that wrote once to each 4 MB: its core dump is a sparse file.
const PROGRAM: &str = r#"
#include <sys/mman.h>
__attribute__((noinline)) static int total(volatile int *cart) { return *cart; }
__attribute__((noinline)) static int pay(volatile int *cart) { return total(cart) + 1; }
int main(int argc, char **argv) {
    const unsigned long size = 8ul << 30;
    volatile char *all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 3;
    for (unsigned long at = 0; at < size; at += 4ul << 20) all[at] = 1;
    return pay((volatile int *)(long)(argc - 1)) + 1;
}
"#;
const LIMIT: Duration = Duration::from_secs(3);
const MEMORY: u64 = 100 << 20;

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").context("core_pattern")?;
    if pattern.starts_with(['|', '/', '@']) {
        eprintln!("large-core: skipped: core dumps of this system go to `{}`", pattern.trim());
        return Ok(Vec::new());
    }
    let folder = desk.path("large");
    std::fs::create_dir_all(&folder)?;
    write(&desk.path("large.c"), PROGRAM)?;
    let compiled =
        Command::new("cc").args(["-g", "-O1", "-o"]).args([desk.path("big"), desk.path("large.c")]).output()?;
    ensure!(compiled.status.success(), "cc: {}", failure_text(&compiled));
    let died = Command::new("sh").args(["-c", "ulimit -c unlimited; exec ../big"]).current_dir(&folder).status()?;
    let core = std::fs::read_dir(&folder)?.next().with_context(|| format!("no core dump: {died}"))??;
    let size = core.metadata()?.len();
    ensure!(size > 8 << 30, "the core dump has {size} bytes");
    let core = core.path();
    let core = core.to_str().context("its path")?;
    let mut rows = Vec::new();
    for arguments in [["show", core, "--format", "json"], ["import", core, "-o", "imported"]] {
        let began = Instant::now();
        let mut command = desk.command(&arguments);
        let child = command.stdout(Stdio::null()).process_group(0).spawn().context("running coroner")?;
        let (passed, memory) = wait(child.id())?;
        let time = began.elapsed();
        ensure!(passed, "coroner {arguments:?} failed");
        rows.push(Row::time(desk, PART, &format!("`{}` of 8 GB", arguments[0]), LIMIT, time));
        let seen = format!("{} MB", memory >> 20);
        rows.push(Row::new(PART, "peak memory", "at most 100 MB", seen, memory <= MEMORY));
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(rows)
}

/// Waits for a child. Returns whether it succeeded, and its peak memory in bytes.
fn wait(pid: u32) -> anyhow::Result<(bool, u64)> {
    let mut status = 0;
    // SAFETY: an all-zero `rusage` is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are local variables that it writes.
    let waited = unsafe { libc::wait4(pid as i32, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == pid as i32, "wait4: {}", std::io::Error::last_os_error());
    Ok((status == 0, usage.ru_maxrss as u64 * 1024))
}
