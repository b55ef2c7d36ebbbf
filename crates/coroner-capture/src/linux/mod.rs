//! Linux and Android: what of crash time only they know. The other systems' folders have the same faces, see `lib.rs`.

pub(crate) mod action;
pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod install;
pub(crate) mod latch;
pub mod live;
pub(crate) mod machinery;
pub(crate) mod names;
pub(crate) mod others;
pub(crate) mod previous;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod threads;
