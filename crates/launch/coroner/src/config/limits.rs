//! Limits on reports.

use std::time::Duration;

use crate::store::Retention;

use super::group::group;

group! {
    /// Limits on reports: disk space, number and time.
    ///
    /// Change them if the store needs another size, if a server handles many errors per hour, or if
    /// a crashing process has to end in less than five seconds.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coroner::{Config, Limits, Retention};
    ///
    /// let retention = Retention::default().number(10);
    /// let limits = Limits::new().retention(retention).deadline(Duration::from_secs(2));
    /// let config = Config::new("com.example.paint").limits(limits);
    /// ```
    Limits
    fields {}
    options {
        /// Sets the maximum number, age and total size of undelivered reports in the store.
        ///
        /// Runs without a report count, too.
        retention: Retention = Retention::default(),
        /// Sets the maximum reports per hour for handled exceptions and non-fatal panics.
        ///
        /// Default: 16. This is also the burst size. Hangs have a separate budget of the same size.
        /// Events beyond the limit are counted, and the next report contains their number.
        reports_per_hour: u32 = 16,
        /// Sets the maximum time for writing a report. Default: 5 s.
        ///
        /// After that the process ends, and the report contains what was written so far.
        deadline: Duration = Duration::from_secs(5),
    }
}
