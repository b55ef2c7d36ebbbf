//! Crashes in a function that was inlined: `inlined_program STORE WAY`.
//!
//! Ways: `null` stores to a null pointer, `panic` panics fatally, `sort` faults in a comparison
//! called by the standard library. Another thread waits below inlined functions, too.

use std::hint::black_box;
use std::sync::mpsc;

use coroner::Config;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, store, way] = &arguments[..] else { panic!("usage: inlined_program STORE WAY") };
    let _coroner = coroner::install(Config::new("inlined-program").store_dir(store)).expect("Coroner is installed");
    let (ready, is_ready) = mpsc::channel();
    std::thread::Builder::new().name("waits".to_owned()).spawn(move || wait_in(&Waits(ready))).expect("a thread");
    is_ready.recv().expect("the thread waits");
    render(&[1, 2, 3], way);
}

trait Work {
    fn work(&self, page: u32) -> u32;
}

struct Waits(mpsc::Sender<()>);

impl Work for Waits {
    #[inline(always)]
    fn work(&self, page: u32) -> u32 {
        self.0.send(()).expect("somebody asks");
        park_for_ever();
        page
    }
}

#[inline(always)]
fn park_for_ever() {
    loop {
        std::thread::park();
    }
}

#[inline(never)]
fn wait_in(work: &impl Work) {
    black_box(twice(work));
}

#[inline(always)]
fn twice(work: &impl Work) -> u32 {
    work.work(1) + work.work(2)
}

/// Calls through an iterator and a closure, which are inlined.
#[inline(never)]
fn render(pages: &[u32], way: &str) {
    pages.iter().filter(|page| **page > 1).for_each(|page| draw(*page, way));
    black_box(pages);
}

#[inline(always)]
fn draw(page: u32, way: &str) {
    match way {
        "null" => black_box(fill_page(page)),
        "panic" => black_box(check_page(page)),
        "sort" => black_box(sort_lines(page)),
        other => panic!("no way `{other}`"),
    };
}

#[inline(never)]
fn fill_page(page: u32) -> u32 {
    fill_line(page, black_box(std::ptr::null_mut())) + 1
}

#[inline(always)]
fn fill_line(page: u32, line: *mut u32) -> u32 {
    store_word(line, page);
    page
}

#[inline(always)]
fn store_word(place: *mut u32, word: u32) {
    // SAFETY: none is claimed; the store is the fault.
    unsafe { place.write_volatile(word) };
}

#[inline(never)]
fn check_page(page: u32) -> u32 {
    check_number(black_box(None), page)
}

#[inline(always)]
fn check_number(number: Option<u32>, page: u32) -> u32 {
    number.expect("the page has a number") + page
}

#[inline(never)]
fn sort_lines(page: u32) -> u32 {
    let mut lines: Vec<u32> = (0..black_box(64)).map(|line| line ^ page).collect();
    lines.sort_by(|one, other| {
        if *one == 7 {
            store_word(black_box(std::ptr::null_mut()), page);
        }
        other.cmp(one)
    });
    lines[0]
}
