//! Services of the simulated system for tests, in functions that no Mac has (darwin-host's README,
//! "What it has that no Mac has").

use core::ffi::{CStr, c_void};

/// Returns a service by its name.
pub(crate) fn service(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null(), "this is not darwin-host");
    found
}

/// Makes the system a later one; `enforced`: the process must protect its exception ports.
pub(crate) fn be_later(enforced: bool) {
    // SAFETY: the service has this type.
    let be: extern "C" fn(i32) = unsafe { std::mem::transmute(service(c"darwin_host_later_system")) };
    be(enforced.into());
}

/// Environment variable with the version of the simulated macOS: 11 by default, or 14.
pub(crate) const SYSTEM: &str = "DARWIN_HOST_SYSTEM";

/// Returns the signals that a thread blocks, by its port.
pub(crate) fn mask_of(thread: u32) -> u32 {
    // SAFETY: the service has this type.
    let mask: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(service(c"darwin_host_signal_mask")) };
    mask(thread)
}

/// Simulates a debugger that traces the process.
pub(crate) fn be_traced() {
    // SAFETY: the service has this type.
    let be: extern "C" fn() = unsafe { std::mem::transmute(service(c"darwin_host_be_traced")) };
    be();
}

/// Makes messages come from another process; 0: from this one again.
pub(crate) fn send_as(pid: i32) {
    // SAFETY: the service has this type.
    let send: extern "C" fn(i32) = unsafe { std::mem::transmute(service(c"darwin_host_send_as")) };
    send(pid);
}

/// Returns the number of port names of the process.
pub(crate) fn port_names() -> usize {
    unsafe extern "C" {
        /// <mach/mach_port.h>.
        fn mach_port_names(
            task: u32,
            names: *mut *mut u32,
            count: *mut u32,
            types: *mut *mut u32,
            type_count: *mut u32,
        ) -> i32;
    }
    let (mut names, mut types) = (core::ptr::null_mut(), core::ptr::null_mut());
    let (mut count, mut type_count) = (0, 0);
    // SAFETY: results are local; both lists are this process's to give back.
    unsafe {
        let task = mach2::traps::mach_task_self();
        let status = mach_port_names(task, &raw mut names, &raw mut count, &raw mut types, &raw mut type_count);
        assert_eq!(status, 0);
        for list in [names, types] {
            mach2::vm::mach_vm_deallocate(task, list as u64, u64::from(count) * 4);
        }
    }
    count as usize
}
