//! Rust programs with one known fault each: compiled with `FAULT=name`, run as `program STORE`.
#![allow(dead_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::hint::black_box;

unsafe extern "C" {
    fn coroner_config_new(app: *const c_char) -> *mut c_void;
    fn coroner_config_set_store_dir(config: *mut c_void, path: *const c_char);
    fn coroner_install(config: *mut c_void) -> c_int;
}

#[repr(C)]
struct Row {
    name: [u8; 16],
    number: u32,
    flag: u8,
    count: u16,
    total: u64,
}

#[repr(C)]
struct Picture {
    width: u32,
    row: *const Row,
}

static TEXT: &str = "may not be written, being a constant";

fn hidden<T>(value: usize) -> *mut T {
    black_box(value as *mut T)
}

#[inline(never)]
fn null_read() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0)).number).read_volatile().into() }
}

#[inline(never)]
fn number_of(row: *const Row) -> u32 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (*row).number.wrapping_add(1) }
}

#[inline(never)]
fn of_parameter() -> u64 {
    u64::from(number_of(hidden::<Row>(0))) + 1
}

#[inline(never)]
fn total_of(picture: &Picture) -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (*picture.row).total.wrapping_add(picture.width.into()) }
}

#[inline(never)]
fn of_field() -> u64 {
    total_of(black_box(&Picture { width: 3, row: std::ptr::null() })) + 1
}

#[inline(never)]
fn null_write() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw mut (*hidden::<Row>(0)).total).write_volatile(7) };
    0
}

#[inline(never)]
fn near_null() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0x30)).number).read_volatile().into() }
}

#[inline(never)]
fn non_canonical() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0x00de_ad00_beef_0000)).number).read_volatile().into() }
}

#[inline(never)]
fn uninitialised() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0x0101_0101_0101_0101)).number).read_volatile().into() }
}

#[inline(never)]
fn freed() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0xdfdf_dfdf_dfdf_dfdf)).total).read_volatile() }
}

#[inline(never)]
fn unmapped() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { (&raw const (*hidden::<Row>(0x1234_0000_0000)).total).read_volatile() }
}

#[inline(never)]
fn constant_write() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    unsafe { hidden::<u32>(TEXT.as_ptr() as usize & !3).write_volatile(7) };
    0
}

#[inline(never)]
fn call_null() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(black_box(0)) };
    function() + 1
}

#[inline(never)]
fn call_nowhere() -> u64 {
    // SAFETY: none: the fault that it is made for ends the process, and nothing is used after it.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(black_box(0x1234_0000_0000)) };
    function() + 1
}

#[inline(never)]
fn panics() -> u64 {
    let rows: Vec<u64> = black_box(Vec::new());
    rows[black_box(3)]
}

#[inline(never)]
fn aborts() -> u64 {
    std::process::abort()
}

#[inline(never)]
fn overflow() -> u64 {
    fn deeper(depth: u64) -> u64 {
        let local = black_box([depth; 16]);
        deeper(local[3] + 1) + local[4]
    }
    deeper(0)
}

fn main() {
    let store = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    // SAFETY: the calls are as coroner.h has them: the configuration is a new one, the path ends
    // with a NUL, and install takes it.
    let installed = unsafe {
        let config = coroner_config_new(c"com.example.faults".as_ptr());
        coroner_config_set_store_dir(config, store.as_ptr());
        coroner_install(config)
    };
    if installed != 0 {
        std::process::exit(4);
    }
    let value = match env!("FAULT") {
        "null_read" => null_read(),
        "of_parameter" => of_parameter(),
        "of_field" => of_field(),
        "null_write" => null_write(),
        "near_null" => near_null(),
        "non_canonical" => non_canonical(),
        "uninitialised" => uninitialised(),
        "freed" => freed(),
        "unmapped" => unmapped(),
        "constant_write" => constant_write(),
        "call_null" => call_null(),
        "call_nowhere" => call_nowhere(),
        "panics" => panics(),
        "aborts" => aborts(),
        "overflow" => overflow(),
        _ => 3,
    };
    std::process::exit(value as i32);
}
