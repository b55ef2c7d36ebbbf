//! Clocks and sleep (<time.h>, <sys/time.h>).

use std::sync::atomic::Ordering;

use super::errno::fail;
use crate::host::kernel::thread;

/// Converts Darwin's CLOCK_*.
///
/// REALTIME 0, MONOTONIC 6 (counts sleep), MONOTONIC_RAW 4 and its APPROX 5 (count sleep),
/// UPTIME_RAW 8 and its APPROX 9 (do not), PROCESS_CPUTIME 12, THREAD_CPUTIME 16.
fn clock(darwin: i32) -> Option<i32> {
    Some(match darwin {
        0 => libc::CLOCK_REALTIME,
        4..=6 => libc::CLOCK_BOOTTIME,
        8 | 9 => libc::CLOCK_MONOTONIC,
        12 => libc::CLOCK_PROCESS_CPUTIME_ID,
        16 => libc::CLOCK_THREAD_CPUTIME_ID,
        _ => return None,
    })
}

extern "C" fn clock_gettime(number: i32, to: *mut libc::timespec) -> i32 {
    match clock(number) {
        // SAFETY: the program gave the address; the structure is the same.
        Some(clock) => unsafe { libc::clock_gettime(clock, to) },
        None => fail(22),
    }
}

extern "C" fn clock_gettime_nsec_np(number: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if clock_gettime(number, &raw mut time) != 0 {
        return 0;
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `struct timeval` has a 32-bit tv_usec.
#[repr(C)]
struct TimeValue {
    seconds: i64,
    microseconds: i32,
}

extern "C" fn gettimeofday(to: *mut TimeValue, _zone: usize) -> i32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local result; the program gave the address.
    unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time);
        if !to.is_null() {
            to.write(TimeValue { seconds: time.tv_sec, microseconds: (time.tv_nsec / 1000) as i32 });
        }
    }
    0
}

/// Sleeps; a suspension doesn't count as an interruption.
extern "C" fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> i32 {
    // SAFETY: the program gave the addresses.
    unsafe {
        let mut span = time.read();
        loop {
            let handled = thread::current().handled.load(Ordering::SeqCst);
            let mut rest = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let errno = *libc::__errno_location();
            if libc::nanosleep(&raw const span, &raw mut rest) == 0 {
                return 0;
            }
            let interrupted = *libc::__errno_location() == libc::EINTR;
            if !interrupted || thread::current().handled.load(Ordering::SeqCst) != handled {
                if !left.is_null() {
                    left.write(rest);
                }
                return -1;
            }
            *libc::__errno_location() = errno;
            span = rest;
        }
    }
}

extern "C" fn sleep(seconds: u32) -> u32 {
    let span = libc::timespec { tv_sec: i64::from(seconds), tv_nsec: 0 };
    let mut left = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if nanosleep(&raw const span, &raw mut left) == 0 { 0 } else { left.tv_sec as u32 + 1 }
}

extern "C" fn usleep(microseconds: u32) -> i32 {
    let span = libc::timespec {
        tv_sec: i64::from(microseconds / 1_000_000),
        tv_nsec: i64::from(microseconds % 1_000_000) * 1000,
    };
    nanosleep(&raw const span, std::ptr::null_mut())
}

super::exports! {
    "clock_gettime" => clock_gettime,
    "clock_gettime_nsec_np" => clock_gettime_nsec_np,
    "gettimeofday" => gettimeofday,
    "nanosleep" => nanosleep,
    "sleep" => sleep,
    "usleep" => usleep,
    "time" => libc::time,
    "gmtime_r" => libc::gmtime_r,
    "localtime_r" => libc::localtime_r,
}
