//! Assembly routines, with the directives that differ between ELF and Mach-O.

/// Defines a routine in assembly: `routine!("name", "instruction", …)`.
///
/// The routine has the C name `name`, is not visible outside the linked image, and is aligned to 16
/// bytes. Unwind directives (`.cfi_…`) are placed among the instructions.
///
/// Each routine is an atom of its own: linkers may move routines apart or drop them.
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
