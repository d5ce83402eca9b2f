//! Number literals in the text: thousands separators of several countries, decimals, periods, exponents.

use super::lex::{Lexer, Token};

impl Lexer<'_> {
    fn digits(&self, at: usize) -> usize {
        self.chars[at.min(self.chars.len())..].iter().take_while(|c| c.is_ascii_digit()).count()
    }

    /// Reads digits with thousands separators and a fraction.
    pub(super) fn number(&mut self) {
        let mut text = String::new();
        let first = self.digits(self.at);
        text.extend(&self.chars[self.at..self.at + first]);
        self.at += first;
        if (1..=3).contains(&first) && text != "0" {
            while let Some(next) = self.group() {
                text.extend(&self.chars[next..next + 3]);
                self.at = next + 3;
            }
        }
        if self.peek(0) == Some('.') && (self.digits(self.at + 1) > 0 || first > 0 && self.peek(1) != Some('.')) {
            let digits = self.digits(self.at + 1);
            if digits > 0 || !self.peek(1).is_some_and(char::is_alphabetic) {
                text.push('.');
                text.extend(&self.chars[self.at + 1..self.at + 1 + digits]);
                self.at += 1 + digits;
            }
        }
        if text.contains('.')
            && let Some(period) = self.period()
        {
            text = format!("{text}({period})");
        }
        let exponent = self.exponent(&text);
        self.out.push(Token::Number(text));
        if let Some((sign, digits)) = exponent {
            self.out.extend([Token::Char('*'), Token::Number("10".to_owned()), Token::Char('^'), Token::Char('{')]);
            self.out.extend((sign == '-').then_some(Token::Char('-')));
            self.out.extend([Token::Number(digits), Token::Char('}')]);
        }
    }

    /// The digits of `\\overline{3}` and the like behind a decimal point; moves past it.
    fn period(&mut self) -> Option<String> {
        let command = ["\\overline", "\\bar", "\\dot"].into_iter().find(|c| self.starts(self.at, c))?;
        let start = self.at;
        self.at += command.len();
        let one = self.peek(0).filter(|c| c.is_ascii_digit() && command != "\\bar");
        if let Some(first) = one {
            self.at += 1;
            return Some(self.dotted(first.to_string(), command));
        }
        let digits = self.braced().map(|d| d.trim().to_owned());
        let digits = digits.filter(|d| (1..=64).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_digit()));
        if digits.is_none() {
            self.at = start;
        }
        digits.map(|first| self.dotted(first, command))
    }

    /// `0.\dot{1}4285\dot{7}`: two dots are the ends of the period.
    fn dotted(&mut self, first: String, command: &str) -> String {
        let between = self.digits(self.at);
        if command != "\\dot" || first.len() != 1 || between > 60 || !self.starts(self.at + between, "\\dot") {
            return first;
        }
        let start = self.at;
        let mut period = first.clone();
        period.extend(&self.chars[start..start + between]);
        self.at += between + "\\dot".len();
        let last = match self.peek(0).filter(char::is_ascii_digit) {
            Some(digit) => {
                self.at += 1;
                Some(digit.to_string())
            }
            None => self.braced().map(|d| d.trim().to_owned()),
        };
        match last.filter(|d| d.len() == 1 && d.bytes().all(|b| b.is_ascii_digit())) {
            Some(digit) => period + &digit,
            None => {
                self.at = start;
                first
            }
        }
    }

    /// `1.2e-3`: sign and digits of the exponent; moves past it. `2e-3` stays two times e less three: only a mantissa
    /// with a point or of 1, two digits, or no sign tell that a program wrote it.
    fn exponent(&mut self, mantissa: &str) -> Option<(char, String)> {
        let mark = self.peek(0).filter(|c| matches!(c, 'e' | 'E'))?;
        let sign = self.peek(1).filter(|c| matches!(c, '+' | '-'));
        let at = self.at + 1 + usize::from(sign.is_some());
        let count = self.digits(at);
        let next = self.chars.get(at + count);
        let glued = next.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '^' | '.' | '/' | '!' | '('));
        let told = mark == 'E' || sign.is_none() || mantissa.contains('.') || mantissa == "1" || count == 2;
        if !(1..=3).contains(&count) || glued || !told || mantissa.contains('(') {
            return None;
        }
        let digits = self.chars[at..at + count].iter().collect();
        self.at = at + count;
        Some((sign.unwrap_or('+'), digits))
    }

    /// Where the next group of exactly three digits starts, if a separator and such a group follow.
    fn group(&self) -> Option<usize> {
        const SEPARATORS: &[&str] = &["{,}", ",\\!", "\\,", "\\!", "\\ ", "{\\,}", "\\:", "\\;", ",", "'", "_"];
        let at = self.at;
        let (mut next, plain) = SEPARATORS
            .iter()
            .find(|s| self.starts(at, s))
            .map(|s| (at + s.chars().count(), *s == ","))
            .or_else(|| (self.peek(0) == Some(' ')).then_some((at + 1, false)))?;
        if plain && self.depth > 0 {
            return None;
        }
        if !plain && self.chars.get(next) == Some(&' ') && self.chars.get(at) != Some(&' ') {
            next += 1;
        }
        let digits = self.digits(next);
        (digits == 3 && !(self.chars.get(next + 3) == Some(&'/') && self.chars.get(at) == Some(&' '))).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lex::{Token, lex};

    fn numbers(text: &str) -> Vec<String> {
        let tokens = lex(text).expect("readable");
        tokens
            .into_iter()
            .map(|t| match t {
                Token::Number(n) => n,
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn thousands_separators_join_only_groups_of_three() {
        for text in ["2,220", "2{,}220", "2\\,220", "2 220", "2,\\!220"] {
            assert_eq!(numbers(text), ["2220"], "{text}");
        }
        assert_eq!(numbers("11,\\! 111,\\! 111,\\! 100"), ["11111111100"]);
        assert_eq!(numbers("720, 721").len(), 3);
        assert_eq!(numbers("(100,200)").len(), 5);
    }
}
