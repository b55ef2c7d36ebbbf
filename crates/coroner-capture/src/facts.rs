//! Facts of the process that are gathered at install, so that a crash need not ask.

use coroner_process::identity::program_path;

/// Longest name that is kept.
pub(crate) const NAME: usize = 64;

/// A process's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessName {
    bytes: [u8; NAME],
    length: usize,
}

impl ProcessName {
    /// The file name of the program, or `None` if the system does not say.
    pub(crate) fn of_this() -> ProcessName {
        let mut path = [0_u8; 1024];
        let path = program_path(&mut path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut bytes = [0; NAME];
        for (to, from) in bytes.iter_mut().zip(name) {
            *to = *from;
        }
        ProcessName { bytes, length: name.len().min(NAME) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn this_test_has_a_name() {
        let name = ProcessName::of_this();
        assert!(name.as_bytes().starts_with(b"coroner_capture"), "{:?}", std::str::from_utf8(name.as_bytes()));
    }
}
