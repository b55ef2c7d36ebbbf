//! The integration tests, linked as one program. A test that changes the process runs in one of its
//! own.

mod table;
