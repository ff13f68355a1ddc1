//! Copies: `cp.async`, `st.async`, and TMA with the tensor maps of the stand-in for the driver.

use crate::arithmetic::convert;
use crate::barriers::{arrive, complete};
use crate::launch::Result;
use crate::memory::{RANK_BIT, of_cta};
use crate::program::{Arg, Space, Type};
use crate::thread::{Next, Run};

impl Run<'_> {
    pub fn copy_async(&mut self, words: &[&str], args: &[Arg]) -> Result<Next> {
        if words.contains(&"mbarrier") {
            let at = self.address(&args[0])?;
            arrive(self, at)?;
        } else if words.contains(&"bulk") {
            if words.contains(&"prefetch") {
                // There is no L2 cache.
            } else if words.contains(&"tensor") {
                copy(self, words, args)?;
            } else if !words.iter().any(|word| matches!(*word, "commit_group" | "wait_group")) {
                return Err("an unknown bulk copy".into());
            }
        } else if words.contains(&"shared") {
            let (to, from) = (self.address(&args[0])?, self.address(&args[1])?);
            let bytes = self.value(&args[2])? as usize;
            let valid = match args.get(3) {
                Some(valid) => self.value(valid)? as usize,
                None => bytes,
            };
            let target = self.host(Space::Shared, to, bytes)?;
            // SAFETY: `host` checks both addresses.
            unsafe {
                std::ptr::write_bytes(target, 0, bytes);
                if valid > 0 {
                    if from % bytes as u64 != 0 {
                        return Err(format!("{from:#x} is not aligned to {bytes} bytes"));
                    }
                    self.launch.check(from, valid)?;
                    let source: *const u8 = std::ptr::with_exposed_provenance(from as usize);
                    std::ptr::copy_nonoverlapping(source, target, valid);
                }
            }
        }
        Ok(Next::Continue)
    }
}

/// `st.async`.
pub fn store_async(run: &mut Run<'_>, args: &[Arg]) -> Result<()> {
    let (to, barrier) = (run.address(&args[0])?, run.address(&args[2])?);
    let Arg::Vector(values) = &args[1] else { return Err("st.async of no vector".into()) };
    for (at, value) in values.iter().enumerate() {
        let value = run.value(value)?;
        run.write(Space::Shared, to + 4 * at as u64, 4, value)?;
    }
    complete(run, barrier, 4 * values.len() as i64)
}

/// A tensor map as the stand-in for the driver encodes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct TensorMap {
    kind: i32,
    swizzle: i32,
    address: u64,
    /// 1 beyond the tensor's dimensions, as box extents. Strides are 0 there.
    extents: [u64; 5],
    strides: [u64; 4],
    box_extents: [u32; 5],
    promotion: i32,
    rank: u32,
}

impl TensorMap {
    fn element_bytes(&self) -> Result<u64> {
        // CUtensorMapDataType.
        match self.kind {
            0 => Ok(1),
            1 | 6 | 9 => Ok(2),
            2 | 3 | 7 | 10 | 11 | 12 => Ok(4),
            4 | 5 | 8 => Ok(8),
            kind => Err(format!("a tensor map of type {kind}")),
        }
    }

    /// An element as a load writes it to shared memory: `CU_TENSOR_MAP_DATA_TYPE_TFLOAT32` rounds.
    fn loaded(&self, element: u64) -> u64 {
        match self.kind {
            11 => convert(Type::Tf32, Type::F32, "", false, element).unwrap_or(element),
            _ => element,
        }
    }
}

/// The address of an element after the swizzle: a permutation of 16-byte pieces.
pub fn swizzled(address: u64, row_bytes: u64) -> u64 {
    let mask = row_bytes / 16 - 1;
    address ^ ((address >> 7) & mask) << 4
}

/// `cp.async.bulk.tensor`.
fn copy(run: &mut Run<'_>, words: &[&str], args: &[Arg]) -> Result<()> {
    let is_load = words.iter().position(|word| *word == "shared:cluster")
        < words.iter().position(|word| *word == "global")
        && words.contains(&"shared:cluster");
    let (tensor, shared) = if is_load { (&args[1], &args[0]) } else { (&args[0], &args[1]) };
    let Arg::Memory(inner, 0) = tensor else { return Err("no tensor".into()) };
    let [map, Arg::Vector(coordinates)] = &**inner else { return Err("no coordinates".into()) };
    let map_address = run.value(map)?;
    // SAFETY: a kernel's parameter holds the tensor map.
    let map: TensorMap =
        unsafe { std::ptr::read(std::ptr::with_exposed_provenance(map_address as usize)) };
    if coordinates.len() != map.rank as usize {
        let (count, rank) = (coordinates.len(), map.rank);
        return Err(format!("{count} coordinates for a tensor map of rank {rank}"));
    }
    let mut first = [0i64; 5];
    for (at, coordinate) in coordinates.iter().enumerate() {
        first[at] = i64::from(run.value(coordinate)? as i32);
    }
    let shared = run.address(shared)?;
    let targets: Vec<u64> = if !is_load {
        vec![0]
    } else if words.contains(&"multicast:cluster") {
        let ctas = run.value(&args[3])?;
        (0..16).filter(|cta| ctas >> cta & 1 == 1).collect()
    } else {
        vec![shared >> RANK_BIT]
    };
    let bytes = map.element_bytes()?;
    // Hopper raises an illegal instruction.
    if first[0] * bytes as i64 % 16 != 0 {
        let (place, kind) = (first[0], if is_load { "load" } else { "store" });
        return Err(format!("a {kind} of a box from element {place}, not a multiple of 16 bytes"));
    }
    let [width, outer @ ..] = map.box_extents.map(u64::from);
    let rows: u64 = outer.iter().product();
    let row_bytes = match map.swizzle {
        0 => 16,
        1 => 32,
        2 => 64,
        3 => 128,
        swizzle => return Err(format!("a tensor map of swizzle {swizzle}")),
    };
    if map.swizzle > 0 && width * bytes > row_bytes {
        return Err(format!("rows of {} bytes in a swizzle of {row_bytes}", width * bytes));
    }
    if shared % 128 != 0 {
        return Err(format!("TMA at {shared:#x}, which is not aligned to 128 bytes"));
    }
    for row in 0..rows {
        // The row's place along the outer dimensions, and its address.
        let (mut rest, mut row_inside, mut row_address) = (row, true, map.address);
        for (at, extent) in outer.iter().enumerate() {
            let place = first[at + 1] + (rest % extent) as i64;
            rest /= extent;
            row_inside &= (0..map.extents[at + 1] as i64).contains(&place);
            row_address = row_address.wrapping_add_signed(place * map.strides[at] as i64);
        }
        for x in 0..width {
            let place = first[0] + x as i64;
            let inside = row_inside && (0..map.extents[0] as i64).contains(&place);
            let linear = (row * width + x) * bytes;
            let at = swizzled(shared + linear, row_bytes);
            let global = row_address.wrapping_add_signed(place * bytes as i64);
            if !is_load {
                if inside {
                    let value = run.read(Space::Shared, at, bytes as usize)?;
                    run.write(Space::Global, global, bytes as usize, value)?;
                }
                continue;
            }
            let value = match inside {
                true => map.loaded(run.read(Space::Global, global, bytes as usize)?),
                false => 0,
            };
            for cta in &targets {
                run.write(Space::Shared, of_cta(at, *cta), bytes as usize, value)?;
            }
        }
    }
    if is_load {
        let barrier = run.address(&args[2])?;
        for cta in targets {
            complete(run, of_cta(barrier, cta), (width * rows * bytes) as i64)?;
        }
    }
    Ok(())
}
