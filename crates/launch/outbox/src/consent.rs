//! What the user said of sending. It has a file of its own: whatever becomes of the sink's state, a refusal is not forgotten.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::files::{Change, is_link, sync_directory};
use crate::outbox::{Outbox, open_file, remove, write_atomically};

const CONSENT: &str = "consent";
/// What the file says where the user has agreed. Whatever else it says is a refusal.
const GIVEN: &str = "given\n";

impl Outbox {
    /// Whether the user has agreed; `None` while they have not been asked. A file that is damaged counts as a refusal.
    ///
    /// # Errors
    /// It can't be read for now: the process has no descriptors left, or no memory. Another time it can, and says what it says.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        let file = match open_file(&self.path().join(CONSENT)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // A directory, a pipe or a link.
            Err(error) if error.kind() == ErrorKind::InvalidData || is_link(&error) => return Ok(Some(false)),
            Err(error) => return Err(error),
        };
        let mut said = Vec::new();
        file.take(16).read_to_end(&mut said)?;
        Ok(Some(said == GIVEN.as_bytes()))
    }

    /// Whether nothing may be sent or kept because the user has refused.
    ///
    /// # Errors
    /// As of [`consent`](Self::consent).
    pub fn is_refused(&self) -> io::Result<bool> {
        Ok(self.consent()? == Some(false))
    }

    /// An error unless the user has agreed, or need not be asked. To be asked before anything leaves this machine.
    ///
    /// # Errors
    /// The user has refused, or has not agreed yet; or that can't be read for now.
    pub fn check_consent(&self, is_required: bool) -> io::Result<()> {
        if self.consent()?.unwrap_or(!is_required) {
            Ok(())
        } else {
            Err(io::Error::new(ErrorKind::PermissionDenied, "the user does not agree"))
        }
    }

    /// Keeps what the user said. A process killed in it leaves what was said before, or this. A refusal needs no room on the disk.
    ///
    /// # Errors
    /// It can't be written.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        if self.consent().is_ok_and(|before| before == Some(given)) {
            return Ok(());
        }
        if given {
            // Whole at once: for whoever reads it meanwhile, a part of it would be a refusal.
            return write_atomically(self.path(), CONSENT, GIVEN.as_bytes());
        }
        let path = self.path().join(CONSENT);
        let file = match create(&path) {
            // What stands there is nothing that this program has made.
            Err(_) if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) => {
                remove(&path)?;
                create(&path)?
            }
            file => file?,
        };
        file.sync_all()?;
        sync_directory(self.path())
    }
}

/// An empty file, which says no.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).private().neither_link_nor_pipe().open(path)
}
