//! Element types of the safetensors format.

/// Ordered as in the reference implementation, whose writer sorts tensors by descending type, then by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

const NAMES: [(DType, &str); 16] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::F8E5M2, "F8_E5M2"),
    (DType::F8E4M3, "F8_E4M3"),
    (DType::F8E8M0, "F8_E8M0"),
    (DType::I16, "I16"),
    (DType::U16, "U16"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I32, "I32"),
    (DType::U32, "U32"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
    (DType::I64, "I64"),
    (DType::U64, "U64"),
];

impl DType {
    /// The header's spelling.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, n)| *n == name).map(|(d, _)| *d)
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5M2 | Self::F8E4M3 | Self::F8E8M0 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_its_type() {
        for (index, (dtype, name)) in NAMES.iter().enumerate() {
            assert_eq!(*dtype as usize, index, "the table must follow the order of the enum");
            assert_eq!(DType::parse(name), Some(*dtype));
        }
        assert_eq!(DType::parse("F4"), None);
    }
}
