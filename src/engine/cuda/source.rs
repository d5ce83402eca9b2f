//! The kernels' text, embedded: modules are compiled on the machine that runs them.

/// One translation unit.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub name: &'static str,
    pub text: &'static str,
    /// The oldest compute capability that it is for, and only it where `exact`.
    pub arch: Arch,
}

/// For which chips a unit is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// Everything from sm_80 on.
    Any,
    /// sm_90a alone (wgmma).
    Hopper,
}

impl Arch {
    /// Whether `target` (`sm_90a`) belongs to it.
    pub fn includes(self, target: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Hopper => target == "sm_90a",
        }
    }
}

macro_rules! sources {
    ($($arch:ident $name:literal),* $(,)?) => {
        /// Every translation unit of `kernels/`.
        pub const SOURCES: &[Source] = &[$(Source {
            name: concat!($name, ".cu"),
            text: include_str!(concat!("../../../kernels/", $name, ".cu")),
            arch: Arch::$arch,
        }),*];
    };
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        /// What they include, by name.
        pub const HEADERS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../kernels/", $name)))),*];
    };
}

sources![
    Any "rows", Any "gemm", Any "attention", Any "attention_backward", Any "head", Any "sample", Any "decode",
    Any "dequantize", Any "optimizer", Any "fill", Any "flash_forward", Any "flash_backward",
    Any "gemm_e2m1", Any "gemm_nf4", Any "gemm_bf16", Any "lora", Any "shuffle", Any "flash_decode",
];
headers![
    "act.cuh",
    "ptx.cuh",
    "flash.cuh",
    "weights.cuh",
    "gemm_args.cuh",
    "gemm_small.cuh",
    "gemm_wide.cuh",
    "wgmma.cuh"
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let known: Vec<&str> = SOURCES.iter().map(|s| s.name).chain(HEADERS.iter().map(|h| h.0)).collect();
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".cu") || name.ends_with(".cuh") {
                assert!(known.contains(&name.as_str()), "{name} is not embedded");
            }
        }
    }
}
