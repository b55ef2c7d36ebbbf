//! Sorting in little code.

/// Sorts by what `is_less` says, equal items in any order. Of each type of items it is 0.3 KB; `sort_unstable` is 3 to 4 KB, `sort` and collecting into
/// a `BTreeMap` 4 to 5 KB, which many short lists are not worth.
pub fn heap_sort<T>(items: &mut [T], mut is_less: impl FnMut(&T, &T) -> bool) {
    let length = items.len();
    // First the items become a heap, then the greatest goes behind the others, one by one.
    for step in (0..length.saturating_add(length / 2)).rev() {
        let (mut node, end) = if let Some(node) = step.checked_sub(length) {
            (node, length)
        } else {
            items.swap(0, step);
            (0, step)
        };
        loop {
            let mut child = 2 * node + 1;
            if child + 1 < end && is_less(&items[child], &items[child + 1]) {
                child += 1;
            }
            if child >= end || !is_less(&items[node], &items[child]) {
                break;
            }
            items.swap(node, child);
            node = child;
        }
    }
}

#[cfg(test)]
mod tests;
