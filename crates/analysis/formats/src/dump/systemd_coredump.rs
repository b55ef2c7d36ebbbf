//! Metadata of core dumps that systemd-coredump stores in `/var/lib/systemd/coredump`.
//!
//! The metadata are in the file's extended attributes, in its name, and in the journal.
//!
//! Source: systemd's `src/coredump/coredump.c`; systemd-coredump(8), "Information about the crashed
//! process".

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use coroner_report::model::Timestamp;
use serde_json::Value;

use super::noted::Noted;

/// The journal's fields that are read.
const FIELDS: &str = "COREDUMP_EXE,COREDUMP_UNIT,COREDUMP_TIMESTAMP,COREDUMP_PACKAGE_NAME,COREDUMP_PACKAGE_VERSION";

/// Returns the metadata of the core dump at `path`; `None` if its name is not one of
/// systemd-coredump's. The journal is read with `journalctl`, if available; without permission to
/// read the journal, only the file's own metadata are returned.
pub fn noted_by_systemd(path: &Path) -> Option<Noted> {
    let mut noted = parse_name(path.file_name()?.to_str()?)?;
    let file = CString::new(path.as_os_str().as_bytes()).ok()?;
    let attribute = |name: &str| {
        let mut value = vec![0; 4096];
        let name = CString::new(format!("user.coredump.{name}")).ok()?;
        // SAFETY: both strings end in zero, and at most the buffer's length is written. (nix has no
        // wrapper.)
        let length = unsafe { libc::getxattr(file.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        value.truncate(usize::try_from(length).ok()?);
        String::from_utf8(value).ok().filter(|text| !text.is_empty())
    };
    noted.executable = attribute("exe");
    noted.unit = attribute("unit");
    noted.package = attribute("package_name");
    noted.package_version = attribute("package_version");
    if let Some(entry) = std::path::absolute(path).ok().and_then(|path| read_journal(&path)) {
        let field = |name: &str| entry[name].as_str().map(ToOwned::to_owned);
        noted.executable = field("COREDUMP_EXE").or(noted.executable);
        noted.unit = field("COREDUMP_UNIT").or(noted.unit);
        noted.package = field("COREDUMP_PACKAGE_NAME").or(noted.package);
        noted.package_version = field("COREDUMP_PACKAGE_VERSION").or(noted.package_version);
        noted.time = field("COREDUMP_TIMESTAMP").and_then(|text| microseconds(&text)).or(noted.time);
    }
    Some(noted)
}

/// Parses `core.COMM.UID.BOOT-ID.PID.MICROSECONDS`, with an extension if it is compressed.
fn parse_name(name: &str) -> Option<Noted> {
    let name = name.strip_prefix("core.")?;
    let name = [".zst", ".lz4", ".xz"].iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(name);
    let mut parts = name.rsplit('.');
    let (time, pid, boot, uid) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_boot = boot.len() == 32 && boot.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_noted = is_boot && pid.parse::<u32>().is_ok() && uid.parse::<u32>().is_ok() && parts.next().is_some();
    is_noted.then_some(Noted { time: microseconds(time), ..Noted::default() })
}

/// Parses microseconds since 1970.
fn microseconds(text: &str) -> Option<Timestamp> {
    text.parse::<u64>().ok()?.checked_mul(1000).map(Timestamp)
}

/// Returns the journal entry for this file.
fn read_journal(path: &Path) -> Option<Value> {
    let output = Command::new("journalctl")
        .args(["--quiet", "--no-pager", "--output=json", "--lines=1", "--output-fields", FIELDS])
        .arg(format!("COREDUMP_FILENAME={}", path.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_str(str::from_utf8(&output.stdout).ok()?.lines().next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_read_from_the_name() {
        let name = "core.python3\x2e12.1000.0123456789abcdef0123456789abcdef.4711.1732464000123456.zst";
        assert_eq!(parse_name(name).unwrap().time, Some(Timestamp(1_732_464_000_123_456_000)));
        for other in ["core", "core.4711", "core.x.1000.boot.1.2.zst", "core.1000.0123456789abcdef0123456789abcdef.1.2"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
