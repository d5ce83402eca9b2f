//! A model folder: its config and its tensors, handed out by role in whatever format they are stored.

use std::borrow::Cow;
use std::path::Path;

use half::{bf16, f16};

use super::config::read_json;
use super::names::{self, Norm, Projection};
use super::scheme::{Layout, Scheme};
use super::weight::{Values, Weight};
use super::{ModelConfig, bnb};
use crate::engine::NamedTensor;
use crate::quant::codes::E4M3;
use crate::quant::nvfp4::Global;
use crate::tensors::{DType, Tensors, View};
use crate::{Error, Result};

/// An open model folder. Opening checks that every tensor the architecture needs is there in the right shape;
/// scales are checked when a layer is read.
#[derive(Debug)]
pub struct Checkpoint {
    pub config: ModelConfig,
    scheme: Scheme,
    tensors: Tensors,
}

impl Checkpoint {
    pub fn open(dir: &Path) -> Result<Self> {
        let (path, json) = read_json(dir)?;
        let config = ModelConfig::parse(&json).map_err(|e| e.within(path.display()))?;
        let scheme = Scheme::read(&json, dir).map_err(|e| e.within(path.display()))?;
        let checkpoint = Self { config, scheme, tensors: Tensors::open(dir)? };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// How the projections are stored.
    pub fn layout(&self) -> Layout {
        self.scheme.layout
    }

    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Everything but the contents of scales, from headers alone.
    fn check(&self) -> Result<()> {
        let hidden = self.config.hidden_size;
        self.embedding()?;
        self.head()?;
        self.vector(names::FINAL_NORM, hidden)?;
        for layer in 0..self.config.num_layers {
            for norm in Norm::of(&self.config) {
                self.vector(&norm.weight(layer), norm.len(&self.config))?;
            }
            for projection in Projection::ALL {
                let prefix = projection.prefix(layer);
                let [rows, _] = projection.shape(&self.config);
                if projection.has_bias(&self.config) {
                    self.vector(&format!("{prefix}.bias"), rows)?;
                }
                self.lookup(&prefix)?;
            }
        }
        Ok(())
    }

    /// A projection's weight (`model.layers.0.self_attn.q_proj`), as it is stored. Scales that are missing, zero
    /// or not finite are an error that names the layer.
    pub fn linear(&self, prefix: &str) -> Result<Weight<'_>> {
        let named = |e: Error| e.within(format!("layer {prefix}"));
        let shape = self.shape_of(prefix)?;
        let values = match self.lookup(prefix)? {
            Stored::Dense(view) => return dense_weight(view, shape),
            Stored::Nvfp4 { packed, scales, global, divides } => {
                let global = scalar(global).map_err(named)?;
                let global = if divides { Global::Divisor(global) } else { Global::Multiplier(global) };
                if !global.is_usable() {
                    return Err(named(unusable(format!("its global scale is {:?}", global))));
                }
                if let Some(bad) = scales.data.iter().find(|code| !is_usable(**code)) {
                    let bad = E4M3[*bad as usize];
                    return Err(named(unusable(format!("one of its block scales is {bad}"))));
                }
                Values::Nvfp4 { packed: Cow::Borrowed(packed.data), scales: Cow::Borrowed(scales.data), global }
            }
            Stored::Mxfp4 { packed, scales } => {
                if scales.data.contains(&255) {
                    return Err(named(unusable("one of its block scales is NaN".to_owned())));
                }
                Values::Mxfp4 { packed: Cow::Borrowed(packed.data), scales: Cow::Borrowed(scales.data) }
            }
            Stored::Nf4 => bnb::read(&self.tensors, prefix, shape).map_err(named)?,
        };
        Ok(Weight { shape, values })
    }

    /// Any float tensor, widened to f32.
    pub fn dense(&self, name: &str) -> Result<NamedTensor> {
        let view = self.tensors.tensor(name)?;
        Ok(NamedTensor { name: name.to_owned(), shape: view.shape.to_vec(), data: view.to_f32()? })
    }

    /// A projection's bias, where the architecture has one.
    pub fn bias(&self, prefix: &str) -> Result<Option<NamedTensor>> {
        match Projection::parse(prefix) {
            Some((projection, _)) if projection.has_bias(&self.config) => {
                self.dense(&format!("{prefix}.bias")).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// `[vocab, hidden]`.
    pub fn embedding(&self) -> Result<Weight<'_>> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        dense_weight(self.tensors.tensor(names::EMBEDDING)?, shape)
    }

    /// `[vocab, hidden]`; `None` where the embedding serves as head, even if the file holds one.
    pub fn head(&self) -> Result<Option<Weight<'_>>> {
        if self.config.tie_word_embeddings {
            return Ok(None);
        }
        let shape = [self.config.vocab_size, self.config.hidden_size];
        if self.tensors.contains("lm_head.weight_packed") {
            return Err(Error::input(format!("{}: the head is quantized", self.tensors.dir().display()))
                .hint("quantize the model again with lm_head left out"));
        }
        dense_weight(self.tensors.tensor(names::HEAD)?, shape).map(Some)
    }

    fn shape_of(&self, prefix: &str) -> Result<[usize; 2]> {
        match Projection::parse(prefix) {
            Some((projection, layer)) if layer < self.config.num_layers => Ok(projection.shape(&self.config)),
            _ => Err(Error::failed(format!("{prefix:?} is no projection of this model"))),
        }
    }

    fn vector(&self, name: &str, len: usize) -> Result<()> {
        let view = self.tensors.tensor(name)?.shaped(&[len])?;
        match view.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            other => Err(view.wrong(format!("is {}, but a float type is needed here", other.name()))),
        }
    }

    /// The tensors behind a projection, with shapes and types checked.
    fn lookup(&self, prefix: &str) -> Result<Stored<'_>> {
        let shape = self.shape_of(prefix)?;
        let [rows, cols] = shape;
        let part = |suffix: &str, dtype: DType, shape: &[usize]| -> Result<View<'_>> {
            let name = format!("{prefix}.{suffix}");
            let view = self.tensors.find(&name).ok_or_else(|| {
                Error::missing(format!("{}: layer {prefix} has no {suffix}", self.tensors.dir().display()))
                    .hint("the checkpoint is incomplete, or its quantization_config is of another file")
            })?;
            if view.dtype != dtype {
                return Err(view.wrong(format!("is {}, but {} is needed here", view.dtype.name(), dtype.name())));
            }
            view.shaped(shape)
        };
        let groups = |group: usize| -> Result<()> {
            if cols % group == 0 {
                return Ok(());
            }
            Err(Error::input(format!("layer {prefix}: {cols} inputs are no multiple of {group}")))
        };
        let dense = self.tensors.find(&format!("{prefix}.weight"));
        if let Some(view) = dense
            && matches!(view.dtype, DType::F32 | DType::F16 | DType::BF16)
            && self.scheme.may_be_dense(prefix)
        {
            return Ok(Stored::Dense(view.shaped(&shape)?));
        }
        match self.scheme.layout {
            Layout::Dense => {
                let view = self.tensors.tensor(&format!("{prefix}.weight"))?.shaped(&shape)?;
                Err(view.wrong(format!("is {}, but config.json has no quantization_config", view.dtype.name())))
            }
            Layout::Nvfp4 => {
                groups(16)?;
                Ok(Stored::Nvfp4 {
                    packed: part("weight_packed", DType::U8, &[rows, cols / 2])?,
                    scales: part("weight_scale", DType::F8E4M3, &[rows, cols / 16])?,
                    global: part("weight_global_scale", DType::F32, &[1])?,
                    divides: true,
                })
            }
            Layout::ModelOpt => {
                groups(16)?;
                Ok(Stored::Nvfp4 {
                    packed: part("weight", DType::U8, &[rows, cols / 2])?,
                    scales: part("weight_scale", DType::F8E4M3, &[rows, cols / 16])?,
                    global: part("weight_scale_2", DType::F32, &[])
                        .or_else(|e| part("weight_scale_2", DType::F32, &[1]).map_err(|_| e))?,
                    divides: false,
                })
            }
            Layout::Mxfp4 => {
                groups(32)?;
                Ok(Stored::Mxfp4 {
                    packed: part("weight_packed", DType::U8, &[rows, cols / 2])?,
                    scales: part("weight_scale", DType::U8, &[rows, cols / 32])?,
                })
            }
            Layout::Nf4 => {
                part("weight", DType::U8, &[(rows * cols).div_ceil(2), 1])?;
                Ok(Stored::Nf4)
            }
        }
    }
}

/// What lies behind a projection.
enum Stored<'a> {
    Dense(View<'a>),
    Nvfp4 { packed: View<'a>, scales: View<'a>, global: View<'a>, divides: bool },
    Mxfp4 { packed: View<'a>, scales: View<'a> },
    Nf4,
}

fn dense_weight<'a>(view: View<'a>, shape: [usize; 2]) -> Result<Weight<'a>> {
    let view = view.shaped(&shape)?;
    let values = match view.dtype {
        DType::BF16 => Values::Bf16(view.values::<bf16>()?),
        DType::F16 => Values::F16(view.values::<f16>()?),
        DType::F32 => Values::F32(view.values::<f32>()?),
        other => return Err(view.wrong(format!("is {}, but a float type is needed here", other.name()))),
    };
    Ok(Weight { shape, values })
}

fn scalar(view: View<'_>) -> Result<f32> {
    let values = view.values::<f32>()?;
    values.first().copied().ok_or_else(|| view.wrong("is empty"))
}

/// Whether an e4m3 block scale is above zero (and no NaN).
fn is_usable(code: u8) -> bool {
    E4M3[code as usize] > 0.0
}

pub(super) fn unusable(what: String) -> Error {
    Error::input(what).hint("the layer would come out as zeros or NaN: quantize the model again")
}
