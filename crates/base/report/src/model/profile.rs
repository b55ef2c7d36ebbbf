//! The profile of a hang: what its thread did while it lasted.

use super::frame::Frame;
use super::system_calls::system_call_name;
use crate::wire::{Os, ThreadState};
use coroner_process::registers::Arch;
use serde::{Deserialize, Serialize};

/// Stacks of an unresponsive thread, sampled during the hang, as a tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Profile {
    /// The sampled thread.
    pub tid: u64,
    /// Number of samples taken.
    pub samples: u64,
    /// Nanoseconds from the start of sampling, when the hang is noticed, to the last sample.
    pub sampled_ns: u64,
    /// The tree's nodes, each after its caller.
    pub nodes: Vec<ProfileNode>,
    /// The innermost nodes of the samples, with their weights.
    pub ends: Vec<ProfileEnd>,
    /// Number of samples that failed because the thread didn't stop in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
}

/// A frame shared by samples that have the same callers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProfileNode {
    /// The caller's index in [`Profile::nodes`], less than this node's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// The frame.
    pub frame: Frame,
}

/// Samples that ended in the same node, in the same thread state and system call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProfileEnd {
    /// Index of the innermost node; `None` if nothing was walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// State of the thread.
    pub state: Option<ThreadState>,
    /// The system call that the thread was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i64>,
    /// Name of the system call.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_name: Option<&'static str>,
    /// Number of samples.
    pub samples: u64,
    /// Nanoseconds that the samples stand for: the longer a hang lasts, the rarer the samples.
    pub weight_ns: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Profile {
    /// Fills in the names of the system calls.
    pub(crate) fn name_calls(&mut self, os: Os, arch: Option<Arch>) {
        for end in &mut self.ends {
            end.syscall_name = end.syscall.zip(arch).and_then(|(call, arch)| system_call_name(os, arch, call));
        }
    }

    /// The time that all samples stand for, in nanoseconds.
    pub fn weight_ns(&self) -> u64 {
        self.ends.iter().fold(0, |all, end| all.saturating_add(end.weight_ns))
    }

    /// The time of each node including its callees, in nanoseconds, in the order of the nodes.
    pub fn weights(&self) -> Vec<u64> {
        let mut weights = vec![0_u64; self.nodes.len()];
        for end in &self.ends {
            if let Some(weight) = end.node.and_then(|node| weights.get_mut(node)) {
                *weight = weight.saturating_add(end.weight_ns);
            }
        }
        for place in (0..self.nodes.len()).rev() {
            if let Some(parent) = self.parent(place) {
                weights[parent] = weights[parent].saturating_add(weights[place]);
            }
        }
        weights
    }

    /// The index of a node's caller, which is less than the node's.
    pub fn parent(&self, place: usize) -> Option<usize> {
        self.nodes.get(place)?.parent.filter(|parent| *parent < place)
    }

    /// The stack in which most time was spent, innermost frame first, with its nanoseconds.
    pub fn heaviest_stack(&self) -> Option<(Vec<Frame>, u64)> {
        let mut by_node = std::collections::BTreeMap::<usize, u64>::new();
        for end in &self.ends {
            let weight = by_node.entry(end.node.filter(|node| *node < self.nodes.len())?).or_default();
            *weight = weight.saturating_add(end.weight_ns);
        }
        let (node, weight) = by_node.into_iter().max_by_key(|(_, weight)| *weight)?;
        let path = std::iter::successors(Some(node), |node| self.parent(*node));
        Some((path.map(|node| self.nodes[node].frame.clone()).collect(), weight))
    }
}
