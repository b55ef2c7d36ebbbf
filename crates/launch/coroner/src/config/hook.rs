//! The app's callbacks in a configuration.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A callback of the app. Clones share it.
pub(crate) struct Hook<F: ?Sized>(pub(crate) Arc<F>);

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> Deref for Hook<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a function")
    }
}
