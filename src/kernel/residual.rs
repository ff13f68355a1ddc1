//! What the cost model leaves over of `sm90` kernels' times: a correction learnt from timings, for the few that it puts first.
//!
//! The model's terms (`hopper`) are physics in outline, and near the best of a product kernels scatter by 5 % about what they say. That is not
//! chance: where tiles, clusters and K meet the caches alike, kernels are off alike. A small network (two hidden layers, rectified) tells by
//! how much, from what the model looks at and what it makes of it. scripts/fit_residuals.py fits it to 3647 products made by chance
//! (docs/benchmarks/chance_h100.json) and writes `weights.rs`. On products that were held out, what comes first takes 1.021 times as long as
//! the best that was timed, and 1.041 without; the same timings taken twice differ by 1.017 (docs/notes/sm90-runs.md, runs 30 and 31).

mod weights;

pub use self::weights::CANDIDATES;
use self::weights::{FARTHEST, FIRST, LARGEST, MEAN, MOST_FLOP, SECOND, SPREAD, THIRD};
use super::Types;
use super::cost::CostQuery;
use super::hopper;
use super::sm90::{Schedule, Sm90};
use crate::operand::DType;

pub const FEATURES: usize = 31;

/// Whether it was fitted to such kernels and products: plain ones of 16-bit operands and outputs that the copy engine loads where they lie, of no
/// more work than what was timed.
pub fn knows(config: &Sm90, types: Types, asked: &CostQuery) -> bool {
    let [m, n, k] =
        [asked.problem.m(), asked.problem.n(), asked.problem.k()].map(|extent| extent as f64);
    let plain = !config.grouped
        && !asked.fused
        && config.packed == [false; 2]
        && !config.loads_by_threads();
    plain
        && types.a.bytes() == 2
        && types.out.bytes() == 2
        && types.accumulator == DType::F32
        && asked.problem.batch() == 1
        && 2.0 * m * n * k <= MOST_FLOP
}

/// What the network is told of a kernel on a problem, which the model gives so many seconds: all of the size of one.
pub fn features(
    config: &Sm90,
    types: Types,
    ctas_per_sm: u32,
    asked: &CostQuery,
    seconds: f64,
) -> [f32; FEATURES] {
    let (problem, multiprocessors) = (asked.problem, asked.target.multiprocessors);
    let is = |it: bool| f64::from(u8::from(it));
    let grid = config.grid(problem);
    let [m, n] = grid.extent;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let split = if config.over_grid { 1.0 } else { f64::from(config.split) };
    let parts = if config.over_grid { f64::from(config.k_splits(problem)) } else { 1.0 };
    let blocks = ((problem.k() * types.a.bytes()) as f64 / 128.0).ceil();
    let blocks = (blocks / (split * parts)).ceil();
    let clusters = grid.clusters[0] * grid.clusters[1] * parts;
    let full = clusters / f64::from(config.clusters_at_once(ctas_per_sm, multiprocessors));
    let outside = |extent: f64, of: f64| 1.0 - extent / ((extent / of).ceil() * of);
    let rows = config.rows_read(problem);
    let [a_bytes, b_bytes] = rows.map(|(rows, _)| f64::from(rows) * 128.0);
    let [a_ragged, b_ragged] = rows.map(|(_, aligned)| hopper::ragged(aligned));
    let [a_k_major, b_k_major] = config.k_major();
    let is_placed =
        hopper::placed(config, types, problem, &grid, ctas_per_sm, multiprocessors).is_some();
    let of_time = |block: f64| block * blocks * full.ceil() / seconds;
    [
        (m.log2() - 10.0) / 2.0,
        (n.log2() - 10.0) / 2.0,
        (blocks.max(1.0).log2() - 5.0) / 2.0,
        tile_m / 64.0 - 2.0,
        tile_n / 64.0 - 2.0,
        is(config.schedule == Schedule::PingPong),
        f64::from(config.consumers) - 2.0,
        cluster_m.log2(),
        cluster_n.log2(),
        is(config.swapped),
        is(config.over_grid),
        split.log2(),
        parts.log2() / 2.0,
        f64::from(config.stages) / 6.0 - 1.0,
        // How full the chip is, in how many rounds, and how full in the last.
        (clusters * f64::from(config.cluster_size()) / f64::from(multiprocessors))
            .log2()
            .clamp(-3.0, 3.0),
        (full.ceil() - 1.0).min(6.0) / 2.0,
        full.ceil() - full,
        // The shares of clusters, and of tiles, that lie outside the output.
        4.0 * outside(m, grid.cluster[0]),
        4.0 * outside(n, grid.cluster[1]),
        4.0 * outside(m, tile_m),
        4.0 * outside(n, tile_n),
        2.0 * a_ragged,
        2.0 * b_ragged,
        is(a_k_major),
        is(b_k_major),
        is(is_placed),
        ((seconds * 1e6).log2() - 4.0) / 2.0,
        // What device memory, tensor cores, arriving bytes, and those asked for of the cache would take of that, alone.
        hopper::bytes(types, problem) / hopper::DEVICE_RATE / seconds,
        of_time(tile_m * tile_n * 128.0 / hopper::TENSOR_RATE),
        of_time((a_bytes + b_bytes) / hopper::ARRIVING_RATE),
        of_time((a_bytes / cluster_n + b_bytes / cluster_m) / hopper::L2_RATE),
    ]
    .map(|feature| feature as f32)
}

/// The logarithm of how many times as long as the model says a kernel takes on a problem, beside other kernels: what all of them have in
/// common means nothing.
pub fn correction(
    config: &Sm90,
    types: Types,
    ctas_per_sm: u32,
    asked: &CostQuery,
    seconds: f64,
) -> f64 {
    let mut input = features(config, types, ctas_per_sm, asked, seconds);
    for ((feature, mean), spread) in input.iter_mut().zip(MEAN).zip(SPREAD) {
        *feature = ((*feature - mean) / spread).clamp(-FARTHEST, FARTHEST);
    }
    let [logarithm] = THIRD.of(&rectified(SECOND.of(&rectified(FIRST.of(&input)))));
    f64::from(logarithm.clamp(-LARGEST, LARGEST))
}

/// A linear layer: what each input adds to the outputs, and what they are without.
struct Layer<const INPUTS: usize, const OUTPUTS: usize> {
    weights: [[f32; OUTPUTS]; INPUTS],
    bias: [f32; OUTPUTS],
}

impl<const INPUTS: usize, const OUTPUTS: usize> Layer<INPUTS, OUTPUTS> {
    fn of(&self, inputs: &[f32; INPUTS]) -> [f32; OUTPUTS] {
        let mut outputs = self.bias;
        // Of rectified inputs about half are zero.
        for (input, weights) in inputs.iter().zip(&self.weights).filter(|(input, _)| **input != 0.0)
        {
            for (output, weight) in outputs.iter_mut().zip(weights) {
                *output += input * weight;
            }
        }
        outputs
    }
}

fn rectified<const COUNT: usize>(values: [f32; COUNT]) -> [f32; COUNT] {
    values.map(|value| value.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::{Layer, rectified};

    #[test]
    fn a_layer_adds_up_what_inputs_weigh() {
        let layer = Layer { weights: [[1.0, 2.0], [3.0, 4.0], [0.5, 0.0]], bias: [5.0, -6.0] };
        assert_eq!(layer.of(&[1.0, -1.0, 2.0]), [4.0, -8.0]);
        assert_eq!(rectified([4.0, -8.0]), [4.0, 0.0]);
    }
}
