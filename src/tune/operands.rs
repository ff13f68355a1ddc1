//! Copies of a problem's operands, in device memory or on the host.

use super::error::TuneError;
use crate::driver::{Device, DriverError, Memory, Stream};
use crate::epilogue::{BoundEpilogue, Value};
use crate::operand::{DeviceId, View};
use crate::problem::Problem;

/// Addresses of copies agree with the originals' modulo this: a line of the L2 cache.
const LINE_BYTES: u64 = 128;

/// A problem and its epilogue on copies of the operands, which live as long as the value.
pub struct Operands<M> {
    pub problem: Problem,
    pub epilogue: Option<BoundEpilogue>,
    _memory: Vec<M>,
}

/// Operands in host memory.
pub type HostOperands = Operands<Vec<u64>>;

/// Zeros with room for a copy of a view.
pub fn host_buffer(view: &View) -> Result<Vec<u64>, TuneError> {
    let (bytes, mut buffer) = (span(view), Vec::new());
    let words = bytes.div_ceil(8) as usize;
    buffer.try_reserve_exact(words).map_err(|_| TuneError::Memory { bytes })?;
    buffer.resize(words, 0);
    Ok(buffer)
}

impl Operands<Memory> {
    /// Copies operands on `source` to the stream's device. The copy has ended once the stream is
    /// synchronized.
    pub fn copy(
        stream: &Stream,
        source: &Device,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<Operands<Memory>, DriverError> {
        let device = DeviceId::Cuda(stream.device().ordinal);
        relocate(problem, epilogue, device, |view| {
            let memory = Memory::allocate(stream.device(), span(view) + LINE_BYTES)?;
            let address = memory.address() + view.data % LINE_BYTES;
            // SAFETY: the caller holds the operands; the new memory has the bytes of the view.
            unsafe { stream.copy(address, source, view.data, span(view))? };
            Ok((memory, address))
        })
    }
}

impl HostOperands {
    /// Copies operands on the stream's device to the host.
    pub fn download(
        stream: &Stream,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<HostOperands, TuneError> {
        relocate(problem, epilogue, DeviceId::Cpu, |view| {
            let mut buffer = host_buffer(view)?;
            // SAFETY: the caller holds the operands.
            unsafe { stream.download(&mut buffer, view.data, span(view))? };
            let address = buffer.as_mut_ptr().expose_provenance() as u64;
            Ok((buffer, address))
        })
    }
}

impl<M> Operands<M> {
    /// The outputs and their names: the problem's own, then those of the epilogue.
    pub fn outputs(&self) -> impl Iterator<Item = (&'static str, &View)> {
        let of_epilogue = self.epilogue.iter().flat_map(|bound| {
            let named = bound.epilogue.graph.outputs.iter().zip(&bound.outputs);
            named.filter_map(|(output, view)| Some((output.name.as_str(), view.as_ref()?)))
        });
        std::iter::once(("out", self.problem.out())).chain(of_epilogue)
    }

    /// Whether an output's memory is that of an input, too.
    pub fn is_read(&self, output: &View) -> bool {
        let out = self.problem.out();
        let mut own = self.problem.views().into_iter().filter(|view| !std::ptr::eq(*view, out));
        let mut of_epilogue = self.epilogue.iter().flat_map(|bound| &bound.inputs);
        let is_same = |view: &View| view.byte_range() == output.byte_range();
        own.any(is_same)
            || of_epilogue.any(|value| match value {
                Value::Tensor(view) | Value::Factor(view) => is_same(view),
                Value::Scalar(_) => false,
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

/// Places each operand on a device. `place` returns the new memory of a view and the address of
/// its first element. Operands of one address range are one tensor and share their memory.
fn relocate<M, E>(
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
    device: DeviceId,
    mut place: impl FnMut(&View) -> Result<(M, u64), E>,
) -> Result<Operands<M>, E> {
    let mut memory = Vec::new();
    let mut placed: Vec<((u64, u64), u64)> = Vec::new();
    for view in views(problem, epilogue).into_iter().filter(|view| view.numel() > 0) {
        if placed.iter().any(|(from, _)| *from == view.byte_range()) {
            continue;
        }
        let (new, address) = place(view)?;
        placed.push((view.byte_range(), address));
        memory.push(new);
    }
    let moved = |view: &View| {
        let known = placed.iter().find(|(from, _)| *from == view.byte_range());
        View { data: known.map_or(view.data, |(_, to)| *to), device, ..*view }
    };
    let mut problem = *problem;
    problem.views_mut().into_iter().for_each(|view| *view = moved(view));
    let epilogue = epilogue.map(|bound| bound.map_views(moved));
    Ok(Operands { problem, epilogue, _memory: memory })
}
