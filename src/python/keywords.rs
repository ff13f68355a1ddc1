//! `Kernel.run`'s arguments, told by the identity of their names: Python interns the keywords in a program, and PyO3 compares
//! strings, which is a noticeable part of a launch. What is run again does without PyO3's way into a function, too: what a launch takes
//! beside the driver is the fetching of code and tables, of which each line counts. Whatever is not as usual is left to PyO3's own
//! reading, and so are errors in what is given.

use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::impl_::trampoline::get_trampoline_function;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use super::arguments::{
    ElementwiseArguments, GemmArguments, GroupedGemmArguments, RuntimeArguments,
};
use super::kernel::{
    ElementwiseKernel, PyKernel, SimtGemmKernel, SkinnyGemmKernel, Sm80GemmKernel, Sm90GemmKernel,
};

/// `run` as PyO3 made it, the names of its parameters, and the classes of our own that its first argument may have.
struct Method {
    names: [Py<PyString>; PARAMETERS],
    last: Last,
    arguments: [Py<PyType>; 3],
    /// Constants of the interpreter, here since what else is looked at is.
    none: Py<PyAny>,
    yes: Py<PyAny>,
    no: Py<PyAny>,
    slow: Py<PyAny>,
}

const PARAMETERS: usize = 5;

/// The names in the last call, as the tuple that Python makes of them once for each place in a program, and a byte for each, the place of
/// the parameter. Read and written with the GIL held.
#[derive(Default)]
struct Last {
    names: AtomicPtr<ffi::PyObject>,
    places: AtomicU64,
}

impl Method {
    /// An argument that was given, and not as None.
    ///
    /// # Safety
    /// The object lives for as long as the result.
    unsafe fn given<'a, 'py>(
        &self,
        py: Python<'py>,
        object: *mut ffi::PyObject,
    ) -> Option<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: the caller's.
        unsafe { Borrowed::from_ptr_or_opt(py, object).filter(|object| !object.is(&self.none)) }
    }

    /// What True and False say; left out means False. None for what is neither.
    fn flag(&self, object: *mut ffi::PyObject) -> Option<bool> {
        let no = object.is_null() || object == self.no.as_ptr();
        (no || object == self.yes.as_ptr()).then_some(!no)
    }
}

static RUN: PyOnceLock<Method> = PyOnceLock::new();

/// Puts `run` in the place of PyO3's, with its name, signature and documentation.
pub fn install(py: Python<'_>) -> PyResult<()> {
    if RUN.get(py).is_some() {
        return Ok(()); // The module is imported again; the class is the one that it was.
    }
    let class = py.get_type::<PyKernel>();
    let slow = class.getattr("run")?;
    let (signature, text) = (slow.getattr("__text_signature__")?, slow.getattr("__doc__")?);
    let documentation =
        CString::new(format!("run{signature}\n--\n\n{text}")).map_err(PyValueError::new_err)?;
    let names = ["args", "compiled_artifact", "stream", "workspace", "assume_supported_args"];
    let names = names.map(|name| PyString::intern(py, name).unbind());
    let arguments = [
        py.get_type::<GemmArguments>(),
        py.get_type::<GroupedGemmArguments>(),
        py.get_type::<ElementwiseArguments>(),
    ];
    let method = Method {
        names,
        last: Last::default(),
        arguments: arguments.map(Bound::unbind),
        none: py.None(),
        yes: true.into_pyobject(py)?.to_owned().into_any().unbind(),
        no: false.into_pyobject(py)?.to_owned().into_any().unbind(),
        slow: slow.unbind(),
    };
    let definition: *mut _ = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"run".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: documentation.into_raw(),
    }));
    // The classes of kernels that launch have the method themselves, which spares Python the question whether an object's class is derived
    // from the method's.
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
    RUN.set(py, method)
        .map_err(|_| PyValueError::new_err("the module is being initialized twice at a time"))
}

/// `run`, as Python calls it. Nothing may panic on the short road, on which nobody catches it.
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
            None => get_trampoline_function!(fastcall_cfunction_with_keywords, run_at_first)(
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

/// A run like one before. None where it is not, or is said in an unusual way.
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
        let [arguments, artifact, stream, _workspace, assume] =
            told(method, args, count, keywords)?;
        let arguments = method.given(py, arguments)?;
        let class = ffi::Py_TYPE(arguments.as_ptr());
        if !method.arguments.iter().any(|known| known.as_ptr().cast() == class) {
            return None;
        }
        let native = arguments.cast_unchecked::<RuntimeArguments>().get().native.as_deref()?;
        let (slf, artifact, stream) =
            (Borrowed::from_ptr(py, slf), method.given(py, artifact)?, method.given(py, stream));
        PyKernel::run_again(&slf, native, &artifact, stream.as_deref(), method.flag(assume)?)
    }
}

/// Any run.
///
/// # Safety
/// As for `run`.
unsafe fn run_at_first(
    py: Python<'_>,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    let method =
        RUN.get(py).ok_or_else(|| PyValueError::new_err("the module is not initialized"))?;
    // SAFETY: the caller's; the arguments live until the call has returned.
    unsafe {
        let slf = Borrowed::from_ptr(py, slf);
        if let Some([arguments, artifact, stream, workspace, assume]) =
            told(method, args, count, keywords)
            && let Some(assume) = method.flag(assume)
            && let (Some(arguments), Ok(kernel)) =
                (method.given(py, arguments), slf.cast::<PyKernel>())
        {
            let [artifact, stream, workspace] =
                [artifact, stream, workspace].map(|object| method.given(py, object));
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
        method.slow.bind(py).call(positional, Some(&named)).map(Bound::into_ptr)
    }
}

/// What a call gives for each parameter, null for those that it leaves out; None where a name is not known by its identity, or is given
/// twice.
///
/// # Safety
/// As for `run`.
#[inline(always)]
unsafe fn told(
    method: &Method,
    args: *const *mut ffi::PyObject,
    count: isize,
    keywords: *mut ffi::PyObject,
) -> Option<[*mut ffi::PyObject; PARAMETERS]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARAMETERS)?;
    // SAFETY: the caller's.
    unsafe {
        let mut told: [_; PARAMETERS] =
            std::array::from_fn(|at| if at < count { *args.add(at) } else { std::ptr::null_mut() });
        if !keywords.is_null() {
            let last = &method.last;
            let mut places = match last.names.load(Ordering::Relaxed) == keywords {
                true => last.places.load(Ordering::Relaxed),
                false => places(method, keywords)?,
            };
            let mut given = args.add(count);
            // There is no such place behind the last name.
            while let Some(place) = told.get_mut(usize::from(places as u8)) {
                if !place.is_null() {
                    return None;
                }
                *place = *given;
                (given, places) = (given.add(1), places >> u8::BITS);
            }
        }
        Some(told)
    }
}

/// The places of a call's names among the parameters, which are remembered until another call has other names.
///
/// # Safety
/// `keywords` is a tuple, and the GIL is held.
#[inline(never)]
unsafe fn places(method: &Method, keywords: *mut ffi::PyObject) -> Option<u64> {
    let mut places = [u8::MAX; size_of::<u64>()];
    // SAFETY: the caller's. The tuple is kept alive for as long as it is known by its address.
    unsafe {
        for (at, place) in places.iter_mut().enumerate().take(ffi::PyTuple_Size(keywords) as usize)
        {
            let name = ffi::PyTuple_GetItem(keywords, at as isize);
            *place = method.names.iter().position(|known| known.as_ptr() == name)? as u8;
        }
        let places = u64::from_le_bytes(places);
        ffi::Py_IncRef(keywords);
        let before = method.last.names.swap(keywords, Ordering::Relaxed);
        method.last.places.store(places, Ordering::Relaxed);
        ffi::Py_DecRef(before);
        Some(places)
    }
}
