//! A fast entry point of `Kernel.run`.
//!
//! PyO3 compares the names of keyword arguments as strings. Python interns the keywords in a
//! program, so this entry point compares pointers. A repeated launch also bypasses PyO3's call
//! wrapper. Every unusual call goes to the method that PyO3 generates, which raises the errors.

use std::ffi::CString;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::impl_::trampoline::get_trampoline_function;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::arguments::{
    ElementwiseArguments, GemmArguments, GroupedGemmArguments, RuntimeArguments, native,
};
use super::kernel::{PyKernel, name_of};
use super::ranges::Range;
use super::run::repeat;
use crate::operand::OnceValue;

/// The Python objects that `run` compares and calls.
struct Method {
    /// The parameters' names, interned.
    names: [Py<PyString>; PARAMETERS],
    /// The argument classes of built-in kernels.
    arguments: [Py<PyType>; 3],
    /// `run` as PyO3 generates it.
    generated: Py<PyAny>,
}

const PARAMETERS: usize = 5;

/// The value of each parameter; null if omitted.
type Values = [*mut ffi::PyObject; PARAMETERS];

static RUN: OnceValue<Method> = OnceValue::new();

/// Replaces PyO3's `run`, with the same name, signature and documentation.
pub fn install(py: Python<'_>) -> PyResult<()> {
    if RUN.get(py).is_some() {
        return Ok(()); // a second import of the module
    }
    let class = py.get_type::<PyKernel>();
    let generated = class.getattr("run")?;
    let (signature, text) =
        (generated.getattr("__text_signature__")?, generated.getattr("__doc__")?);
    let documentation =
        CString::new(format!("run{signature}\n--\n\n{text}")).map_err(PyValueError::new_err)?;
    let names = ["args", "compiled_artifact", "stream", "workspace", "assume_supported_args"];
    let arguments = [
        py.get_type::<GemmArguments>(),
        py.get_type::<GroupedGemmArguments>(),
        py.get_type::<ElementwiseArguments>(),
    ];
    let method = Method {
        names: names.map(|name| PyString::intern(py, name).unbind()),
        arguments: arguments.map(Bound::unbind),
        generated: generated.unbind(),
    };
    let definition: *mut _ = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"run".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: documentation.into_raw(),
    }));
    // SAFETY: the definition and its strings are leaked. The function has the signature that the
    // flags declare.
    let fast = unsafe {
        let method = ffi::PyDescr_NewMethod(class.as_ptr().cast(), definition);
        Bound::from_owned_ptr_or_err(py, method)?
    };
    class.setattr("run", fast)?;
    RUN.set(py, method)
        .map_err(|_| PyValueError::new_err("two threads initialize the module at once"))
}

/// The C function behind `run`. `repeat_run` and the range must not panic: no PyO3 wrapper catches
/// a panic here.
///
/// # Safety
/// Python's vectorcall convention: `args` holds `count` positional arguments, then one for each
/// name in the tuple `keywords`, which may be null.
unsafe extern "C" fn run(
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: guaranteed by the caller; Python calls methods with the GIL held.
    unsafe {
        let py = Python::assume_attached();
        let _range = Range::of_call(py, "cutlass_api::run", || {
            let named = RUN.get(py).and_then(|method| values(method, args, count, keywords));
            let arguments = named.and_then(|[arguments, ..]| present(py, arguments));
            let native = arguments.as_deref().map(native).transpose()?.flatten();
            let inputs = native.map_or_else(Vec::new, |native| native.objects(py));
            Ok((PyTuple::new(py, inputs)?, name_of(&Borrowed::from_ptr(py, slf))))
        });
        match repeat_run(py, slf, args, count, keywords) {
            Some(Ok(())) => py.None().into_ptr(),
            Some(Err(error)) => raise(error),
            None => get_trampoline_function!(fastcall_cfunction_with_keywords, any_run)(
                slf, args, count, keywords,
            ),
        }
    }
}

#[cold]
fn raise(error: PyErr) -> *mut ffi::PyObject {
    Python::attach(|py| error.restore(py));
    std::ptr::null_mut()
}

/// Repeats a launch. None if the run needs another launch, or the call is unusual.
///
/// # Safety
/// As for `run`.
unsafe fn repeat_run(
    py: Python<'_>,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> Option<PyResult<()>> {
    let method = RUN.get(py)?;
    // SAFETY: guaranteed by the caller; objects of these classes begin with their base.
    unsafe {
        let [arguments, artifact, stream, _workspace, assume] =
            values(method, args, count, keywords)?;
        let arguments = present(py, arguments)?;
        let class = ffi::Py_TYPE(arguments.as_ptr());
        let is_built_in = method.arguments.iter().any(|known| known.as_ptr().cast() == class);
        if !is_built_in && !arguments.is_instance_of::<RuntimeArguments>() {
            return None;
        }
        let native = arguments.cast_unchecked::<RuntimeArguments>().get().native.as_deref()?;
        let slf = Borrowed::from_ptr(py, slf);
        let [artifact, stream] = [artifact, stream].map(|object| present(py, object));
        repeat(&slf, native, artifact.as_deref(), stream.as_deref(), flag(assume)?)
    }
}

/// Runs any other call: directly if its keywords are interned, else through PyO3's method.
///
/// # Safety
/// As for `run`.
unsafe fn any_run(
    py: Python<'_>,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    let method =
        RUN.get(py).ok_or_else(|| PyValueError::new_err("the module is not initialized"))?;
    // SAFETY: guaranteed by the caller; the arguments live until the call returns.
    unsafe {
        let slf = Borrowed::from_ptr(py, slf);
        if let Some([arguments, artifact, stream, workspace, assume]) =
            values(method, args, count, keywords)
            && let Some(assume) = flag(assume)
            && let (Some(arguments), Ok(kernel)) = (present(py, arguments), slf.cast::<PyKernel>())
        {
            let [artifact, stream, workspace] =
                [artifact, stream, workspace].map(|object| present(py, object));
            let [artifact, stream, workspace] =
                [&artifact, &stream, &workspace].map(|object| object.as_deref());
            PyKernel::run(&kernel, &arguments, artifact, stream, workspace, assume)?;
            return Ok(py.None().into_ptr());
        }
        let count = count as usize;
        let positional = (0..count).map(|at| Borrowed::from_ptr(py, *args.add(at)).to_owned());
        let positional = PyTuple::new(
            py,
            std::iter::once(slf.to_owned()).chain(positional).collect::<Vec<_>>(),
        )?;
        let named = PyDict::new(py);
        if !keywords.is_null() {
            for (at, name) in Borrowed::from_ptr(py, keywords).cast::<PyTuple>()?.iter().enumerate()
            {
                named.set_item(name, Borrowed::from_ptr(py, *args.add(count + at)))?;
            }
        }
        method.generated.bind(py).call(positional, Some(&named)).map(Bound::into_ptr)
    }
}

/// The values of a call. None if there are too many values, a name is not an interned parameter
/// name, or a parameter has two values.
///
/// # Safety
/// As for `run`.
unsafe fn values(
    method: &Method,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> Option<Values> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARAMETERS)?;
    let mut values: Values = [std::ptr::null_mut(); PARAMETERS];
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (at, value) in values.iter_mut().enumerate().take(count) {
            *value = *args.add(at);
        }
        if !keywords.is_null() {
            for at in 0..ffi::PyTuple_Size(keywords) {
                let name = ffi::PyTuple_GetItem(keywords, at);
                let parameter = method.names.iter().position(|known| known.as_ptr() == name)?;
                if !values[parameter].is_null() {
                    return None;
                }
                values[parameter] = *args.add(count + at as usize);
            }
        }
    }
    Some(values)
}

/// A value that is neither omitted nor None.
///
/// # Safety
/// The object lives as long as the result.
unsafe fn present<'a, 'py>(
    py: Python<'py>,
    object: *mut ffi::PyObject,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    // SAFETY: guaranteed by the caller.
    unsafe { Borrowed::from_ptr_or_opt(py, object).filter(|object| !object.is_none()) }
}

/// The value of a bool; False if omitted. None for an object of another type.
fn flag(object: *mut ffi::PyObject) -> Option<bool> {
    // SAFETY: both objects live as long as the interpreter.
    let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
    let is_false = object.is_null() || object == no;
    (is_false || object == yes).then_some(!is_false)
}
