//! TensorBoard event files, written by hand: TFRecord framing around a few protobuf fields.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// CRC-32C (Castagnoli, reflected).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// TFRecord's masking, so that a checksum of checksums stays a good one.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn frame(out: &mut Vec<u8>, event: &[u8]) {
    let length = (event.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend(event);
    out.extend(masked(event).to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited protobuf field.
fn bytes(out: &mut Vec<u8>, field: u8, data: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, data.len() as u64);
    out.extend(data);
}

/// tensorflow.Event with wall_time = 1 and step = 2.
fn event(time: f64, step: u64) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(time.to_le_bytes());
    out.push(2 << 3);
    varint(&mut out, step);
    out
}

/// Writes records (as in metrics.jsonl) as scalars. The time of a step is counted from 0 by `step_time`.
pub fn write(path: &Path, records: &[Map<String, Value>]) -> Result<()> {
    let mut out = Vec::new();
    let mut first = event(0.0, 0);
    bytes(&mut first, 3, b"brain.Event:2");
    frame(&mut out, &first);
    let mut time = 0.0;
    for record in records {
        time += record.get("step_time").and_then(Value::as_f64).unwrap_or(0.0);
        let step = record.get("step").and_then(Value::as_u64).unwrap_or(0);
        let mut summary = Vec::new();
        for (name, value) in record.iter().filter(|(name, _)| *name != "step") {
            let Some(value) = value.as_f64() else { continue };
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, name.as_bytes());
            scalar.push(2 << 3 | 5);
            scalar.extend((value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut data = event(time, step);
        bytes(&mut data, 5, &summary);
        frame(&mut out, &data);
    }
    fs::write(path, out).map_err(|e| Error::io("write", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn frames_say_their_length_and_hold_the_scalars() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let record = serde_json::json!({"step": 300, "loss": 0.5, "bad": null});
        write(&path, &[record.as_object().unwrap().clone()]).unwrap();
        let file = fs::read(&path).unwrap();
        let mut at = 0;
        let mut events = Vec::new();
        while at < file.len() {
            let length = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
            events.push(file[at + 12..at + 12 + length].to_vec());
            at += 16 + length;
        }
        assert_eq!((at, events.len()), (file.len(), 2));
        // step 300 as a varint, then the summary: tag "loss", value 0.5.
        let expected = [&[0x10, 0xac, 0x02, 0x2a, 13, 0x0a, 11, 0x0a, 4][..], b"loss", &[0x15], &0.5f32.to_le_bytes()];
        assert_eq!(events[1][9..], expected.concat());
    }
}
