use super::*;

fn sample<'a>(completion: &'a str, answer: &'a str) -> Sample<'a> {
    Sample { prompt: "p", completion, answer, tokens: completion.len(), truncated: false }
}

fn program(script: &str, timeout: f64) -> Program {
    let command = ["sh", "-c", script].map(str::to_owned);
    Program::new("mine", &command, timeout, Path::new(""))
}

/// Answers 0.5, and abstains where it reads `skip`.
const ANSWERS: &str = r#"while read -r l; do id=${l#*\"id\":}; id=${id%%,*}; case $l in *skip*) r=null;; *) r=0.5;; esac; echo "{\"id\": $id, \"reward\": $r}"; done"#;

#[test]
fn a_program_answers_and_abstains() {
    let mut program = program(ANSWERS, 5.0);
    let cancel = Cancel::new();
    assert_eq!(program.score(&sample("a", "1"), &cancel).unwrap(), Some(0.5));
    assert_eq!(program.score(&sample("skip", "1"), &cancel).unwrap(), None);
    assert_eq!(program.score(&sample("b", "1"), &cancel).unwrap(), Some(0.5));
}

#[test]
fn a_program_that_hangs_is_given_up_on_after_its_time_limit() {
    let mut program = program("exec sleep 60", 0.1);
    let start = std::time::Instant::now();
    assert_eq!(program.score(&sample("a", "1"), &Cancel::new()).unwrap(), None);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn a_program_that_crashes_or_babbles_abstains_and_ends_training_when_it_never_recovers() {
    for script in ["exit 1", "while read -r l; do echo garbage; done"] {
        let mut program = program(script, 5.0);
        let results: Vec<_> = (0..16).map(|_| program.score(&sample("a", "1"), &Cancel::new())).collect();
        assert!(results[..15].iter().all(|r| matches!(r, Ok(None))), "{script}");
        assert!(results[15].as_ref().is_err_and(|e| e.hint_text().is_some()), "{script}");
    }
}

#[test]
fn an_unknown_reward_is_refused_with_the_nearest_name() {
    let specs = BTreeMap::from([("acuracy".to_owned(), RewardSpec::Weight(1.0))]);
    let error = RewardSet::new(&specs, Path::new("")).err().unwrap();
    assert!(error.hint_text().unwrap().contains("accuracy"));
}

#[test]
fn prompt_and_reward_that_disagree_on_the_form_are_refused_at_the_start() {
    let check = |name: &str, spellings: &[Sample<'_>]| {
        let specs = BTreeMap::from([(name.to_owned(), RewardSpec::Weight(1.0))]);
        RewardSet::new(&specs, Path::new("")).unwrap().check_gold(&[spellings.to_vec()], &Cancel::new())
    };
    let bare = "<think>\n</think>\n<answer>\n18\n</answer>";
    let tagged = [sample(bare, "18"), sample("<think>\nx\n</think>\n<answer>\n18\n</answer>\n", "18")];
    for name in
        ["accuracy", "correctness", "soft_format", "strict_format", "think_format", "int", "xml_count", "tag_count"]
    {
        check(name, &tagged).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for name in ["gsm8k", "dapo"] {
        assert!(check(name, &tagged).is_err(), "{name}");
    }
    let boxed = [sample("\\boxed{18}", "18")];
    check("accuracy", &boxed).unwrap();
    for name in ["correctness", "soft_format", "strict_format", "think_format", "int", "xml_count", "tag_count"] {
        let error = check(name, &boxed).unwrap_err();
        assert!(error.to_string().contains(name) && error.hint_text().unwrap().contains("tags"), "{error}");
    }
    // What has no full marks, and answers that no form could make digits of.
    for name in ["length", "repetition"] {
        check(name, &boxed).unwrap();
    }
    check("int", &[sample("<answer>\n1/2\n</answer>", "1/2")]).unwrap();
    // A weight of 0 is only a figure in the log.
    let watched = BTreeMap::from([("dapo".to_owned(), RewardSpec::Weight(0.0))]);
    RewardSet::new(&watched, Path::new("")).unwrap().check_gold(&[tagged.to_vec()], &Cancel::new()).unwrap();
}

#[test]
fn a_program_that_cannot_work_is_refused_before_training_with_its_last_words() {
    let set = |script: &str| {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spec = RewardSpec::Program { command, weight: 1.0, timeout: 5.0 };
        RewardSet::new(&BTreeMap::from([("mine".to_owned(), spec)]), Path::new("")).unwrap()
    };
    let gold = [vec![sample("18", "18")]];
    let error = set("echo no module named torch >&2; exit 3").check_gold(&gold, &Cancel::new()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("mine") && text.contains("no module named torch") && text.contains("exit status: 3"),
        "{text}"
    );
    assert!(set("while read -r l; do echo hello; done").check_gold(&gold, &Cancel::new()).is_err());
    set(ANSWERS).check_gold(&gold, &Cancel::new()).unwrap();

    let spec = RewardSpec::Program { command: vec!["./absent.sh".into()], weight: 1.0, timeout: 5.0 };
    let error = RewardSet::new(&BTreeMap::from([("mine".to_owned(), spec)]), Path::new("")).err().unwrap();
    assert!(error.to_string().contains("absent.sh") && error.hint_text().is_some(), "{error}");
}

#[test]
fn a_program_that_crashes_once_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("crashed");
    let script = format!("if [ ! -e {0} ]; then touch {0}; exit 1; fi; {ANSWERS}", mark.display());
    let mut program = program(&script, 5.0);
    let scores: Vec<_> = (0..3).map(|_| program.score(&sample("a", "1"), &Cancel::new()).unwrap()).collect();
    assert_eq!(scores, [None, Some(0.5), Some(0.5)]);
}

#[test]
fn answers_out_of_turn_and_numbers_that_are_none_abstain() {
    // A late answer to an earlier sample is passed over; a wrong id, infinity and text are garbage.
    let late = r#"echo '{"id": 0, "reward": 0.5}'; read -r l; read -r l; echo '{"id": 0, "reward": 9}'; echo '{"id": 1, "reward": 0.25}'; cat >/dev/null"#;
    let mut late = program(late, 5.0);
    assert_eq!(late.score(&sample("a", "1"), &Cancel::new()).unwrap(), Some(0.5));
    assert_eq!(late.score(&sample("b", "1"), &Cancel::new()).unwrap(), Some(0.25));
    for answer in [r#"{"id": 7, "reward": 1}"#, r#"{"id": 0, "reward": 1e999}"#, r#"{"id": 0, "reward": "1"}"#, "[]"] {
        let mut program = program(&format!("read -r l; echo '{answer}'; cat >/dev/null"), 5.0);
        assert_eq!(program.score(&sample("a", "1"), &Cancel::new()).unwrap(), None, "{answer}");
    }
}

#[test]
fn length_and_repetition_and_tags() {
    assert_eq!(text::length_rewards(&[2, 4, 6], &[true, false, true]), [0.5, 0.0, -0.5]);
    assert_eq!(text::length_rewards(&[3, 3], &[true, false]), [0.0, 0.0]);
    assert_eq!(text::repetition("a b c a b c", 3), 0.25);
    assert_eq!(text::repetition("a b", 3), 0.0);
    assert_eq!(text::tag_count("<think>x</think><answer>1</answer><answer>"), 0.75);
}
