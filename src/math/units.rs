//! Names of units in one form, so that `cm`, `centimeters` and `\text{ cm}` are the same.

/// Empty for words that name no unit of their own (`units`, `square units`).
pub(super) fn normalise(text: &str) -> String {
    let lower = text.trim().trim_end_matches('.').to_lowercase();
    let mut square = 0;
    let mut words = Vec::new();
    for word in
        lower.split(|c: char| c.is_whitespace() || matches!(c, '~' | '\\' | ',' | '/')).filter(|w| !w.is_empty())
    {
        match word {
            "square" | "sq" => square = 2,
            "cubic" => square = 3,
            "unit" | "units" | "of" | "a" | "the" | "per" | "st" | "nd" | "rd" | "th" => {}
            _ => words.push(single(word)),
        }
    }
    let mut name = words.join(" ");
    if square > 0 && !name.is_empty() {
        name = format!("{name}^{square}");
    }
    if name.starts_with('^') { String::new() } else { name }
}

fn single(word: &str) -> String {
    let known = match word {
        "degrees" | "deg" | "degree" => "degree",
        "dollars" | "dollar" | "usd" | "$" => "$",
        "euros" | "euro" | "eur" => "€",
        "pounds" | "lb" | "lbs" => "pound",
        "cents" | "¢" => "cent",
        "centimeter" | "centimeters" | "centimetre" | "centimetres" => "cm",
        "meter" | "meters" | "metre" | "metres" => "m",
        "kilometer" | "kilometers" | "kilometre" | "kilometres" => "km",
        "millimeter" | "millimeters" => "mm",
        "inches" | "in" => "inch",
        "feet" | "ft" => "foot",
        "kilogram" | "kilograms" | "kgs" => "kg",
        "gram" | "grams" => "g",
        "hours" | "hrs" | "hr" | "h" => "hour",
        "minutes" | "mins" | "min" => "minute",
        "seconds" | "secs" | "sec" | "s" => "second",
        "liters" | "liter" | "litre" | "litres" => "l",
        "yards" | "yd" => "yard",
        "miles" | "mi" => "mile",
        "mph" => "mile hour",
        "kph" | "kmh" => "km hour",
        "p.m" | "pm" => "pm",
        "a.m" | "am" => "am",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with('s') => stem.to_owned(),
        _ => word.to_owned(),
    }
}
