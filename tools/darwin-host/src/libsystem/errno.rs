//! Error numbers: converts Linux's to Darwin's (<sys/errno.h>).
//!
//! The C library never sets errno to 0, so a nonzero value is from a failure since the program last
//! read it: it is converted when the program requests errno's address.

use std::ffi::{CStr, c_char};

use crate::host::kernel::thread;

/// Darwin's numbers by Linux's, where they differ.
///
/// Numbers below 35 are the same except EAGAIN (11, EDEADLK).
const DIFFERENT: &[(i32, i32)] = &[
    (libc::EAGAIN, 35),
    (libc::EDEADLK, 11),
    (libc::ENAMETOOLONG, 63),
    (libc::ENOLCK, 77),
    (libc::ENOSYS, 78),
    (libc::ENOTEMPTY, 66),
    (libc::ELOOP, 62),
    (libc::ENOMSG, 91),
    (libc::EIDRM, 90),
    (libc::EOVERFLOW, 84),
    (libc::EILSEQ, 92),
    (libc::ENOTSOCK, 38),
    (libc::EDESTADDRREQ, 39),
    (libc::EMSGSIZE, 40),
    (libc::EPROTOTYPE, 41),
    (libc::ENOPROTOOPT, 42),
    (libc::EPROTONOSUPPORT, 43),
    (libc::EOPNOTSUPP, 102),
    (libc::EAFNOSUPPORT, 47),
    (libc::EADDRINUSE, 48),
    (libc::EADDRNOTAVAIL, 49),
    (libc::ENETDOWN, 50),
    (libc::ENETUNREACH, 51),
    (libc::ECONNABORTED, 53),
    (libc::ECONNRESET, 54),
    (libc::ENOBUFS, 55),
    (libc::EISCONN, 56),
    (libc::ENOTCONN, 57),
    (libc::ETIMEDOUT, 60),
    (libc::ECONNREFUSED, 61),
    (libc::EHOSTUNREACH, 65),
    (libc::EALREADY, 37),
    (libc::EINPROGRESS, 36),
    (libc::ESTALE, 70),
    (libc::EDQUOT, 69),
    (libc::ECANCELED, 89),
    (libc::EPROTO, 100),
    (libc::EBADMSG, 94),
    (libc::ENODATA, 93),
];

/// Converts a Linux error number to Darwin's; EINVAL if Darwin has no equivalent.
pub(super) fn to_darwin(linux: i32) -> i32 {
    match DIFFERENT.iter().find(|(l, _)| *l == linux) {
        Some(&(_, darwin)) => darwin,
        None if linux <= 34 => linux,
        None => 22,
    }
}

fn to_linux(darwin: i32) -> i32 {
    DIFFERENT.iter().find(|(_, d)| *d == darwin).map_or(darwin, |&(l, _)| l)
}

/// Fails with a Darwin error number.
pub(super) fn fail(darwin: i32) -> i32 {
    thread::current().errno = darwin;
    // SAFETY: errno is this thread's; its value is older than this failure.
    unsafe { *libc::__errno_location() = 0 };
    -1
}

extern "C" fn error() -> *mut i32 {
    let thread = thread::current();
    // SAFETY: errno is this thread's.
    unsafe {
        let linux = libc::__errno_location();
        if *linux != 0 {
            thread.errno = to_darwin(*linux);
            *linux = 0;
        }
    }
    &raw mut thread.errno
}

extern "C" fn strerror(number: i32) -> *const c_char {
    // SAFETY: any number is allowed.
    unsafe { libc::strerror(to_linux(number)) }
}

extern "C" fn strerror_r(number: i32, buffer: *mut c_char, size: usize) -> i32 {
    // SAFETY: the text is libc's; the buffer is the program's, with room for `size` bytes.
    unsafe {
        let text = CStr::from_ptr(libc::strerror(to_linux(number))).to_bytes_with_nul();
        if text.len() > size {
            return 34; // ERANGE
        }
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
    }
    0
}

super::exports! {
    "__error" => error,
    "strerror" => strerror,
    "strerror_r" => strerror_r,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sys_errno_h() {
        for (linux, darwin) in
            [(libc::ENOENT, 2), (libc::EAGAIN, 35), (libc::EDEADLK, 11), (libc::ETIMEDOUT, 60), (libc::ENOTEMPTY, 66)]
        {
            assert_eq!(to_darwin(linux), darwin);
            assert_eq!(to_linux(darwin), linux);
        }
        assert_eq!(to_darwin(libc::EUCLEAN), 22, "what Darwin has no word for");
    }
}
