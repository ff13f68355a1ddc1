//! Copies of a problem's operands, in device memory or on the host.

use super::error::TuneError;
use crate::driver::{Device, DeviceMemory, DriverError, Stream};
use crate::epilogue::{BoundEpilogue, Value};
use crate::operand::{DeviceId, View};
use crate::problem::Problem;

/// Addresses of copies agree with the originals' modulo this: a line of the L2 cache.
const LINE_BYTES: u64 = 128;

/// Copies of address ranges, which live as long as the value.
pub struct Copies<M> {
    /// Each range, and the address of its copy.
    placed: Vec<((u64, u64), u64)>,
    _memory: Vec<M>,
}

impl<M> Copies<M> {
    /// `place` returns the memory of a copy and its address, for an address and a number of bytes.
    /// Equal ranges are one tensor and share their memory.
    fn of<E>(
        ranges: impl IntoIterator<Item = (u64, u64)>,
        mut place: impl FnMut(u64, u64) -> Result<(M, u64), E>,
    ) -> Result<Copies<M>, E> {
        let mut copies = Copies { placed: Vec::new(), _memory: Vec::new() };
        for range @ (begin, end) in ranges {
            if begin < end && copies.placed.iter().all(|(from, _)| *from != range) {
                let (memory, address) = place(begin, end - begin)?;
                copies.placed.push((range, address));
                copies._memory.push(memory);
            }
        }
        Ok(copies)
    }

    /// An address of a range, in the copy of the range. The address itself without a copy.
    pub fn address(&self, range: (u64, u64), address: u64) -> u64 {
        let known = self.placed.iter().find(|(from, _)| *from == range);
        known.map_or(address, |(_, to)| to + (address - range.0))
    }
}

impl Copies<DeviceMemory> {
    /// Copies ranges of `source`, which the caller holds, to the stream's device. The copy has
    /// ended once the stream is synchronized.
    pub fn on_device(
        stream: &Stream,
        source: &Device,
        ranges: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Copies<DeviceMemory>, DriverError> {
        Copies::of(ranges, |begin, bytes| {
            let memory = DeviceMemory::allocate(stream.device(), bytes + LINE_BYTES)?;
            let address = memory.address() + begin % LINE_BYTES;
            // SAFETY: the caller holds the tensors; the new memory has their bytes.
            unsafe { stream.copy(address, source, begin, bytes)? };
            Ok((memory, address))
        })
    }
}

/// A problem and its epilogue on copies of the operands, which live as long as the value.
pub struct Operands<M> {
    pub problem: Problem,
    pub epilogue: Option<BoundEpilogue>,
    _copies: Copies<M>,
}

/// Operands in host memory.
pub type HostOperands = Operands<Vec<u64>>;

/// Zeros with room for so many bytes.
pub fn host_buffer(bytes: u64) -> Result<Vec<u64>, TuneError> {
    let (words, mut buffer) = (bytes.div_ceil(8) as usize, Vec::new());
    buffer.try_reserve_exact(words).map_err(|_| TuneError::Memory { bytes })?;
    buffer.resize(words, 0);
    Ok(buffer)
}

impl Operands<DeviceMemory> {
    /// Copies operands on `source` to the stream's device. The copy has ended once the stream is
    /// synchronized.
    pub fn copy(
        stream: &Stream,
        source: &Device,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<Operands<DeviceMemory>, DriverError> {
        let copies = Copies::on_device(stream, source, ranges(problem, epilogue))?;
        let device = DeviceId::Cuda(stream.device().ordinal);
        Ok(Operands::over(problem, epilogue, device, copies))
    }
}

impl HostOperands {
    /// Copies operands on the stream's device to the host.
    pub fn download(
        stream: &Stream,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<HostOperands, TuneError> {
        let copies = Copies::of(ranges(problem, epilogue), |begin, bytes| {
            let mut buffer = host_buffer(bytes)?;
            // SAFETY: the caller holds the operands.
            unsafe { stream.device().download(stream.handle(), &mut buffer, begin, bytes)? };
            let address = buffer.as_mut_ptr().expose_provenance() as u64;
            Ok::<_, TuneError>((buffer, address))
        })?;
        Ok(Operands::over(problem, epilogue, DeviceId::Cpu, copies))
    }
}

impl<M> Operands<M> {
    /// The operands in copies of their [`ranges`] on a device.
    fn over(
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        device: DeviceId,
        copies: Copies<M>,
    ) -> Operands<M> {
        let moved = |view: &View| View {
            data: copies.address(view.byte_range(), view.data),
            device,
            ..*view
        };
        let mut problem = *problem;
        problem.views_mut().into_iter().for_each(|view| *view = moved(view));
        let epilogue = epilogue.map(|bound| bound.map_views(moved));
        Operands { problem, epilogue, _copies: copies }
    }

    /// The outputs and their names: the problem's own, then those of the epilogue.
    pub fn outputs(&self) -> impl Iterator<Item = (&'static str, &View)> {
        let of_epilogue = self.epilogue.iter().flat_map(|bound| {
            let named = bound.epilogue.graph.outputs.iter().zip(&bound.outputs);
            named.filter_map(|(output, view)| Some((output.name.as_str(), view.as_ref()?)))
        });
        let of_prologue = self.epilogue.iter().flat_map(BoundEpilogue::prologue_outputs);
        std::iter::once(("out", self.problem.out())).chain(of_epilogue).chain(of_prologue)
    }

    /// Whether an output's memory is that of an input, too.
    pub fn is_read(&self, output: &View) -> bool {
        let out = self.problem.out();
        let mut own = self.problem.views().into_iter().filter(|view| !std::ptr::eq(*view, out));
        let mut of_epilogue = self.epilogue.iter().flat_map(|bound| &bound.inputs);
        let is_same = |view: &View| view.byte_range() == output.byte_range();
        own.any(is_same)
            || of_epilogue.any(|value| match value {
                Value::Scalar(_) => false,
                Value::Tensor(view)
                | Value::Factor(view)
                | Value::Panel(view)
                | Value::Segment { view, .. } => is_same(view),
            })
    }
}

/// The views of a problem and its epilogue.
pub fn views<'a>(problem: &'a Problem, epilogue: Option<&'a BoundEpilogue>) -> Vec<&'a View> {
    let of_epilogue = epilogue.map(BoundEpilogue::tensors).unwrap_or_default();
    problem.views().into_iter().chain(of_epilogue.into_iter().map(|(_, view)| view)).collect()
}

/// Bytes from the first element to the end of the last one.
pub fn span(view: &View) -> u64 {
    let (begin, end) = view.byte_range();
    end - begin
}

/// The address ranges of the operands.
fn ranges(problem: &Problem, epilogue: Option<&BoundEpilogue>) -> Vec<(u64, u64)> {
    views(problem, epilogue).into_iter().map(View::byte_range).collect()
}
