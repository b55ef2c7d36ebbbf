//! A system whose tables of exceptions are not read: a panic counts as one that nobody catches.

use super::{Landing, Search};

/// Most panics get there.
pub(super) const WITHOUT: Landing = Landing::Top;

pub(super) fn look_through(_search: &mut Search) {}
