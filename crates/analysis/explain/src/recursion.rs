//! Detects repeating functions on a stack.

use std::collections::HashMap;

use coroner_report::model::{Frame, Thread};

use coroner_report::model::Recursion;

/// Maximum number of innermost frames outside the recursion: the functions that it called last.
const MAX_START: usize = 16;
/// Maximum number of functions in a cycle.
const MAX_PERIOD: usize = 32;
/// Minimum number of repetitions that count as a recursion.
const MIN_ROUNDS: usize = 8;
/// Maximum number of functions in a cycle that are named.
const MAX_NAMED: usize = 8;
/// Maximum number of frames examined.
const MAX_FRAMES: usize = 8192;

/// Returns the cycle that fills a stack. `None` if no functions repeat.
pub(crate) fn find_cycle(thread: &Thread) -> Option<Recursion> {
    let frames = thread.frames.get(..thread.frames.len().min(MAX_FRAMES))?;
    // Frames are compared by numbers.
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let numbers: Vec<usize> = frames
        .iter()
        .map(|frame| {
            let next = numbers.len();
            *numbers.entry(key(frame)).or_insert(next)
        })
        .collect();
    // Comparison ends at the first omitted frames.
    let gap = thread.skipped.first().map_or(numbers.len(), |skipped| skipped.after.min(numbers.len()));
    let mut best: Option<(usize, usize, usize)> = None;
    for start in 0..MAX_START.min(gap) {
        for period in 1..=MAX_PERIOD {
            let same =
                (start..gap.saturating_sub(period)).take_while(|at| numbers[*at] == numbers[at + period]).count();
            let length = same + period;
            if length >= MIN_ROUNDS * period && best.is_none_or(|(_, _, longest)| length > longest) {
                best = Some((start, period, length));
            }
        }
    }
    let (start, period, length) = best?;
    let until_gap = start + length >= gap;
    let left_out = thread.skipped.first().filter(|_| until_gap).map_or(0, |skipped| skipped.count);
    // Frames of the same cycle after the gap count as well.
    let after = numbers.get(gap..).unwrap_or_default();
    let round = &numbers[start..start + period];
    let after = if left_out > 0 { after.iter().take_while(|number| round.contains(number)).count() } else { 0 };
    let rounds = (length as u64).saturating_add(left_out).saturating_add(after as u64) / period as u64;
    let steps = length / period - 1;
    let (inner, outer) = (&frames[start], &frames[start + steps * period]);
    let bytes = inner.cfa.zip(outer.cfa).or(inner.sp.zip(outer.sp));
    let bytes = bytes.and_then(|(inner, outer)| outer.0.checked_sub(inner.0)).map(|bytes| bytes / steps as u64);
    let functions = frames[start..start + period].iter().take(MAX_NAMED).map(name).collect();
    Some(Recursion { functions, rounds, bytes: bytes.filter(|bytes| *bytes > 0) })
}

fn key(frame: &Frame) -> String {
    match (&frame.function, &frame.raw_function) {
        (Some(name), _) | (None, Some(name)) => name.clone(),
        (None, None) => frame.address.to_string(),
    }
}

fn name(frame: &Frame) -> String {
    let named = frame.function.clone().or_else(|| frame.raw_function.clone());
    named.unwrap_or_else(|| {
        let file = frame.module.as_deref().and_then(|path| path.rsplit('/').next()).unwrap_or("?");
        match frame.module_offset {
            Some(offset) => format!("{file} + {offset}"),
            None => frame.address.to_string(),
        }
    })
}
