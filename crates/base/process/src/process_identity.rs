//! What identifies a process.

/// Which process it is, for as long as the machine is not started again. What is not known is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id, in its own pid namespace.
    pub pid: u32,
    /// Linux: a time at which it ran, in clock ticks after boot, as field 22 of `/proc/self/stat` (proc_pid_stat(5)), which says when it
    /// started: a process that started later is another one, to which its id was given again.
    /// Darwin: when the process started, in microseconds since the Unix epoch, `kp_proc.p_starttime` (`<sys/sysctl.h>`).
    pub start: u64,
    /// Linux: the 16 bytes of `/proc/sys/kernel/random/boot_id` (random(4)), in the order in which they are printed.
    pub boot_id: [u8; 16],
    /// Linux: the inode of `/proc/self/ns/pid` (namespaces(7)).
    pub pid_namespace: u64,
}
