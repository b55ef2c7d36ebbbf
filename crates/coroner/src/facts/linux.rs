//! Linux and Android: `uname`, `/etc/os-release`, `sysinfo`.

use std::time::{SystemTime, UNIX_EPOCH};

use coroner_report::run_state::{Fact, FactsEncoder};

/// The system: its name, version, distribution.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    let name = rustix::system::uname();
    facts.text(Fact::OS_NAME, &name.sysname().to_string_lossy());
    // As sentry-native has it: `6.1.0-13-amd64` is version `6.1.0`, build `13-amd64`.
    let release = name.release().to_string_lossy();
    let (version, build) = release.split_once('-').unwrap_or((&release, ""));
    facts.text(Fact::OS_VERSION, version);
    facts.text(Fact::OS_BUILD, build);
    facts.text(Fact::OS_KERNEL_VERSION, &format!("{release} {}", name.version().to_string_lossy()));
    facts.text(Fact::DEVICE_ARCH, &name.machine().to_string_lossy());
    #[cfg(target_os = "linux")]
    if let Some(release) = read_start("/etc/os-release") {
        facts.text(Fact::OS_DISTRIBUTION, &os_release(&release, "ID"));
        facts.text(Fact::OS_DISTRIBUTION_VERSION, &os_release(&release, "VERSION_ID"));
    }
}

/// What one read gives of a small text file.
#[cfg(target_os = "linux")]
fn read_start(path: &str) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = [0; 4096];
    let length = std::fs::File::open(path).ok()?.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// The C library that this program runs on.
pub(super) fn runtime(facts: &mut FactsEncoder<'_>) {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes nothing, and gives a constant text.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        facts.text(Fact::RUNTIME_NAME, "glibc");
        facts.text(Fact::RUNTIME_VERSION, &version.to_string_lossy());
    }
    #[cfg(not(target_env = "gnu"))]
    facts.text(Fact::RUNTIME_NAME, if cfg!(target_os = "android") { "bionic" } else { "musl" });
}

/// The value of a variable in the text of `/etc/os-release` (os-release(5)); empty if it is not there.
#[cfg(any(target_os = "linux", test))]
fn os_release(text: &str, variable: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    value.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
}

/// The device: processors, memory, when it was started.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    // One system call; `available_parallelism` reads a handful of files, and install has a millisecond.
    if let Ok(processors) = rustix::thread::sched_getaffinity(None) {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors.count().into());
    }
    let info = rustix::system::sysinfo();
    // `mem_unit` makes the numbers fit on 32-bit systems.
    let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    facts.uint(Fact::DEVICE_MEMORY_SIZE, memory);
    let uptime = u64::try_from(info.uptime).unwrap_or(0);
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        facts.uint(Fact::DEVICE_BOOT_TIME, now.as_secs().saturating_sub(uptime).saturating_mul(1_000_000_000));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"13\"\nID=debian\n";
        assert_eq!(os_release(text, "ID"), "debian");
        assert_eq!(os_release(text, "VERSION_ID"), "13");
        assert_eq!(os_release(text, "BUILD_ID"), "");
    }
}
