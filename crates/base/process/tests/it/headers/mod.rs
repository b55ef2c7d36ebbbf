//! Headers of program files.

mod elf;
mod macho;
