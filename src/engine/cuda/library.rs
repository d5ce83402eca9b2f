//! Finds NVIDIA's libraries, so that the ordinary binary, built without any of them, can use what a machine has.
//!
//! cudarc opens them by their plain names and panics where there are none. So each is looked for here first: by the
//! loader's own rules, then in the places where CUDA, conda and pip put it. One that is found in such a place is opened
//! by its path and stays open: the loader then knows it by its name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::Kind;
use crate::{Error, Result};

/// What the engine needs of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// libcuda, part of the driver.
    Driver,
    /// The run-time compiler.
    Nvrtc,
    CublasLt,
}

impl Library {
    pub const ALL: [Self; 3] = [Self::Driver, Self::Nvrtc, Self::CublasLt];

    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Nvrtc => "nvrtc",
            Self::CublasLt => "cublaslt",
        }
    }

    /// What to do where it is not found.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Driver => {
                "libcuda comes with the NVIDIA driver (580 or newer for CUDA 13); containers need --gpus all"
            }
            Self::Nvrtc => {
                "libnvrtc: `pip install nvidia-cuda-nvrtc` in the active environment, or point CUDA_HOME to a CUDA toolkit, \
                 or QERL_CUDA_LIB to the folder that holds the library"
            }
            Self::CublasLt => {
                "libcublasLt: `pip install nvidia-cublas` in the active environment, or point CUDA_HOME to a CUDA toolkit, \
                 or QERL_CUDA_LIB to the folder that holds the library"
            }
        }
    }

    /// File names, the newest major first. Each with what must be opened before it.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Driver => &[("libcuda.so.1", ""), ("libcuda.so", "")],
            Self::Nvrtc => {
                &[("libnvrtc.so.13", "libnvrtc-builtins.so.13"), ("libnvrtc.so.12", "libnvrtc-builtins.so.12")]
            }
            Self::CublasLt => &[("libcublasLt.so.13", ""), ("libcublasLt.so.12", "")],
        }
    }

    fn slot(self) -> &'static OnceLock<Option<PathBuf>> {
        static SLOTS: [OnceLock<Option<PathBuf>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        &SLOTS[self as usize]
    }

    /// Opens the library if it is anywhere; gives its path, or its name where the loader found it by itself.
    pub fn find(self) -> Option<&'static Path> {
        self.slot().get_or_init(|| self.search()).as_deref()
    }

    /// # Errors
    /// Where the library is nowhere.
    pub fn require(self) -> Result<()> {
        match self.find() {
            Some(_) => Ok(()),
            None => {
                let what = self.files()[0].0;
                Err(Error::new(Kind::Device, format!("{what} is not on this machine")).hint(self.hint()))
            }
        }
    }

    fn search(self) -> Option<PathBuf> {
        let given: Vec<PathBuf> = std::env::var_os("QERL_CUDA_LIB").iter().flat_map(std::env::split_paths).collect();
        for &(file, first) in self.files() {
            let found = given.iter().find_map(|folder| open_in(folder, file, first));
            if found.is_some() {
                return found;
            }
        }
        for &(file, first) in self.files() {
            if keep_open(Path::new(file)) {
                return Some(file.into());
            }
            let found = folders().iter().find_map(|folder| open_in(folder, file, first));
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// Opens `file` in `folder`, after the file there whose name starts with `first`.
fn open_in(folder: &Path, file: &str, first: &str) -> Option<PathBuf> {
    let path = folder.join(file);
    if !path.is_file() {
        return None;
    }
    if !first.is_empty() {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(first) {
                keep_open(&entry.path());
            }
        }
    }
    keep_open(&path).then_some(path)
}

/// Opens a library for the rest of the process.
fn keep_open(path: &Path) -> bool {
    // SAFETY: NVIDIA's libraries run no code of interest when they are opened; the paths are those of the loader or
    // of folders that the user named or installed into.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Where toolkits, conda and pip put libraries, in the order in which they are tried.
fn folders() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut out = Vec::new();
    for home in [var("CUDA_HOME"), var("CUDA_PATH"), Some("/usr/local/cuda".into())].into_iter().flatten() {
        out.extend([home.join("lib64"), home.join("targets/x86_64-linux/lib"), home.join("targets/sbsa-linux/lib")]);
    }
    if let Some(conda) = var("CONDA_PREFIX") {
        out.push(conda.join("lib"));
        pip(&conda, &mut out);
    }
    if let Some(venv) = var("VIRTUAL_ENV") {
        pip(&venv, &mut out);
    }
    // The environment of the python that a shell would start.
    let path = std::env::var_os("PATH").unwrap_or_default();
    for python in std::env::split_paths(&path).map(|folder| folder.join("python3")).filter(|p| p.is_file()) {
        if let Some(prefix) = python.parent().and_then(Path::parent) {
            pip(prefix, &mut out);
        }
    }
    for prefix in ["/usr", "/usr/local"] {
        pip(Path::new(prefix), &mut out);
    }
    out
}

/// Folders of NVIDIA's wheels below `prefix`.
fn pip(prefix: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return };
    for python in entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("python3")) {
        for packages in ["site-packages", "dist-packages"] {
            let nvidia = python.path().join(packages).join("nvidia");
            for wheel in ["cu13", "cuda_nvrtc", "cublas"] {
                out.push(nvidia.join(wheel).join("lib"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_looked_for_below_a_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        let mut out = Vec::new();
        pip(dir.path(), &mut out);
        assert!(out.contains(&lib), "{out:?}");
    }

    #[test]
    fn a_file_that_is_no_library_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("libnvrtc.so.13"), "text").unwrap();
        assert_eq!(open_in(dir.path(), "libnvrtc.so.13", "libnvrtc-builtins.so.13"), None);
    }
}
