//! The CUDA headers, embedded in the extension.

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../kernels/", $name)))),*]
    };
}

/// The text of a CUDA header, by its name in `#include` directives.
pub fn header(name: &str) -> Option<&'static str> {
    HEADERS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The CUDA headers, by the names in `#include` directives.
pub(super) const HEADERS: &[(&str, &str)] = headers![
    "common/choose.cuh",
    "common/cluster.cuh",
    "common/elements.cuh",
    "common/epilogue.cuh",
    "common/field.cuh",
    "common/fusion.cuh",
    "common/groups.cuh",
    "common/mbarrier.cuh",
    "common/operand_tile.cuh",
    "common/params.cuh",
    "common/ptx.cuh",
    "common/raster.cuh",
    "common/stmatrix.cuh",
    "common/store_singly.cuh",
    "common/tma.cuh",
    "common/types.cuh",
    "common/vector.cuh",
    "common/wgmma.cuh",
    "common/widen.cuh",
    "elementwise.cuh",
    "ladder/1_basic_tiling.cuh",
    "ladder/2_shared_memory.cuh",
    "ladder/3_tensor_cores.cuh",
    "ladder/4_swizzle.cuh",
    "ladder/5_async_copies.cuh",
    "ladder/6_wgmma_tma.cuh",
    "ladder/7_warp_specialization.cuh",
    "ladder/8_clusters.cuh",
    "ladder/matrix.cuh",
    "ladder/wgmma_tile.cuh",
    "pack.cuh",
    "quantize.cuh",
    "quantize/element.cuh",
    "reduce.cuh",
    "repack.cuh",
    "rows.cuh",
    "sgemm.cuh",
    "simt.cuh",
    "skinny.cuh",
    "skinny/joint.cuh",
    "skinny/range.cuh",
    "skinny/store_sums.cuh",
    "skinny/streamed_sums.cuh",
    "slots.cuh",
    "sm80.cuh",
    "sm80/mixed_reader.cuh",
    "sm80/scales.cuh",
    "sm90.cuh",
    "sm90/boxes.cuh",
    "sm90/cluster_split.cuh",
    "sm90/config.cuh",
    "sm90/consumer.cuh",
    "sm90/factors.cuh",
    "sm90/gather.cuh",
    "sm90/grid_split.cuh",
    "sm90/main_loop.cuh",
    "sm90/params.cuh",
    "sm90/pipeline.cuh",
    "sm90/producer.cuh",
    "sm90/registers.cuh",
    "sm90/scales.cuh",
    "sm90/shared_memory.cuh",
    "sm90/store_rows.cuh",
    "sm90/store_transposed.cuh",
    "sm90/tile_order.cuh",
    "sm90/weight_scales.cuh",
];
