//! Bindings to NVRTC. cudarc loads libraries by name only; pip installs NVRTC outside the loader's
//! path, so it must be opened by its full path.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use super::error::Failure;
use super::locate::{candidates, preload_builtins, version_by_name};
use super::resources::REPORT;
use super::{Architecture, CompileError, embedded};
use crate::process::{delay_forks, is_ending};

type RawProgram = *mut c_void;

/// A libnvrtc. It is opened at the first compilation, since loading its 100 MB takes milliseconds.
pub struct Nvrtc {
    path: PathBuf,
    version: (i32, i32),
    functions: OnceLock<Functions>,
}

type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// Functions of libnvrtc: <https://docs.nvidia.com/cuda/nvrtc/index.html>.
struct Functions {
    architectures: Vec<u32>,
    create: unsafe extern "C" fn(
        *mut RawProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(RawProgram, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut RawProgram) -> c_int,
    log_size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
    log: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    ptx_size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
    ptx: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    add_name: unsafe extern "C" fn(RawProgram, *const c_char) -> c_int,
    lowered_name: unsafe extern "C" fn(RawProgram, *const c_char, *mut *const c_char) -> c_int,
    error_string: ErrorString,
    /// Keeps the functions above valid.
    _library: Library,
}

/// A compilation: source text, the file name for messages, options, and C++ name expressions.
#[derive(Default)]
pub(super) struct Task<'a> {
    pub text: &'a str,
    pub file: &'a str,
    pub options: &'a [String],
    pub names: &'a [String],
    /// Whether to return the PTX.
    pub wants_ptx: bool,
}

/// Machine code, the PTX if wanted, NVRTC's messages, and the lowered (mangled) names of
/// `Task::names`.
pub(super) struct Compiled {
    pub cubin: Vec<u8>,
    pub ptx: String,
    pub log: String,
    pub lowered: Vec<String>,
}

/// The oldest supported version: the first with `sm_90a`. `architecture_for` relies on it.
const OLDEST: (i32, i32) = (12, 0);

impl Nvrtc {
    /// The process's NVRTC. A failed search is not stored, so that a later search finds an NVRTC
    /// installed meanwhile.
    ///
    /// # Errors
    /// If no candidate is a supported NVRTC.
    pub fn get() -> Result<&'static Nvrtc, CompileError> {
        static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
        if let Some(nvrtc) = NVRTC.get() {
            return Ok(nvrtc);
        }
        let candidates = candidates();
        let mut tried = Vec::new();
        for path in &candidates {
            match Nvrtc::at(path) {
                Ok(nvrtc) => return Ok(NVRTC.get_or_init(|| nvrtc)),
                Err(reason) => tried.push(format!("  {}: {reason}", path.display())),
            }
        }
        Err(CompileError::NvrtcNotFound(format!(
            "NVRTC, which compiles the kernels, was not found. Install it with `pip install \
             rutlass[cuda]` (the package nvidia-cuda-nvrtc), or put libnvrtc.so.13 on the loader's \
             path. Looked for it among the libraries loaded in this process, in nvidia/*/lib and \
             torch/lib under the folders of sys.path, in lib64 and lib of $CUDA_HOME, and as:\n{}",
            tried.join("\n")
        )))
    }

    /// The library at a path. Opens it only if its file names do not show the version.
    fn at(path: &Path) -> Result<Nvrtc, String> {
        let at = |version| Nvrtc { path: path.to_owned(), version, functions: OnceLock::new() };
        let new_enough = |version: (i32, i32)| match version >= OLDEST {
            true => Ok(version),
            false => Err(format!(
                "it belongs to CUDA {}.{}; {}.{} or later is needed",
                version.0, version.1, OLDEST.0, OLDEST.1
            )),
        };
        if let Some(version) = version_by_name(path) {
            return new_enough(version).map(at);
        }
        let (version, functions) = Functions::open(path)?;
        Ok(Nvrtc { functions: functions.into(), ..at(new_enough(version)?) })
    }

    /// The library's functions. Opens the library on first use.
    fn functions(&self) -> Result<&Functions, String> {
        if let Some(functions) = self.functions.get() {
            return Ok(functions);
        }
        let path = self.path.display();
        let (version, functions) =
            Functions::open(&self.path).map_err(|reason| format!("{path}: {reason}"))?;
        if version != self.version {
            let ((major, minor), (of, builtins)) = (version, self.version);
            return Err(format!(
                "{path} is NVRTC {major}.{minor}, but the builtins beside it are {of}.{builtins}; \
                 reinstall NVRTC"
            ));
        }
        Ok(self.functions.get_or_init(|| functions))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The compute capabilities that this NVRTC compiles for.
    ///
    /// # Errors
    /// If the library cannot be opened.
    pub fn architectures(&self) -> Result<&[u32], CompileError> {
        let functions =
            self.functions().map_err(|error| CompileError::Nvrtc { call: "dlopen", error })?;
        Ok(&functions.architectures)
    }

    /// The architecture for a device: the device's own capability, or if NVRTC is older than the
    /// chip, the nearest lower one of the same major version, which is binary compatible (CUDA C++
    /// Programming Guide, "Binary Compatibility"). Not cached: the result depends only on NVRTC's
    /// version and `cc`.
    ///
    /// # Errors
    /// If `cc` is below 80, or NVRTC supports no compatible architecture.
    pub fn architecture_for(&self, cc: u32) -> Result<Architecture, CompileError> {
        if cc < 80 {
            return Err(CompileError::TooOld(cc));
        }
        // Every supported NVRTC compiles for these capabilities (CUDA 12.0 release notes), so the
        // library need not be opened.
        const BASE: [u32; 5] = [80, 86, 87, 89, 90];
        let known = if BASE.contains(&cc) && self.version().0 >= 12 {
            &BASE
        } else {
            self.architectures()?
        };
        let serves = |known: u32| Architecture::of(known).runs_on(cc);
        let nearest = known.iter().copied().filter(|a| serves(*a)).max();
        let Some(nearest) = nearest else {
            let (major, minor) = self.version();
            return Err(CompileError::UnknownArchitecture {
                cc,
                version: format!("{major}.{minor}"),
                known: known.to_vec(),
            });
        };
        Ok(Architecture::of(nearest))
    }

    /// Compiles a program to a cubin.
    pub(super) fn compile(&self, task: &Task<'_>) -> Result<Compiled, Failure> {
        let functions = self.functions().map_err(|error| Failure::Call("dlopen", error))?;
        // NVRTC and the loader have locks.
        let _delay = delay_forks();
        // `exit` destroys NVRTC's state, under which a compilation in another thread crashes.
        if is_ending() {
            return Err(Failure::Program("the interpreter is shutting down".to_owned()));
        }
        preload_builtins(&self.path);
        functions.compile(task)
    }
}

impl Functions {
    fn open(path: &Path) -> Result<((i32, i32), Functions), String> {
        let _delay = delay_forks(); // the loader has locks
        // SAFETY: runs the constructors of NVIDIA's libnvrtc. nvrtc.h declares each symbol with
        // this type, and `_library` keeps the library loaded as long as the functions.
        unsafe {
            let library = Library::new(path).map_err(loader_message)?;
            macro_rules! function {
                ($name:literal) => {
                    *library.get($name).map_err(loader_message)?
                };
            }
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                function!(b"nvrtcVersion");
            let count: unsafe extern "C" fn(*mut c_int) -> c_int =
                function!(b"nvrtcGetNumSupportedArchs");
            let list: unsafe extern "C" fn(*mut c_int) -> c_int =
                function!(b"nvrtcGetSupportedArchs");
            let error_string = function!(b"nvrtcGetErrorString");
            let checked = |call: &str, result: c_int| match result {
                0 => Ok(()),
                error => Err(format!("{call} failed with {}", describe(error_string, error))),
            };
            let (mut major, mut minor, mut architectures) = (0, 0, 0);
            checked("nvrtcVersion", version(&mut major, &mut minor))?;
            checked("nvrtcGetNumSupportedArchs", count(&mut architectures))?;
            let mut known = vec![0; architectures.max(0) as usize];
            checked("nvrtcGetSupportedArchs", list(known.as_mut_ptr()))?;
            let functions = Functions {
                architectures: known.into_iter().map(|arch| arch as u32).collect(),
                create: function!(b"nvrtcCreateProgram"),
                compile: function!(b"nvrtcCompileProgram"),
                destroy: function!(b"nvrtcDestroyProgram"),
                log_size: function!(b"nvrtcGetProgramLogSize"),
                log: function!(b"nvrtcGetProgramLog"),
                cubin_size: function!(b"nvrtcGetCUBINSize"),
                cubin: function!(b"nvrtcGetCUBIN"),
                ptx_size: function!(b"nvrtcGetPTXSize"),
                ptx: function!(b"nvrtcGetPTX"),
                add_name: function!(b"nvrtcAddNameExpression"),
                lowered_name: function!(b"nvrtcGetLoweredName"),
                error_string,
                _library: library,
            };
            Ok(((major, minor), functions))
        }
    }

    fn compile(&self, task: &Task<'_>) -> Result<Compiled, Failure> {
        let c_string = |text: &str| {
            CString::new(text)
                .map_err(|_| Failure::Program("the source contains a NUL character".to_owned()))
        };
        let c_strings = |texts: &mut dyn Iterator<Item = &str>| {
            texts.map(c_string).collect::<Result<Vec<_>, _>>()
        };
        let (text, file) = (c_string(task.text)?, c_string(task.file)?);
        let headers = c_strings(&mut embedded::HEADERS.iter().map(|(name, _)| *name))?;
        let contents = c_strings(&mut embedded::HEADERS.iter().map(|(_, text)| *text))?;
        let mut options = c_strings(&mut task.options.iter().map(String::as_str))?;
        let names = c_strings(&mut task.names.iter().map(String::as_str))?;
        options.push(c_string(REPORT)?);
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (headers, contents, options) =
            (pointers(&headers), pointers(&contents), pointers(&options));

        // SAFETY: strings and arrays outlive the calls that read them. The guard destroys the
        // program once. Lowered names are valid until then and copied before.
        unsafe {
            let mut program = std::ptr::null_mut();
            let created = (self.create)(
                &mut program,
                text.as_ptr(),
                file.as_ptr(),
                headers.len() as c_int,
                contents.as_ptr(),
                headers.as_ptr(),
            );
            self.check("nvrtcCreateProgram", created)?;
            let guard = ProgramGuard { functions: self, program };
            for name in &names {
                let added = (self.add_name)(guard.program, name.as_ptr());
                self.check("nvrtcAddNameExpression", added)?;
            }
            let compiled = (self.compile)(guard.program, options.len() as c_int, options.as_ptr());
            let log = self.fetch("nvrtcGetProgramLog", guard.program, self.log_size, self.log);
            let text = |log: Vec<u8>| {
                String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
            };
            if compiled != 0 {
                let error = self.describe(compiled);
                let log = log.map(text).unwrap_or_default();
                return Err(match log.is_empty() {
                    true => Failure::Call("nvrtcCompileProgram", error),
                    false => Failure::Program(format!("{log}\n({error})")),
                });
            }
            let log = text(log?);
            let cubin = self.fetch("nvrtcGetCUBIN", guard.program, self.cubin_size, self.cubin)?;
            // In an ELF header, byte 16 starts the type; 1 is a relocatable object.
            if !cubin.starts_with(b"\x7fELF") || cubin.get(16..18) == Some(&[1, 0]) {
                let reason = "the output needs linking and cannot be launched: remove the options \
                              -dlto, -rdc and -dc";
                return Err(Failure::Program(reason.to_owned()));
            }
            let mut lowered = Vec::with_capacity(names.len());
            for name in &names {
                let mut found = std::ptr::null();
                let call = (self.lowered_name)(guard.program, name.as_ptr(), &mut found);
                self.check("nvrtcGetLoweredName", call)?;
                lowered.push(CStr::from_ptr(found).to_string_lossy().into_owned());
            }
            let ptx = match task.wants_ptx {
                true => self.fetch("nvrtcGetPTX", guard.program, self.ptx_size, self.ptx)?,
                false => Vec::new(),
            };
            let ptx = String::from_utf8_lossy(&ptx).trim_end_matches('\0').to_owned();
            Ok(Compiled { cubin, ptx, log, lowered })
        }
    }

    /// Fetches a result of NVRTC: its size, then its bytes.
    ///
    /// # Safety
    /// `program` is alive, and `size` and `data` are NVRTC's functions for one result.
    unsafe fn fetch(
        &self,
        call: &'static str,
        program: RawProgram,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
        data: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, Failure> {
        let mut length = 0;
        // SAFETY: guaranteed by the caller; the buffer has the length that NVRTC returned.
        unsafe {
            self.check(call, size(program, &mut length))?;
            let mut bytes = vec![0u8; length];
            self.check(call, data(program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), Failure> {
        if result == 0 { Ok(()) } else { Err(Failure::Call(call, self.describe(result))) }
    }

    fn describe(&self, result: c_int) -> String {
        // SAFETY: the function is nvrtcGetErrorString, and `_library` keeps it loaded.
        unsafe { describe(self.error_string, result) }
    }
}

/// # Safety
/// The function is nvrtcGetErrorString of a loaded library.
unsafe fn describe(error_string: ErrorString, result: c_int) -> String {
    // SAFETY: takes any code and returns a static string, terminated with NUL, or null.
    unsafe {
        let text = error_string(result);
        match text.is_null() {
            true => format!("NVRTC error {result}"),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// The loader's message, which libloading reports as the error's source.
fn loader_message(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), |reason| reason.to_string())
}

struct ProgramGuard<'a> {
    functions: &'a Functions,
    program: RawProgram,
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: this library created the program, and nothing else destroys it.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}
