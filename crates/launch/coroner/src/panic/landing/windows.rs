//! Walks the frames above on 64-bit Windows with the system's unwinder (`RtlVirtualUnwind`).
//!
//! It returns the address of each exception handler's data. In a GNU build, this is the table that
//! [`action`] reads; in an MSVC build, it is the `FuncInfo` of `__CxxFrameHandler3` (LLVM's
//! `WinException::emitCXXFrameHandler3Table`).

use std::ffi::c_void;

use super::{Action, Landing, Search};

/// The landing of a panic that no frame catches. The runtime can't start to unwind.
pub(super) const DEFAULT_LANDING: Landing = Landing::Nowhere;

/// `CONTEXT` of winnt.h.
#[repr(C, align(16))]
struct Context([u8; SIZE]);

#[cfg(target_arch = "x86_64")]
const SIZE: usize = 1232;
#[cfg(target_arch = "x86_64")]
const SP: usize = 0x98;
#[cfg(target_arch = "x86_64")]
const PC: usize = 0xf8;
#[cfg(target_arch = "aarch64")]
const SIZE: usize = 912;
#[cfg(target_arch = "aarch64")]
const SP: usize = 0x100;
#[cfg(target_arch = "aarch64")]
const PC: usize = 0x108;

impl Context {
    fn word(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
    }
}

/// The function has an exception handler (winnt.h).
const UNW_FLAG_EHANDLER: u32 = 1;

/// Maximum number of frames. Only infinite recursion has more.
const MAX_FRAMES: usize = 1 << 16;

#[link(name = "kernel32")]
unsafe extern "system" {
    fn RtlCaptureContext(context: *mut Context);
    fn RtlLookupFunctionEntry(pc: u64, base: *mut u64, history: *mut c_void) -> *const u32;
    fn RtlVirtualUnwind(
        handler_type: u32,
        base: u64,
        pc: u64,
        function: *const u32,
        context: *mut Context,
        data: *mut *const u8,
        frame: *mut u64,
        pointers: *mut c_void,
    ) -> *const c_void;
}

#[inline(never)]
pub(super) fn walk_frames(search: &mut Search) {
    let mut context = Context([0; SIZE]);
    // SAFETY: the context has the size and alignment of the system's.
    unsafe { RtlCaptureContext(&raw mut context) };
    // The innermost functions are this crate's, so the first handler is Rust's. Functions with
    // another handler aren't Rust functions, and their data has another format.
    let mut personality = std::ptr::null::<c_void>();
    for _ in 0..MAX_FRAMES {
        let (pc, sp) = (context.word(PC), context.word(SP));
        let (mut base, mut data, mut frame) = (0, std::ptr::null(), 0);
        // SAFETY: each call writes only to the arguments; the context describes this thread's own
        // stack, whose frames are live.
        let (function, handler) = unsafe {
            let function = RtlLookupFunctionEntry(pc, &raw mut base, std::ptr::null_mut());
            if function.is_null() {
                break;
            }
            let handler = RtlVirtualUnwind(
                UNW_FLAG_EHANDLER,
                base,
                pc,
                function,
                &raw mut context,
                &raw mut data,
                &raw mut frame,
                std::ptr::null_mut(),
            );
            (function, handler)
        };
        if personality.is_null() {
            personality = handler;
        }
        let is_ours = !handler.is_null() && handler == personality && !data.is_null();
        search.frame(if is_ours {
            // SAFETY: this is a Rust handler's data in a loaded image; the first word of a
            // function's entry is its start in the image.
            unsafe { decide(data, base, u64::from(*function), pc.wrapping_sub(1)) }
        } else {
            None
        });
        let next = context.word(PC);
        // The end of the stack: x86_64 has no return address there, and arm64 the same one again.
        if next == 0 || (next == pc && context.word(SP) == sp) {
            break;
        }
    }
}

/// Returns the action of the call site at `pc`.
///
/// # Safety
/// `data` must be a Rust handler's, for the function at `start` in the image at `base`.
#[cfg(not(target_env = "msvc"))]
unsafe fn decide(data: *const u8, base: u64, start: u64, pc: u64) -> Option<Action> {
    // SAFETY: by the contract.
    unsafe { super::action(data, base.wrapping_add(start) as usize, pc as usize) }
}

/// Returns the action of the call site at `pc`.
///
/// # Safety
/// `data` must be a Rust handler's, for the function at `start` in the image at `base`.
#[cfg(target_env = "msvc")]
unsafe fn decide(data: *const u8, base: u64, _start: u64, pc: u64) -> Option<Action> {
    /// `magicNumber` of a `FuncInfo`, the version in its lower 29 bits.
    const MAGIC: u32 = 0x1993_0520;
    // SAFETY: by the contract: the data is the offset of the `FuncInfo` in the image, which
    // contains the offsets and lengths of its tables.
    unsafe {
        let word = |address: u64, index: u64| (address.wrapping_add(4 * index) as *const u32).read_unaligned();
        let info = base.wrapping_add(u64::from(word(data as u64, 0)));
        if word(info, 0) & 0x1fff_fff8 != MAGIC {
            return None;
        }
        let (tries, try_map) = (word(info, 3), base.wrapping_add(u64::from(word(info, 4))));
        let (states, state_map) = (word(info, 5), base.wrapping_add(u64::from(word(info, 6))));
        let offset = pc.wrapping_sub(base) as u32;
        let entries =
            (0..u64::from(states)).map(|index| (word(state_map, 2 * index), word(state_map, 2 * index + 1) as i32));
        let state = entries.take_while(|(from, _)| *from <= offset).last().map_or(-1, |(_, state)| state);
        // tryLow, tryHigh, catchHigh, nCatches, dispHandlerArray.
        let is_in = |index: u64| {
            let range = word(try_map, 5 * index) as i32..=word(try_map, 5 * index + 1) as i32;
            range.contains(&state)
        };
        (0..u64::from(tries)).any(is_in).then_some(Action::Catch)
    }
}
