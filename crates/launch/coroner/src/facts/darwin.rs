//! Facts on Apple systems, by `sysctlbyname(3)` with the names of <sys/sysctl.h>.
//!
//! Facts that a system doesn't have or hides from sandboxed apps are left out.

use std::ffi::CStr;

use coroner_report::run_state::{Fact, FactsEncoder};

/// Returns 0: unknown, so no facts are reused from an earlier run.
pub(super) fn machine(_pid_namespace: u64) -> u64 {
    0
}

/// Adds the system's name, version and build.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::OS_NAME, NAME);
    facts.text(Fact::OS_VERSION, &text(c"kern.osproductversion"));
    facts.text(Fact::OS_BUILD, &text(c"kern.osversion"));
    facts.text(Fact::OS_KERNEL_VERSION, &text(c"kern.version"));
}

/// Adds the C library, which is a part of the system and has its version.
pub(super) fn runtime(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::RUNTIME_NAME, "libSystem");
    facts.text(Fact::RUNTIME_VERSION, &text(c"kern.osproductversion"));
}

/// Whether this is a Mac. A Mac Catalyst app is built like an iOS app, but gets macOS's values.
const IS_MAC: bool = cfg!(any(target_os = "macos", target_abi = "macabi"));

/// The system's name, as Apple writes it.
const NAME: &str = if IS_MAC {
    "macOS"
} else if cfg!(target_os = "ios") {
    "iOS"
} else if cfg!(target_os = "tvos") {
    "tvOS"
} else if cfg!(target_os = "watchos") {
    "watchOS"
} else if cfg!(target_os = "visionos") {
    "visionOS"
} else {
    "Darwin"
};

/// Adds the device's model, processors, memory and boot time.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    // A Mac's model is `hw.model`; on other devices that is a board, and `hw.machine` is the model.
    let model = text(if IS_MAC { c"hw.model" } else { c"hw.machine" });
    facts.text(Fact::DEVICE_MODEL, &model);
    facts.text(Fact::DEVICE_FAMILY, family(&model));
    // Not from uname, which returns the model except on Macs.
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { std::env::consts::ARCH };
    facts.text(Fact::DEVICE_ARCH, arch);
    facts.text(Fact::DEVICE_CPU, &text(c"machdep.cpu.brand_string"));
    if let Some(processors) = number(c"hw.ncpu") {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors);
    }
    if let Some(bytes) = number(c"hw.memsize") {
        facts.uint(Fact::DEVICE_MEMORY_SIZE, bytes);
    }
    if let Some(boot) = boot_time() {
        facts.uint(Fact::DEVICE_BOOT_TIME, boot);
    }
    facts.bool(Fact::DEVICE_SIMULATOR, cfg!(target_abi = "sim"));
}

/// Returns a model's family, such as `iPhone` for `iPhone15,2`.
fn family(model: &str) -> &str {
    model.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default()
}

/// Queries a fact of at most `N` bytes; returns the bytes and their number.
fn ask<const N: usize>(name: &CStr) -> Option<([u8; N], usize)> {
    let (mut bytes, mut length) = ([0; N], N);
    // SAFETY: the name ends in NUL, there is room for `length` bytes, and nothing is set.
    let failed = unsafe {
        libc::sysctlbyname(name.as_ptr(), bytes.as_mut_ptr().cast(), &raw mut length, std::ptr::null_mut(), 0)
    };
    (failed == 0 && length <= N).then_some((bytes, length))
}

/// Returns a text fact; empty if there is none.
fn text(name: &CStr) -> String {
    let Some((bytes, length)) = ask::<512>(name) else { return String::new() };
    let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// Returns a numeric fact of 32 or 64 bits.
fn number(name: &CStr) -> Option<u64> {
    match ask::<8>(name)? {
        (bytes, 8) => Some(u64::from_ne_bytes(bytes)),
        ([a, b, c, d, ..], 4) => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => None,
    }
}

/// Returns the system's boot time in nanoseconds since the Unix epoch, from a `struct timeval`,
/// which is two 64-bit words with its padding.
fn boot_time() -> Option<u64> {
    let (bytes, 16) = ask::<16>(c"kern.boottime")? else { return None };
    let seconds = i64::from_ne_bytes(bytes[..8].try_into().ok()?);
    let microseconds = i32::from_ne_bytes(bytes[8..12].try_into().ok()?);
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(microseconds).ok()? * 1000)
}

/// Adds nothing, because the app's version and build identify an update.
pub(super) fn program(_facts: &mut FactsEncoder<'_>) {}

#[cfg(test)]
mod tests;
