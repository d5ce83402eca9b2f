use super::*;

fn sample<'a>(completion: &'a str, answer: &'a str) -> Sample<'a> {
    Sample { prompt: "p", completion, answer, tokens: completion.len(), truncated: false }
}

fn program(script: &str, timeout: f64) -> Program {
    let command = ["sh", "-c", script].map(str::to_owned);
    Program::new("mine", &command, timeout, Path::new(""))
}

#[test]
fn a_program_answers_and_abstains() {
    let mut program = program(
        r#"while read -r l; do id=${l#*\"id\":}; id=${id%%,*}; case $l in *skip*) r=null;; *) r=0.5;; esac; echo "{\"id\": $id, \"reward\": $r}"; done"#,
        5.0,
    );
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
    let set = |name: &str| {
        RewardSet::new(&BTreeMap::from([(name.to_owned(), RewardSpec::Weight(1.0))]), Path::new("")).unwrap()
    };
    let tagged = [sample("<think>\nx\n</think>\n<answer>\n18\n</answer>", "18")];
    set("correctness").check_gold(&tagged).unwrap();
    set("accuracy").check_gold(&tagged).unwrap();
    assert!(set("gsm8k").check_gold(&tagged).is_err());
}

#[test]
fn length_and_repetition_and_tags() {
    assert_eq!(text::length_rewards(&[2, 4, 6], &[true, false, true]), [0.5, 0.0, -0.5]);
    assert_eq!(text::length_rewards(&[3, 3], &[true, false]), [0.0, 0.0]);
    assert_eq!(text::repetition("a b c a b c", 3), 0.25);
    assert_eq!(text::repetition("a b", 3), 0.0);
    assert_eq!(text::tag_count("<think>x</think><answer>1</answer><answer>"), 0.75);
}
