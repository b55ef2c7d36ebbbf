//! A walk in normal life, so that the first one of a crash is not the first one of the process.
//!
//! The first walk of a process spends most of its time on what the later ones find done: page faults for the unwinder's code
//! and for the images' unwind data, memory that no cache holds. So install walks a few frames of the stack that it is called
//! on, with the code, the tables and the cache of rules that a crash will use.

use core::ops::Range;

use coroner_machine::memory::{KernelCopy, LoadGuarded, Memory, Unreadable, Windowed};
use coroner_machine::registers::Registers;
use coroner_report::wire::{Thread, ThreadEncoder};
use coroner_unwind::{RuleCache, SwiftAsync};

use super::frames::{self, Depth, Ring};
use super::names::Addresses;
use super::scratch::Scratch;
use super::writer::{BUFFER, Writer};
use crate::here::here;
use crate::os::images::Loaded;

/// A few: they are of the program and of the system's libraries, and all code of the unwinder runs. Nothing is searched for on
/// the stack, where addresses in any image may be found.
const FEW: Depth = Depth { first: 16, last: 1, walked: 16, scanned: 0 };

/// Contexts of async frames are not on the stack: no task is running.
const MARKS: SwiftAsync = if cfg!(target_vendor = "apple") { SwiftAsync::Task(0) } else { SwiftAsync::Ignore };

/// Walks the calling thread's stack (normal life, before anything watches: there is no handler yet that makes faults good).
/// False where not even the first step could be made without a risk, or the kernel copies nothing.
///
/// Other threads run meanwhile, and may unload any library but those of [`Loaded::stays`]. So the walk is first made with reads
/// that can't fault, as deep as it reads nothing but unwind data and code of images that stay, and this thread's stack; only
/// then are these reads repeated as the loads that a crash will use.
#[inline(never)]
pub(crate) fn rehearse(scratch: &mut Scratch) -> bool {
    from(scratch, &here())
}

fn from(scratch: &mut Scratch, registers: &Registers) -> bool {
    let Some(copy) = KernelCopy::new() else { return false };
    let Scratch { buffer, ring, images, cache, names, .. } = scratch;
    let images: &Loaded = images;
    let sp = registers.sp();
    let stack = match images.mappings.at(sp) {
        Ok(Some(stack)) => sp..stack.end,
        _ => return false,
    };
    let mut walk = Walk { buffer, ring, images, cache, addresses: &mut names.addresses };
    let mut careful = Careful { images, stack, windows: Windowed::new(copy), refused: false };
    let mut depth = FEW;
    walk.through(registers, &mut careful, depth);
    while careful.refused {
        // Somebody called who is in an image that may go, or whose frames are not as unwind data say. A crash may find out; this
        // walk need not.
        depth.walked /= 2;
        if depth.walked < 2 {
            // The first frame is known without reading anything.
            walk.cache.clear();
            return false;
        }
        careful.refused = false;
        walk.through(registers, &mut careful, depth);
    }
    // SAFETY: the same walk, from the same registers and to the same depth, has just read each of these addresses, and none was
    // bad: they are in frames of this thread's callers, which stand still and whose stack is in use, and in unwind data and code
    // of images that nobody can unload. What mappings other threads make or remove changes no read: an address in no image is
    // where the walk above would have been refused its next one.
    walk.through(registers, unsafe { LoadGuarded::new() }, depth);
    walk.cache.clear();
    true
}

/// What a walk of a report works with.
struct Walk<'a> {
    buffer: &'a mut [u8; BUFFER],
    ring: &'a mut Ring,
    images: &'a Loaded,
    cache: &'a mut RuleCache,
    addresses: &'a mut Addresses,
}

impl Walk<'_> {
    fn through(&mut self, registers: &Registers, memory: impl Memory, depth: Depth) {
        self.cache.clear();
        let mut encoder = Writer::payload(self.buffer);
        let thread = Thread::default();
        let Some(mut thread) = ThreadEncoder::begin(&mut encoder, &thread) else { return };
        let (images, addresses) = (self.images, &mut *self.addresses);
        let end =
            frames::encode(&mut thread, self.ring, registers, memory, images, self.cache, addresses, depth, MARKS);
        thread.finish(end);
    }
}

/// Reads that need no handler of faults, and whether one was of a bad address, or of memory that another thread may take away.
/// Unwind data are loaded, what else there is (the stack, code) is copied by the kernel.
struct Careful<'a> {
    images: &'a Loaded,
    /// The walking thread's stack, from its stack pointer up.
    stack: Range<u64>,
    windows: Windowed<KernelCopy, 4>,
    refused: bool,
}

impl Careful<'_> {
    fn is_on_stack(&self, address: u64, length: u64) -> bool {
        self.stack.start <= address && address.saturating_add(length) <= self.stack.end
    }

    fn is_in_what_stays(&self, address: u64, length: u64) -> bool {
        let image = self.images.image_at(address);
        image.is_some_and(|image| Loaded::stays(image) && address.saturating_add(length) <= image.range.end)
    }
}

impl Memory for Careful<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let length = into.len() as u64;
        if self.images.unwind_data_at(address, length).is_some_and(Loaded::stays) {
            // SAFETY: sections of an image that is loaded and can't be unloaded, read as its headers were before.
            return unsafe { LoadGuarded::new() }.read(address, into);
        }
        if !self.is_on_stack(address, length) && !self.is_in_what_stays(address, length) {
            self.refused = true;
            return Err(Unreadable { address });
        }
        self.windows.read(address, into).inspect_err(|_| self.refused = true)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::os::files;

    /// A scratch for one test at a time: Darwin has one table of images in a process.
    struct Turn(*mut Scratch);

    static TAKEN: AtomicBool = AtomicBool::new(false);

    impl Turn {
        fn take() -> Turn {
            while TAKEN.swap(true, Ordering::Acquire) {
                core::hint::spin_loop();
            }
            let at = files::map(size_of::<Scratch>()).unwrap() as *mut Scratch;
            let mut images = Loaded::map().unwrap();
            // SAFETY: the images' headers are good memory; the mapping is fresh, of this size, and nobody else's.
            unsafe {
                images.take(&mut LoadGuarded::new());
                Scratch::prepare(at, images);
            }
            Turn(at)
        }

        fn scratch(&mut self) -> &mut Scratch {
            // SAFETY: made by `take`, and borrowed as long as this.
            unsafe { &mut *self.0 }
        }
    }

    impl Drop for Turn {
        fn drop(&mut self) {
            // SAFETY: nobody uses it any more.
            unsafe { core::ptr::read(&raw const (*self.0).images).unmap() };
            TAKEN.store(false, Ordering::Release);
        }
    }

    #[test]
    fn walks_the_thread_that_installs() {
        let mut turn = Turn::take();
        let scratch = turn.scratch();
        let walked = rehearse(scratch);
        if KernelCopy::new().is_none() {
            // An emulator, or a sandbox that forbids the call.
            return assert!(!walked);
        }
        assert!(walked);
        // At least this function, the test harness's, and the thread's first one.
        assert!(scratch.names.addresses.left() > 3, "{} frames", scratch.names.addresses.left());
    }

    #[test]
    fn loads_nothing_that_is_not_there() {
        let mut registers = here();
        // Code that nobody knows, and a frame record where nothing is mapped.
        let nowhere = 0x2000;
        #[cfg(target_arch = "x86_64")]
        {
            registers.pc = nowhere;
            registers.gpr[6] = nowhere + 64;
            registers.gpr[7] = nowhere;
        }
        #[cfg(target_arch = "aarch64")]
        {
            registers.pc = nowhere;
            registers.x[29] = nowhere + 64;
            registers.sp = nowhere;
        }
        assert!(!from(Turn::take().scratch(), &registers));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn loads_nothing_of_images_that_may_go() {
        unsafe extern "C" {
            fn _Unwind_Backtrace();
        }
        let mut turn = Turn::take();
        let scratch = turn.scratch();
        let mut registers = here();
        registers.pc = _Unwind_Backtrace as *const () as u64;
        let image = scratch.images.image_at(registers.pc).unwrap();
        assert!(!Loaded::stays(image), "libgcc_s is a library like others");
        assert!(!from(scratch, &registers), "the first step needs its unwind data");
        assert!(from(scratch, &here()) || KernelCopy::new().is_none(), "and not for ever");
    }
}
