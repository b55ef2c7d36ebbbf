//! The profile of a hang: stacks of its thread, sampled while it lasted, as a tree.
//!
//! Not used at crash time: the watchdog thread appends the profile to a finished report.

use super::encoder::Encoder;
use super::keys::profile;
use super::numbers::{AddressKind, ThreadState};

/// The samples of a hang.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profile<'a> {
    /// The sampled thread.
    pub tid: u64,
    /// Number of samples taken.
    pub samples: u64,
    /// Nanoseconds from the start of sampling to the last sample.
    pub sampled_ns: u64,
    /// The tree's nodes, each after its caller.
    pub nodes: &'a [ProfileNode],
    /// The innermost nodes of the samples, with their weights.
    pub ends: &'a [ProfileEnd],
    /// Number of samples that failed because the thread didn't stop in time.
    pub failed: u64,
}

/// A call, or the innermost frame, shared by samples that have the same callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileNode {
    /// The caller's position in the list, from 1; 0 for none.
    pub parent: u32,
    /// The address.
    pub address: u64,
    /// Kind of the address: instruction or return address.
    pub kind: AddressKind,
}

/// Samples that ended in the same node, in the same thread state and system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileEnd {
    /// The node's position in the list, from 1; 0 if nothing was walked.
    pub node: u32,
    /// State of the thread.
    pub state: ThreadState,
    /// The system call that the thread was in.
    pub syscall: Option<i64>,
    /// Number of samples.
    pub samples: u64,
    /// Nanoseconds that the samples stand for.
    pub weight_ns: u64,
}

impl Profile<'_> {
    /// Encodes the payload of a profile section.
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
