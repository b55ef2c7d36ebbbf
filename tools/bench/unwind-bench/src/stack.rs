//! The walked stacks: distinct functions, and a recursion.
//!
//! The functions' frames differ in size and saved registers.

use std::hint::black_box;

/// Number of distinct functions on the stack created by [`deep`].
pub(crate) const DEPTH: usize = 64;

type Link = fn(&[Link2], &mut dyn FnMut()) -> u64;

/// A [`Link`], whose type can't name itself.
#[derive(Clone, Copy)]
struct Link2(Link);

#[inline(never)]
fn link<const N: usize>(chain: &[Link2], act: &mut dyn FnMut()) -> u64 {
    let mut room = [0u64; N];
    black_box(&mut room);
    let kept = [black_box(1u64), black_box(2), black_box(3), black_box(4), black_box(5)];
    let inner = if let Some((next, rest)) = chain.split_first() {
        (next.0)(rest, act)
    } else {
        act();
        0
    };
    // Values used after the call are kept across it: in up to five callee-saved registers.
    let sum: u64 = kept.iter().take(N % 6).sum();
    black_box(inner + sum + room[N / 2])
}

macro_rules! links {
    ($($n:literal)*) => { [$(Link2(link::<$n>)),*] };
}

/// Calls `act` through [`DEPTH`] functions.
pub(crate) fn deep(act: &mut dyn FnMut()) {
    let links: [Link2; DEPTH] = links!(
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
    );
    let (first, rest) = links.split_first().expect("there are 64");
    black_box((first.0)(rest, act));
}

/// Calls `act` through `depth` recursive calls of one function.
#[inline(never)]
pub(crate) fn recurse(depth: u32, act: &mut dyn FnMut()) -> u64 {
    let room = black_box([u64::from(depth); 3]);
    if depth == 0 {
        act();
        return room[1];
    }
    let inner = recurse(depth - 1, act);
    black_box(inner + room[(depth % 3) as usize])
}
