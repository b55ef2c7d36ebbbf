//! Commands whose standard error is a terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

/// Runs a command with a terminal of 80 columns as its standard error.
///
/// The terminal's output goes into `shown` immediately, and is returned at the end.
pub(crate) fn run(mut command: Command, shown: &Mutex<String>) -> Output {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: writes two descriptors, reads one size; name and settings are not requested.
    let opened =
        unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), (&raw const size).cast_mut()) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: new descriptors, owned only here.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    command.env("TERM", "xterm").env_remove("NO_COLOR").stderr(theirs).stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    // Closes the child's descriptor held here: otherwise reading would not end with the child.
    drop(command);
    let mut output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 4096];
            // Reading from a terminal whose other side was closed ends with an error.
            while let Ok(count @ 1..) = ours.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        child.wait_with_output().unwrap()
    });
    output.stderr = shown.lock().unwrap().clone().into_bytes();
    output
}
