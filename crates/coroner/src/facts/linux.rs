//! Linux and Android: `uname`, `/etc/os-release`, Android's properties, `sysinfo`.

use coroner_report::run_state::{Fact, FactsEncoder};

/// The system: its name, version, distribution.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    #[cfg(target_os = "android")]
    {
        facts.text(Fact::OS_NAME, "Android");
        facts.text(Fact::OS_VERSION, &property(c"ro.build.version.release").unwrap_or_default());
        facts.text(Fact::OS_BUILD, &property(c"ro.build.id").unwrap_or_default());
    }
    #[cfg(not(target_os = "android"))]
    {
        facts.text(Fact::OS_NAME, &name.sysname().to_string_lossy());
        // As sentry-native has it: `6.1.0-13-amd64` is version `6.1.0`, build `13-amd64`.
        let (version, build) = release.split_once('-').unwrap_or((&release, ""));
        facts.text(Fact::OS_VERSION, version);
        facts.text(Fact::OS_BUILD, build);
    }
    facts.text(Fact::OS_KERNEL_VERSION, &format!("{release} {}", name.version().to_string_lossy()));
    facts.text(Fact::DEVICE_ARCH, &name.machine().to_string_lossy());
    #[cfg(target_os = "linux")]
    if let Some(release) = read_start("/etc/os-release") {
        facts.text(Fact::OS_DISTRIBUTION, &os_release(&release, "ID"));
        facts.text(Fact::OS_DISTRIBUTION_VERSION, &os_release(&release, "VERSION_ID"));
    }
}

/// A property of the system (`getprop`); `None` if it is not set.
#[cfg(target_os = "android")]
fn property(name: &std::ffi::CStr) -> Option<String> {
    let mut value = [0_u8; libc::PROP_VALUE_MAX as usize];
    // SAFETY: the library writes at most so many bytes, with a NUL at their end.
    let length = unsafe { libc::__system_property_get(name.as_ptr(), value.as_mut_ptr().cast()) };
    let value = value.get(..usize::try_from(length).ok()?)?;
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

/// What one read gives of a small text file.
#[cfg(target_os = "linux")]
fn read_start(path: &str) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = [0; 4096];
    let length = std::fs::File::open(path).ok()?.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// When the machine was started, nanoseconds since the epoch. By the C library, which mostly needs no system call for it.
fn boot_time() -> u64 {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the library writes one `struct timespec`.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
    };
    now(libc::CLOCK_REALTIME).saturating_sub(now(libc::CLOCK_BOOTTIME))
}

/// Another number for each boot, and each container, by its pid namespace, of which none is known where that is 0. A clock that was
/// set makes another one of it, too.
pub(super) fn machine(pid_namespace: u64) -> u64 {
    if pid_namespace == 0 { 0 } else { boot_time() / 8_000_000_000 << 32 | pid_namespace & 0xffff_ffff }
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
    #[cfg(target_os = "android")]
    {
        facts.text(Fact::DEVICE_MODEL, &property(c"ro.product.model").unwrap_or_default());
        facts.text(Fact::DEVICE_FAMILY, &property(c"ro.product.brand").unwrap_or_default());
    }
    // One system call; `available_parallelism` reads a handful of files, and install has a millisecond.
    if let Ok(processors) = rustix::thread::sched_getaffinity(None) {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors.count().into());
    }
    let info = rustix::system::sysinfo();
    // `mem_unit` makes the numbers fit on 32-bit systems.
    let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    facts.uint(Fact::DEVICE_MEMORY_SIZE, memory);
    facts.uint(Fact::DEVICE_BOOT_TIME, boot_time() / 1_000_000_000 * 1_000_000_000);
}

#[cfg(test)]
#[path = "../../tests/unit/facts/linux.rs"]
mod tests;
