//! Sends Coroner's log to logcat, with the tag `coroner`.

use std::ffi::{CString, c_char, c_int};

use log::{Level, LevelFilter, Log, Metadata, Record};

#[link(name = "log")]
unsafe extern "C" {
    /// `android/log.h`
    fn __android_log_write(priority: c_int, tag: *const c_char, text: *const c_char) -> c_int;
}

struct Logcat;

impl Log for Logcat {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        // `android_LogPriority`
        let priority = match record.level() {
            Level::Error => 6,
            Level::Warn => 5,
            Level::Info => 4,
            Level::Debug => 3,
            Level::Trace => 2,
        };
        if self.enabled(record.metadata())
            && let Ok(text) = CString::new(record.args().to_string())
        {
            // SAFETY: both strings are NUL-terminated, and are copied.
            unsafe { __android_log_write(priority, c"coroner".as_ptr(), text.as_ptr()) };
        }
    }

    fn flush(&self) {}
}

/// Installs the logger for this library; no app code logs in it.
pub(crate) fn install() {
    if log::set_logger(&Logcat).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}
