//! Apple's systems: `sysctlbyname(3)`, by the names of <sys/sysctl.h>. What a system does not have, or hides from apps in a
//! sandbox, is left out.

use std::ffi::CStr;

use coroner_report::run_state::{Fact, FactsEncoder};

/// Not known: nothing is taken over from an earlier run.
pub(super) fn machine(_pid_namespace: u64) -> u64 {
    0
}

/// The system: its name, version, build.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::OS_NAME, NAME);
    facts.text(Fact::OS_VERSION, &text(c"kern.osproductversion"));
    facts.text(Fact::OS_BUILD, &text(c"kern.osversion"));
    facts.text(Fact::OS_KERNEL_VERSION, &text(c"kern.version"));
}

/// The C library, which is a part of the system and has its version.
pub(super) fn runtime(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::RUNTIME_NAME, "libSystem");
    facts.text(Fact::RUNTIME_VERSION, &text(c"kern.osproductversion"));
}

/// Whether it is a Mac: an app of Mac Catalyst is built as one of iOS, and the system says what it says to those of macOS.
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

/// The device: model, processors, memory, when it was started.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    // The model of a Mac is `hw.model`; on the other devices that is a board, and `hw.machine` is the model.
    let model = text(if IS_MAC { c"hw.model" } else { c"hw.machine" });
    facts.text(Fact::DEVICE_MODEL, &model);
    facts.text(Fact::DEVICE_FAMILY, family(&model));
    // Not uname's: there it is the model on all devices but Macs.
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

/// `iPhone15,2` is an iPhone.
fn family(model: &str) -> &str {
    model.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default()
}

/// Asks for a fact of at most `N` bytes; how many it has.
fn ask<const N: usize>(name: &CStr) -> Option<([u8; N], usize)> {
    let (mut bytes, mut length) = ([0; N], N);
    // SAFETY: the name ends in NUL, there is room for `length` bytes, and nothing is set.
    let failed = unsafe {
        libc::sysctlbyname(name.as_ptr(), bytes.as_mut_ptr().cast(), &raw mut length, std::ptr::null_mut(), 0)
    };
    (failed == 0 && length <= N).then_some((bytes, length))
}

/// A fact that is text; empty where there is none.
fn text(name: &CStr) -> String {
    let Some((bytes, length)) = ask::<512>(name) else { return String::new() };
    let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// A fact that is a number, of 32 or of 64 bits.
fn number(name: &CStr) -> Option<u64> {
    match ask::<8>(name)? {
        (bytes, 8) => Some(u64::from_ne_bytes(bytes)),
        ([a, b, c, d, ..], 4) => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => None,
    }
}

/// When the system was started, nanoseconds since the Unix epoch: a `struct timeval`, of two 64-bit words with its padding.
fn boot_time() -> Option<u64> {
    let (bytes, 16) = ask::<16>(c"kern.boottime")? else { return None };
    let seconds = i64::from_ne_bytes(bytes[..8].try_into().ok()?);
    let microseconds = i32::from_ne_bytes(bytes[8..12].try_into().ok()?);
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(microseconds).ok()? * 1000)
}

/// What of the program shows an update: its version and build say it here.
pub(super) fn program(_facts: &mut FactsEncoder<'_>) {}

#[cfg(test)]
mod tests;
