//! Compiled kernels.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::kernel;
use super::utils::brief;
use crate::compile;
use crate::launch::LastLaunch;

/// A compiled kernel, as `Kernel.compile` returns it: the kernel and its program.
#[pyclass(module = "cutlass_api.artifact", frozen)]
pub struct CompiledArtifact {
    compiled_obj: Py<PyAny>,
    kernel_obj: Py<PyAny>,
    pub last: LastLaunch,
}

impl CompiledArtifact {
    pub fn of(compiled_obj: Py<PyAny>, kernel_obj: Py<PyAny>) -> Self {
        CompiledArtifact { compiled_obj, kernel_obj, last: LastLaunch::default() }
    }

    pub fn is_for(&self, kernel: &Bound<'_, PyAny>) -> bool {
        self.kernel_obj.is(kernel)
    }

    pub fn kernel<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyAny> {
        self.kernel_obj.bind(py)
    }

    fn program_or_raise<'a>(&'a self, py: Python<'a>) -> PyResult<&'a Arc<compile::Program>> {
        self.program(py).ok_or_else(|| {
            PyValueError::new_err(
                "this artifact holds no compiled program: its kernel needs no compilation",
            )
        })
    }

    pub fn program<'a>(&'a self, py: Python<'a>) -> Option<&'a Arc<compile::Program>> {
        self.compiled_obj.bind(py).cast::<PyProgram>().ok().map(|program| &program.get().0)
    }
}

#[pymethods]
impl CompiledArtifact {
    #[new]
    fn new(py: Python<'_>, compiled_obj: Py<PyAny>, kernel_obj: Py<PyAny>) -> PyResult<Self> {
        // A launch passes the kernel's parameters to the program, so the two must match.
        if let (Ok(program), Ok(kernel)) =
            (compiled_obj.bind(py).cast::<PyProgram>(), kernel::kernel_of(kernel_obj.bind(py)))
            && !compile::is_of(&program.get().0, kernel)
        {
            let (name, kernel) = (&program.get().0.kernel, kernel.name());
            return Err(PyValueError::new_err(format!(
                "compiled_obj is a program of {name}, and kernel_obj is {kernel}"
            )));
        }
        Ok(CompiledArtifact::of(compiled_obj, kernel_obj))
    }

    /// For the garbage collector: a kernel written in Python may refer to its artifact.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.compiled_obj)?;
        visit.call(&self.kernel_obj)
    }

    /// The `Program` of a kernel that NVRTC compiled; None for a kernel that needs no compilation.
    #[getter]
    fn compiled_obj<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.compiled_obj.bind(py).clone()
    }

    /// The kernel that was compiled.
    #[getter]
    fn kernel_obj<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.kernel_obj.bind(py).clone()
    }

    /// The PTX of the program. Compiles the source once more. Raises ValueError for a kernel that
    /// has no program.
    #[getter]
    fn ptx(&self, py: Python<'_>) -> PyResult<String> {
        PyProgram(self.program_or_raise(py)?.clone()).ptx(py)
    }

    /// The instructions of the program, as nvdisasm prints them. Raises ValueError for a kernel
    /// that has no program, and RuntimeError without nvdisasm, with the package to install.
    #[getter]
    fn sass<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyProgram(self.program_or_raise(py)?.clone()).sass(py)
    }

    /// What the program uses: registers, shared memory, spills, and the occupancy. Raises
    /// ValueError for a kernel that has no program.
    #[getter]
    fn resources(&self, py: Python<'_>) -> PyResult<PyResources> {
        let program = self.program_or_raise(py)?;
        let mut resources = PyResources::of(program);
        if let Ok(kernel) = kernel::kernel_of(self.kernel_obj.bind(py)) {
            let (cc, used) = (program.architecture.cc, program.resources);
            let ctas = kernel.occupancy(cc, used.registers, used.static_shared_bytes);
            (resources.threads, resources.ctas_per_sm) = (Some(kernel.facts.threads), Some(ctas));
        }
        Ok(resources)
    }

    /// This artifact as bytes, for `from_bytes` in another process or on another machine
    /// (ahead-of-time compilation). Raises ValueError for a kernel that has no program.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let program = self.program_or_raise(py)?;
        if kernel::kernel_of(self.kernel_obj.bind(py)).is_err() {
            return Err(PyValueError::new_err(
                "the kernel of this artifact is written in Python, which bytes cannot hold; \
                 compile it in the process that runs it",
            ));
        }
        Ok(PyBytes::new(py, &compile::to_bytes(program)))
    }

    /// The artifact in bytes that `to_bytes` returned. The first `run`, or `bind` to tensors with
    /// memory, loads the program onto the device: call either before stream capture.
    ///
    /// Raises ValueError for invalid or corrupt bytes, and for a kernel that this version lacks.
    /// `run` raises ValueError for a program of another architecture.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<CompiledArtifact> {
        let program = compile::from_bytes(data)?;
        let kernel =
            kernel::by_name(py, &program.base, program.epilogue.as_ref())?.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "the artifact is of kernel {}, which this version does not have",
                    program.kernel
                ))
            })?;
        if !compile::is_of(&program, kernel::kernel_of(kernel.bind(py).as_any())?) {
            return Err(PyValueError::new_err(format!(
                "the artifact of kernel {} was made by another build of this package; \
                 compile it again",
                program.kernel
            )));
        }
        Ok(CompiledArtifact::of(Py::new(py, PyProgram(program))?.into_any(), kernel.into_any()))
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let class = py.get_type::<CompiledArtifact>();
        if self.program(py).is_none() {
            let parts = (&self.compiled_obj, &self.kernel_obj);
            return Ok((class.into_any(), parts.into_pyobject(py)?));
        }
        Ok((class.getattr("from_bytes")?, (self.to_bytes(py)?,).into_pyobject(py)?))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.program(py) {
            Some(program) => format!("<CompiledArtifact of {}>", facts(program)),
            None => format!("<CompiledArtifact of {}>", brief(self.kernel_obj.bind(py))),
        }
    }
}

/// A program that NVRTC compiled.
#[pyclass(name = "Program", module = "cutlass_api.artifact", frozen)]
pub struct PyProgram(pub Arc<compile::Program>);

#[pymethods]
impl PyProgram {
    /// The name of the kernel.
    #[getter]
    fn kernel_name(&self) -> &str {
        &self.0.kernel
    }

    /// The architecture of the machine code, such as "sm_90a".
    #[getter]
    fn architecture(&self) -> String {
        self.0.architecture.to_string()
    }

    /// The CUDA C++ source. The headers that it includes are in the package.
    #[getter]
    fn source(&self) -> &str {
        &self.0.source
    }

    /// The program of the row kernel that computes the prologue; None without a prologue.
    #[getter]
    fn prologue(&self) -> Option<PyProgram> {
        self.0.prologue.clone().map(PyProgram)
    }

    /// The machine code: an ELF image that `cuobjdump` can read.
    #[getter]
    fn cubin<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.cubin)
    }

    /// The PTX. Compiles the source once more.
    #[getter]
    fn ptx(&self, py: Python<'_>) -> PyResult<String> {
        let program = self.0.clone();
        Ok(py.detach(|| compile::ptx(&program))?)
    }

    /// The instructions, as nvdisasm prints them. Raises RuntimeError without nvdisasm, with the
    /// package to install.
    #[getter]
    fn sass<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let disassemble =
            py.import(intern!(py, "cutlass_api.inspection"))?.getattr("disassemble")?;
        disassemble.call1((self.cubin(py),))
    }

    /// What the program uses: registers, shared memory, spills.
    #[getter]
    fn resources(&self) -> PyResources {
        PyResources::of(&self.0)
    }

    /// NVRTC's messages, such as warnings; may be empty.
    #[getter]
    fn log(&self) -> &str {
        &self.0.log
    }

    /// Major and minor version of NVRTC.
    #[getter]
    fn nvrtc_version(&self) -> (i32, i32) {
        self.0.nvrtc
    }

    /// Dynamic shared memory of a launch, in bytes.
    #[getter]
    fn shared_bytes(&self) -> u32 {
        self.0.shared_bytes
    }

    fn __repr__(&self) -> String {
        format!("<Program of {}>", facts(&self.0))
    }
}

/// A program in the `repr` of an object.
fn facts(program: &compile::Program) -> String {
    let compile::Program { kernel, architecture, cubin, resources, .. } = program;
    let spills = resources.spill_store_bytes + resources.spill_load_bytes;
    format!(
        "{kernel} for {architecture}: {} bytes, {} registers, {}",
        cubin.len(),
        resources.registers,
        if spills == 0 { "no spills".to_owned() } else { format!("{spills} bytes of spills") }
    )
}

/// What a compiled kernel uses, as ptxas reports it.
#[pyclass(name = "Resources", module = "cutlass_api.artifact", frozen, get_all, eq)]
#[derive(PartialEq)]
pub struct PyResources {
    /// Registers of a thread at the launch. Some warps of `sm90` kernels take more of them while
    /// others release theirs.
    registers: u32,
    /// Bytes of local memory of a thread: arrays that are indexed at run time, and spilled
    /// registers.
    stack_bytes: u32,
    /// Bytes of a thread that spilled registers are stored to.
    spill_store_bytes: u32,
    /// Bytes of a thread that spilled registers are loaded from.
    spill_load_bytes: u32,
    /// Shared memory of a CTA that the program declares, in bytes.
    static_shared_bytes: u32,
    /// Dynamic shared memory of a launch, in bytes.
    shared_bytes: u32,
    /// Threads of a CTA; None for a user's kernel, whose launches decide.
    threads: Option<u32>,
    /// CTAs that a multiprocessor holds at once; None for a user's kernel.
    ctas_per_sm: Option<u32>,
}

impl PyResources {
    fn of(program: &compile::Program) -> PyResources {
        let used = program.resources;
        PyResources {
            registers: used.registers,
            stack_bytes: used.stack_bytes,
            spill_store_bytes: used.spill_store_bytes,
            spill_load_bytes: used.spill_load_bytes,
            static_shared_bytes: used.static_shared_bytes,
            shared_bytes: program.shared_bytes,
            threads: None,
            ctas_per_sm: None,
        }
    }
}

#[pymethods]
impl PyResources {
    fn __repr__(&self) -> String {
        let shown = |number: Option<u32>| number.map_or("None".to_owned(), |it| it.to_string());
        format!(
            "Resources(registers={}, stack_bytes={}, spill_store_bytes={}, spill_load_bytes={}, \
             static_shared_bytes={}, shared_bytes={}, threads={}, ctas_per_sm={})",
            self.registers,
            self.stack_bytes,
            self.spill_store_bytes,
            self.spill_load_bytes,
            self.static_shared_bytes,
            self.shared_bytes,
            shown(self.threads),
            shown(self.ctas_per_sm),
        )
    }
}
