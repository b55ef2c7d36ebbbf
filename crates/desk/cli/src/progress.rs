//! Progress on standard error, only if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner on standard error, for work of unknown length.
pub(crate) fn spinner(doing: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

/// A bar on standard error, for `length` steps.
pub(crate) fn bar(length: usize, doing: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
    ProgressBar::new(length as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(doing)
}
