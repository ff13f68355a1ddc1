use std::collections::HashSet;

use super::*;
use crate::operand::DType::{Bf16, F16, F32};

fn matrix(dtype: DType, device: Device, rows: i64, columns: i64, major: Major) -> View {
    let stride = match major {
        Major::Row => [0, columns, 1],
        Major::Column => [0, 1, rows],
    };
    View { data: 1 << 20, dtype, device, rank: 2, shape: [1, rows, columns], stride, read_only: false, fake: true }
}

fn gemm(dtype: DType, m: i64, n: i64, k: i64, layout: Layout) -> Problem {
    let device = Device::Cuda(0);
    let a = matrix(dtype, device, m, k, layout.a);
    let b = matrix(dtype, device, k, n, layout.b);
    let out = matrix(dtype, device, m, n, layout.out);
    Problem::Gemm(GemmProblem::new(a, b, out, F32).expect("shapes agree"))
}

const H100: Option<Target> = Some(Target { cc: 90, multiprocessors: 132 });

#[test]
fn names_are_unique() {
    let names: HashSet<String> = all().iter().map(Kernel::name).collect();
    assert_eq!(names.len(), all().len());
}

#[test]
fn every_layout_has_tensor_core_kernels_first() {
    for dtype in [F16, Bf16] {
        for layout in Layout::all() {
            let found = ranked(&gemm(dtype, 4096, 4096, 4096, layout), H100);
            assert!(matches!(all()[found[0]].design, Design::Sm90(config) if config.layout == layout), "{layout}");
            let found = ranked(&gemm(dtype, 4096, 4096, 4096, layout), Some(Target::typical(80)));
            assert!(matches!(all()[found[0]].design, Design::Sm80(config) if config.layout == layout), "{layout}");
        }
    }
}

#[test]
fn parameters_are_what_the_header_says() {
    assert_eq!(size_of::<GemmParams>(), 112);
}

#[test]
fn column_major_outputs_run_the_transposed_program() {
    for kernel in all() {
        let Design::Sm80(config) = kernel.design else { continue };
        let program = config.program();
        assert_eq!(program.layout.out, Major::Row);
        assert_eq!(program.tile[0] * program.tile[1], config.tile[0] * config.tile[1]);
        assert_eq!(program.program(), program);
    }
}

#[test]
fn shared_memory_fits_every_chip() {
    // sm_86, sm_89 and sm_120 give a CTA 99 KiB (CUDA C++ Programming Guide, table of technical specifications).
    for kernel in all() {
        if let Design::Sm80(config) = kernel.design {
            assert!(config.shared_bytes(kernel.types) <= 99 * 1024, "{}", kernel.name());
        }
    }
}

#[test]
fn extents_beyond_32_bits_are_refused() {
    let huge = View { shape: [1, 1 << 32, 1], stride: [0, 1, 0], ..matrix(F16, Device::Cuda(0), 1, 1, Major::Row) };
    let b = matrix(F16, Device::Cuda(0), 1, 1, Major::Row);
    let problem = Problem::Gemm(GemmProblem::new(huge, b, huge, F32).expect("shapes agree"));
    assert!(ranked(&problem, H100).is_empty());
}

#[test]
fn large_squares_get_the_tile_that_measured_best() {
    for layout in Layout::all() {
        let found = ranked(&gemm(F16, 4096, 4096, 4096, layout), Some(Target { cc: 89, multiprocessors: 132 }));
        let Design::Sm80(config) = all()[found[0]].design else { panic!("not an sm80 kernel") };
        assert_eq!(config.tile, [128, 128, 64], "{layout}");
    }
}

/// Where cuTensorMapEncodeTiled would refuse a map (CUDA Driver API, its list of conditions).
fn assert_valid(map: &TensorMap, what: &str) {
    assert_eq!(map.address % 16, 0, "{what}");
    assert!(map.extents.iter().all(|extent| (1..=1 << 32).contains(extent)), "{what}: {map:?}");
    assert!(map.strides.iter().all(|step| step % 16 == 0 && (1..1 << 40).contains(step)), "{what}: {map:?}");
    assert!(map.box_extents.iter().all(|extent| (1..=256).contains(extent)), "{what}: {map:?}");
}

#[test]
fn every_sm90_launch_has_valid_maps_and_whole_clusters() {
    let mut seen = HashSet::new();
    for (m, n, k) in [(1, 1, 1), (64, 4096, 0), (128, 264, 64), (300, 5000, 700), (4095, 4097, 4093), (8, 65536, 4096)]
    {
        for layout in Layout::all() {
            for (dtype, out) in [(F16, F16), (Bf16, F32), (F32, F32), (F16, Bf16)] {
                let Problem::Gemm(mut problem) = gemm(dtype, m, n, k, layout) else { panic!("not a GEMM") };
                problem.out.dtype = out;
                for position in ranked(&Problem::Gemm(problem), H100) {
                    let kernel = &all()[position];
                    let Design::Sm90(config) = kernel.design else { continue };
                    seen.insert(position);
                    let launch = kernel.launch(&problem, Target::typical(90), 1 << 30).expect("there is an output");
                    let Params::Sm90(params) = launch.params else { panic!("not its parameters") };
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, &kernel.name()));
                    assert_eq!(launch.grid % launch.cluster, 0);
                    assert!(launch.shared_bytes <= 227 * 1024 && launch.cluster <= 16);
                    assert_eq!(
                        kernel.workspace_bytes(&Problem::Gemm(problem)) > 0,
                        config.packed.contains(&true) && k > 0
                    );
                    assert_eq!(launch.pack.is_some(), config.packed.contains(&true));
                }
            }
        }
    }
    assert!(seen.len() > 100, "{} kernels", seen.len());
}
