//! Runs PTX on the CPU, so that tests of kernels need no GPU.
//!
//! The stand-in for the driver (tests/stand_in) calls [`emulator_load`] with a program's PTX and
//! [`emulator_launch`] for each launch. Device addresses are the host's. Results are those of the
//! instructions; the order in which a GPU would execute them, and its speed, are not.

mod arithmetic;
mod machine;
mod matrix;
mod ptx;
mod tma;

use std::ffi::{CStr, c_char, c_void};
use std::sync::{LazyLock, Mutex};

use machine::{Launch, Parameters};

static KERNELS: Mutex<Vec<&'static ptx::Kernel>> = Mutex::new(Vec::new());
/// Memory that kernels may use, as pairs of start and end.
static MEMORY: LazyLock<Mutex<Vec<(u64, u64)>>> = LazyLock::new(Mutex::default);

/// Reads a program of one kernel. Returns its number, or -1 after printing why it is not understood.
///
/// # Safety
/// `text` is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn emulator_load(text: *const c_char) -> i64 {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match ptx::parse(&text) {
        Ok(kernel) => {
            let mut kernels = KERNELS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            kernels.push(Box::leak(Box::new(kernel)));
            kernels.len() as i64 - 1
        }
        Err(error) => {
            eprintln!("emulator: {error}");
            -1
        }
    }
}

/// Lets kernels use these addresses.
#[unsafe(no_mangle)]
pub extern "C" fn emulator_allow(address: u64, bytes: u64) {
    let mut memory = MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    memory.push((address, address + bytes));
}

/// Runs a grid. Returns 0, or 1 after printing what failed.
///
/// # Safety
/// The extents are three numbers each; `parameters` points to the kernel's parameters, as for
/// `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn emulator_launch(
    kernel: i64,
    grid: *const u32,
    block: *const u32,
    cluster: *const u32,
    shared_bytes: u32,
    parameters: *const *const c_void,
) -> i32 {
    let kernel = {
        let kernels = KERNELS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match usize::try_from(kernel).ok().and_then(|at| kernels.get(at).copied()) {
            Some(kernel) => kernel,
            None => return 1,
        }
    };
    let memory = MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    // SAFETY: guaranteed by the caller.
    let launch = unsafe {
        let three = |from: *const u32| [*from, *from.add(1), *from.add(2)];
        Launch {
            kernel,
            grid: three(grid),
            block: three(block),
            cluster: three(cluster),
            shared_bytes: shared_bytes as usize,
            parameters: Parameters::copy(kernel, parameters),
            memory: &memory,
        }
    };
    match launch.run() {
        Ok(()) => 0,
        Err(fault) => {
            eprintln!("emulator: {fault}");
            1
        }
    }
}
