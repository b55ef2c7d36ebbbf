//! Facts on Windows, from kernel32 and ntdll.

use std::ffi::c_void;

use coroner_report::run_state::{Fact, FactsEncoder};

/// `OSVERSIONINFOW` of winnt.h.
#[repr(C)]
struct Version {
    size: u32,
    major: u32,
    minor: u32,
    build: u32,
    platform: u32,
    service_pack: [u16; 128],
}

/// `MEMORYSTATUSEX` of sysinfoapi.h.
#[repr(C)]
#[derive(Default)]
struct Memory {
    length: u32,
    load: u32,
    /// The size of the machine's memory in bytes comes first.
    sizes: [u64; 7],
}

#[link(name = "ntdll")]
unsafe extern "system" {
    fn RtlGetVersion(version: *mut Version) -> i32;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    fn GlobalMemoryStatusEx(memory: *mut Memory) -> i32;
    safe fn GetTickCount64() -> u64;
    fn GetUserDefaultLocaleName(name: *mut u16, characters: i32) -> i32;
    fn GetProcessTimes(
        process: *mut c_void,
        started: *mut u64,
        ended: *mut u64,
        kernel: *mut u64,
        user: *mut u64,
    ) -> i32;
    safe fn GetCurrentProcess() -> *mut c_void;
}

/// Returns 0: unknown, so no facts are reused from an earlier run.
pub(super) fn machine(_pid_namespace: u64) -> u64 {
    0
}

/// Adds the system's name and version.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::OS_NAME, "Windows");
    let mut version = Version {
        size: size_of::<Version>() as u32,
        major: 0,
        minor: 0,
        build: 0,
        platform: 0,
        service_pack: [0; 128],
    };
    // SAFETY: the function writes one structure of the size in its first field.
    if unsafe { RtlGetVersion(&raw mut version) } == 0 {
        facts.text(Fact::OS_VERSION, &format!("{}.{}.{}", version.major, version.minor, version.build));
        facts.text(Fact::OS_BUILD, &version.build.to_string());
    }
    facts.text(Fact::DEVICE_ARCH, std::env::consts::ARCH);
}

/// Adds the device's processors, memory and boot time.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    if let Ok(processors) = std::thread::available_parallelism() {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors.get() as u64);
    }
    let mut memory = Memory { length: size_of::<Memory>() as u32, ..Memory::default() };
    // SAFETY: the function writes one structure of the size in its first field.
    if unsafe { GlobalMemoryStatusEx(&raw mut memory) } != 0 {
        facts.uint(Fact::DEVICE_MEMORY_SIZE, memory.sizes[0]);
    }
    let since_boot = GetTickCount64().saturating_mul(1_000_000);
    let boot = crate::clock::now_ns().saturating_sub(since_boot);
    facts.uint(Fact::DEVICE_BOOT_TIME, boot / 1_000_000_000 * 1_000_000_000);
}

/// Adds nothing, because no data that identifies an update is read on this system.
pub(super) fn program(_facts: &mut FactsEncoder<'_>) {}

/// Adds the C library that the program was built for.
pub(super) fn runtime(facts: &mut FactsEncoder<'_>) {
    facts.text(Fact::RUNTIME_NAME, if cfg!(target_env = "msvc") { "UCRT" } else { "MinGW" });
}

/// Returns the user's language and region, such as `de-DE`.
pub(super) fn locale() -> String {
    let mut name = [0_u16; 85];
    // SAFETY: the function writes at most as many characters as the buffer has, including a NUL,
    // which the length counts.
    let length = unsafe { GetUserDefaultLocaleName(name.as_mut_ptr(), name.len() as i32) };
    let length = usize::try_from(length).unwrap_or(0).saturating_sub(1);
    String::from_utf16_lossy(name.get(..length).unwrap_or_default())
}

/// Returns this process's start time in nanoseconds since the Unix epoch.
pub(crate) fn process_start() -> Option<u64> {
    /// From 1601 to 1970, in units of 100 ns.
    const EPOCH: u64 = 116_444_736_000_000_000;
    let (mut started, mut others) = (0, [0_u64; 3]);
    let [ended, kernel, user] = &mut others;
    // SAFETY: the function writes four times.
    let known = unsafe { GetProcessTimes(GetCurrentProcess(), &raw mut started, ended, kernel, user) };
    (known != 0).then(|| started.checked_sub(EPOCH)?.checked_mul(100)).flatten()
}
