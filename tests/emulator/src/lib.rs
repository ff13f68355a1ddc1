//! Runs PTX on the CPU, so that tests of kernels need no GPU.
//!
//! The stand-in for the driver (tests/stand_in) calls [`emulator_load`] with a program's PTX and
//! [`emulator_launch`] for each launch. Device addresses are the host's. Results are those of the
//! instructions; the order in which a GPU would execute them, and its speed, are not.
//!
//! | file | what it holds |
//! |---|---|
//! | `ptx.rs` | the parser: text to instructions with resolved registers, labels and symbols |
//! | `program.rs` | a parsed program: types, operands, instructions |
//! | `decode.rs` | what an instruction does, from its words |
//! | `registers.rs` | the register allocation |
//! | `launch.rs` | a launch: CTAs, clusters, the order in which threads run, hangs |
//! | `thread.rs` | a thread: operands, and the instructions of one thread |
//! | `groups.rs` | warps and warpgroups: which threads an instruction waits for |
//! | `matrix.rs` | instructions of a warp or warpgroup: shuffles, `ldmatrix`, `mma`, `wgmma` |
//! | `memory.rs` | state spaces, checks of addresses, loads and stores |
//! | `barriers.rs` | barriers of a CTA and of a cluster, mbarriers |
//! | `tma.rs` | `cp.async`, `st.async`, TMA copies |
//! | `arithmetic.rs` | number formats, arithmetic, comparison, conversion |

mod arithmetic;
mod barriers;
mod decode;
mod groups;
mod launch;
mod matrix;
mod memory;
mod program;
mod ptx;
mod registers;
mod thread;
mod tma;

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard};

use launch::{Launch, Parameters};

static KERNELS: Mutex<Vec<&'static program::Kernel>> = Mutex::new(Vec::new());
/// Memory that kernels may use, as pairs of start and end.
static MEMORY: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// Why the last call failed.
static FAULT: Mutex<Option<CString>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn remember(fault: String) {
    *lock(&FAULT) = CString::new(fault.replace('\0', "")).ok();
}

/// Reads a program of one kernel. Returns its number, or -1 and sets the fault if the text is not
/// understood.
///
/// # Safety
/// `text` is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn emulator_load(text: *const c_char) -> i64 {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match ptx::parse(&text).map(registers::allocate) {
        Ok(kernel) => {
            let mut kernels = lock(&KERNELS);
            kernels.push(Box::leak(Box::new(kernel)));
            kernels.len() as i64 - 1
        }
        Err(error) => {
            remember(error);
            -1
        }
    }
}

/// Lets kernels use these addresses. Ranges may overlap and repeat.
#[unsafe(no_mangle)]
pub extern "C" fn emulator_allow(address: u64, bytes: u64) {
    lock(&MEMORY).push((address, address + bytes));
}

/// Ends what one call of [`emulator_allow`] with this address began.
#[unsafe(no_mangle)]
pub extern "C" fn emulator_forbid(address: u64) {
    let mut memory = lock(&MEMORY);
    if let Some(at) = memory.iter().position(|(start, _)| *start == address) {
        memory.swap_remove(at);
    }
}

/// Why the last call failed. Valid until the next call fails; null if none has.
#[unsafe(no_mangle)]
pub extern "C" fn emulator_fault() -> *const c_char {
    lock(&FAULT).as_ref().map_or(std::ptr::null(), |fault| fault.as_ptr())
}

/// Runs a grid. Returns 0, or 1 and sets the fault.
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
    let Some(kernel) = usize::try_from(kernel).ok().and_then(|at| lock(&KERNELS).get(at).copied())
    else {
        remember("no program of this number".into());
        return 1;
    };
    let memory = lock(&MEMORY).clone();
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
            remember(fault);
            1
        }
    }
}
