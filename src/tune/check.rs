//! Compares what kernels compute with the CPU reference.

use super::error::TuneError;
use super::operands::{HostOperands, Operands, host_buffer, span};
use crate::driver::{DeviceMemory, Stream};
use crate::epilogue::BoundEpilogue;
use crate::operand::{Class, DType, DeviceId, View};
use crate::problem::Problem;
use crate::reference::{self, Tolerance, first_difference};

/// The bytes that outputs hold before a kernel runs: NaN in float types, -1 in signed integers.
const UNWRITTEN: u8 = 0xff;
/// Errors of a sum in units of a typical rounding error: the largest of many millions of elements,
/// and some room.
const LARGEST_ERROR: f64 = 8.0;

/// The reference's outputs, and the operands that kernels compute on.
pub struct Check {
    /// No kernel runs on these copies: an output may be an input, too.
    operands: Operands<DeviceMemory>,
    expected: HostOperands,
    tolerance: Option<f64>,
    inputs_as_tf32: bool,
}

impl Check {
    /// Computes the outputs on the CPU. `tolerance`: as of [`Tolerance::relative`]; `None`: by
    /// types and K.
    ///
    /// # Errors
    /// If the device lacks memory for a copy of the operands, or the reference does not compute
    /// such a problem.
    pub fn new(
        stream: &Stream,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        tolerance: Option<f64>,
        inputs_as_tf32: bool,
    ) -> Result<Check, TuneError> {
        let operands = Operands::copy(stream, stream.device(), problem, epilogue)?;
        for (_, view) in operands.outputs().filter(|(_, view)| !operands.is_read(view)) {
            // SAFETY: the copy lives until the function returns `operands`, which holds it.
            unsafe { stream.fill(view.data, UNWRITTEN, span(view))? };
        }
        stream.synchronize()?;
        let expected =
            HostOperands::download(stream, &operands.problem, operands.epilogue.as_ref())?;
        // SAFETY: `expected` holds the memory, and nothing else knows it.
        unsafe { reference::run(&expected.problem, expected.epilogue.as_ref())? };
        Ok(Check { operands, expected, tolerance, inputs_as_tf32 })
    }

    /// Launches a kernel on fresh copies of the operands and compares all outputs. `launch`
    /// enqueues the kernel on the stream.
    pub fn run(
        &self,
        stream: &Stream,
        launch: impl FnOnce(&Operands<DeviceMemory>) -> Result<(), TuneError>,
    ) -> Result<(), TuneError> {
        let Operands { problem, epilogue, .. } = &self.operands;
        let operands = Operands::copy(stream, stream.device(), problem, epilogue.as_ref())?;
        launch(&operands)?;
        stream.synchronize()?;
        for ((name, actual), (_, expected)) in operands.outputs().zip(self.expected.outputs()) {
            let mut buffer = host_buffer(span(actual))?;
            // SAFETY: `operands` holds the memory.
            unsafe {
                stream.device().download(stream.handle(), &mut buffer, actual.data, span(actual))?
            };
            let data = buffer.as_ptr().expose_provenance() as u64;
            let actual = View { data, device: DeviceId::Cpu, ..*actual };
            let tolerance = self.tolerance_of(expected.dtype);
            // SAFETY: the buffer and `expected` outlive the call; both views are of one operand.
            if let Some(of) = unsafe { first_difference(&actual, expected, tolerance) } {
                return Err(TuneError::Differs { name, of });
            }
        }
        Ok(())
    }

    /// The tolerance of an output of this type. The default assumes rounding errors of random
    /// signs, whose sum grows with the square root of K.
    fn tolerance_of(&self, dtype: DType) -> Tolerance {
        let epilogue = self.operands.epilogue.as_ref().map(|bound| bound.epilogue);
        let product = self.operands.problem.of_activations(epilogue);
        let problem = product.as_ref().unwrap_or(&self.operands.problem);
        if dtype.is_integer() {
            // An epilogue may compute in float32 and meet a tie of the rounding.
            let absolute = if self.operands.epilogue.is_some() { 1.0 } else { 0.0 };
            return Tolerance { relative: 0.0, absolute };
        }
        let k = problem.product().map_or(1, |product| product.k()).max(1) as f64;
        let [a, b] = [0, 1].map(|at| problem.views()[at].dtype);
        let of_inputs = match (a, b) {
            (DType::F32, _) if self.inputs_as_tf32 => TF32_ROUNDOFF,
            // Products of floats and integers: kernels round the scaled integers to the float type.
            _ if a != b => a.roundoff().max(b.roundoff()),
            _ => 0.0,
        };
        let of_sums = match a.class() {
            Some(Class::Float8) => FLOAT8_SUM_ROUNDOFF,
            _ => problem.accumulator().roundoff(),
        };
        let relative = 2.0 * dtype.roundoff() + LARGEST_ERROR * (of_inputs + k.sqrt() * of_sums);
        Tolerance { relative: self.tolerance.unwrap_or(relative), absolute: 0.0 }
    }
}

/// Half a unit in the last place of 1: tf32 has 10 bits of mantissa.
const TF32_ROUNDOFF: f64 = 1.0 / 2048.0;
/// The tensor cores keep 14 bits of a sum of float8 products (docs/design/accuracy.md).
const FLOAT8_SUM_ROUNDOFF: f64 = 1.0 / 16384.0;
