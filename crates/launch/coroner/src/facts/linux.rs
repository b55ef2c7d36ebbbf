//! Facts on Linux and Android, from `uname`, `/etc/os-release`, Android's properties and `sysinfo`.

use std::time::Duration;

use coroner_process::elf::FileHeader;
use coroner_report::run_state::{Fact, FactsEncoder};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::sysinfo::sysinfo;
use nix::sys::utsname::uname;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Adds the system's name, version and distribution.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    let Ok(name) = uname() else { return };
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
        // Split as in sentry-native: `6.1.0-13-amd64` is version `6.1.0`, build `13-amd64`.
        let (version, build) = release.split_once('-').unwrap_or((&release, ""));
        facts.text(Fact::OS_VERSION, version);
        facts.text(Fact::OS_BUILD, build);
    }
    facts.text(Fact::OS_KERNEL_VERSION, &format!("{release} {}", name.version().to_string_lossy()));
    facts.text(Fact::DEVICE_ARCH, &name.machine().to_string_lossy());
    facts.text(Fact::OS_BOOT_ID, &boot_id().unwrap_or_default());
    #[cfg(target_os = "linux")]
    if let Some(release) = read_start("/etc/os-release") {
        facts.text(Fact::OS_DISTRIBUTION, &os_release(&release, "ID"));
        facts.text(Fact::OS_DISTRIBUTION_VERSION, &os_release(&release, "VERSION_ID"));
    }
}

/// Adds the program's build id, which identifies an update, and the service manager's watchdog.
///
/// Neither needs a system call.
pub(super) fn program(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::APP_BUILD_ID, &build_id().unwrap_or_default());
    let watchdog = std::env::var("WATCHDOG_USEC").ok().and_then(|value| value.parse().ok());
    // A child of the service may have inherited the variable.
    let is_own = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
    if let Some(microseconds) = watchdog.filter(|_| is_own) {
        facts.uint(Fact::APP_WATCHDOG, microseconds);
    }
}

/// Returns `None`: the build id is not read in a 32-bit program.
#[cfg(not(target_pointer_width = "64"))]
pub(crate) fn build_id() -> Option<String> {
    None
}

/// Returns the program's build id in hexadecimal digits, from its note in memory
/// (`NT_GNU_BUILD_ID`, elf(5)); `None` if it has none.
#[cfg(target_pointer_width = "64")]
pub(crate) fn build_id() -> Option<String> {
    use std::fmt::Write as _;
    // SAFETY: getauxval reads the auxiliary vector.
    let (at, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if at == 0 || count > 256 {
        return None;
    }
    // SAFETY: the kernel has mapped this number of program headers there, and they stay mapped.
    let headers = unsafe { std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count as usize) };
    let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_offset == 0)?;
    // The headers contain their own address, even if a tool such as patchelf has moved them. If
    // they don't, as in a static program that is not relocated, they directly follow the file's
    // header.
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let linked = own.map_or(first.p_vaddr.checked_add(FileHeader::SIZE as u64)?, |own| own.p_vaddr);
    let slide = at.wrapping_sub(linked);
    if own.is_none() && slide != 0 {
        return None;
    }
    let loaded = first.p_vaddr..first.p_vaddr.checked_add(first.p_memsz)?;
    let notes = headers.iter().filter(|header| {
        let end = header.p_vaddr.checked_add(header.p_memsz);
        header.p_type == libc::PT_NOTE && loaded.contains(&header.p_vaddr) && end.is_some_and(|end| end <= loaded.end)
    });
    let id = notes.into_iter().find_map(|header| {
        // SAFETY: the note is in the first segment, which stays mapped.
        build_id_in(unsafe {
            std::slice::from_raw_parts(slide.wrapping_add(header.p_vaddr) as *const u8, header.p_memsz as usize)
        })
    })?;
    Some(id.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Finds the build id in notes.
///
/// Each note is three words (length of the name, length of the description, type), then name and
/// description, each padded to 4 bytes.
#[cfg(target_pointer_width = "64")]
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let word = |at: usize| Some(u32::from_ne_bytes(*notes.get(at..)?.first_chunk()?));
        let (name, length, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let description = name.checked_next_multiple_of(4)?.checked_add(12)?;
        let bytes = notes.get(description..)?.get(..length)?;
        if kind == NT_GNU_BUILD_ID && length > 0 && notes.get(12..)?.starts_with(b"GNU\0") {
            return Some(bytes);
        }
        notes = notes.get(description.checked_add(length.checked_next_multiple_of(4)?)?..)?;
    }
}

/// Returns an id that changes with each boot.
pub(crate) fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (digits.len() == 32).then_some(digits)
}

/// Returns a system property (`getprop`); `None` if it is not set.
#[cfg(target_os = "android")]
fn property(name: &std::ffi::CStr) -> Option<String> {
    let mut value = [0_u8; libc::PROP_VALUE_MAX as usize];
    // SAFETY: the library writes at most `PROP_VALUE_MAX` bytes, including a NUL at their end.
    let length = unsafe { libc::__system_property_get(name.as_ptr(), value.as_mut_ptr().cast()) };
    let value = value.get(..usize::try_from(length).ok()?)?;
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

/// Returns the result of one read of a small text file.
#[cfg(target_os = "linux")]
fn read_start(path: &str) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = [0; 4096];
    let length = std::fs::File::open(path).ok()?.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Returns the machine's boot time in nanoseconds since the Unix epoch. The C library usually needs
/// no system call for it.
fn boot_time() -> u64 {
    let now = |clock| clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    let boot = now(ClockId::CLOCK_REALTIME).saturating_sub(now(ClockId::CLOCK_BOOTTIME));
    u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a number that differs for each boot and for each container (pid namespace).
///
/// 0 if the namespace is unknown. Setting the clock also changes the number.
pub(super) fn machine(pid_namespace: u64) -> u64 {
    if pid_namespace == 0 { 0 } else { (boot_time() / 8_000_000_000) << 32 | pid_namespace & 0xffff_ffff }
}

/// Adds the C library that this program runs on.
pub(super) fn runtime(facts: &mut FactsEncoder<'_>) {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function takes no arguments and returns a constant string.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        facts.text(Fact::RUNTIME_NAME, "glibc");
        facts.text(Fact::RUNTIME_VERSION, &version.to_string_lossy());
    }
    #[cfg(not(target_env = "gnu"))]
    facts.text(Fact::RUNTIME_NAME, if cfg!(target_os = "android") { "bionic" } else { "musl" });
}

/// Returns a variable's value in the text of `/etc/os-release` (os-release(5)); empty if it is
/// missing.
#[cfg(any(target_os = "linux", test))]
fn os_release(text: &str, variable: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    value.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
}

/// Adds the device's processors, memory and boot time.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    #[cfg(target_os = "android")]
    {
        facts.text(Fact::DEVICE_MODEL, &property(c"ro.product.model").unwrap_or_default());
        facts.text(Fact::DEVICE_FAMILY, &property(c"ro.product.brand").unwrap_or_default());
    }
    // One system call. `available_parallelism` reads several files, which is too slow for install.
    if let Ok(processors) = sched_getaffinity(Pid::from_raw(0)) {
        let count = (0..CpuSet::count()).filter(|processor| processors.is_set(*processor) == Ok(true)).count();
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, count as u64);
    }
    if let Ok(info) = sysinfo() {
        facts.uint(Fact::DEVICE_MEMORY_SIZE, info.ram_total());
    }
    facts.uint(Fact::DEVICE_BOOT_TIME, boot_time() / 1_000_000_000 * 1_000_000_000);
}

#[cfg(test)]
mod tests;
