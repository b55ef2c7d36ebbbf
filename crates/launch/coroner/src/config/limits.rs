//! Limits on reports.

use std::time::Duration;

use crate::store::Retention;

use super::group::group;

group! {
    /// Limits on reports: disk space, number and time.
    ///
    /// Change them if the store has to stay small or become large, if a server handles many errors
    /// per hour, or if a crashing process has to end in less than five seconds.
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
        /// Sets the maximum number, age and total size of reports that the store keeps.
        ///
        /// This counts undeliverable reports, and runs without a report.
        retention: Retention = Retention::default(),
        /// Maximum reports per hour for handled exceptions and non-fatal panics (also the burst
        /// size).
        ///
        /// Hangs have a separate budget of the same size. Events beyond the budget are counted, and
        /// the next report contains their number. Default: 16.
        reports_per_hour: u32 = 16,
        /// Sets how long writing a report may take.
        ///
        /// After that, the process ends with what was written. Default: 5 s.
        deadline: Duration = Duration::from_secs(5),
    }
}
