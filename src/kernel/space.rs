//! Every kernel, and the kernels with epilogues that users have requested.

use std::sync::{LazyLock, Mutex};

use rustc_hash::{FxHashMap, FxHashSet};

use super::design::Design;
use super::frame::Frame;
use super::instance::Kernel;
use super::types::Types;
use crate::epilogue::Epilogue;

/// Every kernel of every family: tensor cores first, wide loads and large tiles before others. The
/// ranking keeps this order among kernels of equal estimates. Behind the programs of a family for
/// some types come the same programs for the transposed products.
pub fn all() -> &'static [Kernel] {
    static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
        let offered: FxHashSet<Types> = Types::gemm().into_iter().collect();
        let only_twins: FxHashSet<Types> = Types::of_twins().into_iter().collect();
        // Above the number of kernels, so that the list never reallocates.
        let mut kernels: Vec<Kernel> = Vec::with_capacity(20_000);
        let mut twins: Vec<Kernel> = Vec::new();
        let mut last = None;
        for (types, design) in Design::space() {
            let program = Kernel::new(types, design, Frame::User, None);
            let key = Some((types, program.facts.family));
            if last != key {
                kernels.append(&mut twins);
                last = key;
            }
            if program.facts.has_twin && offered.contains(&types.transposed()) {
                twins.push(program.twin());
            }
            if !only_twins.contains(&types) {
                kernels.push(program);
            }
        }
        kernels.append(&mut twins);
        kernels
    });
    &KERNELS
}

/// The kernels with epilogues, each kept for the life of the process.
#[derive(Default)]
struct Fused {
    /// Their positions follow those of [`all`].
    kernels: Vec<&'static Kernel>,
    /// Keyed by position and address of the epilogue: `intern` keeps one copy of equal epilogues.
    positions: FxHashMap<(usize, usize), usize>,
}

static FUSED: Mutex<Option<Fused>> = Mutex::new(None);

/// The position of the kernel at a position of [`all`] that fuses an interned epilogue.
pub fn fused(position: usize, epilogue: &'static Epilogue) -> usize {
    let mut fused = FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Fused { kernels, positions } = fused.get_or_insert_default();
    let address = std::ptr::from_ref(epilogue).addr();
    *positions.entry((position, address)).or_insert_with(|| {
        let with = all()[position].with(Some(epilogue).into());
        kernels.push(Box::leak(Box::new(Kernel { epilogue: Some(epilogue), ..with })));
        all().len() + kernels.len() - 1
    })
}

/// The kernel at a position: one of [`all`], or one from [`fused`].
pub fn at(position: usize) -> &'static Kernel {
    let plain = all();
    plain.get(position).unwrap_or_else(|| {
        let fused = FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A position beyond `all` comes from `fused`.
        fused.as_ref().map_or(&plain[0], |fused| fused.kernels[position - plain.len()])
    })
}
