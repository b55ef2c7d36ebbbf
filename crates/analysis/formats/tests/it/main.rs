//! The integration tests, linked as one program.

mod apple_reports;
mod apple_variants;
mod core_dump;
mod log_kinds;
mod logs;
mod minidump_stacks;
mod minidump_writer;
mod minidumps;
mod swift_crash_log;
mod tombstones;
