//! Tokens -> an expression tree, by recursive descent with a depth limit.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};

use super::lex::{Token, Unreadable};
use super::number::rational;
use super::words::FUNCTIONS;

/// Nesting deeper than this is unreadable.
const MAX_DEPTH: usize = 48;
/// Functions of an angle.
pub(super) const TRIGONOMETRIC: [&str; 6] = ["sin", "cos", "tan", "cot", "sec", "csc"];

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Number(BigRational),
    Symbol(String),
    Pi,
    E,
    I,
    Infinity,
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    /// 1 / x.
    Inverse(Box<Expr>),
    Power(Box<Expr>, Box<Expr>),
    /// Name and arguments; `log` has an optional second one, the base. `!` is the factorial, `pm` the double sign
    /// (one argument: plus or minus it), `mp` its opposite.
    Call(String, Vec<Expr>),
}

impl Expr {
    pub(super) fn integer(n: i64) -> Self {
        Self::Number(BigRational::from_integer(BigInt::from(n)))
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Number(n) => Self::Number(-n),
            other => Self::Product(vec![Self::integer(-1), other]),
        }
    }

    /// With every double sign replaced by plus (`sign` 1) or minus (-1); `mp` gets the opposite.
    pub(super) fn signed(&self, sign: i64) -> Self {
        let all = |list: &[Self]| list.iter().map(|x| x.signed(sign)).collect::<Vec<_>>();
        match self {
            Self::Call(name, args) if name == "pm" || name == "mp" => {
                let inner = args[0].signed(sign);
                if (sign > 0) == (name == "pm") { inner } else { inner.negated() }
            }
            Self::Sum(list) => Self::Sum(all(list)),
            Self::Product(list) => Self::Product(all(list)),
            Self::Inverse(x) => Self::Inverse(Box::new(x.signed(sign))),
            Self::Power(a, b) => Self::Power(Box::new(a.signed(sign)), Box::new(b.signed(sign))),
            Self::Call(name, args) => Self::Call(name.clone(), all(args)),
            other => other.clone(),
        }
    }

    pub(super) fn any(&self, test: &dyn Fn(&Self) -> bool) -> bool {
        test(self)
            || match self {
                Self::Sum(list) | Self::Product(list) | Self::Call(_, list) => list.iter().any(|x| x.any(test)),
                Self::Inverse(x) => x.any(test),
                Self::Power(a, b) => a.any(test) || b.any(test),
                _ => false,
            }
    }

    pub(super) fn has_double_sign(&self) -> bool {
        self.any(&|x| matches!(x, Self::Call(name, _) if name == "pm" || name == "mp"))
    }

    pub(super) fn has_symbol(&self) -> bool {
        self.any(&|x| matches!(x, Self::Symbol(_)))
    }
}

/// The whole slice as one expression.
pub(super) fn parse(tokens: &[Token]) -> Result<Expr, Unreadable> {
    let mut parser = Parser { tokens, at: 0, depth: 0, degrees: false };
    let expr = parser.sum()?;
    if parser.at == tokens.len() { Ok(expr) } else { Err(Unreadable) }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    /// A degree sign was read since this was last cleared.
    degrees: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Token::Char(c));
        self.at += usize::from(found);
        found
    }

    fn eat_command(&mut self, names: &[&str]) -> bool {
        let found = matches!(self.peek(), Some(Token::Command(name)) if names.contains(&name.as_str()));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Result<(), Unreadable> {
        if self.eat(c) { Ok(()) } else { Err(Unreadable) }
    }

    fn sum(&mut self) -> Result<Expr, Unreadable> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unreadable);
        }
        let mut terms = vec![self.product()?];
        loop {
            if self.eat('+') {
                terms.push(self.product()?);
            } else if self.eat('-') {
                terms.push(self.product()?.negated());
            } else if self.eat_command(&["pm"]) {
                terms.push(Expr::Call("pm".to_owned(), vec![self.product()?]));
            } else if self.eat_command(&["mp"]) {
                terms.push(Expr::Call("mp".to_owned(), vec![self.product()?]));
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(if terms.len() == 1 { terms.remove(0) } else { Expr::Sum(terms) })
    }

    fn product(&mut self) -> Result<Expr, Unreadable> {
        let mut factors = vec![self.signed_power()?];
        loop {
            if self.eat('*') || self.eat_command(&["cdot", "times", "ast", "bullet"]) {
                factors.push(self.signed_power()?);
            } else if self.eat('/') || self.eat_command(&["div"]) {
                factors.push(Expr::Inverse(Box::new(self.signed_power()?)));
            } else if self.starts_factor() {
                // `2 3` is nothing; a number may only be multiplied silently by something else.
                // (`3!7!` and `\pi 4^2` cannot be misread).
                let told = |t: &Token| matches!(t, Token::Char('!')) || matches!(t, Token::Command(c) if c == "pi");
                if matches!(self.peek(), Some(Token::Number(_))) && self.at > 0 && !told(&self.tokens[self.at - 1]) {
                    return Err(Unreadable);
                }
                factors.push(self.power()?);
            } else {
                break;
            }
        }
        Ok(if factors.len() == 1 { factors.remove(0) } else { Expr::Product(factors) })
    }

    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_) | Token::Symbol(_)) => true,
            Some(Token::Char(c)) => matches!(c, '(' | '[' | '{'),
            Some(Token::Command(name)) => {
                matches!(
                    name.as_str(),
                    "frac"
                        | "dfrac"
                        | "tfrac"
                        | "cfrac"
                        | "sqrt"
                        | "pi"
                        | "infty"
                        | "binom"
                        | "dbinom"
                        | "tbinom"
                        | "lfloor"
                        | "lceil"
                ) || FUNCTIONS.contains(&name.as_str())
            }
            _ => false,
        }
    }

    fn signed_power(&mut self) -> Result<Expr, Unreadable> {
        let mut negative = false;
        let mut double = None;
        loop {
            if self.eat('-') {
                negative = !negative;
            } else if self.eat_command(&["pm"]) {
                double = Some("pm");
            } else if self.eat_command(&["mp"]) {
                double = Some("mp");
            } else if !self.eat('+') {
                break;
            }
        }
        let mut value = self.power()?;
        if negative {
            // The sign binds weaker than what is multiplied silently; for a product that is the same value.
            value = value.negated();
        }
        Ok(match double {
            Some(name) => Expr::Call(name.to_owned(), vec![value]),
            None => value,
        })
    }

    fn power(&mut self) -> Result<Expr, Unreadable> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unreadable);
        }
        let mut base = self.primary()?;
        loop {
            if self.eat('!') {
                base = Expr::Call("!".to_owned(), vec![base]);
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(Unreadable);
                }
            } else if self.eat('^') {
                if self.eat_command(&["circ", "degree"]) {
                    self.degrees = true;
                    break;
                }
                if self.at + 2 < self.tokens.len()
                    && self.tokens[self.at] == Token::Char('{')
                    && matches!(&self.tokens[self.at + 1], Token::Command(c) if c == "circ")
                    && self.tokens[self.at + 2] == Token::Char('}')
                {
                    self.at += 3;
                    self.degrees = true;
                    break;
                }
                let exponent = self.exponent()?;
                base = Expr::Power(Box::new(base), Box::new(exponent));
                break;
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(base)
    }

    /// After `^`: a signed power, so that `a^b^c` is `a^(b^c)`.
    fn exponent(&mut self) -> Result<Expr, Unreadable> {
        let mut negative = false;
        while self.eat('-') {
            negative = !negative;
        }
        let value = self.power()?;
        Ok(if negative { value.negated() } else { value })
    }

    /// An argument of `\frac` and `\sqrt`: a group, one digit of a number (`\frac37`), or one token.
    fn argument(&mut self) -> Result<Expr, Unreadable> {
        if self.peek() == Some(&Token::Char('{')) {
            return self.group();
        }
        match self.peek() {
            Some(Token::Symbol(_) | Token::Command(_)) => self.primary(),
            Some(Token::Number(digits)) if digits.len() == 1 => self.primary(),
            _ => Err(Unreadable),
        }
    }

    fn group(&mut self) -> Result<Expr, Unreadable> {
        self.expect('{')?;
        let value = self.sum()?;
        let value = if self.eat_command(&["over"]) {
            Expr::Product(vec![value, Expr::Inverse(Box::new(self.sum()?))])
        } else if self.eat_command(&["choose"]) {
            Expr::Call("binom".to_owned(), vec![value, self.sum()?])
        } else {
            value
        };
        self.expect('}')?;
        Ok(value)
    }

    fn fraction(&mut self) -> Result<Expr, Unreadable> {
        let (numerator, denominator) = self.two_arguments()?;
        Ok(Expr::Product(vec![numerator, Expr::Inverse(Box::new(denominator))]))
    }

    fn two_arguments(&mut self) -> Result<(Expr, Expr), Unreadable> {
        // `\frac37` and `\frac3{19}`: the lexer has read `37` as one number.
        if let Some(Token::Number(digits)) = self.peek()
            && digits.len() == 2
            && digits.bytes().all(|b| b.is_ascii_digit())
            && self.tokens.get(self.at + 1) != Some(&Token::Char('{'))
        {
            self.at += 1;
            let (a, b) = digits.split_at(1);
            return Ok((Expr::Number(rational(a)?), Expr::Number(rational(b)?)));
        }
        Ok((self.argument()?, self.argument()?))
    }

    fn primary(&mut self) -> Result<Expr, Unreadable> {
        let token = self.peek().ok_or(Unreadable)?;
        match token {
            Token::Number(text) => {
                let value = rational(text)?;
                self.at += 1;
                self.mixed(value, text)
            }
            Token::Symbol(name) => {
                self.at += 1;
                Ok(match name.as_str() {
                    "e" => Expr::E,
                    "i" => Expr::I,
                    _ => Expr::Symbol(name.clone()),
                })
            }
            Token::Char('(') => self.bracketed('(', ')'),
            Token::Char('[') => self.bracketed('[', ']'),
            Token::Char('{') => self.group(),
            Token::Char('|') => {
                self.at += 1;
                let inner = self.sum()?;
                self.expect('|')?;
                Ok(Expr::Call("abs".to_owned(), vec![inner]))
            }
            Token::Command(name) => {
                self.at += 1;
                self.named(name)
            }
            _ => Err(Unreadable),
        }
    }

    fn bracketed(&mut self, open: char, close: char) -> Result<Expr, Unreadable> {
        self.expect(open)?;
        let inner = self.sum()?;
        self.expect(close)?;
        Ok(inner)
    }

    /// `4\frac{2}{3}` and `4 2/3` with plain proper fractions are mixed numbers.
    fn mixed(&mut self, whole: BigRational, text: &str) -> Result<Expr, Unreadable> {
        let start = self.at;
        let fraction = if text.contains('.') {
            None
        } else if self.eat_command(&["frac", "dfrac", "tfrac", "cfrac"]) {
            self.fraction().ok()
        } else if let (Some(Token::Number(a)), Some(Token::Char('/')), Some(Token::Number(b))) =
            (self.peek(), self.tokens.get(self.at + 1), self.tokens.get(self.at + 2))
        {
            self.at += 3;
            Some(Expr::Product(vec![Expr::Number(rational(a)?), Expr::Inverse(Box::new(Expr::Number(rational(b)?)))]))
        } else {
            None
        };
        if let Some(Expr::Product(parts)) = &fraction
            && let [Expr::Number(a), Expr::Inverse(b)] = parts.as_slice()
            && let Expr::Number(b) = b.as_ref()
            && a.is_integer()
            && b.is_integer()
            && !a.is_zero()
            && a > &BigRational::zero()
            && a < b
            && !whole.is_zero()
        {
            return Ok(Expr::Number(whole + a / b));
        }
        self.at = start;
        Ok(Expr::Number(whole))
    }

    fn named(&mut self, name: &str) -> Result<Expr, Unreadable> {
        match name {
            "pi" => Ok(Expr::Pi),
            "infty" => Ok(Expr::Infinity),
            "frac" | "dfrac" | "tfrac" | "cfrac" => self.fraction(),
            "sqrt" => {
                let mut index = Expr::integer(2);
                if self.peek() == Some(&Token::Char('[')) {
                    index = self.bracketed('[', ']')?;
                }
                // `\sqrt35` takes one digit in LaTeX, but who writes it means 35.
                let inner = match self.peek() {
                    Some(Token::Number(_)) => {
                        let Some(Token::Number(text)) = self.peek() else { return Err(Unreadable) };
                        self.at += 1;
                        Expr::Number(rational(text)?)
                    }
                    Some(Token::Char('(')) => self.bracketed('(', ')')?,
                    _ => self.argument()?,
                };
                Ok(Expr::Power(Box::new(inner), Box::new(Expr::Inverse(Box::new(index)))))
            }
            "binom" | "dbinom" | "tbinom" => {
                let (n, k) = self.two_arguments()?;
                Ok(Expr::Call("binom".to_owned(), vec![n, k]))
            }
            "lfloor" => self.between("floor", "rfloor"),
            "lceil" => self.between("ceil", "rceil"),
            "lvert" => self.between("abs", "rvert"),
            _ if FUNCTIONS.contains(&name) => self.call(name),
            _ => Err(Unreadable),
        }
    }

    fn between(&mut self, function: &str, close: &str) -> Result<Expr, Unreadable> {
        let inner = self.sum()?;
        if self.eat_command(&[close]) { Ok(Expr::Call(function.to_owned(), vec![inner])) } else { Err(Unreadable) }
    }

    /// `\sin^2 x`, `\log_2 4`, `exp(9)`, `\ln 32`; without brackets the argument is a product without signs.
    fn call(&mut self, name: &str) -> Result<Expr, Unreadable> {
        let mut base = None;
        if self.eat('_') {
            base = Some(if self.peek() == Some(&Token::Char('{')) { self.group()? } else { self.primary()? });
        }
        let exponent = if self.eat('^') { Some(self.exponent()?) } else { None };
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unreadable);
        }
        let mut args = Vec::new();
        let outside = std::mem::take(&mut self.degrees);
        if self.eat('(') {
            args.push(self.sum()?);
            while self.eat(',') {
                args.push(self.sum()?);
                if args.len() > 64 {
                    return Err(Unreadable);
                }
            }
            self.expect(')')?;
        } else {
            let mut factors = Vec::new();
            while self.starts_factor() || factors.is_empty() {
                if !factors.is_empty()
                    && matches!(self.peek(), Some(Token::Command(name)) if FUNCTIONS.contains(&name.as_str()) && name != "sqrt")
                {
                    break;
                }
                factors.push(if factors.is_empty() { self.signed_power()? } else { self.power()? });
                if self.peek() == Some(&Token::Char('/'))
                    && matches!(self.tokens.get(self.at + 1), Some(Token::Number(_)))
                {
                    self.at += 1;
                    factors.push(Expr::Inverse(Box::new(self.power()?)));
                }
            }
            args.push(if factors.len() == 1 { factors.remove(0) } else { Expr::Product(factors) });
        }
        self.depth -= 1;
        let in_degrees = std::mem::replace(&mut self.degrees, outside);
        let name = match name {
            "asin" => "arcsin",
            "acos" => "arccos",
            "atan" | "arctg" => "arctan",
            "arcctg" => "arccot",
            "tg" => "tan",
            "ctg" => "cot",
            other => other,
        };
        if in_degrees && TRIGONOMETRIC.contains(&name) {
            let degree = Expr::Inverse(Box::new(Expr::integer(180)));
            args = args.into_iter().map(|x| Expr::Product(vec![x, Expr::Pi, degree.clone()])).collect();
        }
        let mut value = match name {
            "exp" => Expr::Power(Box::new(Expr::E), Box::new(args.remove(0))),
            "sqrt" => Expr::Power(Box::new(args.remove(0)), Box::new(Expr::Inverse(Box::new(Expr::integer(2))))),
            "lg" => Expr::Call("log".to_owned(), vec![args.remove(0), Expr::integer(10)]),
            "log" => {
                let mut list = vec![args.remove(0)];
                list.extend(base.take());
                Expr::Call("log".to_owned(), list)
            }
            _ => Expr::Call(name.to_owned(), args),
        };
        if base.is_some() {
            return Err(Unreadable);
        }
        if let Some(exponent) = exponent {
            let minus_one = Expr::Number(-BigRational::one());
            value = match (&value, name) {
                (Expr::Call(_, args), name) if TRIGONOMETRIC.contains(&name) && exponent == minus_one => {
                    Expr::Call(format!("arc{name}"), args.clone())
                }
                _ => Expr::Power(Box::new(value), Box::new(exponent)),
            };
        }
        Ok(value)
    }
}
