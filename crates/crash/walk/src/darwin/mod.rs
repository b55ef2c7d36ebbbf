//! Apple's systems.

pub(crate) mod image_list;
pub(crate) mod list_stamp;
pub(crate) mod recovery;
