//! sysctl and sysconf: facts about the system.
//!
//! Sources: <sys/sysctl.h>, <sys/unistd.h>. The emulated system is macOS 11.0 (Darwin 20.1); its
//! facts are constants here if Linux has no equivalent. Sizes and counts are the machine's.

use std::ffi::{CStr, c_char};

use super::errno::fail;
use crate::host::kernel::{ending::refuse, pages};

const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;

/// A fact's value.
enum Value {
    Word(i32),
    Long(u64),
    Text(&'static str),
    Bytes(Vec<u8>),
}

fn cpus() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) as i32 }
}

fn boot_time() -> [i64; 2] {
    let (mut now, mut since) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: local results.
    unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut since);
    }
    [now.tv_sec - since.tv_sec, 0]
}

/// Returns a fact by name.
///
/// `None` is ENOENT, because a program may query facts that a machine doesn't have.
fn by_name(name: &str) -> Option<Value> {
    let arm = cfg!(target_arch = "aarch64");
    Some(match name {
        "hw.ncpu" | "hw.logicalcpu" | "hw.physicalcpu" | "hw.activecpu" | "hw.logicalcpu_max"
        | "hw.physicalcpu_max" => Value::Word(cpus()),
        "hw.memsize" => {
            // SAFETY: a local result.
            let facts = unsafe {
                let mut facts: libc::sysinfo = std::mem::zeroed();
                libc::sysinfo(&raw mut facts);
                facts
            };
            Value::Long(facts.totalram * u64::from(facts.mem_unit))
        }
        "hw.pagesize" => Value::Long(pages::PAGE as u64),
        "hw.machine" => Value::Text(if arm { "arm64" } else { "x86_64" }),
        "hw.model" => Value::Text(if arm { "MacBookAir10,1" } else { "MacBookPro16,2" }),
        "hw.cputype" => Value::Word(if arm { 0x0100_000c } else { 0x0100_0007 }),
        "hw.cpusubtype" => Value::Word(if arm { 2 } else { 8 }),
        "hw.byteorder" => Value::Word(1234),
        // Only arm64 kernels have it (XNU bsd/dev/arm/sysctl.c): macOS's 64 - T0SZ.
        "machdep.virtual_address_size" if arm => Value::Word(47),
        "kern.ostype" => Value::Text("Darwin"),
        "kern.osrelease" => Value::Text("20.1.0"),
        "kern.osversion" => Value::Text("20B29"),
        "kern.osproductversion" => Value::Text("11.0.1"),
        "kern.version" => Value::Text("Darwin Kernel Version 20.1.0: darwin-host"),
        "kern.hostname" => Value::Text("darwin-host"),
        "kern.boottime" => Value::Bytes(boot_time().iter().flat_map(|v| v.to_le_bytes()).collect()),
        "machdep.cpu.brand_string" => Value::Text(if arm { "Apple M1" } else { "darwin-host" }),
        _ => return None,
    })
}

/// Returns a value by sysctl's rules: null queries the size, a too small buffer is ENOMEM.
fn give(value: &Value, to: *mut u8, size: *mut usize) -> i32 {
    let bytes = match value {
        Value::Word(word) => word.to_le_bytes().to_vec(),
        Value::Long(long) => long.to_le_bytes().to_vec(),
        Value::Text(text) => [text.as_bytes(), &[0]].concat(),
        Value::Bytes(bytes) => bytes.clone(),
    };
    if size.is_null() {
        return 0;
    }
    // SAFETY: the program gave the addresses, and room for `size` bytes.
    unsafe {
        if to.is_null() {
            size.write(bytes.len());
            return 0;
        }
        if size.read() < bytes.len() {
            return fail(ENOMEM);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        size.write(bytes.len());
    }
    0
}

extern "C" fn sysctlbyname(name: *const c_char, to: *mut u8, size: *mut usize, new: usize, _new_size: usize) -> i32 {
    // SAFETY: the program gave a string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    if new != 0 {
        refuse!("sysctlbyname sets {name}");
    }
    match by_name(&name) {
        Some(value) => give(&value, to, size),
        None => fail(ENOENT),
    }
}

/// `struct kinfo_proc` is 648 bytes; debugger checks read `kp_proc.p_flag` at 32.
const KINFO_PROC: usize = 648;

fn process_info(pid: i32) -> Value {
    let mut bytes = vec![0u8; KINFO_PROC];
    // P_LP64 and P_EXEC; P_TRACED.
    let flags = 0x4004_i32 | if super::conditions::is_traced() { 0x800 } else { 0 };
    bytes[32..36].copy_from_slice(&flags.to_le_bytes());
    bytes[40..44].copy_from_slice(&pid.to_le_bytes()); // p_pid
    Value::Bytes(bytes)
}

extern "C" fn sysctl(name: *const i32, count: u32, to: *mut u8, size: *mut usize, new: usize, _new_size: usize) -> i32 {
    // SAFETY: the program gave `count` words.
    let mib = unsafe { std::slice::from_raw_parts(name, count as usize) };
    if new != 0 {
        refuse!("sysctl sets {mib:?}");
    }
    // CTL_KERN 1, CTL_HW 6 and their names.
    let name = match mib {
        [1, 14, 1, pid] => return give(&process_info(*pid), to, size), // KERN_PROC, KERN_PROC_PID
        [1, 1] => "kern.ostype",
        [1, 2] => "kern.osrelease",
        [1, 4] => "kern.version",
        [1, 10] => "kern.hostname",
        [1, 21] => "kern.boottime",
        [1, 65] => "kern.osversion",
        [6, 1] => "hw.machine",
        [6, 2] => "hw.model",
        [6, 3 | 25] => "hw.ncpu",
        [6, 7] => "hw.pagesize",
        [6, 24] => "hw.memsize",
        other => refuse!("sysctl {other:?}"),
    };
    match by_name(name) {
        Some(value) => give(&value, to, size),
        None => fail(ENOENT),
    }
}

/// _SC_* of <unistd.h>.
extern "C" fn sysconf(name: i32) -> i64 {
    match name {
        1 => 1_048_576,               // _SC_ARG_MAX
        3 => 100,                     // _SC_CLK_TCK
        5 => 256,                     // _SC_OPEN_MAX
        29 => pages::PAGE as i64,     // _SC_PAGESIZE
        57 | 58 => i64::from(cpus()), // _SC_NPROCESSORS_CONF, _ONLN
        70 | 71 => 4096,              // _SC_GETGR_R_SIZE_MAX, _SC_GETPW_R_SIZE_MAX
        93 => {
            if cfg!(target_arch = "aarch64") {
                16384
            } else {
                8192
            }
        } // _SC_THREAD_STACK_MIN
        // SAFETY: no preconditions.
        200 => unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) * 4096 / pages::PAGE as i64 }, // _SC_PHYS_PAGES
        other => refuse!("sysconf({other})"),
    }
}

extern "C" fn getpagesize() -> i32 {
    pages::PAGE as i32
}

/// `struct utsname`: five fields of 256 bytes.
extern "C" fn uname(to: *mut [u8; 256]) -> i32 {
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" };
    let version = "Darwin Kernel Version 20.1.0: darwin-host";
    for (index, text) in ["Darwin", "darwin-host", "20.1.0", version, machine].iter().enumerate() {
        let mut field = [0; 256];
        field[..text.len()].copy_from_slice(text.as_bytes());
        // SAFETY: the program gave the structure.
        unsafe { to.add(index).write(field) };
    }
    0
}

/// `confstr`: _CS_DARWIN_USER_TEMP_DIR (65537) is not set, and neither are other names.
extern "C" fn confstr(_name: i32, _to: *mut c_char, _size: usize) -> usize {
    0
}

super::exports! {
    "sysctl" => sysctl,
    "sysctlbyname" => sysctlbyname,
    "sysconf" => sysconf,
    "getpagesize" => getpagesize,
    "uname" => uname,
    "confstr" => confstr,
    "gethostname" => libc::gethostname,
}
