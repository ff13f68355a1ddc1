//! The kernels that serve a problem, and their order.

use super::*;

#[test]
fn large_squares_get_the_largest_efficient_tile() {
    for layout in Layout::all() {
        let found = ranked(
            &gemm(F16, 4096, 4096, 4096, layout),
            Some(Target { multiprocessors: 132, ..Target::typical(89) }),
            false,
        );
        let Design::Sm80(config) = all()[found[0]].design else { panic!("not an sm80 kernel") };
        // Of 128x128x64, an SM of compute capability 8.9 holds one CTA.
        assert_eq!(config.tile, [128, 256, 32], "{layout}");
    }
}

/// How the first kernel splits K.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    Whole,
    InCluster,
    OverGrid,
}

#[test]
fn few_tiles_of_deep_k_are_split() {
    for ((m, n, k), cut) in [
        ((256, 512, 32768), Cut::OverGrid),
        ((512, 512, 8192), Cut::OverGrid),
        ((192, 768, 12288), Cut::OverGrid),
        ((384, 384, 8192), Cut::OverGrid),
        ((1024, 512, 16384), Cut::OverGrid),
        ((136, 328, 42008), Cut::OverGrid),
        ((120, 80, 7200), Cut::InCluster),
        ((1024, 1024, 1024), Cut::Whole),
    ] {
        let product = &product(F16, m, n, k, ROW_MAJOR);
        let problem = Problem::Gemm(*product);
        let kernel = first_for(&problem);
        let Design::Sm90(config) = kernel.design else { panic!("{kernel}") };
        let found = match (config.over_grid, config.split) {
            (true, _) => Cut::OverGrid,
            (false, 1) => Cut::Whole,
            (false, _) => Cut::InCluster,
        };
        assert_eq!(found, cut, "{m} {n} {k}: {kernel}");
        if cut == Cut::Whole {
            continue;
        }
        // A cluster split multiplies the CTAs of a cluster, a grid split the clusters.
        let launch = launch_of(kernel, &problem);
        let clusters = [(m, 0), (n, 1)]
            .map(|(extent, at)| (extent as u32).div_ceil(config.tile[at] * config.cluster[at]));
        let tiles = clusters[0] * clusters[1] * config.cluster[0] * config.cluster[1];
        let splits = config.k_splits(product);
        let size = config.cluster[0] * config.cluster[1];
        let size = if config.over_grid { size } else { size * splits };
        assert_eq!((launch.grid, launch.cluster), (tiles * splits, size), "{kernel}");
        let Params::Sm90(Sm90Params { scalars, .. }) = launch.params else {
            panic!("not its parameters")
        };
        if config.over_grid {
            // All CTAs run at once on an H100, and the workspace holds the partial sums of each.
            assert!(launch.grid <= 132 && scalars.splits_or_stacked == splits as i32 && splits > 1);
            assert_eq!(scalars.workspace_or_index, 1 << 30);
            let bytes = u64::from(tiles * 256)
                + u64::from(launch.grid * config.tile[0] * config.tile[1] * 4);
            assert_eq!(kernel.workspace_bytes(&problem), bytes, "{kernel}");
        } else {
            assert_eq!((scalars.workspace_or_index, kernel.workspace_bytes(&problem)), (0, 0));
        }
    }
}

#[test]
fn split_tiles_run_in_one_wave_if_they_can() {
    // A second wave of split tiles begins after the first has ended and takes equally long.
    for (m, n, k) in [(336, 144, 2088), (872, 128, 3200), (64, 1536, 3584)] {
        let product = &product(F16, m, n, k, TNT);
        let problem = Problem::Gemm(*product);
        let clusters_over_slots = |position: usize| match all()[position].design {
            Design::Sm90(config) if config.in_cluster() => {
                let slots = config.clusters_at_once(all()[position].facts.ctas_per_sm, 132);
                Some(config.tiles(product) as f64 / f64::from(slots))
            }
            _ => None,
        };
        let waves: Vec<f64> =
            ranked(&problem, H100, false).into_iter().filter_map(clusters_over_slots).collect();
        assert!(waves[0] <= 1.0, "{m} {n} {k}: {waves:?}");
        assert!(waves.iter().any(|waves| *waves > 1.0), "{m} {n} {k}: {waves:?}");
    }
}

#[test]
fn grid_splits_are_for_few_tiles() {
    let over_grid = |kernel: &&Kernel| match kernel.design {
        Design::Sm90(config) => config.over_grid && kernel.frame.layout(config.layout) == ROW_MAJOR,
        _ => false,
    };
    let kernels: Vec<_> =
        all().iter().filter(|kernel| kernel.types.out == F16).filter(over_grid).collect();
    assert!(!kernels.is_empty());
    for kernel in
        kernels.iter().filter(|kernel| kernel.types.a == F16 && kernel.types.accumulator == F32)
    {
        let Design::Sm90(config) = kernel.design else { continue };
        let tiles = |m, n, k| {
            let [rows, columns] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
            gemm(F16, m * rows, n * columns, k, ROW_MAJOR)
        };
        let splits = |problem: &Problem| match problem {
            Problem::Gemm(problem) => config.k_splits(problem),
            _ => 0,
        };
        let most = i64::from(config.clusters_at_once(1, 132)) / 2;
        // A grid split refuses problems that leave less than half of the chip idle.
        assert_eq!(kernel.supports(&tiles(most, 1, 65536)), Ok(()));
        assert!(splits(&tiles(most, 1, 65536)) >= 2, "{kernel}");
        let refused =
            kernel.supports(&tiles(most + 1, 1, 65536)).expect_err("too many tiles").to_string();
        assert!(
            refused.contains(&format!("is {}, and the kernel serves at most {most}", most + 1)),
            "{refused}"
        );
        // A slice has at least 8 blocks of 64 elements. There are 1 to 16 slices, 1 if K is 0.
        assert_eq!(
            [0, 64, 1023, 1024, 2048].map(|k| splits(&tiles(1, 1, k))),
            [1, 1, 1, 2, 4],
            "{kernel}"
        );
        assert!(splits(&tiles(1, 1, 1 << 20)) <= 16);
    }
}

#[test]
fn threads_load_what_few_tiles_have_and_no_more() {
    let sm90 = |problem: &Problem| -> Vec<Sm90> {
        let config = |kernel: &Kernel| match kernel.design {
            Design::Sm90(config) => Some(config),
            _ => None,
        };
        kernels_for(problem).filter_map(config).collect()
    };
    let first = |m, n, k, layout| sm90(&gemm(F16, m, n, k, layout))[0];
    assert_eq!(first(300, 5000, 700, ROW_MAJOR).align, 8);
    assert_eq!(first(300, 5000, 702, ROW_MAJOR).align, 4);
    assert_eq!(first(300, 5000, 704, ROW_MAJOR).align, 16);
    assert_eq!(first(4096, 4096, 4100, ROW_MAJOR).packed, [true, false]);
    // B is the K-major operand: the program computes the transposed product and writes it
    // transposed.
    let columns = Layout { a: Major::Column, b: Major::Column, out: Major::Row };
    let config = first(304, 5000, 700, columns);
    assert_eq!(
        (config.align, config.swapped, config.aligned_to(0), config.aligned_to(1)),
        (8, true, 16, 8)
    );
    // Threads load only one operand. They load neither odd rows nor float32, which needs rounding.
    for problem in [
        gemm(F16, 300, 5000, 701, ROW_MAJOR),
        gemm(F32, 300, 5000, 701, TNT),
        gemm(F16, 300, 5001, 700, ROW_MAJOR),
    ] {
        let found = sm90(&problem);
        assert!(!found.is_empty() && found.iter().all(|config| config.align == 16));
    }
    // Threads load whole pieces, so a row must be a multiple of a piece.
    let padded = product(F16, 300, 5000, 699, ROW_MAJOR);
    let padded = GemmProblem { a: View { stride: [0, 700, 1], ..padded.a }, ..padded };
    assert!(sm90(&Problem::Gemm(padded)).iter().all(|config| config.align == 16));
}

/// The result of [`ranked`], computed by checking every kernel.
fn ranked_one_by_one(problem: &Problem, target: Option<Target>, fused: bool) -> Vec<usize> {
    let product = problem.mean_product();
    let seconds = |kernel: &Kernel| {
        let (Some(target), Some(problem)) = (target, product.as_deref()) else { return 0.0 };
        let problem = &kernel.frame.gemm(problem);
        let packed_bytes = kernel.packed_bytes(problem).unwrap_or_default();
        let query = CostQuery::new(problem, target, fused, packed_bytes);
        kernel.estimate_in_frame(&query).total_seconds
    };
    let serves = |kernel: &Kernel| {
        let runs = target.is_none_or(|target| kernel.runs_on(target.cc))
            && kernel.check_fusion(problem, fused.into()).is_ok();
        runs && kernel.supports(problem).is_ok()
    };
    let serving = all().iter().enumerate().filter(|(_, kernel)| serves(kernel));
    let mut found: Vec<(f32, usize)> =
        serving.map(|(position, kernel)| (seconds(kernel) as f32, position)).collect();
    found.sort_by(|left, right| left.0.total_cmp(&right.0));
    found.into_iter().map(|(_, position)| position).collect()
}

#[test]
fn groups_find_what_checks_of_every_kernel_find() {
    let mut problems = Vec::new();
    for (m, n, k) in [
        (1, 1, 1),
        (128, 128, 128),
        (0, 5, 7),
        (300, 5000, 700),
        (387, 264, 131),
        (1, 4096, 4096),
        (4095, 4, 30),
    ] {
        for layout in Layout::all() {
            for (dtype, out) in [(F16, F16), (Bf16, F32), (F32, F32), (DType::I8, DType::I32)] {
                let mut plain = product(dtype, m, n, k, layout);
                plain.out.dtype = out;
                plain.accumulator = if dtype == DType::I8 { DType::I32 } else { F32 };
                problems.push(Problem::Gemm(plain));
                if ![1, 700].contains(&k) {
                    continue;
                }
                for bytes in [2, 4, 8] {
                    let a = View { data: plain.a.data + bytes, ..plain.a };
                    problems.push(Problem::Gemm(GemmProblem { a, ..plain }));
                    let wider = plain
                        .b
                        .stride
                        .map(|step| if step > 1 { step + bytes as i64 } else { step });
                    problems.push(Problem::Gemm(GemmProblem {
                        b: View { stride: wider, ..plain.b },
                        ..plain
                    }));
                }
                let repeated = View { stride: [0, 0, 1], ..plain.a };
                problems.push(Problem::Gemm(GemmProblem { a: repeated, ..plain }));
                problems.push(Problem::Gemm(GemmProblem { accumulator: F16, ..plain }));
                problems.push(Problem::Gemm(plain).on(DeviceId::Cpu));
            }
        }
    }
    for (rows, n, groups) in [(8192, 2048, 12), (100, 65, 7), (5, 8, 0)] {
        for b in Major::BOTH {
            problems.push(grouped(Bf16, rows, n, 512, groups, b, 1));
        }
    }
    for shape in [[2048, 768, 8192], [100, 65, 7], [64, 64, 0]] {
        problems.extend([Bf16, F32].map(|dtype| grouped_along_k(dtype, shape, 12)));
    }
    let a = matrix(F16, DeviceId::Cuda(0), 100, 64, Major::Row);
    problems.push(Problem::Elementwise(ElementwiseProblem { a, b: a, out: a }));
    let (mut found, mut several) = (HashSet::new(), 0);
    for (at, problem) in problems.iter().enumerate() {
        // One of four ways for each problem: all of them take a minute. Four dtypes follow each
        // other, so that each meets every way.
        let way = at + at / 4;
        let fused = way.is_multiple_of(2);
        let target = match problem.device() {
            DeviceId::Cpu => None,
            DeviceId::Cuda(_) if way / 2 % 2 == 0 => H100,
            DeviceId::Cuda(_) => Some(Target { multiprocessors: 84, ..Target::typical(86) }),
        };
        let positions = ranked(problem, target, fused);
        assert_eq!(
            positions,
            ranked_one_by_one(problem, target, fused),
            "{target:?} {fused} {problem:?}"
        );
        several += usize::from(positions.len() > 10);
        found.extend(positions);
    }
    assert!(found.len() > 1000 && several > 100, "{} kernels, {several} long lists", found.len());
}

#[test]
fn demands_are_met_by_the_views_they_describe() {
    let aligned = Demand::aligned(Major::Row, 16);
    let by_tma = Demand { by_tma: true, ..aligned };
    let whole = Demand { whole: Demand::whole_along(Major::Row), ..aligned };
    let column = Demand::aligned(Major::Column, 4);
    // A float16 operand of 100 rows: columns, address, strides; whether each demand is met.
    let cases = [
        ((64, 0x1000, [64, 1]), [true, true, true, false]), // row-major, all multiples of 16 bytes
        ((64, 0x1008, [64, 1]), [false, false, false, false]), // an address of 8
        ((60, 0x1000, [60, 1]), [false, false, false, false]), // rows of 120 bytes
        ((60, 0x1000, [64, 1]), [true, true, false, false]), // of 120, 128 apart
        ((64, 0x1000, [0, 1]), [true, false, true, false]), // one row, repeated
        ((64, 0x1000, [1 << 39, 1]), [true, false, true, false]), // rows 2^40 bytes apart
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
            ..matrix(F16, DeviceId::Cuda(0), 100, columns, Major::Row)
        };
        let met = [aligned, by_tma, whole, column].map(|demand| demand.is_met(&view));
        assert_eq!(met, expected, "{columns} columns at {data:#x}, strides {row}, {column_step}");
        assert!(Demand::NONE.is_met(&view));
        for (demand, met) in [aligned, by_tma, whole, column].into_iter().zip(met) {
            assert_eq!(demand.check("A", &view).is_ok(), met);
        }
    }
}

#[test]
fn an_index_of_groups_decides_about_few() {
    // One check covers many kernels.
    let types = Types { a: F16, b: F16, accumulator: F32, out: F16 };
    let kernels = all()
        .iter()
        .filter(|kernel| kernel.types == types && kernel.facts.operation == Operation::Gemm);
    let demands: HashSet<[Demand; 3]> = kernels.clone().map(Kernel::demands).collect();
    assert!(
        demands.len() <= 120 && kernels.count() > 5 * demands.len(),
        "{} demands",
        demands.len()
    );
}

#[test]
fn bands_are_the_fastest_ones() {
    use Schedule::{Cooperative, PingPong};
    let band =
        |[m, n, k]: [i64; 3], b: Major, tile: [u32; 2], schedule: Schedule, cluster: [u32; 2]| {
            let gemm = &product(F16, m, n, k, Layout { a: Major::Row, b, out: Major::Row });
            let problem = Problem::Gemm(*gemm);
            let plain = kernels_for(&problem).find_map(|kernel| match kernel.design {
                Design::Sm90(config)
                    if !config.swapped && !config.over_grid && config.split == 1 =>
                {
                    Some(config)
                }
                _ => None,
            });
            let config = Sm90 { tile, schedule, cluster, ..plain.expect("a plain kernel") };
            config.band(&config.grid(gemm))
        };
    assert_eq!(band([4096; 3], Major::Row, [128, 128], PingPong, [1, 2]), 16);
    assert_eq!(band([2048; 3], Major::Row, [128, 128], PingPong, [2, 1]), 2);
    assert_eq!(band([1024, 1280, 5120], Major::Column, [128, 80], Cooperative, [2, 1]), 1);
    // With one row or column of tiles, all orders are equal.
    assert_eq!(band([64, 4096, 4096], Major::Column, [64, 64], Cooperative, [1, 1]), 8);
}

/// Rows and columns that the GPCs of an empty chip load, counted one by one.
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
    for (m, n, k) in [
        (1024, 1024, 8960),
        (320, 1536, 4608),
        (584, 1856, 6080),
        (2048, 640, 7104),
        (192, 1600, 7040),
    ] {
        for layout in Layout::all() {
            let gemm = &product(F16, m, n, k, layout);
            let problem = Problem::Gemm(*gemm);
            for kernel in kernels_for(&problem) {
                let Design::Sm90(config) = &kernel.design else { continue };
                let launch = launch_of(kernel, &problem);
                let Params::Sm90(params) = &launch.params else { panic!("not its parameters") };
                if launch.overlapping {
                    continue;
                }
                // Each CTA has one tile.
                let gemm = &kernel.frame.gemm(gemm);
                let grid = config.grid(gemm);
                let tiles = grid.clusters.map(|tiles| tiles as u32);
                assert_eq!((launch.cluster, launch.grid), (1, tiles[0] * tiles[1]), "{kernel}");
                assert!(launch.grid <= 132 && launch.pack.is_none(), "{kernel}");
                let band = params.scalars.band as u32;
                let placement = config.placement(gemm, &grid, 1, 132).expect("it is placed");
                let drawn = |band| f64::from(drawn_by_gpcs(tiles, config.tile, band));
                assert_eq!((placement.band, placement.drawn), (band, drawn(band)), "{kernel}");
                assert!((1..=8).all(|other| other == 7 || drawn(band) <= drawn(other)), "{kernel}");
                // GPCs load less than with random placement.
                assert!(placement.drawn < placement.drawn_anywhere, "{kernel}");
                bands.insert(band);
            }
        }
    }
    assert!(bands.len() >= 4, "{bands:?}");
}

#[test]
fn a_dual_gemm_costs_as_a_product_of_twice_the_columns() {
    for m in [1, 16, 64, 256, 2048] {
        let of = |n| gemm(DType::Bf16, m, n, 4096, TNT);
        let (problem, wide) = (of(11008), of(22016));
        let found = ranked(&problem, H100, Fusion::Dual);
        assert!(found.len() > 50, "{m} rows: {} kernels", found.len());
        for kernel in found.into_iter().map(|position| &all()[position]) {
            assert!(matches!(kernel.design, Design::Sm90(_)), "{kernel}");
            let target = Target::typical(90);
            let dual = kernel.estimate_fused(&problem, target, Fusion::Dual);
            let one = kernel.estimate_fused(&wide, target, Fusion::Epilogue { factors: false });
            // The output has half the columns.
            let ratio = dual.total_seconds / one.total_seconds;
            assert!((0.9..1.01).contains(&ratio), "{kernel}: {ratio} for {m} rows");
            assert_eq!(one.bytes - dual.bytes, (2 * m * 11008) as f64);
        }
        // N in blocks of 8 columns, and no other layouts.
        assert!(ranked(&of(11004), H100, Fusion::Dual).is_empty());
        let other = gemm(DType::Bf16, m, 11008, 4096, ROW_MAJOR);
        assert!(ranked(&other, H100, Fusion::Dual).is_empty());
    }
}
