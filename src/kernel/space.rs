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
        let programs: Vec<Kernel> = Design::space()
            .map(|(types, design)| Kernel::new(types, design, Frame::User, None))
            .collect();
        let mut kernels = Vec::with_capacity(2 * programs.len());
        let same = |a: &Kernel, b: &Kernel| (a.types, a.facts.family) == (b.types, b.facts.family);
        for of_types in programs.chunk_by(same) {
            kernels.extend_from_slice(of_types);
            let twins = of_types.iter().filter(|program| {
                program.facts.has_twin && offered.contains(&program.types.transposed())
            });
            kernels.extend(twins.map(Kernel::twin));
        }
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
