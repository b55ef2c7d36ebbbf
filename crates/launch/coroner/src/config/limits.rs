//! How much reports may take.

use std::time::Duration;

use crate::store::Retention;

use super::group::group;

group! {
    /// How much reports may take: of the disk, in number and in time. You need this where the store has to stay small or large, where a server
    /// has many errors an hour that it handles, and where the process has to end sooner than after five seconds.
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
        /// How many reports, and runs without one, the store keeps of those that can't be delivered, how old, and how large together.
        retention: Retention = Retention::default(),
        /// How many reports of handled exceptions and of panics that the process survives it writes in an hour, as many of them at once;
        /// and as many of hangs. What is beyond is counted, and the next report says how many. Default: 16.
        reports_per_hour: u32 = 16,
        /// How long writing a report may take before the process is ended with what there is. Default: 5 s.
        deadline: Duration = Duration::from_secs(5),
    }
}
