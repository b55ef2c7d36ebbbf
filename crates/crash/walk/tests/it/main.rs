//! The integration tests, linked as one program. A test that changes the process runs in a separate
//! one.

mod stack_bounds;
