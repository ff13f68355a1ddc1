//! `Kernel.run`'s arguments, told by the identity of their names: Python interns the keywords in a program, and PyO3 compares
//! strings, which is a noticeable part of a launch. Whatever is not as usual is left to PyO3's own reading, and so are all errors.

use std::ffi::CString;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::impl_::trampoline::get_trampoline_function;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::arguments::{ElementwiseArguments, GemmArguments, GroupedGemmArguments, RuntimeArguments};
use super::kernel::{ElementwiseKernel, Kernel, SimtGemmKernel, SkinnyGemmKernel, Sm80GemmKernel, Sm90GemmKernel};

/// `run` as PyO3 made it, the names of its parameters, and the classes of our own that its first argument may have.
struct Method {
    names: [Py<PyString>; 5],
    arguments: [Py<PyType>; 3],
    slow: Py<PyAny>,
}

static RUN: PyOnceLock<Method> = PyOnceLock::new();

/// Puts `run` in the place of PyO3's, with its name, signature and documentation.
pub fn install(py: Python<'_>) -> PyResult<()> {
    if RUN.get(py).is_some() {
        return Ok(()); // The module is imported again; the class is the one that it was.
    }
    let class = py.get_type::<Kernel>();
    let slow = class.getattr("run")?;
    let (signature, text) = (slow.getattr("__text_signature__")?, slow.getattr("__doc__")?);
    let documentation = CString::new(format!("run{signature}\n--\n\n{text}")).map_err(PyValueError::new_err)?;
    let names = ["args", "compiled_artifact", "stream", "workspace", "assume_supported_args"];
    let names = names.map(|name| PyString::intern(py, name).unbind());
    let arguments =
        [py.get_type::<GemmArguments>(), py.get_type::<GroupedGemmArguments>(), py.get_type::<ElementwiseArguments>()];
    let method = Method { slow: slow.unbind(), names, arguments: arguments.map(Bound::unbind) };
    let definition: *mut _ = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"run".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: documentation.into_raw(),
    }));
    // A class with a method of its own spares Python the question whether an object's class is derived from the method's.
    let built_in = [
        py.get_type::<SimtGemmKernel>(),
        py.get_type::<SkinnyGemmKernel>(),
        py.get_type::<Sm80GemmKernel>(),
        py.get_type::<Sm90GemmKernel>(),
        py.get_type::<ElementwiseKernel>(),
    ];
    for class in built_in.into_iter().chain([class]) {
        // SAFETY: the definition and what it points to live as long as the process; the function has the type that the flags say.
        let fast = unsafe {
            let method = ffi::PyDescr_NewMethod(class.as_ptr().cast(), definition);
            Bound::from_owned_ptr_or_err(py, method)?
        };
        class.setattr("run", fast)?;
    }
    RUN.set(py, method).map_err(|_| PyValueError::new_err("the module is being initialized twice at a time"))
}

/// `run`, as Python calls it. What is run again is done here, past PyO3's way into a function, whose parts are a third of a launch.
///
/// # Safety
/// As Python calls a method: `args` has `count` positional arguments, then one for each name in the tuple `keywords`, if there is one.
unsafe extern "C" fn run(
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller's; Python calls functions with the GIL held.
    unsafe {
        let py = Python::assume_attached();
        match run_again(py, slf, args, count, keywords) {
            Some(Ok(())) => py.None().into_ptr(),
            Some(Err(error)) => raise(error),
            None => {
                get_trampoline_function!(fastcall_cfunction_with_keywords, run_at_first)(slf, args, count, keywords)
            }
        }
    }
}

#[cold]
fn raise(error: PyErr) -> *mut ffi::PyObject {
    Python::attach(|py| error.restore(py));
    std::ptr::null_mut()
}

/// None where this is not the run of before, or it is said in an unusual way.
///
/// # Safety
/// As for `run`.
#[inline(always)]
unsafe fn run_again(
    py: Python<'_>,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> Option<PyResult<()>> {
    let method = RUN.get(py)?;
    // SAFETY: the caller's; an object of one of these classes is laid out as their base.
    unsafe {
        let [arguments, artifact, stream, _workspace, assume] = told(&method.names, args, count, keywords)?;
        let arguments = given(py, arguments)?;
        let class = ffi::Py_TYPE(arguments.as_ptr());
        if !method.arguments.iter().any(|known| known.as_ptr().cast() == class) {
            return None;
        }
        let native = arguments.cast_unchecked::<RuntimeArguments>().get().native.as_deref()?;
        Kernel::run_again(py, slf, native, artifact, given(py, stream).as_deref(), flag(assume)?)
    }
}

/// # Safety
/// As for `run`.
unsafe fn run_at_first(
    py: Python<'_>,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    let method = RUN.get(py).ok_or_else(|| PyValueError::new_err("the module is not initialized"))?;
    // SAFETY: the caller's; the arguments live until the call has returned.
    unsafe {
        let slf = Borrowed::from_ptr(py, slf);
        if let Some([arguments, artifact, stream, workspace, assume]) = told(&method.names, args, count, keywords)
            && let Some(assume) = flag(assume)
            && let (Some(arguments), Ok(kernel)) = (given(py, arguments), slf.cast::<Kernel>())
        {
            let [artifact, stream, workspace] = [artifact, stream, workspace].map(|object| given(py, object));
            let [artifact, stream, workspace] = [&artifact, &stream, &workspace].map(|object| object.as_deref());
            Kernel::run(&kernel, &arguments, artifact, stream, workspace, assume)?;
            return Ok(py.None().into_ptr());
        }
        let count = count as usize;
        let positional = (0..count).map(|at| Borrowed::from_ptr(py, *args.add(at)).to_owned());
        let positional = PyTuple::new(py, std::iter::once(slf.to_owned()).chain(positional).collect::<Vec<_>>())?;
        let named = PyDict::new(py);
        if !keywords.is_null() {
            for (at, name) in Borrowed::from_ptr(py, keywords).cast::<PyTuple>()?.iter().enumerate() {
                named.set_item(name, Borrowed::from_ptr(py, *args.add(count + at)))?;
            }
        }
        method.slow.bind(py).call(positional, Some(&named)).map(Bound::into_ptr)
    }
}

/// What a call gives for each parameter, null for those that it leaves out; None where a name is not known by its identity, or is given
/// twice.
///
/// # Safety
/// As for `run`.
unsafe fn told<const N: usize>(
    names: &[Py<PyString>; N],
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> Option<[*mut ffi::PyObject; N]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= N)?;
    // SAFETY: the caller's.
    unsafe {
        let mut told: [_; N] = std::array::from_fn(|at| if at < count { *args.add(at) } else { std::ptr::null_mut() });
        let named = if keywords.is_null() { 0 } else { ffi::PyTuple_Size(keywords) };
        for at in 0..named {
            let name = ffi::PyTuple_GetItem(keywords, at);
            let place = names.iter().position(|known| known.as_ptr() == name).map(|place| &mut told[place])?;
            if !place.is_null() {
                return None;
            }
            *place = *args.add(count + at as usize);
        }
        Some(told)
    }
}

/// An argument that was given, and not as None.
///
/// # Safety
/// The object lives for as long as the result.
unsafe fn given<'a, 'py>(py: Python<'py>, object: *mut ffi::PyObject) -> Option<Borrowed<'a, 'py, PyAny>> {
    // SAFETY: the caller's.
    unsafe { Borrowed::from_ptr_or_opt(py, object).filter(|object| !object.is_none()) }
}

/// What True and False say; left out means False. None for what is neither.
fn flag(object: *mut ffi::PyObject) -> Option<bool> {
    // SAFETY: two constants of the interpreter.
    let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
    (object == yes).then_some(true).or_else(|| (object == no || object.is_null()).then_some(false))
}
