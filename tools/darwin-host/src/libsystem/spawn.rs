//! `posix_spawn` (<spawn.h>), using libc's. Darwin's objects are pointers, here to libc's objects.

use std::{
    ffi::{CStr, c_char},
    mem, ptr,
};

use super::{errno, process};
use crate::host::{kernel::ending::refuse, signals::numbers};

/// The target of `posix_spawnattr_t`.
type Attributes = *mut libc::posix_spawnattr_t;
type Actions = *mut libc::posix_spawn_file_actions_t;

extern "C" fn attr_init(to: &mut Attributes) -> i32 {
    // SAFETY: a fresh object of libc's.
    unsafe {
        let object = Box::into_raw(Box::new(mem::zeroed()));
        *to = object;
        libc::posix_spawnattr_init(object)
    }
}

extern "C" fn attr_destroy(of: &mut Attributes) -> i32 {
    // SAFETY: made by `attr_init`.
    unsafe {
        libc::posix_spawnattr_destroy(*of);
        drop(Box::from_raw(*of));
    }
    0
}

/// Sets flags: RESETIDS 1, SETPGROUP 2, SETSIGDEF 4, SETSIGMASK 8 are the same.
///
/// SETEXEC 0x40, START_SUSPENDED 0x80 and CLOEXEC_DEFAULT 0x4000 have no equivalent.
extern "C" fn attr_setflags(of: &mut Attributes, flags: i16) -> i32 {
    if flags & !0xf != 0 {
        refuse!("posix_spawnattr_setflags({flags:#x})");
    }
    // SAFETY: made by `attr_init`.
    unsafe { libc::posix_spawnattr_setflags(*of, flags) }
}

extern "C" fn attr_setpgroup(of: &mut Attributes, group: i32) -> i32 {
    // SAFETY: made by `attr_init`.
    unsafe { libc::posix_spawnattr_setpgroup(*of, group) }
}

fn linux_set(set: u32) -> libc::sigset_t {
    // SAFETY: the first eight bytes are the set's first word.
    unsafe {
        let mut linux: libc::sigset_t = mem::zeroed();
        (&raw mut linux).cast::<u64>().write(numbers::set_to_linux(set));
        linux
    }
}

extern "C" fn attr_setsigdefault(of: &mut Attributes, set: &u32) -> i32 {
    // SAFETY: made by `attr_init`.
    unsafe { libc::posix_spawnattr_setsigdefault(*of, &linux_set(*set)) }
}

extern "C" fn attr_setsigmask(of: &mut Attributes, set: &u32) -> i32 {
    // SAFETY: made by `attr_init`.
    unsafe { libc::posix_spawnattr_setsigmask(*of, &linux_set(*set)) }
}

extern "C" fn actions_init(to: &mut Actions) -> i32 {
    // SAFETY: a fresh object of libc's.
    unsafe {
        let object = Box::into_raw(Box::new(mem::zeroed()));
        *to = object;
        libc::posix_spawn_file_actions_init(object)
    }
}

extern "C" fn actions_destroy(of: &mut Actions) -> i32 {
    // SAFETY: made by `actions_init`.
    unsafe {
        libc::posix_spawn_file_actions_destroy(*of);
        drop(Box::from_raw(*of));
    }
    0
}

extern "C" fn actions_adddup2(of: &mut Actions, from: i32, to: i32) -> i32 {
    // SAFETY: made by `actions_init`.
    unsafe { libc::posix_spawn_file_actions_adddup2(*of, from, to) }
}

extern "C" fn actions_addclose(of: &mut Actions, file: i32) -> i32 {
    // SAFETY: made by `actions_init`.
    unsafe { libc::posix_spawn_file_actions_addclose(*of, file) }
}

fn spawn(
    pid: *mut i32,
    path: &CStr,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: *const *const c_char,
    environment: *const *mut c_char,
) -> i32 {
    let (path, arguments) = process::through_host(path, arguments);
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
    pointers.push(ptr::null_mut());
    // SAFETY: objects of libc's or none; null-terminated arrays.
    unsafe {
        let actions = actions.as_ref().map_or(ptr::null(), |a| a.cast_const());
        let attributes = attributes.as_ref().map_or(ptr::null(), |a| a.cast_const());
        let error = libc::posix_spawn(pid, path.as_ptr(), actions, attributes, pointers.as_ptr(), environment);
        errno::to_darwin(error)
    }
}

extern "C" fn posix_spawn(
    pid: *mut i32,
    path: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: *const *const c_char,
    environment: *const *mut c_char,
) -> i32 {
    // SAFETY: the program gave a string.
    spawn(pid, unsafe { CStr::from_ptr(path) }, actions, attributes, arguments, environment)
}

extern "C" fn posix_spawnp(
    pid: *mut i32,
    name: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: *const *const c_char,
    environment: *const *mut c_char,
) -> i32 {
    // SAFETY: the program gave a string.
    let path = process::search(unsafe { CStr::from_ptr(name) });
    spawn(pid, &path, actions, attributes, arguments, environment)
}

super::exports! {
    "posix_spawn" => posix_spawn,
    "posix_spawnp" => posix_spawnp,
    "posix_spawnattr_init" => attr_init,
    "posix_spawnattr_destroy" => attr_destroy,
    "posix_spawnattr_setflags" => attr_setflags,
    "posix_spawnattr_setpgroup" => attr_setpgroup,
    "posix_spawnattr_setsigdefault" => attr_setsigdefault,
    "posix_spawnattr_setsigmask" => attr_setsigmask,
    "posix_spawn_file_actions_init" => actions_init,
    "posix_spawn_file_actions_destroy" => actions_destroy,
    "posix_spawn_file_actions_adddup2" => actions_adddup2,
    "posix_spawn_file_actions_addclose" => actions_addclose,
}
