//! Checks of the engine against data of the reference libraries, from the tests and from the installed binary.

mod check;
mod golden;
mod material;
mod reference;

use std::path::Path;

pub use check::{Check, Tolerance};
pub use golden::{folder, golden};
pub use reference::reference;

use crate::Result;
use crate::engine::{Engine, Trainable};

/// Makes the engine under test: model folder, adapter folder, what is trained.
pub type Loader<'a> = dyn Fn(&Path, Option<&Path>, Trainable) -> Result<Box<dyn Engine>> + 'a;
