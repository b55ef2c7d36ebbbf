//! The threads and what there is of their stacks.

use coroner_report::model::{Report, StackMemory, Thread};
use minidump_common::format::{
    MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_MEMORY_DESCRIPTOR, MINIDUMP_THREAD, MINIDUMP_THREAD_NAME,
};

use crate::file::File;
use crate::{MinidumpError, context};

/// The list of threads, in the report's order. Numbers of threads have 32 bits here.
pub(crate) fn list(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let mut threads = Vec::new();
    for thread in &report.threads {
        let stack = stack_of(report, thread).map(|memory| descriptor(file, memory));
        threads.push(MINIDUMP_THREAD {
            thread_id: thread.tid as u32,
            suspend_count: 0,
            priority_class: 0,
            priority: 0,
            teb: 0,
            stack: stack.unwrap_or_default(),
            thread_context: context::write(file, thread.registers.as_ref())?,
        });
    }
    file.append_list(threads).map(Some)
}

/// The piece of memory that the thread's stack pointer is in.
fn stack_of<'r>(report: &'r Report, thread: &Thread) -> Option<&'r StackMemory> {
    let sp = thread.registers.as_ref()?.sp()?.0;
    let holds = |memory: &&StackMemory| sp.wrapping_sub(memory.address.0) < memory.bytes.len() as u64;
    report.stack_memory.iter().filter(|memory| memory.tid == thread.tid).find(holds)
}

fn descriptor(file: &mut File, memory: &StackMemory) -> MINIDUMP_MEMORY_DESCRIPTOR {
    MINIDUMP_MEMORY_DESCRIPTOR { start_of_memory_range: memory.address.0, memory: file.append_bytes(&memory.bytes) }
}

pub(crate) fn names(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let mut names = Vec::new();
    for thread in &report.threads {
        if let Some(name) = thread.name.as_deref().filter(|name| !name.is_empty()) {
            let thread_name_rva = file.append_text(name).into();
            names.push(MINIDUMP_THREAD_NAME { thread_id: thread.tid as u32, thread_name_rva });
        }
    }
    if names.is_empty() { Ok(None) } else { file.append_list(names).map(Some) }
}

pub(crate) fn memory(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let pieces = report.stack_memory.iter().map(|memory| descriptor(file, memory)).collect::<Vec<_>>();
    file.append_list(pieces).map(Some)
}
