//! The profile of a hang: stacks of its thread, sampled while it lasted, as a tree. Not of crash time: the thread that watches writes it
//! behind a report that is finished.

use super::encoder::Encoder;
use super::keys::profile;
use super::numbers::{AddressKind, ThreadState};

/// The samples of a hang.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profile<'a> {
    /// The thread.
    pub tid: u64,
    /// How many samples were taken.
    pub samples: u64,
    /// From the beginning of sampling to the last sample, nanoseconds.
    pub sampled_ns: u64,
    /// The tree: each after the one that called it.
    pub nodes: &'a [ProfileNode],
    /// Where samples ended.
    pub ends: &'a [ProfileEnd],
    /// How many samples failed: the thread did not stop in time.
    pub failed: u64,
}

/// A call, or the innermost place, of samples that have the same callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileNode {
    /// The caller's place in the list, from 1; 0 for none.
    pub parent: u32,
    /// The address.
    pub address: u64,
    /// What the address is.
    pub kind: AddressKind,
}

/// Samples that ended in the same place with the thread doing the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileEnd {
    /// The node's place in the list, from 1; 0 where nothing was walked.
    pub node: u32,
    /// What the thread was doing.
    pub state: ThreadState,
    /// The system call that it was in.
    pub syscall: Option<i64>,
    /// How many they are.
    pub samples: u64,
    /// The time that they stand for, nanoseconds.
    pub weight_ns: u64,
}

impl Profile<'_> {
    /// A map.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(profile::TID, self.tid);
        encoder.uint_pair(profile::SAMPLES, self.samples);
        encoder.uint_pair(profile::SAMPLED, self.sampled_ns);
        encoder.uint(profile::NODES);
        encoder.array(self.nodes.len());
        for node in self.nodes {
            encoder.array(3);
            encoder.uint(node.parent.into());
            encoder.uint(node.address);
            encoder.uint(node.kind.0.into());
        }
        encoder.uint(profile::ENDS);
        encoder.array(self.ends.len());
        for end in self.ends {
            encoder.array(5);
            encoder.uint(end.node.into());
            encoder.uint(end.state.0.into());
            match end.syscall {
                Some(call) => encoder.int(call),
                None => encoder.null(),
            }
            encoder.uint(end.samples);
            encoder.uint(end.weight_ns);
        }
        if self.failed > 0 {
            encoder.uint_pair(profile::FAILED, self.failed);
        }
        encoder.end();
    }
}
