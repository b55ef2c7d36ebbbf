//! Label of the dispatch queue that a thread works for.

use coroner_process::memory::{Memory, read_text};

/// Maximum number of bytes kept of a queue's label.
const LABEL: usize = 128;

/// Label of a dispatch queue.
pub(crate) struct QueueName {
    bytes: [u8; LABEL],
    length: usize,
}

impl QueueName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Reads the label of the queue that the thread's slot at `queue_at` points to
    /// (`dispatch_qaddr` of <mach/thread_info.h>, `dispatch_queue_offsets` of libdispatch's
    /// queue_private.h).
    pub(crate) fn read(queue_at: u64, label_offset: u32, memory: &mut impl Memory) -> Option<QueueName> {
        if queue_at == 0 || label_offset == 0 {
            return None;
        }
        let queue = memory.read_u64(queue_at).ok().filter(|queue| *queue != 0)?;
        let label = memory.read_u64(queue.wrapping_add(label_offset.into())).ok().filter(|label| *label != 0)?;
        let mut bytes = [0; LABEL];
        let length = read_text(memory, label, &mut bytes).len();
        (length > 0).then_some(QueueName { bytes, length })
    }
}
