use std::collections::{HashMap, HashSet};
use std::fmt;

use super::cost::query::CostQuery;
use super::*;
use crate::operand::DType::{Bf16, F16, F32};
use crate::operand::{DType, DeviceId, View};
use crate::problem::{
    ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem, ProblemOptions,
};

mod exact;
mod explain;
mod float8;
mod grouped;
mod joint;
mod listing;
mod mixed;
mod ranking;
mod skinny;

fn matrix(dtype: DType, device: DeviceId, rows: i64, columns: i64, major: Major) -> View {
    let stride = match major {
        Major::Row => [0, columns, 1],
        Major::Column => [0, 1, rows],
    };
    View {
        data: 1 << 20,
        dtype,
        device,
        rank: 2,
        shape: [1, rows, columns],
        stride,
        read_only: false,
        fake: true,
    }
}

fn gemm(dtype: DType, m: i64, n: i64, k: i64, layout: Layout) -> Problem {
    Problem::Gemm(product(dtype, m, n, k, layout))
}

fn product(dtype: DType, m: i64, n: i64, k: i64, layout: Layout) -> GemmProblem {
    let device = DeviceId::Cuda(0);
    let a = matrix(dtype, device, m, k, layout.a);
    let b = matrix(dtype, device, k, n, layout.b);
    let out = matrix(dtype, device, m, n, layout.out);
    GemmProblem::new(a, b, out, F32).expect("shapes agree")
}

/// Row-major operands except B. `step`: the stride of `offsets`.
fn grouped(dtype: DType, rows: i64, n: i64, k: i64, groups: i64, b: Major, step: i64) -> Problem {
    let device = DeviceId::Cuda(0);
    let stacked = |major: Major| match major {
        Major::Row => [k * n, n, 1],
        Major::Column => [k * n, 1, k],
    };
    let b = View {
        rank: 3,
        shape: [groups, k, n],
        stride: stacked(b),
        ..matrix(dtype, device, k, n, b)
    };
    let offsets = View {
        rank: 1,
        shape: [1, 1, groups],
        stride: [0, 0, step],
        data: 1 << 30,
        ..matrix(DType::I32, device, 1, 1, Major::Row)
    };
    let a = matrix(dtype, device, rows, k, Major::Row);
    let out = matrix(dtype, device, rows, n, Major::Row);
    Problem::GroupedGemm(GroupedGemmProblem::new(a, b, out, offsets, F32).expect("shapes agree"))
}

/// Groups along K of operands that are contiguous along M and N; of 8 bits, along K, with a Bf16
/// output.
fn grouped_along_k(dtype: DType, [m, n, k]: [i64; 3], groups: i64) -> Problem {
    let device = DeviceId::Cuda(0);
    let (of_a, of_b, of_out) = match dtype.bits() {
        8 => (Major::Row, Major::Column, Bf16),
        _ => (Major::Column, Major::Row, dtype),
    };
    let a = matrix(dtype, device, m, k, of_a);
    let b = matrix(dtype, device, k, n, of_b);
    let out = matrix(of_out, device, m, n, Major::Row);
    let out = View { rank: 3, shape: [groups, m, n], stride: [m * n, n, 1], ..out };
    let ends = matrix(DType::I32, device, 1, groups, Major::Row);
    let offsets = View { rank: 1, data: 1 << 30, ..ends };
    Problem::GroupedGemm(GroupedGemmProblem::new(a, b, out, offsets, F32).expect("shapes agree"))
}

const H100: Option<Target> = Some(Target::H100);
const ROW_MAJOR: Layout = Layout { a: Major::Row, b: Major::Row, out: Major::Row };
const TNT: Layout = Layout { b: Major::Column, ..ROW_MAJOR };

/// The kernels for a problem on an H100, the fastest first.
fn kernels_for(problem: &Problem) -> impl Iterator<Item = &'static Kernel> {
    ranked(problem, H100, false).into_iter().map(|position| &all()[position])
}

fn first_for(problem: &Problem) -> &'static Kernel {
    kernels_for(problem).next().expect("a kernel serves the problem")
}

/// The workspace begins at 1 << 30.
fn launch_of(kernel: &Kernel, problem: &Problem) -> Launch {
    kernel.launch(problem, Target::typical(90), 1 << 30, None).expect("there is an output")
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[test]
fn a_program_and_its_twin_serve_transposed_products() {
    let by_name: HashMap<String, &Kernel> =
        all().iter().map(|kernel| (kernel.name(), kernel)).collect();
    assert_eq!(by_name.len(), all().len(), "names are unique");
    let transposed = all().iter().filter(|kernel| kernel.frame.is_transposed());
    let mut twins = 0;
    for kernel in transposed {
        let twin = kernel.twin();
        let is_offered = !Types::of_twins().contains(&twin.types);
        assert_eq!(by_name.get(&twin.name()), is_offered.then_some(&&twin), "{kernel}");
        assert_eq!(source(kernel), source(&twin), "{kernel}");
        let [a, b, out] = kernel.demands().map(Demand::transposed);
        assert_eq!([b, a, out], twin.demands(), "{kernel}");
        twins += 1;
    }
    // Few programs are for one frame only: those of groups and of few rows.
    assert!(2 * twins > all().iter().filter(|kernel| kernel.facts.has_twin).count() * 9 / 10);
}

#[test]
fn names_of_functions_follow_from_their_programs() {
    let mut names = HashMap::new();
    for kernel in all() {
        let Some((entry, text)) = source(kernel) else { continue };
        let is_named = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(entry.starts_with("rutlass_") && entry.chars().all(is_named), "{entry}");
        // A name that the rest of the text does not determine would keep kernels from sharing a
        // program.
        let (program, declaration) = text.rsplit_once("__launch_bounds__").expect("a function");
        assert!(declaration.contains(&format!("\n{entry}(")));
        assert_eq!(*names.entry(program.to_owned()).or_insert_with(|| entry.clone()), entry);
    }
}

#[test]
fn shared_memory_fits_every_chip() {
    // A CTA has at most 99 KiB on sm_86, sm_89 and sm_120 (CUDA C++ Programming Guide, "Technical
    // Specifications per Compute Capability").
    for kernel in all() {
        if matches!(kernel.design, Design::Sm80(_) | Design::Sgemm(_)) {
            assert!(kernel.facts.shared_bytes <= 99 * 1024, "{kernel}");
        }
    }
}

#[test]
fn extents_beyond_32_bits_are_refused() {
    let huge = View {
        shape: [1, 1 << 32, 1],
        stride: [0, 1, 0],
        ..matrix(F16, DeviceId::Cuda(0), 1, 1, Major::Row)
    };
    let b = matrix(F16, DeviceId::Cuda(0), 1, 1, Major::Row);
    let problem = Problem::Gemm(GemmProblem::new(huge, b, huge, F32).expect("shapes agree"));
    assert!(ranked(&problem, H100, false).is_empty());
}

#[test]
fn sm90_refuses_extents_with_the_limit() {
    let kernel_of = |problem: &Problem, over_grid: bool| {
        let wanted = |design: &Design| match design {
            Design::Sm90(config) => config.over_grid == over_grid,
            _ => false,
        };
        let found = ranked(problem, H100, false);
        &all()[*found.iter().find(|at| wanted(&all()[**at].design)).expect("one of these")]
    };
    let over_grid = kernel_of(&gemm(F16, 256, 512, 2048, ROW_MAJOR), true);
    let shallow = gemm(F16, 256, 512, 2047, ROW_MAJOR);
    assert_eq!(over_grid.supports(&shallow), Err(Unsupported::Shallow { k: 2047, least: 2048 }));
    let few = gemm(F16, 4096, 4096, 2048, ROW_MAJOR);
    assert!(matches!(over_grid.supports(&few), Err(Unsupported::TooMany { .. })));

    let integers = |k| {
        let problem = product(DType::I8, 64, 64, k, TNT);
        let out = View { dtype: DType::I32, ..problem.out };
        Problem::Gemm(GemmProblem { out, accumulator: DType::I32, ..problem })
    };
    let kernel = kernel_of(&integers(32768), true);
    let refusal = Err(Unsupported::TooMany { dimension: "K", extent: 32784, limit: 32768 });
    assert_eq!(kernel.supports(&integers(32784)), refusal);
    assert_eq!(kernel.check_addresses(&integers(32784)), refusal);

    let in_float32 = |n| {
        let problem = product(F16, 256, n, 512, TNT);
        let out = View { dtype: DType::F32, ..problem.out };
        Problem::Gemm(GemmProblem { out, ..problem })
    };
    let kernel = kernel_of(&in_float32(264), false);
    assert_eq!(kernel.supports(&in_float32(264)), Ok(()));
    assert_eq!(kernel.supports(&in_float32(260)), Err(Unsupported::Uneven { n: 260, of: 8 }));
}

/// Asserts the conditions of cuTensorMapEncodeTiled (CUDA Driver API).
fn assert_valid(map: &TensorMap, what: &Kernel) {
    assert_eq!(map.address % 16, 0, "{what}");
    assert!(map.extents.iter().all(|extent| (1..=1 << 32).contains(extent)), "{what}: {map:?}");
    assert!(
        map.strides.iter().all(|step| step % 16 == 0 && (1..1 << 40).contains(step)),
        "{what}: {map:?}"
    );
    assert!(map.box_extents.iter().all(|extent| (1..=256).contains(extent)), "{what}: {map:?}");
}

#[test]
fn every_sm90_launch_has_valid_maps_and_whole_clusters() {
    let (mut unequal, mut narrow) = (0, 0);
    let mut seen = HashSet::new();
    for (m, n, k) in [
        (1, 1, 1),
        (64, 4096, 0),
        (128, 264, 64),
        (300, 5000, 700),
        (300, 24, 700),
        (4095, 4097, 4093),
        (8, 65536, 4096),
    ] {
        for layout in Layout::all() {
            for (dtype, out) in [(F16, F16), (Bf16, F32), (F32, F32), (F16, Bf16)] {
                let mut problem = product(dtype, m, n, k, layout);
                problem.out.dtype = out;
                let problem = Problem::Gemm(problem);
                for kernel in kernels_for(&problem) {
                    let Design::Sm90(config) = kernel.design else { continue };
                    seen.insert(*kernel);
                    let launch = launch_of(kernel, &problem);
                    let Params::Sm90(params) = launch.params else { panic!("not its parameters") };
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, kernel));
                    // `Boxes` of the program expects whole boxes in a slice, or one box for the
                    // whole operand.
                    for (at, extent) in [params.scalars.m, params.scalars.n].into_iter().enumerate()
                    {
                        let packed = config.of_wgmma(config.packed);
                        let k_major = config.k_major()[at] || packed[at];
                        let (slice, rows) = (config.slices(at)[0], params.scalars.boxes[at] as u32);
                        let parts = slice / rows;
                        let whole =
                            slice == parts * rows && (parts == 1 || (parts <= 4 && rows >= 32));
                        assert!(
                            whole || (rows == extent as u32 && rows < slice),
                            "{kernel}: {rows} rows"
                        );
                        // If threads load A, the program loads each slice of B as one box.
                        assert!(
                            rows == slice || !config.loads_by_threads(),
                            "{kernel}: {rows} rows"
                        );
                        if let (Some(map), true) = (&params.maps[at], k_major) {
                            assert_eq!(map.box_extents[1], rows, "{kernel}");
                        }
                    }
                    // Some CTAs that share B load 8 rows more. The slices add up to the whole tile.
                    let ([slice, shorter], sharers) = (config.slices(1), config.cluster[0]);
                    let longer = config.tile[1] / 8 % sharers;
                    assert_eq!(
                        slice * longer + shorter * (sharers - longer),
                        config.tile[1],
                        "{kernel}"
                    );
                    let b_along_k = config.k_major()[1] || config.of_wgmma(config.packed)[1];
                    assert_eq!(params.b_shorter.is_some(), b_along_k && longer > 0, "{kernel}");
                    if let (Some(shorter_map), Some(b)) = (params.b_shorter, params.maps[1]) {
                        let [k, rows, batch] = b.box_extents;
                        assert_eq!((rows, slice), (slice, shorter + 8), "{kernel}");
                        assert_eq!(
                            shorter_map,
                            TensorMap { box_extents: [k, shorter, batch], ..b }
                        );
                        unequal += 1;
                    }
                    // Boxes of an N-major B have the swizzle of their row length.
                    if let (Some(b), false) = (params.maps[1], b_along_k) {
                        let row = b.box_extents[0] * kernel.types.a.bytes() as u32;
                        assert_eq!(
                            (row, b.swizzle),
                            (config.row_bytes(1), TensorMap::swizzle(row)),
                            "{kernel}"
                        );
                        narrow += u32::from(row == 64);
                    }
                    assert_eq!(launch.grid % launch.cluster, 0);
                    assert!(launch.shared_bytes <= 227 * 1024 && launch.cluster <= 8);
                    let needed = (config.packed.contains(&true) && k > 0) || config.over_grid;
                    assert_eq!(kernel.workspace_bytes(&problem) > 0, needed, "{kernel}");
                    assert_eq!(launch.pack.is_some(), config.packed.contains(&true));
                }
            }
        }
    }
    assert!(seen.len() > 100, "{} kernels", seen.len());
    assert!(
        unequal > 100 && narrow > 100,
        "{unequal} with unequal slices, {narrow} with narrow rows"
    );
}

#[test]
fn float32_packs_only_operands_that_tma_cannot_address() {
    for layout in Layout::all() {
        let k_major = [layout.a == Major::Row, layout.b == Major::Column];
        let copies = usize::from(k_major == [false, false]);
        let problem = gemm(F32, 4096, 4096, 4096, layout);
        let kernel = first_for(&problem);
        let Design::Sm90(config) = kernel.design else { panic!("{layout}: {kernel}") };
        assert_eq!(config.packed.iter().filter(|packed| **packed).count(), copies, "{layout}");
        let launch = launch_of(kernel, &problem);
        let Params::Sm90(Sm90Params { maps: [Some(a), Some(b), _], .. }) = launch.params else {
            panic!("two maps")
        };
        assert_eq!((a.data_type, b.data_type), (11, 11), "TMA rounds to tf32");
        // The operand that is not K-major is the program's A, loaded in boxes of 128 bytes by a K
        // block.
        let from_registers = k_major != [true, true];
        assert_eq!(config.a_from_registers(kernel.types), from_registers);
        assert!(
            !from_registers || a.box_extents == [32, 32 / config.cluster[1], 1],
            "{layout}: {a:?}"
        );
        assert_eq!(b.box_extents, [32, config.tile[1] / config.cluster[0], 1], "{layout}");

        // Rows of 4095 elements are not aligned: both operands are packed.
        let kernel = first_for(&gemm(F32, 4095, 4095, 4095, layout));
        assert!(
            matches!(kernel.design, Design::Sm90(Sm90 { packed: [true, true], .. })),
            "{layout}"
        );
    }
}

#[test]
fn grids_beyond_32_bits_are_refused() {
    let small = product(F16, 1, 1, 64, TNT);
    let batched =
        |view: View| View { rank: 3, shape: [1 << 29, view.shape[1], view.shape[2]], ..view };
    let out = View { stride: [1, 0, 0], ..batched(small.out) };
    let problem =
        GemmProblem::new(batched(small.a), batched(small.b), out, F32).expect("shapes agree");
    let mut refused = 0;
    for kernel in all().iter().filter(|kernel| kernel.types.a == F16 && kernel.types.out == F16) {
        let Design::Sm90(config) = kernel.design else { continue };
        let ctas = config.tiles(&kernel.frame.gemm(&problem)) * u64::from(config.split);
        let served = kernel.supports(&Problem::Gemm(problem)).is_ok();
        refused += u32::from(ctas > i32::MAX as u64);
        assert!(!served || ctas <= i32::MAX as u64, "{kernel}");
    }
    assert!(refused > 0);
}

#[test]
fn persistent_kernels_leave_multiprocessors_free() {
    let layout = Layout::all().next().expect("there are layouts");
    let plain = product(F16, 8192, 8192, 8192, layout);
    let problem = Problem::Gemm(plain);
    let options = ProblemOptions { free_multiprocessors: 32, ..plain.options };
    let shared = Problem::Gemm(GemmProblem { options, ..plain });
    let mut persistent = 0;
    for kernel in kernels_for(&problem) {
        let Design::Sm90(config) = &kernel.design else { continue };
        let launch = |problem| kernel.launch(problem, Target::typical(90), 1 << 40, None);
        let (before, after) = (launch(&problem).expect("a grid"), launch(&shared).expect("a grid"));
        if config.split == 1 && !config.over_grid {
            let most = config.clusters_at_once(before.grid.div_ceil(132), 100) * after.cluster;
            assert!(after.grid <= most, "{kernel}: {}", after.grid);
            assert!(after.grid < before.grid, "{kernel}");
            persistent += 1;
        }
        assert!(after.overlapping, "{kernel}");
    }
    assert!(persistent > 10);
}

#[test]
fn full_and_short_grids_of_sm80_overlap_on_hopper() {
    let [hopper, ampere] = [90, 80].map(Target::typical);
    // M, N, K and whether kernels of several CTAs per SM overlap.
    for (m, n, k, expected) in
        [(100, 100, 100, true), (100, 100, 500, false), (9000, 9000, 500, true)]
    {
        let problem = gemm(F16, m, n, k, TNT);
        let mut sharing = 0;
        for position in ranked(&problem, Some(hopper), false) {
            let kernel = &all()[position];
            let Design::Sm80(config) = kernel.design else { continue };
            let overlaps = |target| {
                kernel.launch(&problem, target, 0, None).expect("there is an output").overlapping
            };
            let shares = config.ctas_per_sm(kernel.types, &hopper) > 1;
            sharing += usize::from(shares);
            assert_eq!(overlaps(hopper), expected || !shares, "{kernel}: {m}x{n}x{k}");
            assert!(!overlaps(ampere), "{kernel}");
        }
        assert!(sharing > 0);
    }
}
