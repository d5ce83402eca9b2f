//! How a reward is written in a pipeline file: a number, or a map that names a program.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A reward's weight, or an external program that computes it.
#[derive(Clone, Debug, PartialEq)]
pub enum RewardSpec {
    /// A built-in reward by its name, scaled by this.
    Weight(f64),
    /// A program that answers JSON lines; see docs/training.md for the protocol.
    Program {
        /// Program and arguments, never a shell; a relative path starts at the pipeline's folder.
        command: Vec<String>,
        weight: f64,
        /// Seconds per completion; a later answer counts as an abstention.
        timeout: f64,
    },
}

impl RewardSpec {
    pub fn weight(&self) -> f64 {
        match self {
            Self::Weight(weight) | Self::Program { weight, .. } => *weight,
        }
    }
}

const PROGRAM_WEIGHT: f64 = 1.0;
const PROGRAM_TIMEOUT: f64 = 10.0;

impl Serialize for RewardSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Weight(weight) => serializer.serialize_f64(*weight),
            Self::Program { command, weight, timeout } => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("command", command)?;
                map.serialize_entry("weight", weight)?;
                map.serialize_entry("timeout", timeout)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RewardSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RewardSpec;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a weight, or {command: [...], weight, timeout}")
            }

            fn visit_f64<E: de::Error>(self, weight: f64) -> Result<RewardSpec, E> {
                if weight.is_finite() { Ok(RewardSpec::Weight(weight)) } else { Err(E::custom("weight is not finite")) }
            }

            fn visit_u64<E: de::Error>(self, weight: u64) -> Result<RewardSpec, E> {
                self.visit_f64(weight as f64)
            }

            fn visit_i64<E: de::Error>(self, weight: i64) -> Result<RewardSpec, E> {
                self.visit_f64(weight as f64)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RewardSpec, A::Error> {
                let (mut command, mut weight, mut timeout) = (None::<Vec<String>>, PROGRAM_WEIGHT, PROGRAM_TIMEOUT);
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    match key.as_ref() {
                        "command" => command = Some(map.next_value()?),
                        "weight" => weight = map.next_value()?,
                        "timeout" => timeout = map.next_value()?,
                        other => return Err(de::Error::unknown_field(other, &["command", "weight", "timeout"])),
                    }
                }
                let command = command.ok_or_else(|| de::Error::missing_field("command"))?;
                if command.is_empty() || command[0].is_empty() {
                    return Err(de::Error::custom("command names no program"));
                }
                let fits = timeout > 0.0 && timeout <= 86_400.0 && weight.is_finite();
                if !fits {
                    return Err(de::Error::custom("timeout must be within 0..86400 seconds and weight finite"));
                }
                Ok(RewardSpec::Program { command, weight, timeout })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for RewardSpec {
    fn schema_name() -> Cow<'static, str> {
        "RewardSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A built-in reward's weight, or an external program that computes the reward.",
            "anyOf": [
                {"type": "number"},
                {
                    "type": "object",
                    "properties": {
                        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                        "weight": {"type": "number", "default": PROGRAM_WEIGHT},
                        "timeout": {"type": "number", "default": PROGRAM_TIMEOUT, "exclusiveMinimum": 0.0, "maximum": 86400.0},
                    },
                    "required": ["command"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}
