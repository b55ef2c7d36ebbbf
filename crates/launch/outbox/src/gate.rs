//! Excludes an app's other processes by a file lock.
//!
//! Where files can't be locked, a named pipe is used ([`coroner_process::directory_owner`]).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::MutexGuard;

use crate::files::{lock, own_file, try_lock, unlock};

#[derive(Debug)]
pub(crate) enum Gate {
    File(File),
    /// The directory that contains the pipe.
    #[cfg(supported)]
    Pipe(std::ffi::CString),
}

/// A gate held by this thread of this process until dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    gate: MutexGuard<'a, Gate>,
    /// Closed on drop.
    #[cfg(supported)]
    _hold: Option<coroner_process::directory_owner::Hold>,
}

impl Gate {
    /// Opens the gate `name` of an outbox.
    ///
    /// # Errors
    /// An I/O error if its file can't be created.
    pub(crate) fn open(outbox: &Path, name: &str) -> io::Result<Self> {
        #[cfg(supported)]
        {
            use std::os::unix::ffi::OsStrExt;

            let directory = outbox.join(format!("{name}.held"));
            if coroner_process::directory_owner::forbids_locks(directory.as_os_str().as_bytes()) {
                crate::files::own_directory(&directory)?;
                return Ok(Self::Pipe(std::ffi::CString::new(directory.as_os_str().as_bytes())?));
            }
        }
        Ok(Self::File(own_file(&outbox.join(name))?))
    }
}

impl<'a> Entered<'a> {
    /// Enters the gate; `None` while another process holds it.
    pub(crate) fn at_once(gate: MutexGuard<'a, Gate>) -> Option<Self> {
        #[cfg(supported)]
        let mut hold = None;
        match &*gate {
            Gate::File(file) => try_lock(file).ok()?,
            #[cfg(supported)]
            Gate::Pipe(directory) => hold = Some(coroner_process::directory_owner::Hold::try_take(directory).ok()??),
        }
        Some(Self {
            gate,
            #[cfg(supported)]
            _hold: hold,
        })
    }

    /// Waits for the gate and enters it.
    ///
    /// # Errors
    /// An I/O error if the file can't be locked, or if the pipe's owner doesn't release it in time:
    /// that process may be suspended.
    pub(crate) fn wait(gate: MutexGuard<'a, Gate>) -> io::Result<Self> {
        #[cfg(supported)]
        let mut hold = None;
        match &*gate {
            Gate::File(file) => lock(file)?,
            #[cfg(supported)]
            Gate::Pipe(directory) => {
                /// Maximum wait. Work behind a gate takes milliseconds.
                const MAX_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
                let since = std::time::Instant::now();
                while hold.is_none() {
                    hold = coroner_process::directory_owner::Hold::try_take(directory)
                        .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
                    if hold.is_none() {
                        if since.elapsed() > MAX_WAIT {
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                }
            }
        }
        Ok(Self {
            gate,
            #[cfg(supported)]
            _hold: hold,
        })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        match &*self.gate {
            Gate::File(file) => drop(unlock(file)),
            #[cfg(supported)]
            Gate::Pipe(_) => {}
        }
    }
}
