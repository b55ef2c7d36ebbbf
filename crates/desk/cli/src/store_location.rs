//! Which store a command looks in.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure};

/// What the app calls itself; its store is where reports are looked for when nothing else is said.
pub(crate) const APP_ID: &str = "coroner-demo";

/// The folder in a store to which the default sink writes.
pub(crate) const REPORTS: &str = "reports";

#[derive(clap::Args)]
pub(crate) struct StoreArgument {
    /// The store's directory; without it, $CORONER_STORE or that of `coroner demo`
    #[arg(long = "store", value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl StoreArgument {
    pub(crate) fn path(self) -> Result<PathBuf, Failure> {
        self.directory.or_else(default_store).ok_or_else(|| {
            Failure::new("there is no home directory (nor a `$STATE_DIRECTORY`) to look for a store in")
                .advice("name one with `--store DIR`")
        })
    }
}

/// The folder that a person names, or else the store.
pub(crate) fn folder_or(folder: Option<PathBuf>, store: StoreArgument) -> Result<PathBuf, Failure> {
    let Some(folder) = folder else { return store.path() };
    std::fs::metadata(&folder).context(format!("can't list `{}`", folder.display()))?;
    Ok(folder)
}

/// The store that commands look in where none is named.
pub(crate) fn default_store() -> Option<PathBuf> {
    // Not by the parser, which would list it as an argument that is missing from the usage, and refuses an empty one.
    let said = std::env::var_os("CORONER_STORE").filter(|said| !said.is_empty()).map(PathBuf::from);
    said.or_else(|| coroner::default_store_dir(APP_ID))
}

/// What a command needs to look in that store: empty if that does so by itself.
pub(crate) fn store_option(store: &Path) -> String {
    if default_store().is_some_and(|default| default == store) {
        return String::new();
    }
    format!(" --store {}", store.display())
}
