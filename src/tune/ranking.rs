//! The kernels that serve a problem: measured ones first, by time, then the others by the cost
//! model.

use super::key::{Extents, Rounding, extents, key};
use super::store::{Measurement, Store};
use crate::compile::fingerprint;
use crate::driver::Device;
use crate::epilogue::Epilogue;
use crate::kernel::{self, Target};
use crate::operand::DeviceId;
use crate::problem::Problem;

/// Kernels by rank.
pub struct Tuned {
    pub positions: Vec<usize>,
    /// How many of the first are measured.
    pub measured: usize,
    /// Whether the store has warnings.
    pub warns: bool,
}

impl Tuned {
    /// Ranks a kernel behind the measured ones so far. A kernel that serves the key but not this
    /// problem is skipped.
    fn rank_next(&mut self, position: usize) {
        let others = &mut self.positions[self.measured..];
        if let Some(at) = others.iter().position(|other| *other == position) {
            others[..=at].rotate_right(1);
            self.measured += 1;
        }
    }

    /// Keeps the kernels for which `keeps` is true.
    pub fn retain(&mut self, keeps: impl Fn(usize) -> bool) {
        self.measured = self.positions[..self.measured].iter().filter(|at| keeps(**at)).count();
        self.positions.retain(|position| keeps(*position));
    }
}

/// Positions in [`kernel::all`] of the kernels that serve a problem on a target (`None`: on the
/// CPU). `uses_store`: whether measured kernels come first; the target must then be the operands'
/// device. `user_keys`: names and results of the user's functions of extents.
pub fn ranked(
    problem: &Problem,
    target: Option<Target>,
    epilogue: Option<&'static Epilogue>,
    allows_tf32: bool,
    uses_store: bool,
    user_keys: &[(String, Extents)],
) -> Tuned {
    let product = problem.of_activations(epilogue);
    let problem = product.as_ref().unwrap_or(problem);
    let positions = kernel::ranked(problem, target, epilogue);
    let mut tuned = Tuned { positions, measured: 0, warns: false };
    let device = match problem.device() {
        DeviceId::Cuda(ordinal) if uses_store => Device::get(ordinal).ok(),
        _ => None,
    };
    let (Some(device), Some(extents)) = (device, extents(problem)) else { return tuned };
    let mut store = Store::get();
    tuned.warns = store.warns();
    if !store.knows(device) {
        return tuned;
    }
    let own = Rounding::ALL.iter().map(|rounding| (rounding.name(), rounding.round(extents)));
    for (name, extents) in own.chain(user_keys.iter().map(|(name, of)| (name.as_str(), *of))) {
        let key = key(problem, epilogue, allows_tf32, name, extents);
        let look_up =
            |measurements: &[Measurement]| measured(&tuned.positions, measurements, epilogue);
        if let Some(first) = store.positions(device, &key, look_up) {
            first.iter().for_each(|position| tuned.rank_next(*position));
        }
        // All results may be of other programs.
        if tuned.measured > 0 {
            break;
        }
    }
    tuned
}

/// The kernels of measurements among those that serve a problem, and whether all of them serve it.
/// A measurement of a kernel whose program has changed since does not count.
fn measured(
    positions: &[usize],
    measurements: &[Measurement],
    epilogue: Option<&'static Epilogue>,
) -> (Vec<usize>, bool) {
    let (mut found, mut all_serve) = (Vec::new(), true);
    for measurement in measurements {
        let named = |position: &&usize| kernel::at(**position).name() == measurement.kernel;
        let Some(position) = positions.iter().find(named).copied() else {
            all_serve = false;
            continue;
        };
        let fused = epilogue.map_or(position, |epilogue| kernel::fused(position, epilogue));
        if fingerprint(kernel::at(fused)).as_ref() == Some(&measurement.program) {
            found.push(position);
        }
    }
    (found, all_serve)
}
