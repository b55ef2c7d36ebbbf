//! Routines of assembly: what ELF and Mach-O write differently.

/// Defines a routine in assembly: `routine!("name", "instruction", …)`, with the C name `name`, not seen outside the linked image,
/// aligned to 16 bytes. Directives of unwind data (`.cfi_…`) stand among the instructions.
///
/// Each is an atom of its own: linkers may move routines apart or drop them.
macro_rules! routine {
    ($name:literal, $($line:literal),+ $(,)?) => {
        #[cfg(not(target_vendor = "apple"))]
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            ".balign 16",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            ".cfi_startproc",
            $($line,)+
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
        #[cfg(target_vendor = "apple")]
        core::arch::global_asm!(
            ".section __TEXT,__text,regular,pure_instructions",
            ".p2align 4",
            concat!(".globl _", $name),
            concat!(".private_extern _", $name),
            concat!("_", $name, ":"),
            ".cfi_startproc",
            $($line,)+
            ".cfi_endproc",
        );
    };
}
pub(crate) use routine;
