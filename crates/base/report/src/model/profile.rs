//! The profile of a hang: what its thread did while it lasted.

use super::frame::Frame;
use super::system_calls::system_call_name;
use crate::wire::{Os, ThreadState};
use coroner_process::registers::Arch;
use serde::{Deserialize, Serialize};

/// Stacks of a thread that did not answer, sampled while it did not, as a tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Profile {
    /// The thread.
    pub tid: u64,
    /// How many samples were taken.
    pub samples: u64,
    /// From the beginning of sampling to the last sample, nanoseconds. It begins when the hang is noticed.
    pub sampled_ns: u64,
    /// The tree: each node after the one that called it.
    pub nodes: Vec<ProfileNode>,
    /// Where samples ended.
    pub ends: Vec<ProfileEnd>,
    /// How many samples failed: the thread did not stop in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
}

/// A frame of samples that have the same callers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProfileNode {
    /// The caller's index in [`Profile::nodes`], less than its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// The frame.
    pub frame: Frame,
}

/// Samples that ended in the same place with the thread doing the same.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProfileEnd {
    /// The innermost node's index; `None` where nothing was walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// What the thread was doing.
    pub state: Option<ThreadState>,
    /// The system call that it was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i64>,
    /// The call's name.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_name: Option<&'static str>,
    /// How many they are.
    pub samples: u64,
    /// The time that they stand for, nanoseconds: samples are taken more seldom the longer a hang lasts.
    pub weight_ns: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Profile {
    /// Gives system calls their names.
    pub(crate) fn name_calls(&mut self, os: Os, arch: Option<Arch>) {
        for end in &mut self.ends {
            end.syscall_name = end.syscall.zip(arch).and_then(|(call, arch)| system_call_name(os, arch, call));
        }
    }

    /// The time that the samples stand for.
    pub fn weight_ns(&self) -> u64 {
        self.ends.iter().fold(0, |all, end| all.saturating_add(end.weight_ns))
    }

    /// The time of each node with all that it called, in the order of the nodes.
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

    /// The caller of a node: one that stands before it.
    pub fn parent(&self, place: usize) -> Option<usize> {
        self.nodes.get(place)?.parent.filter(|parent| *parent < place)
    }

    /// The stack that most time was spent in, innermost frame first, with that time.
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
