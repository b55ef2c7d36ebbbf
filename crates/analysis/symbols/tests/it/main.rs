//! The integration tests, linked as one program. A test that changes the process runs in a separate
//! one.

mod breakpad;
mod common;
mod debug_map;
mod debuginfod;
mod elf;
mod hostile;
mod image_identity;
mod macho;
mod names;
mod report;
mod scan;
mod search_index;
mod separate;
mod shared_cache;
mod snapshot_images;
mod split_dwarf;
mod table;
mod within_budget;
