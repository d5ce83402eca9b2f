//! `qerl grade`: verdicts for a file of gold answers and completions.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::eval::stats;
use crate::eval::table::short;
use crate::math::{Gold, Trace, Verdict};
use crate::{Error, Result};

/// Grade completions against gold answers
///
/// Reads JSON lines with a gold answer and a completion each, and writes them again with `verdict` and `extracted`
/// added. The accuracy of the verdicts is told where rows say what is `expected` (true or false).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// JSON lines; `-` is standard input
    file: PathBuf,
    /// Field of the gold answer [default: gold, else answer]
    #[arg(long, value_name = "FIELD")]
    gold: Option<String>,
    /// Field of the completion [default: output, else completion, else response]
    #[arg(long, value_name = "FIELD")]
    output: Option<String>,
    /// Say how each verdict came about: as text, with --json as a field of each row
    #[arg(long)]
    explain: bool,
    /// Only JSON on standard output: the rows, then one line with the figures
    #[arg(long)]
    json: bool,
}

/// What came out.
#[derive(Debug, Default, Serialize)]
struct Figures {
    n: usize,
    correct: usize,
    wrong: usize,
    no_answer: usize,
    gold_unparseable: usize,
    /// Rows that say what was expected.
    expected: usize,
    agree: usize,
    /// Judged correct against what was expected, and the other way round.
    false_accepts: usize,
    false_rejects: usize,
}

impl Figures {
    fn add(&mut self, verdict: Verdict, expected: Option<bool>) {
        self.n += 1;
        *match verdict {
            Verdict::Correct => &mut self.correct,
            Verdict::Wrong => &mut self.wrong,
            Verdict::NoAnswer => &mut self.no_answer,
            Verdict::GoldUnparseable => &mut self.gold_unparseable,
        } += 1;
        let Some(expected) = expected else { return };
        let said = verdict == Verdict::Correct;
        self.expected += 1;
        self.agree += usize::from(said == expected);
        self.false_accepts += usize::from(said && !expected);
        self.false_rejects += usize::from(!said && expected);
    }

    fn text(&self) -> String {
        let share = |part: usize, all: usize| {
            let (low, high) = stats::wilson(part, all);
            let of = 100.0 * part as f64 / all.max(1) as f64;
            format!("{of:.1}% ({:.1}% to {:.1}%)", 100.0 * low, 100.0 * high)
        };
        let mut out = format!(
            "{} rows: {} correct, {} wrong, {} without an answer, {} with an unreadable gold; {} correct\n",
            self.n,
            self.correct,
            self.wrong,
            self.no_answer,
            self.gold_unparseable,
            share(self.correct, self.n)
        );
        if self.expected > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "as expected in {} of {} rows: {}; {} false accepts, {} false rejects",
                self.agree,
                self.expected,
                share(self.agree, self.expected),
                self.false_accepts,
                self.false_rejects
            );
        }
        out
    }
}

pub fn run(args: &Args) -> Result<()> {
    let input: Box<dyn BufRead> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(&args.file).map_err(|e| Error::io("open", &args.file, e))?))
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut figures = Figures::default();
    // The last gold, read once for the many completions that often follow each other.
    let mut last: Option<(String, Gold)> = None;
    for (number, line) in input.split(b'\n').enumerate() {
        let line = line.map_err(|e| Error::io("read", &args.file, e))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let mut row = Row::read(&line, args).map_err(|e| e.within(place(&args.file, number)))?;
        if last.as_ref().is_none_or(|(text, _)| *text != row.gold) {
            last = Some((row.gold.clone(), Gold::parse(&row.gold)));
        }
        let Some((_, gold)) = &last else { continue };
        let (grade, trace) = gold.explain(&row.output);
        figures.add(grade.verdict, row.expected);
        row.fields.insert("verdict".to_owned(), json!(grade.verdict));
        row.fields.insert("extracted".to_owned(), json!(grade.extracted));
        if args.explain {
            row.fields.insert("explain".to_owned(), json!(trace));
        }
        let text = if args.explain && !args.json {
            explained(number, &row, grade.verdict, &trace)
        } else {
            Value::Object(row.fields).to_string()
        };
        if !emit(&mut out, &text)? {
            return Ok(());
        }
    }
    if figures.n == 0 {
        return Err(Error::input(format!("{} holds no rows", args.file.display()))
            .hint("each line is a JSON object with a gold answer and a completion"));
    }
    if args.json {
        emit(&mut out, &json!({ "summary": figures }).to_string())?;
    }
    match out.flush() {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => return Err(Error::io("write to", "stdout", e)),
        _ => {}
    }
    if !args.json {
        eprint!("{}", figures.text());
    }
    Ok(())
}

/// Writes a line; false where nobody reads on (`| head`).
fn emit(out: &mut impl Write, line: &str) -> Result<bool> {
    match writeln!(out, "{line}") {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::io("write to", "stdout", e)),
    }
}

fn place(file: &Path, number: usize) -> String {
    format!("{}:{}", file.display(), number + 1)
}

struct Row {
    fields: Map<String, Value>,
    gold: String,
    output: String,
    expected: Option<bool>,
}

impl Row {
    fn read(line: &[u8], args: &Args) -> Result<Self> {
        let fields: Map<String, Value> =
            serde_json::from_slice(line).map_err(|e| Error::input("this line is no JSON object").caused_by(e))?;
        let gold = field(&fields, "gold answer", args.gold.as_deref(), &["gold", "answer"])?;
        let output = field(&fields, "completion", args.output.as_deref(), &["output", "completion", "response"])?;
        let expected = match fields.get("expected") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(expected)) => Some(*expected),
            Some(other) => {
                return Err(Error::input(format!("`expected` is {other}")).hint("it is true or false"));
            }
        };
        Ok(Self { fields, gold, output, expected })
    }
}

/// Text, or a number written out; null is an empty text.
fn field(fields: &Map<String, Value>, what: &str, asked: Option<&str>, usual: &[&str]) -> Result<String> {
    let name = match asked {
        Some(name) => Some(name),
        None => usual.iter().copied().find(|name| fields.contains_key(*name)),
    };
    match name.and_then(|name| fields.get(name)) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Null) => Ok(String::new()),
        Some(other) => {
            let name = name.unwrap_or_default();
            Err(Error::input(format!("`{name}` is neither text nor a number: {}", short(&other.to_string()))))
        }
        None => {
            let have: Vec<&str> = fields.keys().map(String::as_str).collect();
            let wanted = asked.map_or_else(|| usual.join("`, `"), str::to_owned);
            Err(Error::input(format!("there is no {what} in `{wanted}`"))
                .hint(format!("this row has: {}; name the fields with --gold and --output", have.join(", "))))
        }
    }
}

/// How the verdict came about, for people.
fn explained(number: usize, row: &Row, verdict: Verdict, trace: &Trace) -> String {
    let id = match row.fields.get("id") {
        Some(Value::String(id)) => format!(" ({id})"),
        Some(Value::Number(id)) => format!(" ({id})"),
        _ => String::new(),
    };
    let word = match verdict {
        Verdict::Correct => "correct",
        Verdict::Wrong => "wrong",
        Verdict::NoAnswer => "no answer",
        Verdict::GoldUnparseable => "gold unreadable",
    };
    let mark = match row.expected {
        Some(expected) if expected != (verdict == Verdict::Correct) => ", NOT as expected",
        _ => "",
    };
    let mut out = format!("line {}{id}: {word}{mark}\n", number + 1);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "  gold    {}  [{}]", short(&trace.gold), trace.gold_type);
    if let Some(extracted) = &trace.extracted {
        let kind = trace.answer_type.unwrap_or("not read");
        let _ = writeln!(out, "  answer  {}  [{kind}, by: {}]", short(extracted), trace.rule.unwrap_or("-"));
    }
    let _ = write!(out, "  because {}", trace.evidence);
    out
}
