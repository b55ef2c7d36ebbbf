//! The integration tests, linked as one program. A test that changes the process runs in one of its own.

mod common;
mod crashes;
mod last_set;
mod locks;
mod made_up;
mod shadow_stack;
mod waits;
mod waits_apple;
mod windows;
