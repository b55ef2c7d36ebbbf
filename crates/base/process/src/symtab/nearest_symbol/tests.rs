extern crate std;
use std::{vec, vec::Vec};

use super::*;

fn named(number: u32, rank: u8) -> Candidate {
    Candidate { rank, name: NameAt::String(number) }
}

fn found<const N: usize>(queries: &Queries<N>) -> Vec<(u32, NameAt)> {
    let mut all: Vec<(u32, NameAt)> = queries.iter().map(|query| (query.tag, query.found.name)).collect();
    all.sort_by_key(|&(tag, _)| tag);
    all
}

#[test]
fn the_same_as_asking_one_by_one() {
    // Pseudo-random symbols, with and without sizes, some of them equal; compares the definition,
    // applied to each address separately, with one pass over all.
    let mut state = 1u64;
    let mut random = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for round in 0..200 {
        let scale = if round % 2 == 0 { 1 } else { 0x1_0001 };
        let mut queries = Queries::<100>::new();
        let mut addresses = vec![];
        for tag in 0..=random(99) as u32 {
            let svma = random(3000) * scale;
            addresses.push(svma);
            assert!(queries.push(svma, tag));
        }
        queries.prepare();
        let mut symbols = vec![];
        for number in 0..random(200) as u32 {
            let (start, size) = (random(3000) * scale, if random(3) == 0 { 0 } else { random(60) * scale });
            let rank = 1 + random(3) as u8;
            symbols.push((start, size, rank, number));
            queries.offer(start, size, named(number, rank));
        }
        let mut boundaries = vec![];
        for _ in 0..random(20) {
            boundaries.push(random(3000) * scale);
            queries.boundary(boundaries[boundaries.len() - 1]);
        }
        queries.finish();
        for (tag, name) in found(&queries) {
            let svma = addresses[tag as usize];
            let around = symbols
                .iter()
                .filter(|&&(start, size, ..)| size > 0 && start <= svma && svma - start < size)
                .max_by_key(|&&(start, _, rank, number)| (start, rank, std::cmp::Reverse(number)));
            let before = symbols
                .iter()
                .filter(|&&(start, size, ..)| size == 0 && start <= svma)
                .max_by_key(|&&(start, _, rank, number)| (start, rank, std::cmp::Reverse(number)));
            let ends = symbols.iter().filter(|symbol| symbol.1 > 0).map(|&(start, size, ..)| start + size);
            let barrier = boundaries.iter().copied().chain(ends).filter(|&at| at <= svma).max();
            let expected = match (around, before) {
                (Some(&(.., number)), _) => NameAt::String(number),
                (None, Some(&(start, _, _, number))) if barrier.is_none_or(|at| at <= start) => NameAt::String(number),
                _ => NameAt::None,
            };
            assert_eq!(name, expected, "round {round}, address {svma:#x}");
        }
    }
}

#[test]
fn extremes() {
    let mut queries = Queries::<3>::new();
    queries.prepare();
    queries.offer(5, 0, named(1, 1));
    queries.boundary(5);
    queries.finish();
    assert_eq!(queries.len(), 0);
    for (tag, svma) in [u64::MAX, 0, 1].into_iter().enumerate() {
        assert!(queries.push(svma, tag as u32));
    }
    assert!(!queries.push(2, 9));
    queries.prepare();
    queries.offer(0, 1, named(1, 1));
    queries.offer(u64::MAX, 1, named(2, 1));
    queries.offer(u64::MAX - 1, u64::MAX, named(3, 1));
    queries.offer(1, 0, named(4, 1));
    queries.finish();
    // A symbol that ends with the address space can't contain its last byte: the end would be 2^64.
    // But it ends there.
    assert_eq!(found(&queries), [(0, NameAt::None), (1, NameAt::String(1)), (2, NameAt::String(4))]);
}
