//! System calls refused by systemd's `SystemCallFilter=@system-service`.
//!
//! These are the kernel's calls that are in none of the groups it consists of
//! (`systemd-analyze syscall-filter @system-service`, systemd 252). `mincore` is one of them.

/// Their numbers.
pub(super) const REFUSED: &[libc::c_long] = &[
    // @clock
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    // @debug
    libc::SYS_lookup_dcookie,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_ptrace,
    // @module
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    // @mount
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_umount2,
    // @raw-io, @cpu-emulation, @obsolete
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    // @reboot, @swap
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    // Not in any allowed group.
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_mincore,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_process_mrelease,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_seccomp,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
];
