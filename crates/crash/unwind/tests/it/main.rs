//! The integration tests, linked as one program. A test that changes the process runs in a separate
//! one.

mod call_frame_information;
mod crashprobe;
mod current_thread;
mod ends;
mod examples;
mod mach_o;
mod many_functions;
mod outlined;
mod programs;
mod range_table;
mod saved_registers;
mod swift_async_frames;
