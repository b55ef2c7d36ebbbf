//! Linux and Android.

pub(crate) mod image_list;
pub(crate) mod jit;
pub(crate) mod list_stamp;
pub(crate) mod recovery;
pub(crate) mod search_table;
