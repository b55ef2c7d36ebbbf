//! Apple's systems.

pub(crate) mod fault_handler;
pub(crate) mod image_list;
pub(crate) mod list_stamp;
pub(crate) mod unwind_image;
