//! What keeps the other processes of an app out: the lock of a file; where no file may be locked, a named pipe
//! ([`coroner_process::directory_owner`]).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::MutexGuard;

use crate::files::{Change, lock, try_lock, unlock};

#[derive(Debug)]
pub(crate) enum Gate {
    File(File),
    /// The directory in which the pipe is.
    #[cfg(supported)]
    Pipe(std::ffi::CString),
}

/// A gate that is this process's, and this thread's, until dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    gate: MutexGuard<'a, Gate>,
    /// Closed when this is dropped.
    #[cfg(supported)]
    _hold: Option<coroner_process::directory_owner::Hold>,
}

impl Gate {
    /// The gate `name` of an outbox.
    ///
    /// # Errors
    /// Its file can't be made.
    pub(crate) fn open(outbox: &Path, name: &str) -> io::Result<Self> {
        #[cfg(supported)]
        {
            use std::os::unix::ffi::OsStrExt;

            let directory = outbox.join(format!("{name}.held"));
            if coroner_process::directory_owner::forbids_locks(directory.as_os_str().as_bytes()) {
                crate::files::private_directories().create(&directory)?;
                return Ok(Self::Pipe(std::ffi::CString::new(directory.as_os_str().as_bytes())?));
            }
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).private();
        Ok(Self::File(options.open(outbox.join(name))?))
    }
}

impl<'a> Entered<'a> {
    /// `None` while another process has it.
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

    /// Waits for it.
    ///
    /// # Errors
    /// The file can't be locked, or who has the pipe does not go on: that process may be suspended.
    pub(crate) fn wait(gate: MutexGuard<'a, Gate>) -> io::Result<Self> {
        #[cfg(supported)]
        let mut hold = None;
        match &*gate {
            Gate::File(file) => lock(file)?,
            #[cfg(supported)]
            Gate::Pipe(directory) => {
                /// What is done behind a gate takes milliseconds.
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
