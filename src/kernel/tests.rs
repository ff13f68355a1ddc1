use std::collections::HashSet;

use super::cost::{Asked, Footprint};
use super::launch::Sm90Params;
use super::*;
use crate::operand::DType::{Bf16, F16, F32};
use crate::operand::View;
use crate::problem::{ElementwiseProblem, GroupedGemmProblem};

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
            let found = ranked(&gemm(dtype, 4096, 4096, 4096, layout), H100, false);
            assert!(matches!(all()[found[0]].design, Design::Sm90(config) if config.layout == layout), "{layout}");
            let found = ranked(&gemm(dtype, 4096, 4096, 4096, layout), Some(Target::typical(80)), false);
            assert!(matches!(all()[found[0]].design, Design::Sm80(config) if config.layout == layout), "{layout}");
        }
    }
}

#[test]
fn parameters_are_what_the_header_says() {
    assert_eq!(size_of::<GemmParams>(), 128);
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
    assert!(ranked(&problem, H100, false).is_empty());
}

#[test]
fn large_squares_get_the_tile_that_measured_best() {
    for layout in Layout::all() {
        let found = ranked(&gemm(F16, 4096, 4096, 4096, layout), Some(Target { cc: 89, multiprocessors: 132 }), false);
        let Design::Sm80(config) = all()[found[0]].design else { panic!("not an sm80 kernel") };
        assert_eq!(config.tile, [128, 128, 64], "{layout}");
    }
}

#[test]
fn what_hopper_kernels_leave_to_others_is_said_by_extents() {
    let layout = Layout { a: Major::Row, b: Major::Row, out: Major::Row };
    let kernel_of = |problem: &Problem, over_grid: bool| {
        let wanted = |design: &Design| matches!(design, Design::Sm90(config) if config.over_grid == over_grid);
        let found = ranked(problem, H100, false);
        &all()[*found.iter().find(|at| wanted(&all()[**at].design)).expect("one of these")]
    };
    let over_grid = kernel_of(&gemm(F16, 256, 512, 2048, layout), true);
    let shallow = gemm(F16, 256, 512, 2047, layout);
    assert_eq!(over_grid.supports(&shallow), Err(Unsupported::Shallow { k: 2047, least: 2048 }));
    let few = gemm(F16, 4096, 4096, 2048, layout);
    assert!(matches!(over_grid.supports(&few), Err(Unsupported::Few { .. })));

    let in_float32 = |n| {
        let along_k = Layout { b: Major::Column, ..layout };
        let Problem::Gemm(problem) = gemm(F16, 256, n, 512, along_k) else { panic!("not a GEMM") };
        let out = View { dtype: DType::F32, ..problem.out };
        Problem::Gemm(GemmProblem { out, ..problem })
    };
    let kernel = kernel_of(&in_float32(264), false);
    assert_eq!(kernel.supports(&in_float32(264)), Ok(()));
    assert_eq!(kernel.supports(&in_float32(260)), Err(Unsupported::Uneven { n: 260, of: 8 }));
}

#[test]
fn few_tiles_of_deep_k_are_split_as_measured_best() {
    let row_major = Layout { a: Major::Row, b: Major::Row, out: Major::Row };
    // How many parts K has over the grid, or none where a cluster shares a tile.
    let measured = [
        ((256, 512, 32768), [128, 64], [2, 4], 4, Some(7)),
        ((512, 512, 8192), [128, 64], [2, 4], 4, Some(3)),
        ((192, 768, 12288), [128, 64], [2, 4], 4, Some(5)),
        // Second best, by 0.7 %: 128x64 in clusters of 4x2 takes 10.17 us.
        ((384, 384, 8192), [64, 64], [2, 2], 4, Some(3)),
        ((1024, 512, 16384), [128, 128], [1, 2], 4, Some(4)),
        ((136, 328, 42008), [128, 64], [2, 2], 4, Some(10)),
        ((120, 80, 7200), [64, 32], [1, 1], 8, None),
        // Not split at all. (Second best, by 1.6 %: 128x64 in pairs takes 5.75 us.)
        ((1024, 1024, 1024), [128, 80], [4, 2], 1, None),
    ];
    for ((m, n, k), tile, cluster, split, parts) in measured {
        let problem = gemm(F16, m, n, k, row_major);
        let kernel = &all()[ranked(&problem, H100, false)[0]];
        let Design::Sm90(config) = kernel.design else { panic!("{}", kernel.name()) };
        assert_eq!(
            (config.tile, config.cluster, config.split, config.over_grid),
            (tile, cluster, split, parts.is_some()),
            "{m} {n} {k}: {}",
            kernel.name()
        );
        if split > 1 {
            // Each of a cluster's tiles has as many CTAs as it is split for, or each part has a cluster for all of them.
            let launch = kernel.launch(&problem, Target::typical(90), 1 << 30).expect("there is an output");
            let [rows, columns] =
                [(m as u32).div_ceil(tile[0] * cluster[0]), (n as u32).div_ceil(tile[1] * cluster[1])];
            let tiles = rows * columns * cluster[0] * cluster[1];
            let size = cluster[0] * cluster[1] * if parts.is_some() { 1 } else { split };
            let expected = (tiles * parts.unwrap_or(split), size);
            assert_eq!((launch.grid, launch.cluster), expected, "{}", kernel.name());
            // All at once on an H100, and as much workspace as they all write.
            let Params::Sm90(Sm90Params { scalars, .. }) = launch.params else { panic!("not its parameters") };
            if let Some(parts) = parts {
                assert!(launch.grid <= 132 && scalars.parts == parts as i32);
                assert_eq!(scalars.workspace, 1 << 30);
                let bytes = u64::from(tiles * 256) + u64::from(launch.grid * tile[0] * tile[1] * 4);
                assert_eq!(kernel.workspace_bytes(&problem), bytes, "{}", kernel.name());
            } else {
                assert_eq!((scalars.workspace, kernel.workspace_bytes(&problem)), (0, 0));
            }
        }
    }
}

#[test]
fn split_tiles_in_several_rounds_are_ranked_as_they_were_timed() {
    // What an H100 took, in us (docs/benchmarks/chance_h100.json): 15 clusters of 8 run at once, and the others begin behind them.
    let measured = [
        ((336, 144, 2088), ([64, 32], 8, 7.54), ([64, 64], 4, 4.80)),
        ((872, 128, 3200), ([64, 64], 8, 9.19), ([64, 64], 2, 6.45)),
        ((64, 1536, 3584), ([64, 64], 8, 10.20), ([64, 64], 2, 7.70)),
    ];
    for ((m, n, k), slow, fast) in measured {
        let problem = gemm(F16, m, n, k, Layout { a: Major::Row, b: Major::Column, out: Major::Row });
        let kernels = ranked(&problem, H100, false);
        let rank = |(tile, split, us): ([u32; 2], u32, f64)| {
            let is_it = |design| {
                matches!(design, Design::Sm90(config) if (config.tile, config.split, config.cluster) == (tile, split, [1, 1])
                && !config.over_grid && !config.swapped && config.align == 16)
            };
            let of_it = |&position: &usize| is_it(all()[position].design) && all()[position].types.out == F16;
            (kernels.iter().position(of_it).unwrap_or_else(|| panic!("{tile:?} split {split}")), us)
        };
        let (slow, fast) = (rank(slow), rank(fast));
        assert!(slow.0 > fast.0, "{m} {n} {k}: {slow:?} {fast:?}");
    }
}

#[test]
fn k_over_the_grid_is_for_few_tiles() {
    let row_major = Layout { a: Major::Row, b: Major::Row, out: Major::Row };
    let over_grid = |kernel: &&Kernel| matches!(kernel.design, Design::Sm90(config) if config.over_grid && config.layout == row_major);
    let kernels: Vec<_> = all().iter().filter(|kernel| kernel.types.out == F16).filter(over_grid).collect();
    assert!(!kernels.is_empty());
    for kernel in kernels.iter().filter(|kernel| kernel.types.a == F16 && kernel.types.accumulator == F32) {
        let Design::Sm90(config) = kernel.design else { continue };
        let tiles = |m, n, k| {
            let [rows, columns] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
            gemm(F16, m * rows, n * columns, k, row_major)
        };
        let parts = |problem: &Problem| match problem {
            Problem::Gemm(problem) => config.k_parts(problem),
            _ => 0,
        };
        let most = i64::from(config.clusters_at_once(1, 132)) / 2;
        // Half of the chip and more is left free, or it is refused.
        assert_eq!(kernel.supports(&tiles(most, 1, 65536)), Ok(()));
        assert!(parts(&tiles(most, 1, 65536)) >= 2, "{}", kernel.name());
        let refused = kernel.supports(&tiles(most + 1, 1, 65536)).expect_err("too many tiles").to_string();
        assert!(
            refused.contains(&format!("is {}, and it is for products where that is at most {most}", most + 1)),
            "{refused}"
        );
        // At least 8 blocks of 64 for each; 16 parts at most; none without K.
        assert_eq!([0, 64, 1023, 1024, 2048].map(|k| parts(&tiles(1, 1, k))), [1, 1, 1, 2, 4], "{}", kernel.name());
        assert!(parts(&tiles(1, 1, 1 << 20)) <= 16);
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
                let Problem::Gemm(mut problem) = gemm(dtype, m, n, k, layout) else { panic!("not a GEMM") };
                problem.out.dtype = out;
                let problem = Problem::Gemm(problem);
                for position in ranked(&problem, H100, false) {
                    let kernel = &all()[position];
                    let Design::Sm90(config) = kernel.design else { continue };
                    seen.insert(position);
                    let launch = kernel.launch(&problem, Target::typical(90), 1 << 30).expect("there is an output");
                    let Params::Sm90(params) = launch.params else { panic!("not its parameters") };
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, &kernel.name()));
                    // As `Boxes` of the program takes them: a CTA's slice is some whole boxes, or one box holds all of the operand.
                    for (at, extent) in [params.scalars.m, params.scalars.n].into_iter().enumerate() {
                        let operand = if config.crossed() { 1 - at } else { at };
                        let k_major = config.k_major()[at] || config.packed[operand];
                        let (slice, rows) = (config.slices(at)[0], params.scalars.boxes[at] as u32);
                        let parts = slice / rows;
                        let whole = slice == parts * rows && (parts == 1 || (parts <= 4 && rows >= 32));
                        assert!(whole || (rows == extent as u32 && rows < slice), "{}: {rows} rows", kernel.name());
                        // What the program takes for granted there.
                        assert!(rows == slice || !config.loads_by_threads(), "{}: {rows} rows", kernel.name());
                        if let (Some(map), true) = (&params.maps[at], k_major) {
                            assert_eq!(map.box_extents[1], rows, "{}", kernel.name());
                        }
                    }
                    // Of the CTAs that share B, some have a box of 8 rows more, and together they have all of the tile.
                    let ([slice, shorter], sharers) = (config.slices(1), config.cluster[0]);
                    let longer = config.tile[1] / 8 % sharers;
                    assert_eq!(slice * longer + shorter * (sharers - longer), config.tile[1], "{}", kernel.name());
                    let b_along_k = config.k_major()[1] || config.packed[usize::from(!config.crossed())];
                    assert_eq!(params.b_shorter.is_some(), b_along_k && longer > 0, "{}", kernel.name());
                    if let (Some(shorter_map), Some(b)) = (params.b_shorter, params.maps[1]) {
                        let [k, rows, batch] = b.box_extents;
                        assert_eq!((rows, slice), (slice, shorter + 8), "{}", kernel.name());
                        assert_eq!(shorter_map, TensorMap { box_extents: [k, shorter, batch], ..b });
                        unequal += 1;
                    }
                    // Where it lies along N, the rows of its boxes are swizzled as they are long.
                    if let (Some(b), false) = (params.maps[1], b_along_k) {
                        let row = b.box_extents[0] * kernel.types.a.bytes() as u32;
                        assert_eq!(
                            (row, b.swizzle),
                            (config.row_bytes(1), TensorMap::swizzle(row)),
                            "{}",
                            kernel.name()
                        );
                        narrow += u32::from(row == 64);
                    }
                    assert_eq!(launch.grid % launch.cluster, 0);
                    assert!(launch.shared_bytes <= 227 * 1024 && launch.cluster <= 8);
                    let needed = (config.packed.contains(&true) && k > 0) || config.over_grid;
                    assert_eq!(kernel.workspace_bytes(&problem) > 0, needed, "{}", kernel.name());
                    assert_eq!(launch.pack.is_some(), config.packed.contains(&true));
                }
            }
        }
    }
    assert!(seen.len() > 100, "{} kernels", seen.len());
    assert!(unequal > 100 && narrow > 100, "{unequal} with unequal slices, {narrow} with narrow rows");
}

#[test]
fn of_float32_operands_no_more_is_copied_than_must_be() {
    for layout in Layout::all() {
        let k_major = [layout.a == Major::Row, layout.b == Major::Column];
        let copies = usize::from(k_major == [false, false]);
        let problem = gemm(F32, 4096, 4096, 4096, layout);
        let kernel = &all()[ranked(&problem, H100, false)[0]];
        let Design::Sm90(config) = kernel.design else { panic!("{layout}: {}", kernel.name()) };
        assert_eq!(config.packed.iter().filter(|packed| **packed).count(), copies, "{layout}");
        let launch = kernel.launch(&problem, Target::typical(90), 1 << 30).expect("there is an output");
        let Params::Sm90(Sm90Params { maps: [Some(a), Some(b), _], .. }) = launch.params else { panic!("two maps") };
        assert_eq!((a.data_type, b.data_type), (11, 11), "rounded to tf32 on their way");
        // What is not K-major is the program's A, in boxes of 128 bytes by a K block.
        let from_registers = k_major != [true, true];
        assert_eq!(config.a_from_registers(kernel.types), from_registers);
        assert!(!from_registers || a.box_extents == [32, 32 / config.cluster[1], 1], "{layout}: {a:?}");
        assert_eq!(b.box_extents, [32, config.tile[1] / config.cluster[0], 1], "{layout}");

        // Rows of 4095 elements are not aligned, and are copied.
        let kernel = &all()[ranked(&gemm(F32, 4095, 4095, 4095, layout), H100, false)[0]];
        assert!(matches!(kernel.design, Design::Sm90(Sm90 { packed: [true, true], .. })), "{layout}");
    }
}

/// Kernels of a family that serve a problem, first guess first.
fn skinny(problem: &Problem, target: Target) -> Vec<(&'static Kernel, Skinny)> {
    let found = ranked(problem, Some(target), false).into_iter().map(|position| &all()[position]);
    let of_family = |kernel: &'static Kernel| match kernel.design {
        Design::Skinny(config) => Some((kernel, config)),
        _ => None,
    };
    found.filter_map(of_family).collect()
}

#[test]
fn skinny_kernels_serve_what_is_narrow_and_nothing_else() {
    for layout in Layout::all() {
        for dtype in [F16, Bf16, F32] {
            let most = if dtype == F32 { 16 } else { 64 };
            for few in [1, 3, 8, 16, 64] {
                let by_rows = skinny(&gemm(dtype, few, 4096, 512, layout), Target::typical(90));
                let by_columns = skinny(&gemm(dtype, 4096, few, 512, layout), Target::typical(90));
                assert_eq!(by_rows.is_empty(), few > most, "{dtype} {few} {layout}");
                assert!(by_rows.iter().all(|(kernel, config)| config.narrow == Narrow::M && !kernel.is_transposed()));
                assert!(by_columns.iter().all(|(kernel, config)| config.narrow == Narrow::N && kernel.is_transposed()));
                assert_eq!(by_rows.is_empty(), by_columns.is_empty());
                for (_, config) in by_rows.iter().chain(&by_columns) {
                    assert!(i64::from(config.tokens) >= few);
                    assert!(few == 1 || (config.a, config.b) == (layout.a, layout.b));
                }
            }
            assert!(skinny(&gemm(dtype, 65, 4096, 512, layout), Target::typical(90)).is_empty());
        }
    }
    let Problem::Gemm(wide) = gemm(F16, 100, 4096, 512, Layout::all().next().unwrap()) else { panic!("not a GEMM") };
    let (_, config) = skinny(&gemm(F16, 1, 4096, 512, Layout::all().next().unwrap()), Target::typical(90))[0];
    let limit = i64::from(config.tokens);
    assert_eq!(config.check_extents(&wide), Err(Unsupported::Few { dimension: "M", extent: 100, limit }));
}

#[test]
fn narrow_problems_of_unaligned_rows_have_skinny_kernels_too() {
    for layout in Layout::all() {
        for (m, n) in [(5, 4095), (4095, 5)] {
            for cc in [80, 86, 90, 120] {
                let found = skinny(&gemm(F32, m, n, 4097, layout), Target::typical(cc));
                assert!(found.iter().all(|(kernel, config)| config.align == 4 && kernel.runs_on(cc)));
                let found = skinny(&gemm(F16, m, n, 4097, layout), Target::typical(cc));
                assert!(found.iter().all(|(_, config)| config.align == 2));
                assert!(cc != 90 || !found.is_empty());
            }
        }
    }
}

#[test]
fn skinny_launches_read_all_of_the_wide_operand() {
    let (rows, columns) = (gemm(F16, 8, 5000, 4096, TNT), gemm(F16, 5000, 8, 4096, TNT));
    for (problem, narrow) in [(rows, Narrow::M), (columns, Narrow::N)] {
        let found = skinny(&problem, Target::typical(90));
        assert!(found.iter().any(|(_, config)| config.split > 1));
        for (kernel, config) in found {
            assert_eq!(config.narrow, narrow);
            let launch = kernel.launch(&problem, Target::typical(90), 0).expect("there is an output");
            let Params::Gemm(params) = launch.params else { panic!("not its parameters") };
            assert_eq!((params.m, params.n, params.k), (8, 5000, 4096));
            assert_eq!(launch.grid, 5000u32.div_ceil(config.tile[0]) * config.split);
            assert_eq!((launch.cluster, launch.block), (config.split, Skinny::THREADS));
            assert_eq!(launch.shared_bytes, kernel.shared_bytes());
            assert!(config.split == 1 || kernel.min_cc() == 90);
            // Kernels follow each other without a gap where that was measured to pay, and nowhere else.
            let elsewhere = kernel.launch(&problem, Target::typical(100), 0).expect("there is an output");
            assert!(!elsewhere.overlapping);
            let many = Target { cc: 90, multiprocessors: 5000 };
            let alone = config.ctas_per_sm(kernel.types) == 1;
            assert_eq!(kernel.launch(&problem, many, 0).expect("there is an output").overlapping, alone);
            let few = Target { cc: 90, multiprocessors: 10 };
            assert!(kernel.launch(&problem, few, 0).expect("there is an output").overlapping);
        }
    }
}

const TNT: Layout = Layout { a: Major::Row, b: Major::Column, out: Major::Row };

#[test]
fn skinny_kernels_fit_the_chips_that_they_run_on() {
    let all_chips = [80, 86, 89, 90, 100, 120];
    let (mut everywhere, mut on_some) = (0, 0);
    for kernel in all().iter().filter(|kernel| matches!(kernel.design, Design::Skinny(_))) {
        assert!(kernel.shared_bytes() <= 227 * 1024, "{}", kernel.name());
        assert!(kernel.runs_on(90) && kernel.runs_on(100), "{}", kernel.name());
        match all_chips.iter().all(|cc| kernel.runs_on(*cc)) {
            true => everywhere += 1,
            false => on_some += 1,
        }
        assert_eq!(kernel.runs_on(86), kernel.min_cc() == 80 && kernel.shared_bytes() <= 99 * 1024);
    }
    assert!(everywhere > 50 && on_some > 50, "{everywhere} {on_some}");
    for dtype in [F16, F32] {
        for cc in [80, 86, 89, 100, 120] {
            let found = ranked(&gemm(dtype, 1, 4096, 4096, TNT), Some(Target::typical(cc)), false);
            let rounds = |kernel: &Kernel| dtype == F32 && matches!(kernel.design, Design::Sm80(_));
            let first = found.iter().map(|position| &all()[*position]).find(|kernel| !rounds(kernel)).expect("some");
            assert!(matches!(first.design, Design::Skinny(_)), "{dtype} {cc} {}", first.name());
        }
    }
}

#[test]
fn grids_beyond_32_bits_are_refused() {
    let Problem::Gemm(small) = gemm(F16, 1, 1, 64, Layout { a: Major::Row, b: Major::Column, out: Major::Row }) else {
        panic!("not a GEMM")
    };
    let batched = |view: View| View { rank: 3, shape: [1 << 29, view.shape[1], view.shape[2]], ..view };
    let out = View { stride: [1, 0, 0], ..batched(small.out) };
    let problem = GemmProblem::new(batched(small.a), batched(small.b), out, F32).expect("shapes agree");
    let mut refused = 0;
    for kernel in all().iter().filter(|kernel| kernel.types.a == F16 && kernel.types.out == F16) {
        let Design::Sm90(config) = kernel.design else { continue };
        let ctas = config.tiles(&problem) * u64::from(config.split);
        let served = kernel.supports(&Problem::Gemm(problem)).is_ok();
        refused += u32::from(ctas > i32::MAX as u64);
        assert!(!served || ctas <= i32::MAX as u64, "{}", kernel.name());
    }
    assert!(refused > 0);
}

/// Row-major but for B. `offsets` lie behind each other with this step.
fn grouped(dtype: DType, rows: i64, n: i64, k: i64, groups: i64, b: Major, step: i64) -> Problem {
    let device = Device::Cuda(0);
    let stacked = |major: Major| match major {
        Major::Row => [k * n, n, 1],
        Major::Column => [k * n, 1, k],
    };
    let b = View { rank: 3, shape: [groups, k, n], stride: stacked(b), ..matrix(dtype, device, k, n, b) };
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

#[test]
fn groups_are_for_the_tensor_cores_where_they_can_be() {
    let family = |problem: &Problem, cc| {
        let found = ranked(problem, Some(Target::typical(cc)), false);
        assert!(found.iter().all(|position| all()[*position].operation() == Operation::GroupedGemm));
        all()[*found.first().expect("simt serves everything")].design
    };
    for dtype in [F16, Bf16] {
        for b in Major::BOTH {
            for (rows, groups) in [(8192, 12), (64, 64), (5, 3)] {
                assert!(matches!(family(&grouped(dtype, rows, 2048, 1024, groups, b, 1), 90), Design::Sm90(_)));
                assert!(matches!(family(&grouped(dtype, rows, 2048, 1024, groups, b, 1), 80), Design::Sm80(_)));
                // Rows of 1027 and 1026 elements are aligned to no more than 2 and 4 bytes.
                for odd in [1027, 1026].into_iter().filter(|_| rows > 5) {
                    assert!(matches!(family(&grouped(dtype, rows, odd, odd, groups, b, 1), 90), Design::Sm80(_)));
                }
            }
        }
    }
    assert!(matches!(family(&grouped(F32, 100, 64, 64, 3, Major::Row, 1), 90), Design::Simt(_)));
}

#[test]
fn a_grouped_launch_has_the_offsets_and_a_tile_for_every_strip() {
    let target = Target { cc: 90, multiprocessors: 1 << 20 };
    for (rows, n, groups, b) in [(8192, 2048, 12, Major::Column), (100, 264, 70, Major::Row), (1, 8, 1, Major::Row)] {
        let problem = grouped(Bf16, rows, n, 512, groups, b, 3);
        let found = ranked(&problem, Some(target), false);
        assert!(found.len() >= 10);
        for kernel in found.into_iter().map(|position| &all()[position]) {
            let launch = kernel.launch(&problem, target, 0).expect("there is an output");
            let (offsets, batch, [height, width]) = match (launch.params, &kernel.design) {
                (Params::Sm90(params), Design::Sm90(config)) => {
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, &kernel.name()));
                    let [a, b, out] = params.maps.map(|map| map.expect("all are aligned").extents[2]);
                    assert_eq!((a, b, out), (1, groups as u64, 1), "{}", kernel.name());
                    let [m, n] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
                    (params.scalars.offsets, params.scalars.batch, [m, n])
                }
                (Params::Gemm(params), Design::Sm80(Sm80 { tile, .. }) | Design::Simt(Simt { tile, .. })) => {
                    (params.offsets, params.batch, [i64::from(tile[0]), i64::from(tile[1])])
                }
                _ => panic!("no grouped kernel: {}", kernel.name()),
            };
            let Problem::GroupedGemm(GroupedGemmProblem { offsets: view, .. }) = problem else { panic!("not grouped") };
            assert_eq!(offsets, GroupOffsets::new(Some(&view)));
            assert_eq!(i64::from(batch), groups);
            // The most strips come about where all groups but one end a row into their last.
            let columns = (n + width - 1) / width;
            let alone = (groups - 1).min(rows);
            let strips = alone + (rows - alone + height - 1) / height;
            let clusters = i64::from(launch.grid / launch.cluster);
            assert!(clusters >= strips * columns && clusters <= (strips + groups) * columns, "{}", kernel.name());
            assert_eq!(kernel.workspace_bytes(&problem), 0);
        }
    }
}

#[test]
fn without_groups_or_rows_nothing_is_launched() {
    for (rows, n, groups) in [(100, 64, 0), (0, 64, 3), (100, 0, 3)] {
        let problem = grouped(Bf16, rows, n, 64, groups, Major::Row, 1);
        let found = ranked(&problem, H100, false);
        assert!(!found.is_empty());
        assert!(found.iter().all(|position| all()[*position].launch(&problem, Target::typical(90), 0).is_none()));
    }
}

#[test]
fn one_offset_a_group_or_no_kernel() {
    let Problem::GroupedGemm(mut problem) = grouped(Bf16, 64, 64, 64, 4, Major::Row, 1) else { panic!("not grouped") };
    problem.offsets.shape[2] = 3;
    assert!(ranked(&Problem::GroupedGemm(problem), H100, false).is_empty());
    let kernel = all().iter().find(|kernel| kernel.operation() == Operation::GroupedGemm && kernel.types.a == Bf16);
    let kernel = kernel.expect("there are some");
    assert_eq!(
        kernel.addresses(&Problem::GroupedGemm(problem)),
        Err(match kernel.types.out {
            Bf16 => Unsupported::Offsets { offsets: 3, groups: 4 },
            expected => Unsupported::DType { name: "out", actual: Bf16, expected },
        })
    );
}

#[test]
fn threads_load_what_few_tiles_have_and_no_more() {
    let sm90 = |problem: &Problem| -> Vec<Sm90> {
        let found = ranked(problem, H100, false).into_iter().map(|position| all()[position].design);
        found.filter_map(|design| if let Design::Sm90(config) = design { Some(config) } else { None }).collect()
    };
    let first = |m, n, k, layout| sm90(&gemm(F16, m, n, k, layout))[0];
    let rows = Layout { a: Major::Row, b: Major::Row, out: Major::Row };
    assert_eq!(first(300, 5000, 700, rows).align, 8);
    assert_eq!(first(300, 5000, 702, rows).align, 4);
    assert_eq!(first(300, 5000, 704, rows).align, 16);
    assert_eq!(first(4096, 4096, 4100, rows).packed, [true, false]);
    // B is what lies along K here, so that the transposed product is computed, and written transposed.
    let columns = Layout { a: Major::Column, b: Major::Column, out: Major::Row };
    let config = first(304, 5000, 700, columns);
    assert_eq!((config.align, config.swapped, config.aligned_to(0), config.aligned_to(1)), (8, true, 16, 8));
    // Odd rows are of no alignment that they load; float32 would have to be rounded; those of both operands are copied.
    for problem in [gemm(F16, 300, 5000, 701, rows), gemm(F32, 300, 5000, 701, TNT), gemm(F16, 300, 5001, 700, rows)] {
        let found = sm90(&problem);
        assert!(!found.is_empty() && found.iter().all(|config| config.align == 16));
    }
    // Nor is there anything between a row's last whole piece and its end.
    let Problem::Gemm(padded) = gemm(F16, 300, 5000, 699, rows) else { panic!("not a GEMM") };
    let padded = GemmProblem { a: View { stride: [0, 700, 1], ..padded.a }, ..padded };
    assert!(sm90(&Problem::Gemm(padded)).iter().all(|config| config.align == 16));
}

/// What [`ranked`] gives, found by asking every kernel there is.
fn asked_one_by_one(problem: &Problem, target: Option<Target>, fused: bool) -> Vec<usize> {
    let product = problem.product();
    let seconds = |kernel: &Kernel| {
        let (Some(target), Some(problem)) = (target, product.as_deref()) else { return 0.0 };
        let copied_bytes = match &kernel.design {
            Design::Sm90(config) => config.copies(problem).unwrap_or_default(),
            _ => 0,
        };
        Asked { problem, target, fused, copied_bytes }.seconds(kernel, Footprint::of(kernel))
    };
    let serves = |kernel: &Kernel| {
        let runs = target.is_none_or(|target| kernel.runs_on(target.cc)) && (!fused || kernel.takes_epilogues());
        runs && kernel.supports(problem).is_ok()
    };
    let serving = all().iter().enumerate().filter(|(_, kernel)| serves(kernel));
    let mut found: Vec<(f64, usize)> = serving.map(|(position, kernel)| (seconds(kernel), position)).collect();
    found.sort_by(|left, right| left.0.total_cmp(&right.0));
    found.into_iter().map(|(_, position)| position).collect()
}

#[test]
fn groups_find_what_asking_every_kernel_finds() {
    let mut problems = Vec::new();
    for (m, n, k) in
        [(1, 1, 1), (128, 128, 128), (0, 5, 7), (300, 5000, 700), (387, 264, 131), (1, 4096, 4096), (4095, 4, 30)]
    {
        for layout in Layout::all() {
            for (dtype, out) in [(F16, F16), (Bf16, F32), (F32, F32), (DType::I8, DType::I32)] {
                let Problem::Gemm(mut plain) = gemm(dtype, m, n, k, layout) else { panic!("not a GEMM") };
                plain.out.dtype = out;
                plain.accumulator = if dtype == DType::I8 { DType::I32 } else { F32 };
                problems.push(Problem::Gemm(plain));
                if ![1, 700].contains(&k) {
                    continue;
                }
                for bytes in [2, 4, 8] {
                    let a = View { data: plain.a.data + bytes, ..plain.a };
                    problems.push(Problem::Gemm(GemmProblem { a, ..plain }));
                    let wider = plain.b.stride.map(|step| if step > 1 { step + bytes as i64 } else { step });
                    problems.push(Problem::Gemm(GemmProblem { b: View { stride: wider, ..plain.b }, ..plain }));
                }
                let repeated = View { stride: [0, 0, 1], ..plain.a };
                problems.push(Problem::Gemm(GemmProblem { a: repeated, ..plain }));
                problems.push(Problem::Gemm(GemmProblem { accumulator: F16, ..plain }));
                problems.push(Problem::Gemm(plain).on(Device::Cpu));
            }
        }
    }
    for (rows, n, groups) in [(8192, 2048, 12), (100, 65, 7), (5, 8, 0)] {
        for b in Major::BOTH {
            problems.push(grouped(Bf16, rows, n, 512, groups, b, 1));
        }
    }
    let a = matrix(F16, Device::Cuda(0), 100, 64, Major::Row);
    problems.push(Problem::Elementwise(ElementwiseProblem { a, b: a, out: a }));
    let (mut found, mut several) = (HashSet::new(), 0);
    for problem in &problems {
        let targets: &[_] = match problem.device() {
            Device::Cpu => &[None],
            Device::Cuda(_) => &[H100, Some(Target { cc: 86, multiprocessors: 84 })],
        };
        for (target, fused) in targets.iter().flat_map(|target| [(*target, false), (*target, true)]) {
            let positions = ranked(problem, target, fused);
            assert_eq!(positions, asked_one_by_one(problem, target, fused), "{target:?} {fused} {problem:?}");
            several += usize::from(positions.len() > 10);
            found.extend(positions);
        }
    }
    assert!(found.len() > 1000 && several > 300, "{} kernels, {several} long lists", found.len());
}

#[test]
fn demands_are_met_by_what_their_words_say() {
    let aligned = Demand::aligned(Major::Row, 16);
    let steps = Demand { steps: true, ..aligned };
    let whole = Demand { whole: Demand::whole_along(Major::Row), ..aligned };
    let column = Demand::aligned(Major::Column, 4);
    // Of a float16 operand: 100 rows, columns, address, strides; whether each demand is met.
    let cases = [
        ((64, 0x1000, [64, 1]), [true, true, true, false]), // row-major, all multiples of 16 bytes
        ((64, 0x1008, [64, 1]), [false, false, false, false]), // an address of 8
        ((60, 0x1000, [60, 1]), [false, false, false, false]), // rows of 120 bytes
        ((60, 0x1000, [64, 1]), [true, true, false, false]), // of 120, 128 apart
        ((64, 0x1000, [0, 1]), [true, false, true, false]), // one row, repeated
        ((64, 0x1000, [64, 2]), [false, false, false, false]), // every other column
        ((64, 0x1000, [1, 100]), [false, false, false, true]), // column-major, columns of 200 bytes
        ((64, 0x1002, [1, 100]), [false, false, false, false]), // an address of 2
        ((64, 0x1000, [1, 101]), [false, false, false, false]), // columns 202 bytes apart
    ];
    for ((columns, data, [row, column_step]), expected) in cases {
        let view = View {
            data,
            shape: [1, 100, columns],
            stride: [0, row, column_step],
            ..matrix(F16, Device::Cuda(0), 100, columns, Major::Row)
        };
        let met = [aligned, steps, whole, column].map(|demand| demand.is_met(&view));
        assert_eq!(met, expected, "{columns} columns at {data:#x}, strides {row}, {column_step}");
        assert!(Demand::NONE.is_met(&view));
        for (demand, met) in [aligned, steps, whole, column].into_iter().zip(met) {
            assert_eq!(demand.check("A", &view).is_ok(), met);
        }
    }
}

#[test]
fn an_index_of_groups_decides_about_few() {
    // 72 demands stand for the hundreds of kernels of one type; were they one a kernel, nothing would be won.
    let types = Types { a: F16, b: F16, accumulator: F32, out: F16 };
    let kernels = all().iter().filter(|kernel| kernel.types == types && kernel.operation() == Operation::Gemm);
    let demands: HashSet<[Demand; 3]> = kernels.clone().map(Kernel::demands).collect();
    assert!(demands.len() <= 120 && kernels.count() > 5 * demands.len(), "{} demands", demands.len());
}

#[test]
fn bands_are_those_that_were_fast() {
    let band = |[m, n, k]: [i64; 3], layout: &str, name: &str| {
        let b = if layout == "tt" { Major::Row } else { Major::Column };
        let problem = gemm(F16, m, n, k, Layout { a: Major::Row, b, out: Major::Row });
        let Problem::Gemm(problem) = &problem else { unreachable!("made above") };
        let named = all().iter().find(|kernel| {
            let Design::Sm90(_) = kernel.design else { return false };
            let Types { a, out, accumulator, .. } = kernel.types;
            let name = format!("_{layout}t_{name}");
            (a, out, accumulator) == (F16, F16, F32)
                && !kernel.operation().name().contains("grouped")
                && kernel.name().ends_with(&name)
        });
        let Some(Kernel { design: Design::Sm90(config), .. }) = named else { panic!("there is no {name}") };
        config.band(&config.grid(problem))
    };
    // 207.6 us, where 8 takes 211.8 and 4 takes 218.6; 26.6 us, where 8 takes 29.5 (docs/notes/sm90.md, run 17).
    assert_eq!(band([4096; 3], "tt", "128x128x64_pingpong2_6stages_cluster1x2"), 16);
    assert_eq!(band([2048; 3], "tt", "128x128x64_pingpong2_6stages_cluster2x1"), 2);
    // 24.9 us, where 8 takes 29.8.
    assert_eq!(band([1024, 1280, 5120], "tn", "128x80x64_cooperative2_8stages_cluster2x1"), 1);
    // One way to walk them.
    assert_eq!(band([64, 4096, 4096], "tn", "64x64x64_cooperative1_12stages_cluster1x1"), 8);
}

/// What the GPCs of an empty chip draw of tiles walked so, counted one by one.
fn drawn_by_gpcs(tiles: [u32; 2], tile: [u32; 2], band: u32) -> u32 {
    let mut walk = Vec::new();
    for first in (0..tiles[0]).step_by(band as usize) {
        let rows = first..tiles[0].min(first + band);
        walk.extend((0..tiles[1]).flat_map(|column| rows.clone().map(move |row| (row, column))));
    }
    let different = |of: Vec<u32>| of.into_iter().collect::<HashSet<_>>().len() as u32;
    let drawn = |gpc: &[(u32, u32)]| {
        let (rows, columns) = gpc.iter().copied().unzip();
        different(rows) * tile[0] + different(columns) * tile[1]
    };
    walk.chunks(16).map(drawn).sum()
}

#[test]
fn tiles_of_one_round_are_placed_gpc_by_gpc() {
    let mut bands = HashSet::new();
    for (m, n, k) in [(1024, 1024, 8960), (320, 1536, 4608), (584, 1856, 6080), (2048, 640, 7104), (192, 1600, 7040)] {
        for layout in Layout::all() {
            let problem = gemm(F16, m, n, k, layout);
            let Problem::Gemm(gemm) = &problem else { unreachable!() };
            for kernel in ranked(&problem, H100, false).into_iter().map(|position| &all()[position]) {
                let Design::Sm90(config) = &kernel.design else { continue };
                let launch = kernel.launch(&problem, Target::typical(90), 0).expect("there is an output");
                let Params::Sm90(params) = &launch.params else { panic!("not its parameters") };
                if launch.overlapping {
                    continue;
                }
                // Each CTA has one tile of its own, and no other kernel's besides.
                let grid = config.grid(gemm);
                let tiles = grid.clusters.map(|tiles| tiles as u32);
                assert_eq!((launch.cluster, launch.grid), (1, tiles[0] * tiles[1]), "{}", kernel.name());
                assert!(launch.grid <= 132 && launch.pack.is_none(), "{}", kernel.name());
                let band = params.scalars.band as u32;
                let placement = config.placement(gemm, &grid, 1, 132).expect("it is placed");
                let drawn = |band| f64::from(drawn_by_gpcs(tiles, config.tile, band));
                assert_eq!((placement.band, placement.drawn), (band, drawn(band)), "{}", kernel.name());
                assert!((1..=8).all(|other| other == 7 || drawn(band) <= drawn(other)), "{}", kernel.name());
                // Less than by lot, or there was nothing to win.
                assert!(placement.drawn < placement.drawn_anywhere, "{}", kernel.name());
                bands.insert(band);
            }
        }
    }
    assert!(bands.len() >= 4, "{bands:?}");
}
