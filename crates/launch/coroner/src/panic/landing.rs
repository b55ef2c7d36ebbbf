//! Determines where a panic that has just begun will be caught, without unwinding anything.
//!
//! The frames above are walked by the unwinder that will unwind them (`_Unwind_Backtrace`). For
//! each frame, the table that determines its behavior is read: the language-specific data area
//! (LLVM's "Exception Handling in LLVM", GCC's `gcc/except.cc`; parsed in Rust's own
//! `std::sys::personality::dwarf::eh`). A call site does one of these with an exception: pass it,
//! clean up and pass it, catch it, or refuse it (a filter: the function must not unwind).
//!
//! The standard library catches panics at the top of every thread that it starts, and around
//! `main`. So a panic whose first catching frame is the thread's outermost reaches the top. If
//! `main` is written in another language (Python that calls Rust), that language's frames follow
//! the catching frame of a function called from there.

/// The place where a panic is caught or ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// A frame of the app catches it.
    Caught,
    /// The standard library catches it at the top of the thread.
    Top,
    /// A frame that must not unwind ends the process.
    CannotUnwind,
    /// No frame catches it. The runtime can't start to unwind, and aborts.
    Nowhere,
}

#[cfg(not(any(
    supported,
    all(unix, not(target_arch = "arm")),
    all(windows, any(target_arch = "x86_64", target_arch = "aarch64"))
)))]
mod unknown;
#[cfg(any(supported, all(unix, not(target_arch = "arm"))))]
mod unwinder;
#[cfg(all(windows, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod windows;

#[cfg(not(any(
    supported,
    all(unix, not(target_arch = "arm")),
    all(windows, any(target_arch = "x86_64", target_arch = "aarch64"))
)))]
use unknown as frames;
#[cfg(any(supported, all(unix, not(target_arch = "arm"))))]
use unwinder as frames;
#[cfg(all(windows, any(target_arch = "x86_64", target_arch = "aarch64")))]
use windows as frames;

/// The result for the frames walked so far.
struct Search {
    landing: Landing,
    /// Number of frames that catch.
    catches: u32,
    /// Number of frames after the last catching one.
    behind: u32,
}

/// Maximum number of frames after the standard library's frame that catches panics of `main`.
///
/// These are `lang_start`, C's `main`, libc's two and `_start`, plus one in reserve.
const MAX_START_FRAMES: u32 = 6;

impl Search {
    /// Adds the next frame's action.
    fn frame(&mut self, action: Option<Action>) {
        self.behind += 1;
        match action {
            Some(Action::Catch) => {
                self.catches += 1;
                self.behind = 0;
                if self.landing == Landing::Nowhere {
                    self.landing = Landing::Caught;
                }
            }
            Some(Action::Refuse) if self.landing == Landing::Nowhere => self.landing = Landing::CannotUnwind,
            _ => {}
        }
    }
}

fn search() -> Search {
    let mut search = Search { landing: frames::DEFAULT_LANDING, catches: 0, behind: 0 };
    frames::walk_frames(&mut search);
    search
}

/// Returns where a panic that begins at the caller will end.
pub(super) fn find_landing() -> Landing {
    let search = search();
    let is_top = search.catches == 1
        && (!super::is_main_thread() || (search.behind <= MAX_START_FRAMES && super::runs_rust_main()));
    if search.landing == Landing::Caught && is_top { Landing::Top } else { search.landing }
}

/// Whether the panic that is unwinding through the calling destructor reaches the top.
///
/// The destructor itself must not unwind.
pub(super) fn is_caught_by_top() -> bool {
    let search = search();
    search.catches == 1 && search.behind <= MAX_START_FRAMES
}

/// Whether `main` has returned: only the frames of the program's start and exit are on the stack.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn is_main_gone() -> bool {
    let search = search();
    search.catches == 0 && search.behind <= MAX_START_FRAMES + 4
}

/// A call site's action for a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Catch,
    Refuse,
}

/// Reads values one after another.
struct Reader(*const u8);

impl Reader {
    /// Reads `N` bytes.
    ///
    /// # Safety
    /// This many bytes must be readable. The same applies to the other methods.
    unsafe fn take<const N: usize>(&mut self) -> [u8; N] {
        // SAFETY: by the contract.
        unsafe {
            let bytes = self.0.cast::<[u8; N]>().read_unaligned();
            self.0 = self.0.add(N);
            bytes
        }
    }

    unsafe fn byte(&mut self) -> u8 {
        // SAFETY: by the contract.
        unsafe { self.take::<1>()[0] }
    }

    unsafe fn uleb(&mut self) -> u64 {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            // SAFETY: by the contract.
            let byte = unsafe { self.byte() };
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    unsafe fn sleb(&mut self) -> i64 {
        let (mut value, mut shift) = (0_i64, 0_u32);
        loop {
            // SAFETY: by the contract.
            let byte = unsafe { self.byte() };
            value |= i64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                let sign = byte & 0x40 != 0 && shift < 64;
                return if sign { value | (-1_i64 << shift) } else { value };
            }
        }
    }

    /// Reads a number in a DWARF exception header encoding (LSB 10.5.1); `None` for a format that
    /// no compiler uses here.
    ///
    /// Only the format is used, because offsets of call sites are not relative to anything.
    unsafe fn encoded(&mut self, encoding: u8) -> Option<u64> {
        // SAFETY: by the contract.
        unsafe {
            Some(match encoding & 0x0f {
                0x00 => usize::from_le_bytes(self.take()) as u64,
                0x04 | 0x0c => u64::from_le_bytes(self.take()),
                0x01 => self.uleb(),
                0x02 | 0x0a => u64::from(u16::from_le_bytes(self.take())),
                0x03 | 0x0b => u64::from(u32::from_le_bytes(self.take())),
                0x09 => self.sleb() as u64,
                _ => return None,
            })
        }
    }
}

/// `DW_EH_PE_omit`: no value.
const OMIT: u8 = 0xff;

/// Returns the action for a Rust exception of the call site that contains `ip`.
///
/// Only a catch-all catches a Rust exception. `None` if it passes, with or without cleanup.
///
/// # Safety
/// `table` must be the language-specific data area of the function at `start`.
unsafe fn action(table: *const u8, start: usize, ip: usize) -> Option<Action> {
    // SAFETY: by the contract, everything that is read is in the table.
    unsafe {
        let mut reader = Reader(table);
        let landing_base = reader.byte();
        if landing_base != OMIT {
            reader.encoded(landing_base)?;
        }
        let type_encoding = reader.byte();
        let mut types = core::ptr::null();
        if type_encoding != OMIT {
            let offset = reader.uleb() as usize;
            types = reader.0.add(offset);
        }
        let site_encoding = reader.byte();
        let length = reader.uleb() as usize;
        let actions = reader.0.add(length);
        let offset = ip.wrapping_sub(start) as u64;
        while reader.0 < actions {
            let site = reader.encoded(site_encoding)?;
            let size = reader.encoded(site_encoding)?;
            let landing_pad = reader.encoded(site_encoding)?;
            let first_action = reader.uleb() as usize;
            if offset < site {
                return None;
            }
            if offset < site + size {
                if landing_pad == 0 || first_action == 0 {
                    return None;
                }
                return chain(actions.add(first_action - 1), types, type_encoding);
            }
        }
        None
    }
}

/// Returns the first action of a chain that applies and isn't a cleanup.
unsafe fn chain(first: *const u8, types: *const u8, type_encoding: u8) -> Option<Action> {
    let mut at = first;
    for _ in 0..64 {
        // SAFETY: the caller's table.
        unsafe {
            let mut reader = Reader(at);
            let filter = reader.sleb();
            let next_from = reader.0;
            let next = reader.sleb();
            if filter < 0 {
                return Some(Action::Refuse);
            }
            // A catch-all has no type.
            if filter > 0 && is_null_type(types, type_encoding, filter as usize) {
                return Some(Action::Catch);
            }
            if next == 0 {
                return None;
            }
            at = next_from.offset(next as isize);
        }
    }
    None
}

/// Whether type number `index` of the table that ends at `types` is null.
///
/// In each encoding, null consists of zeros.
unsafe fn is_null_type(types: *const u8, encoding: u8, index: usize) -> bool {
    if types.is_null() {
        return true;
    }
    // SAFETY: the caller's table, which grows downwards.
    unsafe {
        match encoding & 0x0f {
            0x00 => types.sub(size_of::<usize>() * index).cast::<usize>().read_unaligned() == 0,
            0x04 | 0x0c => types.sub(8 * index).cast::<u64>().read_unaligned() == 0,
            0x03 | 0x0b => types.sub(4 * index).cast::<u32>().read_unaligned() == 0,
            0x02 | 0x0a => types.sub(2 * index).cast::<u16>().read_unaligned() == 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
