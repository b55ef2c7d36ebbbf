//! Signal numbers and sets: Darwin's (<sys/signal.h>) and Linux's.

/// Linux numbers by Darwin number.
///
/// Darwin's SIGEMT (7) and SIGINFO (29) have no equivalent: real-time signals represent them.
const LINUX: [i32; 32] = [
    0,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    41,
    libc::SIGFPE,
    libc::SIGKILL,
    libc::SIGBUS,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGURG,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGCHLD,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGIO,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    42,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGTRAP: i32 = 5;
pub(crate) const SIGABRT: i32 = 6;
pub(crate) const SIGEMT: i32 = 7;
pub(crate) const SIGFPE: i32 = 8;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGBUS: i32 = 10;
pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const SIGSYS: i32 = 12;
pub(crate) const SIGPIPE: i32 = 13;
pub(crate) const SIGSTOP: i32 = 17;

/// Returns a Darwin signal's Linux number; `None` if Darwin has no signal with this number.
pub(crate) fn to_linux(darwin: i32) -> Option<i32> {
    LINUX.get(usize::try_from(darwin).ok()?).copied().filter(|&n| n != 0)
}

/// Returns a Linux signal's Darwin number.
pub(crate) fn from_linux(linux: i32) -> Option<i32> {
    LINUX.iter().position(|&n| n == linux && n != 0).map(|n| n as i32)
}

/// Converts a Darwin set (bit n-1 is signal n) to the first word of a Linux set.
pub(crate) fn set_to_linux(set: u32) -> u64 {
    (1..32).filter(|n| set & (1 << (n - 1)) != 0).filter_map(to_linux).fold(0, |all, n| all | 1 << (n - 1))
}

/// Converts the first word of a Linux set to a Darwin set.
pub(crate) fn set_from_linux(set: u64) -> u32 {
    (1..64).filter(|n| set & (1 << (n - 1)) != 0).filter_map(from_linux).fold(0, |all, n| all | 1 << (n - 1))
}

/// Returns a Darwin signal's bit in a Darwin set.
pub(crate) const fn bit(darwin: i32) -> u32 {
    1 << (darwin - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_comes_back() {
        for number in 1..32 {
            let linux = to_linux(number).expect("Darwin has 31 signals");
            assert_eq!(from_linux(linux), Some(number));
        }
        assert_eq!((to_linux(0), to_linux(32), from_linux(super::super::STAND)), (None, None, None));
    }

    #[test]
    fn sets() {
        let set = bit(SIGBUS) | bit(SIGSEGV) | bit(31);
        assert_eq!(set_from_linux(set_to_linux(set)), set);
        assert_eq!(set_to_linux(bit(SIGBUS)), 1 << (libc::SIGBUS - 1));
    }
}
