//! The identity of a process.

/// Identity of a process, valid until the machine restarts. Unknown fields are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id, in the process's own pid namespace.
    pub pid: u32,
    /// A time at which the process ran (Linux) or its start time (Darwin).
    ///
    /// Linux: in clock ticks after boot, like the start time in field 22 of `/proc/self/stat`
    /// (proc_pid_stat(5)). A process that started later is another one, to which the id was given
    /// again. Darwin: the start time in microseconds since the Unix epoch, `kp_proc.p_starttime`
    /// (`<sys/sysctl.h>`).
    pub start: u64,
    /// The 16 bytes of `/proc/sys/kernel/random/boot_id` (random(4)), in printed order (Linux).
    pub boot_id: [u8; 16],
    /// The inode of `/proc/self/ns/pid` (namespaces(7), Linux).
    pub pid_namespace: u64,
}
