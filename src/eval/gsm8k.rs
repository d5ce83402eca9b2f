//! lm-evaluation-harness's GSM8K scores, as its task file defines them (`gsm8k.yaml`, exact_match).

/// `#### (\-?[0-9\.\,]+)`: the first match, as that task takes it.
pub fn strict(completion: &str) -> Option<&str> {
    completion.match_indices("#### ").find_map(|(at, mark)| {
        let rest = &completion[at + mark.len()..];
        let sign = usize::from(rest.starts_with('-'));
        let end = rest[sign..]
            .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ','))
            .map_or(rest.len(), |e| e + sign);
        (end > sign).then(|| &rest[..end])
    })
}

/// `(-?[$0-9.,]{2,})|(-?[0-9]+)`: the last match.
pub fn flexible(completion: &str) -> Option<&str> {
    let bytes = completion.as_bytes();
    let mut last = None;
    let mut i = 0;
    while i < bytes.len() {
        let sign = usize::from(bytes[i] == b'-');
        let start = i + sign;
        let wide = bytes[start..].iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'$' | b'.' | b',')).count();
        let digits = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
        let length = if wide >= 2 { wide } else { digits };
        if length == 0 {
            i += 1;
            continue;
        }
        last = Some(&completion[i..start + length]);
        i = start + length;
    }
    last
}

/// exact_match with that task's `regexes_to_ignore` (`,`, `\$`, `(?s).*#### `, `\.$`), ignoring case.
pub fn matches(gold: &str, extracted: Option<&str>) -> bool {
    extracted.is_some_and(|e| clean(e) == clean(gold))
}

fn clean(text: &str) -> String {
    let text = text.rsplit("#### ").next().unwrap_or(text);
    let text: String = text.chars().filter(|c| !matches!(c, ',' | '$')).collect();
    text.strip_suffix('.').unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_filters_see_what_the_harness_sees() {
        let text = "She pays $18.50, then 3.\n#### 1,250\nThat is -7 less.";
        assert_eq!(strict(text), Some("1,250"));
        assert_eq!(flexible(text), Some("-7"));
        assert_eq!(flexible("costs $29.00."), Some("$29.00."));
        assert!(matches("29.00", flexible("costs $29.00.")));
        assert!(!matches("29", flexible("costs $29.00.")));
        assert!(matches("1250", strict(text)));
        assert_eq!(strict("####5"), None);
        assert_eq!(strict("#### apples\n#### 4"), Some("4"));
    }
}
