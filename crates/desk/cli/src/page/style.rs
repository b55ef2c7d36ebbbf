//! How the page looks.

/// The style sheet. Its digest is in the page's policy, so no style can stand in an attribute.
pub(super) const SHEET: &str = include_str!("style.css");
