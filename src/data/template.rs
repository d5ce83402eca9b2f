//! Prompt templates: what is put around a problem, and the form of answer that this asks for.

use std::path::Path;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, UndefinedBehavior};

use super::chat::{add, render, sandbox};
use super::text::TAGS;
use super::{DataSpec, Problem};
use crate::math::{Verdict, grade};
use crate::{Error, Result};

/// Used where an entry under `data:` names none.
pub const DEFAULT: &str = "qerl_think";

/// That of a data set: the prompts of `sums` say already how to answer.
fn default(spec: &DataSpec) -> &'static str {
    if spec.builtin.as_deref() == Some("sums") { "plain" } else { DEFAULT }
}

/// The templates that qerl knows by name, in the order of the documentation.
pub const BUILTINS: [&str; 3] = [DEFAULT, "boxed", "plain"];

const THINK_SYSTEM: &str = "Think about the problem step by step, then answer, in this form:\n<think>\nyour reasoning\n\
     </think>\n<answer>\nonly the final answer\n</answer>";

const BOXED_TAIL: &str = "\n\nReason step by step and put the final answer in \\boxed{}.";

/// Bytes of a template file.
const MAX_FILE: u64 = 1 << 20;

const NAME: &str = "prompt";

/// The form of answer that a prompt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `<think>...</think><answer>...</answer>`
    Tags,
    /// `\boxed{...}`
    Boxed,
    /// `#### ...`
    Hashes,
    /// `Answer: ...`
    Phrase,
    /// None in particular.
    Free,
}

impl Form {
    /// What a prompt's text mentions first in this list: an answer tag, a box, `####`, `Answer:`.
    fn asked_by(text: &str) -> Self {
        [("<answer>", Self::Tags), ("\\boxed", Self::Boxed), ("####", Self::Hashes), ("Answer:", Self::Phrase)]
            .into_iter()
            .find(|(mark, _)| text.contains(mark))
            .map_or(Self::Free, |(_, form)| form)
    }

    /// The gold answer in this form, behind the reference solution where there is one.
    fn write(self, answer: &str, solution: Option<&str>) -> String {
        let solution = solution.map(str::trim).filter(|s| !s.is_empty());
        let ready = |marks: &[&str]| {
            solution
                .filter(|s| marks.iter().all(|mark| s.contains(mark)) && grade(answer, s).verdict == Verdict::Correct)
        };
        // A form of another kind inside the reasoning would be a second answer.
        let reasoning = solution.map(|s| s.rsplit_once("####").map_or(s, |(before, _)| before).trim());
        let before = |gap: &str| reasoning.map(|r| format!("{r}{gap}")).unwrap_or_default();
        let done = match self {
            Self::Tags => ready(&TAGS),
            Self::Boxed => ready(&["\\boxed{"]),
            Self::Hashes => ready(&["####"]),
            Self::Phrase => ready(&["Answer:"]),
            Self::Free => ready(&[]),
        };
        if let Some(solution) = done {
            return solution.to_owned();
        }
        match self {
            Self::Tags => format!("<think>\n{}</think>\n<answer>\n{answer}\n</answer>", before("\n")),
            Self::Boxed => format!("{}\\boxed{{{answer}}}", before("\n\n")),
            Self::Hashes => format!("{}#### {answer}", before("\n")),
            Self::Phrase => format!("{}Answer: {answer}", before("\n\n")),
            Self::Free => answer.to_owned(),
        }
    }
}

/// A template with the system prompt of its data set.
#[derive(Debug)]
pub struct Template {
    body: Body,
    /// Of the data set; `Some("")` is none.
    system: Option<String>,
    form: Form,
}

#[derive(Debug)]
enum Body {
    Think,
    Boxed,
    Plain,
    File(Box<Environment<'static>>),
}

/// A problem as it is put to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub system: Option<String>,
    pub user: String,
}

impl Template {
    /// The template that `spec` names; `text` is the file's, where it names a file (`spec.template_text` where it is not
    /// given).
    pub fn open(spec: &DataSpec, text: Option<&str>) -> Result<Self> {
        let name = spec.template.as_deref().unwrap_or(default(spec));
        let body = match (name, text.or(spec.template_text.as_deref())) {
            ("qerl_think", _) => Body::Think,
            ("boxed", _) => Body::Boxed,
            ("plain", _) => Body::Plain,
            (_, Some(text)) => {
                let mut environment = sandbox(UndefinedBehavior::Strict);
                add(&mut environment, NAME, text).map_err(|e| e.within(format!("template {name:?}")))?;
                Body::File(Box::new(environment))
            }
            (_, None) => return Err(unknown(name)),
        };
        let mut template = Self { body, system: spec.system.clone(), form: Form::Free };
        let probe = Problem { prompt: "(qerl-problem-probe)".to_owned(), ..Problem::default() };
        let put = template.put(&probe)?;
        if !put.user.contains(&probe.prompt) {
            return Err(Error::usage(format!("template {name:?} leaves the problem out"))
                .hint("write `{{ problem }}` where the problem's text belongs"));
        }
        template.form = Form::asked_by(&format!("{}\n{}", put.system.as_deref().unwrap_or(""), put.user));
        Ok(template)
    }

    /// The problem's system and user text.
    pub fn put(&self, problem: &Problem) -> Result<Put> {
        let (system, user) = match &self.body {
            Body::Think => (Some(THINK_SYSTEM.to_owned()), problem.prompt.clone()),
            Body::Boxed => (None, format!("{}{BOXED_TAIL}", problem.prompt)),
            Body::Plain => (None, problem.prompt.clone()),
            Body::File(environment) => {
                // Neither answer nor solution: a prompt cannot give them away.
                let context = minijinja::context! {
                    problem => &problem.prompt, id => &problem.id, tags => Value::from(Serde(&problem.tags)),
                };
                let (user, system) = render(environment, NAME, context)
                    .map_err(|e| e.within("the prompt template").hint("it may use problem, id and tags.NAME"))?;
                (system, user)
            }
        };
        let system = self.system.clone().or(system).filter(|s| !s.is_empty());
        Ok(Put { system, user })
    }

    /// The form of answer that the prompt asks for.
    pub fn form(&self) -> Form {
        self.form
    }

    /// A completion that gives the gold answer in the prompted form: the reference solution where it is in that form,
    /// the form around the solution or the bare answer else.
    pub fn ideal(&self, problem: &Problem) -> String {
        self.form.write(&problem.answer, problem.solution.as_deref())
    }
}

/// The text of the file that `spec` names as its template, `None` for templates known by name. `dir` is where relative
/// paths start.
pub fn file_text(spec: &DataSpec, dir: &Path) -> Result<Option<String>> {
    let Some(name) = spec.template.as_deref().filter(|name| !BUILTINS.contains(name)) else { return Ok(None) };
    if let Some(text) = &spec.template_text {
        return Ok(Some(text.clone()));
    }
    let path = dir.join(name);
    if !path.is_file() {
        return Err(unknown(name));
    }
    super::files::read_text(&path, MAX_FILE).map(Some)
}

fn unknown(name: &str) -> Error {
    let near = BUILTINS.iter().max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
    let near = near.filter(|n| strsim::jaro_winkler(n, name) > 0.8).map(|n| format!("did you mean `{n}`? "));
    Error::usage(format!("there is no prompt template {name:?}")).hint(format!(
        "{}templates are {}, or a file in the pipeline's folder",
        near.unwrap_or_default(),
        BUILTINS.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Problem {
        Problem { id: "7".into(), prompt: "What is 2 + 3?".into(), answer: "5".into(), ..Problem::default() }
    }

    fn open(name: &str) -> Template {
        Template::open(&DataSpec { template: Some(name.into()), ..DataSpec::default() }, None).unwrap()
    }

    #[test]
    fn a_gold_answer_in_the_prompted_form_is_graded_right() {
        let mut solved = problem();
        solved.solution = Some("2 + 3 = 5\n#### 5".into());
        for name in BUILTINS {
            for problem in [problem(), solved.clone()] {
                let ideal = open(name).ideal(&problem);
                assert_eq!(grade("5", &ideal).verdict, Verdict::Correct, "{name}: {ideal}");
            }
        }
        assert_eq!(open("qerl_think").ideal(&problem()), "<think>\n</think>\n<answer>\n5\n</answer>");
        assert_eq!(open("qerl_think").ideal(&solved), "<think>\n2 + 3 = 5\n</think>\n<answer>\n5\n</answer>");
        assert_eq!(open("boxed").ideal(&solved), "2 + 3 = 5\n\n\\boxed{5}");
        assert_eq!(open("plain").ideal(&solved), "2 + 3 = 5\n#### 5");
        let whole = "<think>\nadd\n</think>\n<answer>\n5\n</answer>";
        solved.solution = Some(whole.into());
        assert_eq!(open("qerl_think").ideal(&solved), whole);
    }

    #[test]
    fn a_file_sets_system_and_form() {
        let text = "{% set system = 'Be brief.' %}\nSolve: {{ problem }}\nEnd with #### and the answer.";
        let spec = DataSpec { template: Some("mine.j2".into()), ..DataSpec::default() };
        let template = Template::open(&spec, Some(text)).unwrap();
        let put = template.put(&problem()).unwrap();
        assert_eq!(put.system.as_deref(), Some("Be brief."));
        assert_eq!(put.user, "Solve: What is 2 + 3?\nEnd with #### and the answer.");
        assert_eq!((template.form(), template.ideal(&problem()).as_str()), (Form::Hashes, "#### 5"));
        let spec = DataSpec { system: Some(String::new()), ..spec };
        assert_eq!(Template::open(&spec, Some(text)).unwrap().put(&problem()).unwrap().system, None);
    }

    #[test]
    fn templates_that_cannot_work_are_refused() {
        let spec = DataSpec { template: Some("mine.j2".into()), ..DataSpec::default() };
        let refused = |text: &str| Template::open(&spec, Some(text)).unwrap_err();
        assert!(refused("Solve it.").to_string().contains("leaves the problem out"));
        assert!(refused("{{ problem }} {{ answer }}").hint_text().unwrap().contains("problem, id and tags"));
        assert!(refused("{% if %}").to_string().contains("line 1"));
        let typo = DataSpec { template: Some("qerl_thik".into()), ..DataSpec::default() };
        let error = Template::open(&typo, None).unwrap_err();
        assert!(error.hint_text().unwrap().contains("did you mean `qerl_think`"), "{error}");
    }
}
