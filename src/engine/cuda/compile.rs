//! Kernels from text to machine code by NVRTC, and the cache of what was compiled.

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys;

use super::library::Library;
use super::source::{HEADERS, SOURCES, Source};
use crate::error::Kind;
use crate::{Error, Result};

/// Every chip that kernels are compiled for in the checks.
pub const TARGETS: [&str; 4] = ["sm_80", "sm_90a", "sm_100a", "sm_120a"];

/// How the activations are stored: a define of every unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Two bytes, products in the matrix units with f32 sums.
    Bf16,
    /// The check mode: f32 everywhere, no matrix units.
    F32,
}

impl Width {
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F32];

    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    fn define(self) -> &'static str {
        match self {
            Self::Bf16 => "-DACT_F32=0",
            Self::F32 => "-DACT_F32=1",
        }
    }
}

/// NVRTC's version.
///
/// # Errors
/// Where it is not on this machine.
pub fn version() -> Result<(i32, i32)> {
    Library::Nvrtc.require()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid; the library is there.
    check(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }, "ask NVRTC for its version")?;
    Ok((major, minor))
}

fn check(result: sys::nvrtcResult, what: &str) -> Result<()> {
    match result {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Error::new(Kind::Device, format!("cannot {what}: {other:?}"))),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|e| Error::failed("a kernel's text holds a zero byte").caused_by(e))
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn options(target: &str, width: Width) -> Vec<String> {
    vec![format!("--gpu-architecture={target}"), width.define().to_owned(), "--std=c++17".to_owned()]
}

/// Machine code (cubin) of one unit for `target` (`sm_90a`), and the compiler's remarks.
///
/// # Errors
/// With the compiler's log where the text does not compile.
pub fn compile(source: &Source, target: &str, width: Width) -> Result<(Vec<u8>, String)> {
    Library::Nvrtc.require()?;
    let (text, name) = (c_string(source.text)?, c_string(source.name)?);
    let headers = HEADERS.iter().map(|(_, text)| c_string(text)).collect::<Result<Vec<_>>>()?;
    let names = HEADERS.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>>>()?;
    let pointers = |all: &[CString]| all.iter().map(|c| c.as_ptr()).collect::<Vec<*const c_char>>();
    let (headers_at, names_at) = (pointers(&headers), pointers(&names));
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all strings end with zero and outlive the call; the counts are those of the arrays.
    check(
        unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program.0,
                text.as_ptr(),
                name.as_ptr(),
                headers_at.len() as i32,
                headers_at.as_ptr(),
                names_at.as_ptr(),
            )
        },
        "make a program",
    )?;
    let options = options(target, width).iter().map(|o| c_string(o)).collect::<Result<Vec<_>>>()?;
    let options_at = pointers(&options);
    // SAFETY: as above; the program was made by the call before.
    let outcome = unsafe { sys::nvrtcCompileProgram(program.0, options_at.len() as i32, options_at.as_ptr()) };
    let log = log(&program);
    if outcome != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(Error::new(Kind::Device, format!("{} does not compile for {target}: {log}", source.name))
            .hint("NVRTC of CUDA 12.8 or newer is needed; report this with the output of `qerl doctor`"));
    }
    let mut size = 0;
    // SAFETY: the program was compiled for a real architecture, so it has a cubin of the size that is asked for.
    check(unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }, "read compiled code")?;
    let mut code = vec![0u8; size];
    check(unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }, "read compiled code")?;
    Ok((code, log))
}

fn log(program: &Program) -> String {
    let mut size = 0;
    // SAFETY: the buffer has the size that NVRTC names, its end included.
    unsafe {
        if sys::nvrtcGetProgramLogSize(program.0, &raw mut size) != sys::nvrtcResult::NVRTC_SUCCESS || size == 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        if sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()) != sys::nvrtcResult::NVRTC_SUCCESS {
            return String::new();
        }
        CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned()).unwrap_or_default()
    }
}

/// The folder of compiled kernels: `QERL_KERNEL_CACHE`, or `qerl/kernels` in the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("QERL_KERNEL_CACHE").or_else(|| {
        let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
        Some(base.join("qerl").join("kernels"))
    })
}

/// As [`compile`], from the cache where it holds the same text, headers, target, options and compiler version.
///
/// # Errors
/// As [`compile`]. A cache that cannot be read or written is no error.
pub fn cached(source: &Source, target: &str, width: Width) -> Result<Vec<u8>> {
    let (major, minor) = version()?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    add(source.name);
    add(source.text);
    HEADERS.iter().for_each(|(name, text)| (add(name), add(text)).1);
    options(target, width).iter().for_each(|o| add(o));
    add(&format!("{major}.{minor}"));
    let digest = hasher.finalize().to_hex();
    let path = cache_folder().map(|folder| folder.join(format!("{digest}.cubin")));
    if let Some(code) = path.as_deref().and_then(read) {
        return Ok(code);
    }
    let (code, _) = compile(source, target, width)?;
    if let Some(path) = path {
        write(&path, &code);
    }
    Ok(code)
}

/// A file that holds its own digest in front of the code; anything else counts as absent.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (digest, code) = bytes.split_at_checked(blake3::OUT_LEN)?;
    (blake3::hash(code).as_bytes() == digest).then(|| code.to_vec())
}

fn write(path: &Path, code: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let put = || -> std::io::Result<()> {
        use std::io::Write;
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(blake3::hash(code).as_bytes())?;
        file.write_all(code)?;
        file.persist(path)?;
        Ok(())
    };
    // Without a cache every start compiles again: slower, but right.
    let _ = put();
}

/// Compiles every unit for `target`; gives a line per unit: name, width, bytes, remarks.
///
/// # Errors
/// The first unit that does not compile.
pub fn compile_all(target: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for source in SOURCES.iter().filter(|s| s.arch.includes(target)) {
        for width in Width::ALL {
            let (code, log) = compile(source, target, width)?;
            let log = if log.is_empty() { String::new() } else { format!("  {log}") };
            lines.push(format!("{target} {} {width:?} {} bytes{log}", source.name, code.len()));
        }
    }
    Ok(lines)
}
