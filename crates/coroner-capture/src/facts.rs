//! Facts of the process that are gathered at install, so that a crash need not ask.

use crate::os;

/// Longest name that is kept.
pub(crate) const NAME: usize = 64;

/// A process's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessName {
    bytes: [u8; NAME],
    length: usize,
}

impl ProcessName {
    /// The file name of the program, or nothing where the system does not tell.
    pub(crate) fn of_this() -> ProcessName {
        let mut path = [0_u8; 1024];
        let path = os::facts::program_path(&mut path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut bytes = [0; NAME];
        for (to, from) in bytes.iter_mut().zip(name) {
            *to = *from;
        }
        ProcessName { bytes, length: name.len().min(NAME) }
    }

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn this_test_has_a_name_and_started_a_moment_ago() {
        let name = ProcessName::of_this();
        assert!(name.as_bytes().starts_with(b"coroner_capture"), "{:?}", std::str::from_utf8(name.as_bytes()));
        let age = os::clock::wall().saturating_sub(os::facts::process_start());
        assert!(age < 600_000_000_000, "started {age} ns ago");
    }
}
