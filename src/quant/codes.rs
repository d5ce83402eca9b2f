//! The small number formats: e2m1 (4 bits), e4m3 (8 bits, finite only), e8m0 (a power of two).

/// e2m1 values by code; bit 3 is the sign (OCP Microscaling Formats 1.0, section 5.3.3).
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// e4m3 values by code; 0x7f and 0xff are NaN.
pub const E4M3: [f32; 256] = e4m3_table();

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
        let magnitude = if exponent == 15 && mantissa == 7 {
            f32::NAN
        } else if exponent == 0 {
            mantissa as f32 / 512.0
        } else {
            // 2^(exponent - 7) * (1 + mantissa / 8), put together from its bits.
            f32::from_bits(((exponent + 120) << 23) as u32 | (mantissa << 20) as u32)
        };
        table[code] = if code & 128 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
}

/// Nearest e4m3 code, ties to even; magnitudes above 448 become 448, NaN becomes NaN.
pub fn e4m3_encode(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = x.abs().min(448.0);
    let code = if magnitude < 1.0 / 64.0 {
        // Subnormals are multiples of 2^-9; 8 of them are the first normal number and its code.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
        (rounded >> 20) - (120 << 3)
    };
    sign | code as u8
}

/// Nearest e2m1 code of `x`, ties to the even code, magnitudes above 6 become 6. The sign bit is `x < 0`: -0.0 has
/// none, a negative number that rounds to zero has one.
pub fn e2m1_encode(x: f32) -> u8 {
    let magnitude = x.abs();
    let code = if magnitude <= 0.25 {
        0
    } else if magnitude < 0.75 {
        1
    } else if magnitude <= 1.25 {
        2
    } else if magnitude < 1.75 {
        3
    } else if magnitude <= 2.5 {
        4
    } else if magnitude < 3.5 {
        5
    } else if magnitude <= 5.0 {
        6
    } else {
        7
    };
    if x < 0.0 { code | 8 } else { code }
}

/// 2^(code - 127); 255 is NaN.
pub fn e8m0_decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_value_encodes_to_its_own_code() {
        for code in 0..=255u8 {
            if !E4M3[code as usize].is_nan() {
                assert_eq!(e4m3_encode(E4M3[code as usize]), code, "{code:#x}");
            }
        }
        assert_eq!(E4M3[0x7e], 448.0);
        assert_eq!(E4M3[0x01], 0.001953125);
        assert_eq!(e4m3_encode(1e9), 0x7e);
        assert_eq!(e4m3_encode(0.125), 0x20);
        assert_eq!(e4m3_encode(f32::NAN), 0x7f);
    }

    #[test]
    fn midpoints_of_e2m1_go_to_the_even_code() {
        let ties = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for (x, nearest) in ties {
            assert_eq!(E2M1[e2m1_encode(x) as usize], nearest, "{x}");
            assert_eq!(E2M1[e2m1_encode(-x) as usize], -nearest, "-{x}");
        }
        assert_eq!(e2m1_encode(-0.0), 0, "an exact negative zero has no sign bit");
        assert_eq!(e2m1_encode(-0.1), 8, "a negative that rounds to zero keeps its sign bit");
        assert_eq!(e2m1_encode(100.0), 7);
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        assert_eq!(e8m0_decode(127), 1.0);
        assert_eq!(e8m0_decode(130), 8.0);
        assert_eq!(f64::from(e8m0_decode(0)), 2f64.powi(-127));
        assert!(e8m0_decode(255).is_nan());
    }
}
