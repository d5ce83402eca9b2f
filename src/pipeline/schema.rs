//! The JSON Schema of the pipeline file, for editors: the stages' own schemas put together.

use serde_json::{Map, Value as Json, json};

use super::Resources;
use crate::data::{BUILTINS, DataEntry};
use crate::stages::Kind;

/// The schema (draft 2020-12). A `${...}` string is allowed wherever a value is.
pub fn schema() -> Json {
    let mut defs = Map::new();
    let mut runs = Vec::new();
    let mut defaults = Map::new();
    for kind in Kind::ALL {
        let name = kind.name();
        add(&mut defs, &format!("stage-{name}"), kind.schema().to_value());
        let config = json!({"$ref": format!("#/$defs/stage-{name}")});
        // Defaults may stand elsewhere, so nothing is required of them here.
        add(&mut defs, &format!("defaults-{name}"), without_required(kind.schema().to_value()));
        defaults.insert(name.to_owned(), json!({"$ref": format!("#/$defs/defaults-{name}")}));
        runs.push(json!({"type": "object", "properties": {name: config}, "required": [name],
            "additionalProperties": false}));
    }
    add(&mut defs, "data-entry", schemars::schema_for!(DataEntry).to_value());
    add(&mut defs, "resources", schemars::schema_for!(Resources).to_value());
    let id = json!({"type": "string", "pattern": "^[A-Za-z0-9_-]+$"});
    let names = json!({"pattern": "^[A-Za-z0-9_-]+$"});
    let overlay = json!({"type": ["object", "null"], "propertyNames": {"pattern": "^[^.]+(\\.[^.]+)+$"},
        "description": "PATH: value; a path is vars.NAME, data.NAME.KEY, sweep.AXIS or STAGE.KEY..."});
    let point = json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "array"]}});
    let builtins: Vec<&str> = BUILTINS.iter().map(|b| b.name).collect();
    defs.insert("overlay".to_owned(), overlay);
    defs.insert("point".to_owned(), point);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "qerl pipeline",
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
                "description": "Names the experiment: in addresses, in the store and in the report's folder."},
            "include": {"description": "Files that this one builds on, relative to it; this file wins.",
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "vars": {"type": "object", "propertyNames": names, "description": "Values for ${vars.NAME}."},
            "data": {"type": "object", "propertyNames": names,
                "additionalProperties": {"$ref": "#/$defs/data-entry"},
                "description": format!("Data sets by name. Built in: {}.", builtins.join(", "))},
            "defaults": {"type": "object", "properties": defaults, "additionalProperties": false,
                "description": "Configuration by stage kind, below the stages' own."},
            "profiles": {"type": "object", "propertyNames": names,
                "additionalProperties": {"$ref": "#/$defs/overlay"},
                "description": "Named sets of changes, chosen by --profile."},
            "variants": {"type": "object", "additionalProperties": {"$ref": "#/$defs/overlay"},
                "description": "The axis `variant`: label -> what differs."},
            "sweep": {"type": "object", "propertyNames": names,
                "additionalProperties": {"type": ["array", "object"]},
                "description": "Axes: a list of values, or label -> value."},
            "select": {"type": "object", "additionalProperties": false,
                "description": "Which combinations of the axes are points.",
                "properties": {
                    "exclude": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                    "add": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                    "zip": {"type": "array"},
                    "sample": {"type": "object", "additionalProperties": false, "required": ["n"],
                        "properties": {"n": {"type": "integer", "minimum": 1}, "seed": {"type": "integer", "minimum": 0}}},
                }},
            "stages": {"type": "array", "items": {
                "type": "object",
                "properties": {
                    "id": id,
                    "run": {"oneOf": runs},
                    "resources": {"$ref": "#/$defs/resources"},
                    "needs": {"anyOf": [id.clone(), {"type": "array", "items": id}],
                        "description": "Stages that must be finished first, without handing on data."},
                },
                "required": ["id", "run"],
                "additionalProperties": false,
            }},
        },
        // An included file gives what is missing.
        "patternProperties": {"^x-": true},
        "additionalProperties": false,
        "$defs": defs,
    })
}

/// Moves a type's schema and its definitions into `defs`, editor-ready.
fn add(defs: &mut Map<String, Json>, name: &str, mut schema: Json) {
    if let Json::Object(map) = &mut schema {
        map.remove("$schema");
        if let Some(Json::Object(inner)) = map.remove("$defs") {
            for (key, mut value) in inner {
                open(&mut value);
                defs.insert(key, value);
            }
        }
        if let Some(Json::Object(properties)) = map.get_mut("properties") {
            properties.values_mut().for_each(open);
        }
        // A stage without a configuration of its own is written `run: {KIND: }`.
        map.remove("title");
    }
    defs.insert(name.to_owned(), schema);
}

fn without_required(mut schema: Json) -> Json {
    if let Json::Object(map) = &mut schema {
        map.remove("required");
    }
    schema
}

/// Allows `${...}` in place of a value, and the long form of a reference.
fn open(schema: &mut Json) {
    let Json::Object(map) = schema else { return };
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            open(inner);
        }
    }
    if let Some(Json::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(open);
    }
    let reference = map.get("x-qerl") == Some(&json!("stage"));
    let text_already = !reference && map.get("type") == Some(&json!("string")) && !map.contains_key("enum");
    if map.contains_key("$ref") || text_already || schema_is_bool(map) {
        return;
    }
    let mut outer = Map::new();
    for key in ["description", "default"] {
        if let Some(value) = map.remove(key) {
            outer.insert(key.to_owned(), value);
        }
    }
    let mut choices = vec![Json::Object(std::mem::take(map))];
    if reference {
        choices.push(json!({"type": "object", "required": ["stage"], "additionalProperties": false, "properties": {
            "stage": {"type": "string"},
            "at": {"type": "object", "description": "Labels of axes that are pinned."},
            "checkpoint": {"description": "last, best, init or a step.", "type": ["string", "integer"]},
        }}));
    }
    choices.push(json!({"type": "string", "pattern": "\\$\\{.+\\}"}));
    outer.insert("anyOf".to_owned(), Json::Array(choices));
    *schema = Json::Object(outer);
}

/// A definition without any constraint stays open.
fn schema_is_bool(map: &Map<String, Json>) -> bool {
    map.is_empty()
}
