//! Linux and Android.

pub(crate) mod fault_handler;
pub(crate) mod image_list;
pub(crate) mod jit;
pub(crate) mod list_stamp;
pub(crate) mod search_table;
pub(crate) mod unwind_image;
