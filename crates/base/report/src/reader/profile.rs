//! Reads the profile section of a hang.

use super::fields::Fields;
use super::limits;
use crate::model::{Address, Frame, Profile, ProfileEnd, ProfileNode, Value};
use crate::wire::{AddressKind, FoundBy, ThreadState, keys::profile};

/// Returns the profile in a map, and whether all of it could be read.
///
/// A malformed node ends the list, because the nodes after it may refer to it.
pub(super) fn profile(fields: &mut Fields) -> (Profile, bool) {
    let written = fields.array(profile::NODES).unwrap_or_default();
    let mut nodes = Vec::new();
    for item in written.iter().take(limits::ELEMENTS) {
        let Some(node) = node(item, nodes.len()) else { break };
        nodes.push(node);
    }
    let is_whole = nodes.len() == written.len();
    let written = fields.array(profile::ENDS).unwrap_or_default();
    let ends: Vec<ProfileEnd> =
        written.iter().take(limits::ELEMENTS).filter_map(|item| end(item, nodes.len())).collect();
    let is_whole = is_whole && ends.len() == written.len();
    let read = Profile {
        tid: fields.u64(profile::TID).unwrap_or(0),
        samples: fields.u64(profile::SAMPLES).unwrap_or(0),
        sampled_ns: fields.u64(profile::SAMPLED).unwrap_or(0),
        nodes,
        ends,
        failed: fields.u64(profile::FAILED).unwrap_or(0),
    };
    (read, is_whole)
}

fn node(item: &Value, place: usize) -> Option<ProfileNode> {
    let Value::Array(parts) = item else { return None };
    let [Value::Unsigned(parent), Value::Unsigned(address), Value::Unsigned(kind), ..] = parts.as_slice() else {
        return None;
    };
    let parent = usize::try_from(*parent).ok().filter(|parent| *parent <= place)?.checked_sub(1);
    let address_kind = AddressKind(u8::try_from(*kind).ok()?);
    let found_by = if address_kind == AddressKind::INSTRUCTION { FoundBy::CONTEXT } else { FoundBy::CFI };
    Some(ProfileNode {
        parent,
        frame: Frame { address: Address(*address), address_kind, found_by, ..Frame::default() },
    })
}

fn end(item: &Value, nodes: usize) -> Option<ProfileEnd> {
    let Value::Array(parts) = item else { return None };
    let [Value::Unsigned(node), Value::Unsigned(state), call, Value::Unsigned(samples), Value::Unsigned(weight_ns), ..] =
        parts.as_slice()
    else {
        return None;
    };
    Some(ProfileEnd {
        node: usize::try_from(*node).ok().filter(|node| *node <= nodes)?.checked_sub(1),
        state: Some(ThreadState(u8::try_from(*state).ok()?)),
        syscall: call.as_i64(),
        syscall_name: None,
        samples: *samples,
        weight_ns: *weight_ns,
    })
}
