//! Determines the store for a command.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure};

/// The demo app's id, whose store is the default for all commands.
pub(crate) const APP_ID: &str = "coroner-demo";

/// The default sink's folder in a store.
pub(crate) const REPORTS: &str = "reports";

/// Error message for a system without a default store.
pub(crate) const NO_STORE: &str = "can't find the default store: neither $HOME nor $STATE_DIRECTORY is set";

#[derive(clap::Args)]
pub(crate) struct StoreArgument {
    /// Store directory [default: $CORONER_STORE, or the store of `coroner demo`]
    #[arg(long = "store", value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl StoreArgument {
    pub(crate) fn path(self) -> Result<PathBuf, Failure> {
        self.directory
            .or_else(default_store)
            .ok_or_else(|| Failure::new(NO_STORE).advice("name one with `--store DIR`"))
    }
}

/// Returns the folder named by the user, or else the store.
pub(crate) fn folder_or(folder: Option<PathBuf>, store: StoreArgument) -> Result<PathBuf, Failure> {
    let Some(folder) = folder else { return store.path() };
    std::fs::metadata(&folder).context(format!("can't list `{}`", folder.display()))?;
    Ok(folder)
}

/// The store that commands use by default.
pub(crate) fn default_store() -> Option<PathBuf> {
    // Not read by the parser, which would show it as a missing argument in the usage, and rejects
    // an empty one.
    let named = std::env::var_os("CORONER_STORE").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| coroner::default_store_dir(APP_ID))
}

/// Returns the option to use this store in a command; empty for the default store.
pub(crate) fn store_option(store: &Path) -> String {
    if default_store().is_some_and(|default| default == store) {
        return String::new();
    }
    format!(" --store {}", store.display())
}
