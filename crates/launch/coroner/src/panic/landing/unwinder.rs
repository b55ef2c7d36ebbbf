//! Walks the frames above with the unwinder that the standard library is linked with.

use std::ffi::{c_int, c_void};

use super::{Landing, Search, action};

/// The landing of a panic that no frame catches. The runtime can't start to unwind.
pub(super) const DEFAULT_LANDING: Landing = Landing::Nowhere;

#[repr(C)]
struct Context {
    _private: [u8; 0],
}

type Trace = extern "C" fn(*mut Context, *mut c_void) -> c_int;

// The unwinder that the standard library is linked with (libgcc_s or libunwind):
// _Unwind_Reason_Code is an int.
unsafe extern "C" {
    fn _Unwind_Backtrace(trace: Trace, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, before: *mut c_int) -> usize;
    fn _Unwind_GetLanguageSpecificData(context: *mut Context) -> *const u8;
    fn _Unwind_GetRegionStart(context: *mut Context) -> usize;
}

pub(super) fn walk_frames(search: &mut Search) {
    // SAFETY: the program's unwinder walks its own frames and calls `look` for each; the argument
    // is the search.
    unsafe { _Unwind_Backtrace(look, (&raw mut *search).cast()) };
}

/// Examines one frame. Returns 0 (`_URC_NO_REASON`), which continues the walk.
extern "C" fn look(context: *mut Context, search: *mut c_void) -> c_int {
    // SAFETY: the argument of `walk_frames`; the context is valid for this call.
    let (search, table, start, ip) = unsafe {
        let mut before = 0;
        let ip = _Unwind_GetIPInfo(context, &raw mut before);
        let ip = if before == 0 { ip.wrapping_sub(1) } else { ip };
        (&mut *search.cast::<Search>(), _Unwind_GetLanguageSpecificData(context), _Unwind_GetRegionStart(context), ip)
    };
    // SAFETY: the table is part of a loaded image; the unwinder itself reads it, too.
    search.frame(if table.is_null() { None } else { unsafe { action(table, start, ip) } });
    0
}
