//! The page's style.

/// The style sheet. The page's policy contains its digest, so styles in attributes are not allowed.
pub(super) const SHEET: &str = include_str!("style.css");
