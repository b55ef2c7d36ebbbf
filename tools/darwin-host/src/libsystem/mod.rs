//! libSystem: the functions that programs import, under their import names.
//!
//! If Darwin's and Linux's functions have the same arguments, layout and meaning, the import is
//! libc's own function. The others are here, by subject. Names are without Darwin's leading
//! underscore; the loader drops a variant's suffix (`$INODE64`, `$NOCANCEL`, `$DARWIN_EXTSN`).

pub(crate) mod conditions;
mod directories;
mod dispatch;
mod dyld;
mod errno;
mod files;
pub(crate) mod held_locks;
mod memory;
pub(crate) mod process;
mod signals;
mod spawn;
pub(crate) mod specific;
mod stdio;
mod strings;
mod sync;
mod sysctl;
pub(crate) mod threads;
mod time;

/// The way an import is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A function, through the gate.
    Function,
    /// A variable, or a function that must see its caller's registers unchanged (`setjmp`).
    Direct,
}

/// A symbol of libSystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) address: usize,
    pub(crate) kind: Kind,
}

impl Export {
    pub(crate) fn function(name: &'static str, address: usize) -> Self {
        Self { name, address, kind: Kind::Function }
    }

    pub(crate) fn variable<T>(name: &'static str, address: *const T) -> Self {
        Self { name, address: address as usize, kind: Kind::Direct }
    }
}

/// Defines a module's `exports()`: names and functions.
macro_rules! exports {
    ($($name:literal => $function:expr),* $(,)?) => {
        /// The symbols that this module defines.
        pub(crate) fn exports() -> Vec<$crate::libsystem::Export> {
            vec![$($crate::libsystem::Export::function($name, $function as *const () as usize)),*]
        }
    };
}
pub(crate) use exports;

/// Defines a function with one variadic argument.
///
/// On arm64 Darwin passes it on the stack, like a ninth argument.
macro_rules! variadic {
    (fn $name:ident($($argument:ident: $type:ty),+; $($unused:ident)*; $rest:ident) -> $result:ty $body:block) => {
        #[cfg(target_arch = "x86_64")]
        extern "C" fn $name($($argument: $type),+, $rest: usize) -> $result $body
        #[cfg(target_arch = "aarch64")]
        #[allow(clippy::too_many_arguments)]
        extern "C" fn $name($($argument: $type),+, $($unused: usize),*, $rest: usize) -> $result $body
    };
}
pub(crate) use variadic;

/// Returns all symbols.
pub(crate) fn all() -> Vec<Export> {
    use crate::host::mach;
    let mut all: Vec<Export> = [
        conditions::exports,
        dispatch::exports,
        directories::exports,
        dyld::exports,
        errno::exports,
        files::exports,
        held_locks::exports,
        memory::exports,
        process::exports,
        signals::exports,
        spawn::exports,
        specific::exports,
        stdio::exports,
        strings::exports,
        sync::exports,
        sysctl::exports,
        threads::exports,
        time::exports,
        mach::exceptions::exports,
        mach::hosts::exports,
        mach::messages::exports,
        mach::ports::exports,
        mach::semaphores::exports,
        mach::tasks::exports,
        mach::threads::exports,
        mach::vm::exports,
    ]
    .iter()
    .flat_map(|exports| exports())
    .collect();
    all.extend(stdio::variables());
    all.extend(dispatch::variables());
    all.extend(process::variables());
    all.extend([
        Export::variable("mach_task_self_", &raw const mach::tasks::MACH_TASK_SELF),
        Export::variable("vm_page_size", &raw const mach::hosts::VM_PAGE_SIZE),
        Export::variable("vm_page_mask", &raw const mach::hosts::VM_PAGE_MASK),
        Export::variable("vm_page_shift", &raw const mach::hosts::VM_PAGE_SHIFT),
        Export::variable("setjmp", crate::host::gate::darwin_host_setjmp as *const ()),
        Export::variable("_setjmp", crate::host::gate::darwin_host_setjmp as *const ()),
        Export::variable("longjmp", crate::host::gate::darwin_host_longjmp as *const ()),
        Export::variable("_longjmp", crate::host::gate::darwin_host_longjmp as *const ()),
    ]);
    all
}
