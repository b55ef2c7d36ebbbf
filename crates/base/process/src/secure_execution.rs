//! Whether the process has more rights than the user who started it.

/// Whether the process has rights that whoever started it may not have: of a set-user-ID or
/// set-group-ID program or, on Linux, of file capabilities.
///
/// Its environment then comes from somebody who must not choose where it writes, or to whom it
/// sends. `AT_SECURE` on Linux, as secure_getenv(3); issetugid(2) on Apple's systems; always
/// `false` elsewhere.
pub fn is_secure() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: reads the process's auxiliary vector.
    return unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    #[cfg(target_vendor = "apple")]
    // SAFETY: only asks.
    return unsafe { libc::issetugid() } != 0;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    return false;
}
