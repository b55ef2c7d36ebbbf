//! The threads and their stack memory.

use coroner_report::model::{Report, StackMemory, Thread};
use minidump_common::format::{
    MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_MEMORY_DESCRIPTOR, MINIDUMP_THREAD, MINIDUMP_THREAD_NAME,
};

use crate::minidump_writer::file::{File, Stack};
use crate::minidump_writer::{MinidumpError, context};

/// Writes the thread list in the report's order. Thread ids have 32 bits in the format.
pub(crate) fn list(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let stacks = stacks(file, report);
    let mut threads = Vec::new();
    for thread in &report.threads {
        let stack = stack_of(&stacks, thread).map(|memory| memory.descriptor);
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

/// Returns the stack memory, appending it on the first call. A report contains a deep stack in
/// adjacent pieces, which are joined.
fn stacks(file: &mut File, report: &Report) -> Vec<Stack> {
    if let Some(stacks) = &file.stacks {
        return stacks.clone();
    }
    let is_next = |a: &StackMemory, b: &StackMemory| {
        a.tid == b.tid && a.address.0.wrapping_add(a.bytes.len() as u64) == b.address.0
    };
    let whole = report.stack_memory.chunk_by(is_next);
    let append = |pieces: &[StackMemory]| {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
        let start_of_memory_range = pieces[0].address.0;
        let descriptor = MINIDUMP_MEMORY_DESCRIPTOR { start_of_memory_range, memory: file.append_bytes(&bytes) };
        Stack { tid: pieces[0].tid, descriptor }
    };
    let stacks: Vec<Stack> = whole.map(append).collect();
    file.stacks = Some(stacks.clone());
    stacks
}

/// Returns the memory that contains the thread's stack pointer.
fn stack_of<'s>(stacks: &'s [Stack], thread: &Thread) -> Option<&'s Stack> {
    let sp = thread.registers.as_ref()?.sp()?.0;
    let holds = |stack: &&Stack| {
        sp.wrapping_sub(stack.descriptor.start_of_memory_range) < u64::from(stack.descriptor.memory.data_size)
    };
    stacks.iter().filter(|stack| stack.tid == thread.tid).find(holds)
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
    let pieces = stacks(file, report).into_iter().map(|stack| stack.descriptor).collect::<Vec<_>>();
    file.append_list(pieces).map(Some)
}
