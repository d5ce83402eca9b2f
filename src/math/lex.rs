//! Cleaned text -> tokens: numbers with their separators, symbols, commands, texts.

use super::clean::MAX_ANSWER;
use super::words::{CAPITALS, FUNCTIONS, GREEK, SHORT_WORDS, SILENT, TEXTS};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Digits with at most one point, separators taken out.
    Number(String),
    /// One letter or a Greek name, with its subscript (`a_1`).
    Symbol(String),
    /// A command or function name without its backslash.
    Command(String),
    /// Words: `\text{..}`, or plain words of several letters.
    Text(String),
    /// Any other character; `\{` and `\}` are `«` and `»`.
    Char(char),
}

/// Why an answer cannot be read as mathematics; it is then compared as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

pub(super) struct Lexer<'a> {
    pub(super) chars: Vec<char>,
    pub(super) at: usize,
    pub(super) depth: usize,
    pub(super) out: Vec<Token>,
    _text: std::marker::PhantomData<&'a str>,
}

/// Tokens of `text`; longer input than [`MAX_ANSWER`] characters is unreadable.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, Unreadable> {
    if text.len() > 4 * MAX_ANSWER {
        return Err(Unreadable);
    }
    let chars: Vec<char> = text.chars().collect();
    if chars.len() > MAX_ANSWER {
        return Err(Unreadable);
    }
    let mut lexer =
        Lexer { out: Vec::with_capacity(chars.len()), chars, at: 0, depth: 0, _text: std::marker::PhantomData };
    lexer.run()?;
    Ok(lexer.out)
}

impl Lexer<'_> {
    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn starts(&self, at: usize, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.chars.get(at + i) == Some(&c))
    }

    fn run(&mut self) -> Result<(), Unreadable> {
        while let Some(c) = self.peek(0) {
            match c {
                c if c.is_whitespace() || c == '~' || c == '$' && !self.currency() => self.at += 1,
                '0'..='9' => self.number(),
                '.' if self.peek(1).is_some_and(|d| d.is_ascii_digit()) => self.number(),
                '\\' => self.command()?,
                'a'..='z' | 'A'..='Z' => self.word(),
                '€' | '£' | '¥' | '₹' | '¢' => {
                    self.out.push(Token::Text(c.to_string()));
                    self.at += 1;
                }
                '$' => {
                    self.out.push(Token::Text("$".to_owned()));
                    self.at += 1;
                }
                '(' | '[' => {
                    self.depth += 1;
                    self.push(c);
                }
                ')' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.push(c);
                }
                '^' if self.degree_letter() => {
                    self.at += if self.peek(1) == Some('{') { 4 } else { 2 };
                    self.out.extend([Token::Char('^'), Token::Command("circ".to_owned())]);
                }
                '*' if self.peek(1) == Some('*') => {
                    self.at += 1;
                    self.push('^');
                }
                '{' if self.starts(self.at, "{-}") => {
                    // A sign in braces, for its spacing.
                    self.at += 3;
                    self.out.push(Token::Char('-'));
                }
                '{' if self.starts(self.at, "{,}") => {
                    self.at += 3;
                    self.out.push(Token::Char(','));
                }
                '<' | '>' | '!' if self.peek(1) == Some('=') => {
                    self.at += 2;
                    let name = match c {
                        '<' => "le",
                        '>' => "ge",
                        _ => "ne",
                    };
                    self.out.push(Token::Command(name.to_owned()));
                }
                c if c.is_alphabetic() => {
                    // A letter of another script: part of a word.
                    let start = self.at;
                    while self.peek(0).is_some_and(char::is_alphabetic) {
                        self.at += 1;
                    }
                    self.out.push(Token::Text(self.chars[start..self.at].iter().collect()));
                }
                c => self.push(c),
            }
        }
        Ok(())
    }

    /// A dollar sign before a number is a currency.
    fn currency(&self) -> bool {
        let mut i = 1;
        while self.peek(i) == Some(' ') {
            i += 1;
        }
        self.peek(i).is_some_and(|c| c.is_ascii_digit() || c == '.')
    }

    fn push(&mut self, c: char) {
        self.out.push(Token::Char(c));
        self.at += 1;
    }

    fn name(&self, at: usize) -> String {
        self.chars[at.min(self.chars.len())..].iter().take_while(|c| c.is_ascii_alphabetic()).collect()
    }

    /// The balanced `{..}` at the position, past blanks: its content.
    pub(super) fn braced(&mut self) -> Option<String> {
        let mut i = self.at;
        while self.chars.get(i) == Some(&' ') {
            i += 1;
        }
        if self.chars.get(i) != Some(&'{') {
            return None;
        }
        let start = i + 1;
        let mut depth = 0usize;
        while let Some(&c) = self.chars.get(i) {
            match c {
                '\\' => i += 1,
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at = i + 1;
                        return Some(self.chars[start..i].iter().collect());
                    }
                }
                _ => {}
            }
            i += 1;
        }
        None
    }

    /// A subscript becomes part of the symbol's name.
    fn symbol(&mut self, mut name: String) {
        let mut i = self.at;
        while self.chars.get(i) == Some(&' ') {
            i += 1;
        }
        if self.chars.get(i) == Some(&'_') {
            self.at = i + 1;
            let below = match self.braced() {
                Some(below) => below,
                None => {
                    let c = self.peek(0);
                    self.at += usize::from(c.is_some());
                    c.map(String::from).unwrap_or_default()
                }
            };
            name.push('_');
            name.extend(below.chars().filter(|c| !c.is_whitespace() && !matches!(c, '{' | '}' | '\\')));
        }
        let mut primes = 0;
        while self.peek(0) == Some('\'') && primes < 4 {
            name.push('\'');
            self.at += 1;
            primes += 1;
        }
        self.out.push(Token::Symbol(name));
    }

    fn word(&mut self) {
        let run = self.name(self.at);
        if matches!(run.as_str(), "st" | "nd" | "rd" | "th") && self.at > 0 && self.chars[self.at - 1].is_ascii_digit()
        {
            // `7th`: the number is meant.
            self.at += run.len();
            self.out.push(Token::Text(run));
            return;
        }
        if run == "x" && self.after_number() && self.times_ten() {
            self.at += 1;
            self.out.push(Token::Char('*'));
            return;
        }
        let after = self.peek(run.chars().count());
        if run == "US" && (after == Some('$') || self.starts(self.at + 2, "\\$")) {
            // `US$5`: the dollar says enough.
            self.at += run.len();
            return;
        }
        if CAPITALS.contains(&run.as_str()) {
            self.at += run.len();
            self.out.push(Token::Text(run));
            return;
        }
        if FUNCTIONS.contains(&run.as_str()) && !(matches!(run.as_str(), "min" | "sec") && self.after_number()) {
            self.at += run.len();
            self.out.push(Token::Command(run));
        } else if matches!(run.as_str(), "pi" | "infinity" | "inf" | "infty" | "oo") {
            self.at += run.len();
            self.out.push(Token::Command(if run == "pi" { "pi" } else { "infty" }.to_owned()));
        } else if GREEK.contains(&run.as_str()) && run.len() > 2 {
            self.at += run.len();
            self.symbol(run);
        } else if run.len() >= 4 || SHORT_WORDS.contains(&run.as_str()) || run.len() == 3 && after != Some('(') {
            self.at += run.len();
            self.out.push(Token::Text(run));
        } else {
            let c = self.chars[self.at];
            self.at += 1;
            // Digits and letters glued together (`1A3_{16}`) are read by the base parser from these tokens.
            self.symbol_unless_base(c);
        }
    }

    /// `x 10^` behind a number is a product, not a variable.
    fn times_ten(&self) -> bool {
        let rest = self.chars[self.at + 1..].iter().filter(|c| !c.is_whitespace());
        rest.take(3).eq(['1', '0', '^'].iter())
    }

    /// `60^o`, `60^{o}`: a letter in the place of the degree sign.
    fn degree_letter(&self) -> bool {
        let behind = match (self.peek(1), self.peek(2), self.peek(3)) {
            (Some('{'), Some('o'), Some('}')) => self.peek(4),
            (Some('o'), next, _) => next,
            _ => return false,
        };
        self.after_number() && !behind.is_some_and(char::is_alphanumeric)
    }

    fn after_number(&self) -> bool {
        matches!(self.out.last(), Some(Token::Number(_)))
    }

    /// `A_{16}` after a digit is the end of a number in base 16, not a symbol with a subscript.
    fn symbol_unless_base(&mut self, c: char) {
        if self.peek(0) == Some('_')
            && c.is_ascii_hexdigit()
            && matches!(self.out.last(), Some(Token::Number(_)))
            && self.at >= 2
            && self.chars[self.at - 2].is_ascii_digit()
        {
            self.out.push(Token::Symbol(c.to_string()));
        } else {
            self.symbol(c.to_string());
        }
    }

    fn command(&mut self) -> Result<(), Unreadable> {
        self.at += 1;
        let Some(c) = self.peek(0) else { return Ok(()) };
        if !c.is_ascii_alphabetic() {
            self.at += 1;
            match c {
                '{' => {
                    self.depth += 1;
                    self.out.push(Token::Char('«'));
                }
                '}' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.out.push(Token::Char('»'));
                }
                '%' => self.out.push(Token::Char('%')),
                '$' => self.out.push(Token::Text("$".to_owned())),
                '|' => self.out.push(Token::Char('‖')),
                '\\' => {
                    self.out.push(Token::Command("newline".to_owned()));
                    self.row_gap();
                }
                _ => {}
            }
            return Ok(());
        }
        let name = self.name(self.at);
        self.at += name.len();
        if TEXTS.contains(&name.as_str()) {
            let Some(content) = self.braced() else { return Ok(()) };
            return self.text(&content, &name);
        }
        match name.as_str() {
            "left" | "right" if self.peek(0) == Some('.') => self.at += 1,
            "color" | "hspace" | "vspace" | "label" | "tag" => {
                self.braced();
            }
            "textcolor" => {
                self.braced();
            }
            "dots" | "ldots" | "cdots" => self.out.push(Token::Text("...".to_owned())),
            "phantom" | "hphantom" | "vphantom" => {
                self.braced();
            }
            "colon" => self.out.push(Token::Char(':')),
            "not" if self.peek(0) == Some('=') => {
                self.at += 1;
                self.out.push(Token::Command("ne".to_owned()));
            }
            "circ" => self.out.push(Token::Command(name)),
            "lbrace" | "rbrace" => {
                self.at -= 1;
                let open = name == "lbrace";
                self.depth = if open { self.depth + 1 } else { self.depth.saturating_sub(1) };
                self.push(if open { '«' } else { '»' });
            }
            "vert" => self.out.push(Token::Char('|')),
            "langle" | "rangle" => {
                self.at -= 1;
                let open = name == "langle";
                self.depth = if open { self.depth + 1 } else { self.depth.saturating_sub(1) };
                self.push(if open { '(' } else { ')' });
            }
            "textdollar" | "textdegree" | "degree" | "pounds" | "euro" => self.out.push(match name.as_str() {
                "textdollar" => Token::Text("$".to_owned()),
                "pounds" => Token::Text("£".to_owned()),
                "euro" => Token::Text("€".to_owned()),
                _ => Token::Command("degree".to_owned()),
            }),
            "begin" | "end" => {
                let environment = self.braced().ok_or(Unreadable)?;
                let environment = environment.trim_end_matches('*');
                if name == "begin" && matches!(environment, "array" | "tabular") {
                    self.braced();
                }
                self.out.push(Token::Command(format!("{name}:{environment}")));
            }
            "mathbb" => {
                let set = match self.braced() {
                    Some(set) => set,
                    None => {
                        // `\mathbb R`.
                        while self.peek(0) == Some(' ') {
                            self.at += 1;
                        }
                        let letter = self.peek(0).filter(char::is_ascii_uppercase).ok_or(Unreadable)?;
                        self.at += 1;
                        letter.to_string()
                    }
                };
                self.out.push(Token::Command(format!("mathbb:{}", set.trim())));
            }
            _ if SILENT.contains(&name.as_str()) => {}
            _ if GREEK.contains(&name.as_str()) => self.symbol(name),
            _ => self.out.push(Token::Command(name)),
        }
        Ok(())
    }

    /// The `[2pt]` behind the end of a row says how far the next one is.
    fn row_gap(&mut self) {
        const LONGEST: usize = 12;
        let rest = &self.chars[self.at.min(self.chars.len())..];
        let Some(end) = rest.iter().take(LONGEST).position(|c| *c == ']') else { return };
        let inside: String = rest[..end].iter().collect();
        let Some(length) = inside.strip_prefix('[') else { return };
        let unit = length.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | ' '));
        if matches!(unit, "pt" | "em" | "ex" | "mm" | "cm" | "in" | "bp" | "pc" | "mu") && unit.len() < length.len() {
            self.at += end + 1;
        }
    }

    /// `\text{27}` is a number, `\text{(E)}` and `\text{cm}` are words; one letter in `\mathrm` is a symbol.
    fn text(&mut self, content: &str, command: &str) -> Result<(), Unreadable> {
        let trimmed = content.trim();
        let letters = trimmed.chars().filter(|c| c.is_alphabetic()).count();
        let function = FUNCTIONS.contains(&trimmed);
        if letters == 0 && (!trimmed.contains('\\') || matches!(trimmed, "\\$" | "\\%"))
            || matches!(trimmed, "infinity" | "Infinity")
            || letters == 1 && trimmed.len() == 1 && command != "mbox"
            || function
        {
            let digit = self.peek(0) == Some('_');
            if letters == 1 && !matches!(trimmed, "e" | "i") && self.after_number() && !digit {
                self.out.push(Token::Text(trimmed.to_owned()));
                return Ok(());
            }
            // A lone dollar sign is skipped as markup elsewhere.
            let tokens = if trimmed == "\\$" {
                vec![Token::Text("$".to_owned())]
            } else {
                lex(if trimmed == "Infinity" { "infinity" } else { trimmed })?
            };
            self.out.extend(tokens);
        } else if let Some((number, words)) = quantity(trimmed) {
            self.out.extend(lex(number)?);
            self.out.push(Token::Text(words.to_owned()));
        } else if !trimmed.is_empty() {
            self.out.push(Token::Text(trimmed.to_owned()));
        }
        Ok(())
    }
}

/// `5 cm` and `6:00 PM` inside a text: the number and the words behind it.
fn quantity(text: &str) -> Option<(&str, &str)> {
    let (number, words) = text.split_once(char::is_whitespace)?;
    let plain = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | ':' | '/'));
    let words = words.trim();
    let letters = words.starts_with(char::is_alphabetic) && !words.chars().any(|c| c.is_ascii_digit() || c == '\\');
    (plain && letters).then_some((number, words))
}
