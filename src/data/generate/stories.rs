//! Word problems of one or two operations with small numbers. Few words, so that a word-level vocabulary stays small.

use std::collections::BTreeMap;

use super::Made;
use super::draws::Draws;

const NAMES: [&str; 8] = ["Ada", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe"];
const THINGS: [&str; 10] = ["apples", "books", "cards", "coins", "eggs", "nuts", "pens", "shells", "stamps", "stones"];

#[derive(Clone, Copy)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
}

impl Op {
    fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Sub => '-',
            Self::Mul => '*',
            Self::Div => '/',
        }
    }

    /// `None` where the result is no whole number within 1..99.
    fn apply(self, x: u32, y: u32) -> Option<u32> {
        let result = match self {
            Self::Add => x + y,
            Self::Sub => x.checked_sub(y)?,
            Self::Mul => x * y,
            Self::Div if y > 0 && x.is_multiple_of(y) => x / y,
            Self::Div => return None,
        };
        (1..100).contains(&result).then_some(result)
    }

    /// The right operand: products and quotients stay within the small table.
    fn right(self, draws: &mut Draws) -> u32 {
        match self {
            Self::Add | Self::Sub => draws.within(2, 49),
            Self::Mul | Self::Div => draws.within(2, 9),
        }
    }
}

/// What the second operation takes beside the first result.
#[derive(Clone, Copy)]
enum Second {
    /// A number of its own, `{c}`.
    Own(Op),
    /// The first number again.
    First(Op),
}

struct Story {
    /// `{n}` and `{m}` are people, `{t}` things, `{a}` `{b}` `{c}` numbers.
    text: &'static str,
    first: Op,
    second: Option<Second>,
}

const fn one(text: &'static str, first: Op) -> Story {
    Story { text, first, second: None }
}

const fn two(text: &'static str, first: Op, second: Op) -> Story {
    Story { text, first, second: Some(Second::Own(second)) }
}

const ONE: [Story; 9] = [
    one("{n} has {a} {t}. {n} finds {b} more. How many {t} does {n} have now?", Op::Add),
    one("{n} has {a} {t}. {m} has {b} {t}. How many {t} do they have in all?", Op::Add),
    one("{n} has {a} {t}. {m} has {b} more than {n}. How many {t} does {m} have?", Op::Add),
    one("{n} has {a} {t} and gives {b} to {m}. How many {t} does {n} have left?", Op::Sub),
    one("{n} has {a} {t}. {m} has {b} fewer than {n}. How many {t} does {m} have?", Op::Sub),
    one("There are {a} {t} in a box. {n} takes {b} of them. How many {t} are left in the box?", Op::Sub),
    one("There are {a} boxes with {b} {t} each. How many {t} are there in all?", Op::Mul),
    one("{n} buys {a} bags of {b} {t}. How many {t} does {n} buy?", Op::Mul),
    one("{n} shares {a} {t} equally among {b} friends. How many {t} does each friend get?", Op::Div),
];

const TWO: [Story; 12] = [
    two("{n} has {a} {t}, finds {b} more and gives {c} to {m}. How many {t} does {n} have now?", Op::Add, Op::Sub),
    two(
        "{n} has {a} {t} and gives {b} to {m}. Then {n} buys {c} more. How many {t} does {n} have now?",
        Op::Sub,
        Op::Add,
    ),
    two("{n} has {a} {t}. {n} loses {b} and then gives {c} to {m}. How many {t} are left?", Op::Sub, Op::Sub),
    two("{n} has {a} {t}, {m} has {b} and a friend has {c}. How many {t} do they have in all?", Op::Add, Op::Add),
    two("There are {a} boxes with {b} {t} each. {n} takes {c} of them. How many {t} are left?", Op::Mul, Op::Sub),
    two("{n} buys {a} bags of {b} {t} and finds {c} more. How many {t} does {n} have?", Op::Mul, Op::Add),
    two(
        "{n} has {a} red {t} and {b} blue {t}. {n} shares them equally among {c} friends. How many {t} does each friend get?",
        Op::Add,
        Op::Div,
    ),
    two(
        "{n} has {a} {t} and loses {b}. {n} shares the rest equally among {c} friends. How many {t} does each friend get?",
        Op::Sub,
        Op::Div,
    ),
    two(
        "{n} has {a} {t} and finds {b} more. {m} has {c} times as many as {n} has now. How many {t} does {m} have?",
        Op::Add,
        Op::Mul,
    ),
    two(
        "{n} shares {a} {t} equally among {b} friends. One friend then finds {c} more. How many {t} does this friend have now?",
        Op::Div,
        Op::Add,
    ),
    Story {
        text: "{n} has {a} {t}. {m} has {b} more than {n}. How many {t} do they have in all?",
        first: Op::Add,
        second: Some(Second::First(Op::Add)),
    },
    Story {
        text: "{n} has {a} {t}. {m} has {b} times as many. How many {t} do they have in all?",
        first: Op::Mul,
        second: Some(Second::First(Op::Add)),
    },
];

/// Two in five problems have one operation.
pub(super) fn story(draws: &mut Draws) -> Made {
    let story = if draws.below(5) < 2 { draws.pick(&ONE) } else { draws.pick(&TWO) };
    let name = draws.below(NAMES.len() as u32) as usize;
    let other = (name + draws.within(1, NAMES.len() as u32 - 1) as usize) % NAMES.len();
    let things = *draws.pick(&THINGS);
    loop {
        // Draws that give no whole number within 1..99 are thrown away; each story has plenty that do.
        let a = match story.first {
            Op::Mul => draws.within(2, 9),
            _ => draws.within(2, 99),
        };
        let b = story.first.right(draws);
        let Some(x) = story.first.apply(a, b) else { continue };
        let mut working = format!("{a}{}{b}={x}", story.first.sign());
        let (mut answer, mut c) = (x, 0);
        if let Some(second) = story.second {
            let (op, right) = match second {
                Second::Own(op) => (op, op.right(draws)),
                Second::First(op) => (op, a),
            };
            let Some(y) = op.apply(x, right) else { continue };
            working += &format!(", {x}{}{right}={y}", op.sign());
            (answer, c) = (y, right);
        }
        let prompt = story
            .text
            .replace("{n}", NAMES[name])
            .replace("{m}", NAMES[other])
            .replace("{t}", things)
            .replace("{a}", &a.to_string())
            .replace("{b}", &b.to_string())
            .replace("{c}", &c.to_string());
        let operations = if story.second.is_some() { "2" } else { "1" };
        let tags = BTreeMap::from([("operations".to_owned(), operations.to_owned())]);
        return Made { prompt, answer, working: Some(working), tags };
    }
}
