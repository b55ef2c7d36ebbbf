//! The user's decision about sending. It has a separate file, so that a refusal survives any damage
//! to the sink's state.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::SystemTime;

use crate::files::{CONSENT, Change, is_untrusted, open_file, own_file, remove, sync_directory, write_atomically};
use crate::outbox::Outbox;

/// An empty file, whose modification time is that of the last refusal.
const DECLINED: &str = "declined";
/// The content of the file if the user has agreed. Any other content means refusal.
const GIVEN: &str = "given\n";

impl Outbox {
    /// Returns the user's decision; `None` if the user has not been asked. A damaged file counts as
    /// a refusal.
    ///
    /// # Errors
    /// An I/O error if the file can't be read at present, for example because the process has no
    /// descriptors or memory left.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        let file = match open_file(&self.path().join(CONSENT)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // A directory, a pipe, a link, or a file that others may have written.
            Err(error) if is_untrusted(&error) => return Ok(Some(false)),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        file.take(16).read_to_end(&mut content)?;
        Ok(Some(content == GIVEN.as_bytes()))
    }

    /// Whether nothing may be sent or stored because the user has refused.
    ///
    /// # Errors
    /// An I/O error, as for [`consent`](Self::consent).
    pub fn is_refused(&self) -> io::Result<bool> {
        Ok(self.consent()? == Some(false))
    }

    /// Whether a report of that time must not be stored: the user has refused, or refused it before
    /// agreeing to later ones.
    ///
    /// If consent is required, the app asks for each report. A report of after the refusal then
    /// waits for the next answer.
    ///
    /// # Errors
    /// An I/O error, as for [`consent`](Self::consent).
    pub fn is_declined(&self, time: SystemTime, is_required: bool) -> io::Result<bool> {
        let declined = fs::symlink_metadata(self.path().join(DECLINED)).and_then(|metadata| metadata.modified());
        Ok(declined.is_ok_and(|declined| time <= declined) || (!is_required && self.is_refused()?))
    }

    /// Fails unless the user has agreed or consent isn't required. Must be called before anything
    /// leaves this machine.
    ///
    /// # Errors
    /// An error if the user has refused or has not agreed yet, or if the decision can't be read at
    /// present.
    pub fn check_consent(&self, is_required: bool) -> io::Result<()> {
        if self.consent()?.unwrap_or(!is_required) {
            Ok(())
        } else {
            Err(io::Error::new(ErrorKind::PermissionDenied, "consent not given"))
        }
    }

    /// Stores the user's decision. If the process is killed meanwhile, the old or the new decision
    /// remains. A refusal needs no disk space.
    ///
    /// # Errors
    /// An I/O error if the file can't be written.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        let stored = self.store_consent(given);
        if !given {
            let declined = own_file(&self.path().join(DECLINED));
            if let Err(error) = declined.and_then(|file| file.set_modified(SystemTime::now())) {
                log::warn!("coroner: can't store the time of a refusal: {error}");
            }
        }
        stored
    }

    fn store_consent(&self, given: bool) -> io::Result<()> {
        if self.consent().is_ok_and(|before| before == Some(given)) {
            return Ok(());
        }
        if given {
            // Written atomically: a partial file would be read as a refusal.
            return write_atomically(self.path(), CONSENT, GIVEN.as_bytes());
        }
        let path = self.path().join(CONSENT);
        let file = match create(&path) {
            // This program doesn't create anything but a regular file there.
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

/// Creates an empty file, which means refusal.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).private().neither_link_nor_pipe().open(path)
}
