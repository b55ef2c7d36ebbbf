//! What an input reached, from the counters that `-Cinstrument-coverage` (stable Rust) puts into the program.

#[cfg(coroner_coverage)]
mod counters {
    unsafe extern "C" {
        // The linker's names for the bounds of the counters' section.
        #[link_name = "__start___llvm_prf_cnts"]
        static START: [u64; 0];
        #[link_name = "__stop___llvm_prf_cnts"]
        static STOP: [u64; 0];
    }

    /// All counters of the program.
    pub(super) fn all() -> &'static mut [u64] {
        let (start, stop) = (&raw const START as *mut u64, &raw const STOP as usize);
        let count = (stop - start as usize) / size_of::<u64>();
        // SAFETY: the section holds 64-bit counters that instrumented code adds to with plain stores; the driver's target
        // runs on this thread only, and nobody else holds this slice.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }
}

/// Which counters were ever seen at which magnitude.
#[derive(Debug, Default)]
pub struct Coverage {
    seen: Vec<u8>,
    /// How many pairs of counter and magnitude have been seen.
    pub reached: usize,
}

impl Coverage {
    /// Sets all counters to zero.
    pub fn begin() {
        #[cfg(coroner_coverage)]
        counters::all().fill(0);
    }

    /// Whether the run since [`Self::begin`] reached something new: a counter, or one at a new magnitude.
    pub fn is_new(&mut self) -> bool {
        let before = self.reached;
        #[cfg(coroner_coverage)]
        {
            let counters = counters::all();
            self.seen.resize(counters.len(), 0);
            for (seen, count) in self.seen.iter_mut().zip(counters) {
                if *count == 0 {
                    continue;
                }
                let magnitude = 1u8 << (64 - count.leading_zeros()).saturating_sub(1).min(7);
                if *seen & magnitude == 0 {
                    *seen |= magnitude;
                    self.reached += 1;
                }
            }
        }
        #[cfg(not(coroner_coverage))]
        let _ = &self.seen;
        self.reached > before
    }
}
